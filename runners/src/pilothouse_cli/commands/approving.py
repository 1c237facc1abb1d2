"""`approvals`, and `approve` and `deny` for many runs: what waits, the question, a patch for each, what became of it.

A decision names the call that the person was shown: what began to wait afterwards is not decided by it.
"""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.commands.places import Place
from pilothouse_cli.exits import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_PARKED, EXIT_SUCCEEDED, CliError, Forbidden
from pilothouse_cli.pending import Choice, PendingCall, pending_calls
from pilothouse_cli.runs import Runs, snapshot_of, wait_for_answer
from pilothouse_cli.tables import pending_data, pending_table
from pilothouse_cli.terminal import clean_line, print_data, print_names, say, show, stderr
from pilothouse_control.directives import Directive, approval_directive, is_finished

CONCURRENCY = 8
"""Patches under way at once: a fleet is decided in seconds, and the API server still answers others."""

YES = frozenset({"y", "yes"})


@dataclass(frozen=True, slots=True)
class Given:
    """A decision that stands in the spec of its run and is not answered yet."""

    call: PendingCall
    run: AgentRun
    directive: Directive


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the decision on one call: `state` is a key of `_SAID`."""

    call: PendingCall
    state: str
    turn: int | None = None
    message: str = ""


_SAID: Mapping[str, str] = {
    "Landed": "landed",
    "Asked": "asked for",
    "Kept": "kept, and lands when the run goes on",
    "Waiting": "not landed yet",
    "NotLanded": "not landed",
    "Superseded": "superseded",
    "NotPending": "not pending any more",
    "Expired": "expired",
    "Decided": "decided by somebody else",
    "Ended": "too late, the run has ended",
    "Gone": "gone with its run",
    "Forbidden": "forbidden",
    "Failed": "failed",
}
_WENT_WELL = frozenset({"Landed", "Asked", "Kept"})


def list_approvals(place: Place, choice: Choice, output: str) -> int:
    """Print the calls that wait for a person."""
    runs = place.all_runs()
    calls = pending_calls(runs.select(choice.selector), choice)
    if output == "name":
        print_names(dict.fromkeys(call.run.metadata.name for call in calls))
    elif output != "table":
        print_data([pending_data(call) for call in calls], output)
    elif calls:
        show(pending_table(calls, datetime.now(UTC)))
    else:
        say(_nothing(runs, choice))
    return EXIT_SUCCEEDED


def decide_all(
    place: Place,
    choice: Choice,
    decision: Mapping[str, Any],
    *,
    is_agreed: bool,
    wait: bool,
    timeout: float,
    output: str,
) -> int:
    """Approve or deny all calls that wait and are meant, once the person has seen them and said yes."""
    runs, verb = place.all_runs(), str(decision["decision"])
    calls = [call for call in pending_calls(runs.select(choice.selector), choice) if call.is_open]
    if calls:
        _ask(runs, calls, verb, is_agreed=is_agreed, output=output)
    else:
        say(_nothing(runs, choice))
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        given = list(pool.map(lambda call: _give(runs, call, decision), calls))
    ends = time.monotonic() + (timeout if wait else 0.0)
    outcomes = [one if isinstance(one, Outcome) else _follow(runs, one, ends, wait=wait) for one in given]
    _print_outcomes(outcomes, verb, output)
    return _exit_code(outcomes)


def _nothing(runs: Runs, choice: Choice) -> str:
    is_narrow = any(part is not None for part in (choice.selector, choice.workflow, choice.tool))
    return f"no call{' of those' if is_narrow else ''} waits for a person in {runs.where}"


# ---------------------------------------------------------------- the question


def _ask(runs: Runs, calls: Sequence[PendingCall], verb: str, *, is_agreed: bool, output: str) -> None:
    """Show what is decided on, and go on only when the person agrees; raises CliError."""
    table = pending_table(calls, datetime.now(UTC))
    if output == "table":
        show(table)
    elif not is_agreed:
        stderr().print(table)
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise CliError("nobody can be asked here whether all of this is meant", f"{verb.lower()} … --yes")
    count = len({call.run.metadata.name for call in calls})
    say(f"{verb} {_plural(len(calls), 'call')} of {_plural(count, 'run')} in {runs.where}? [y/N]")
    if sys.stdin.readline().strip().lower() not in YES:
        raise CliError("nothing was decided", "", EXIT_FAILED)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# ---------------------------------------------------------------- the decisions


def _give(runs: Runs, call: PendingCall, decision: Mapping[str, Any]) -> Given | Outcome:
    name, directive = call.run.metadata.name, approval_directive(call.call, decision)
    try:
        if call.given is not None:  # it was refused: an entry cannot be changed, only taken back and set anew
            runs.patch(name, {"control": {"approvals": {call.call: None}}})
        return Given(call, runs.patch(name, directive.patch), directive)
    except Forbidden as error:
        return Outcome(call, "Forbidden", message=error.message)
    except CliError as error:
        return _why_not(runs, call, error)


def _why_not(runs: Runs, call: PendingCall, refusal: CliError) -> Outcome:
    """Return why a decision was refused, as the run stands now."""
    try:
        run = runs.get(call.run.metadata.name)
    except CliError as error:
        return _unread(call, error)
    if is_finished(run):
        return Outcome(call, "Ended")
    if run.spec.control is not None and call.call in run.spec.control.approvals:
        return Outcome(call, "Decided", message=run.spec.control.approvals[call.call].decision)
    if call.call not in {pending.call_id for pending in snapshot_of(run).pending_approvals}:
        return Outcome(call, "NotPending")
    return Outcome(call, "Failed", message=refusal.message)


def _unread(call: PendingCall, error: CliError) -> Outcome:
    state = "Gone" if error.code == EXIT_NOT_FOUND and not isinstance(error, Forbidden) else "Failed"
    return Outcome(call, state, message=error.message)


def _follow(runs: Runs, given: Given, ends: float, *, wait: bool) -> Outcome:
    """Return the answer to a decision, as far as there is one when the time ends."""
    if not wait:
        return Outcome(given.call, "Asked")
    try:
        run = runs.get(given.run.metadata.name)  # it may be answered: others were waited for before
        _, answer = wait_for_answer(runs, run, given.directive, max(0.0, ends - time.monotonic()))
    except CliError as error:
        return _unread(given.call, error)
    return Outcome(given.call, answer.state, answer.turn, answer.message)


# ---------------------------------------------------------------- the report


def _print_outcomes(outcomes: Sequence[Outcome], verb: str, output: str) -> None:
    if output == "name":
        print_names(dict.fromkeys(one.call.run.metadata.name for one in outcomes if one.state in _WENT_WELL))
    elif output != "table":
        print_data([{**pending_data(one.call), **_outcome_data(one, verb)} for one in outcomes], output)
    else:
        for one in outcomes:
            print(_line(one, verb), flush=True)
    if outcomes:
        counts = Counter(one.state for one in outcomes)
        good = sum(counts[state] for state in _WENT_WELL)
        others = [f"{count} {_SAID[state]}" for state, count in counts.items() if state not in _WENT_WELL]
        how = "given" if counts["Asked"] or counts["Kept"] else "landed"
        say(", ".join([f"{good}/{len(outcomes)} {how}", *others]))


def _outcome_data(outcome: Outcome, verb: str) -> dict[str, Any]:
    return {"decision": verb, "outcome": outcome.state, "turn": outcome.turn, "message": outcome.message}


def _line(outcome: Outcome, verb: str) -> str:
    what = f"{'approval' if verb == 'Approve' else 'denial'} of {outcome.call.call}"
    where = f" at turn {outcome.turn}" if outcome.turn is not None else ""
    why = f": {outcome.message}" if outcome.message else ""
    return clean_line(f"{outcome.call.run.metadata.name}: {what} {_SAID[outcome.state]}{where}{why}", 500)


def _exit_code(outcomes: Sequence[Outcome]) -> int:
    """Return 5 where a right was missing, else 1 where a decision came to nothing, else 4 where one has not landed."""
    states = {outcome.state for outcome in outcomes} - _WENT_WELL
    if "Forbidden" in states:
        return EXIT_NOT_FOUND
    if states - {"Waiting"}:
        return EXIT_FAILED
    return EXIT_PARKED if states else EXIT_SUCCEEDED
