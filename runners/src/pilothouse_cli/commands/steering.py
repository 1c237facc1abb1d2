"""`pause`, `resume`, `finish`, `abort`, `steer`, `limit`, `approve`, `deny`: a patch, and the wait for its landing."""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import ChildApproval, RunLimits
from pilothouse_cli.commands.inspecting import print_run
from pilothouse_cli.commands.places import Place
from pilothouse_cli.exits import EXIT_FAILED, EXIT_PARKED, EXIT_SUCCEEDED, CliError
from pilothouse_cli.local.runs import LocalRuns
from pilothouse_cli.runs.port import Runs, snapshot_of, wait_for_answer
from pilothouse_cli.terminal import clean_line, say
from pilothouse_control.children import asked_of_people
from pilothouse_control.directives import (
    Answer,
    Directive,
    WrongEdit,
    answered_steers,
    approval_directive,
    argument_edit,
    is_finished,
    is_held_at_barrier,
    limits_directive,
    mode_directive,
    prunable_steers,
    reason_to_go_on,
    steer_directive,
)

TEXT_LIMITS = frozenset({"costBudgetUSD", "onPauseTimeout"})
OWN_STEER = re.compile(r"s-[0-9a-f]{6}$")
"""Ids of messages for which nobody named one."""


def set_mode(place: Place, name: str, mode: str, *, reason: str | None, wait: bool, timeout: float, output: str) -> int:
    """Ask for a mode and wait until it has landed."""
    runs = place.runs_of(name)
    directive = mode_directive(mode, reason)
    run = _ask(runs, name, directive)
    if mode in ("Finish", "Abort") and isinstance(runs, LocalRuns) and not runs.is_advancing(run):
        # Nothing else would ever end it: this process makes the attempt that does.
        from pilothouse_cli.local.host import advance_silently

        advance_silently(runs.folder(name))
        run = runs.get(name)
    return _report(runs, run, directive, wait=wait, timeout=timeout, output=output)


def resume(place: Place, name: str, *, wait: bool, timeout: float, output: str, live: bool) -> int:
    """Go on: a released local run in this process, any other by mode Run."""
    runs = place.runs_of(name)
    run = runs.get(name)
    _check_open(run)
    wants_pause = run.spec.control is not None and run.spec.control.mode == "Pause"
    is_held = wants_pause or is_held_at_barrier(run)
    if not isinstance(runs, LocalRuns) or (runs.is_advancing(run) and is_held):
        return set_mode(place, name, "Run", reason=reason_to_go_on(run), wait=wait, timeout=timeout, output=output)
    if not runs.is_advancing(run) and wants_pause:
        runs.patch(name, mode_directive("Run").patch)
    from pilothouse_cli.commands.running import drive  # the engine and its adapters: half a second

    return drive(runs.folder(name), output, live=live)


def steer(
    place: Place, name: str, message: str, *, steer_id: str | None, wait: bool, timeout: float, output: str
) -> int:
    """Hand the model a message and wait until it has it."""
    check_message(message, name)
    runs = place.runs_of(name)
    directive = message_directive(message, steer_id or new_steer_id(), runs.get(name))
    run = _ask(runs, name, directive)
    return _report(runs, run, directive, wait=wait, timeout=timeout, output=output)


def new_steer_id() -> str:
    """Return an id for a message for which nobody has named one."""
    return f"s-{secrets.token_hex(3)}"


def message_directive(message: str, steer_id: str, run: AgentRun) -> Directive:
    """Return the directive that hands a message to a run; answered messages of this command make room for it."""
    there = run.spec.control.steer if run.spec.control is not None else {}
    answered = prunable_steers(there, answered_steers(run), OWN_STEER)
    return steer_directive(steer_id, message, taken_away=answered)


def check_message(message: str, who: str) -> None:
    """Refuse a blank message; raises CliError."""
    if not message.strip():
        raise CliError("a steer message cannot be blank", f'pilothouse steer {who} "what to look at"')


def decide(
    place: Place,
    name: str,
    call_id: str | None,
    decision: Mapping[str, Any],
    *,
    wait: bool,
    timeout: float,
    output: str,
) -> int:
    """Approve or deny a call that waits for a person, and wait until the decision has landed."""
    runs = place.runs_of(name)
    run = runs.get(name)
    _check_open(run)
    child = asking_child(run, call_id)
    if child is not None:
        name, call_id = child.run, child.call_id
        run = runs.get(name)
    chosen = choose_pending(run, call_id)
    if run.spec.control is not None and chosen in run.spec.control.approvals:
        # It was answered and changed nothing: an entry cannot be changed, only taken back and set anew.
        runs.patch(name, {"control": {"approvals": {chosen: None}}})
    directive = approval_directive(chosen, decision)
    run = _ask(runs, name, directive)
    return _report(runs, run, directive, wait=wait, timeout=timeout, output=output)


def asking_child(run: AgentRun, call_id: str | None) -> ChildApproval | None:
    """Return the call of a child that is meant: a run that waits for nothing itself hands the decision on.

    None where the run waits itself, or where not exactly one call of its children is meant.
    """
    if snapshot_of(run).pending_approvals:
        return None
    asked = [one for one in asked_of_people(run.status.children) if call_id in (None, one.call_id)]
    return asked[0] if len(asked) == 1 else None


def choose_pending(run: AgentRun, call_id: str | None) -> str:
    """Return the id of the call that is decided on, the one that waits where none is named; raises CliError."""
    name = run.metadata.name
    pending = [approval.call_id for approval in snapshot_of(run).pending_approvals]
    if call_id is None and len(pending) == 1:
        return pending[0]
    if call_id is not None and call_id in pending:
        return call_id
    what = f"call {call_id} of run {name} does not wait" if call_id else f"no call of run {name} waits"
    below = [f"pilothouse approve {one.run} {one.call_id}" for one in asked_of_people(run.status.children)]
    hint = f"these wait: {', '.join(pending)}" if pending else "; ".join(below) or f"pilothouse show {name}"
    raise CliError(f"{what} for a decision", hint, EXIT_FAILED)


def parse_edit(text: str | None, remove: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a decision that changes the arguments of a call; raises CliError."""
    try:
        changes = json.loads(text) if text is not None else {}
    except ValueError as error:
        raise CliError(f"--arguments is no JSON: {error}", """--arguments '{"amount": 40}'""") from None
    if not isinstance(changes, dict):
        raise CliError("--arguments takes a JSON object", """--arguments '{"amount": 40}'""")
    try:
        return argument_edit(changes, remove)
    except WrongEdit:
        what = "--arguments cannot take a key away within an argument"
        raise CliError(what, "give that argument anew: --remove NAME, and the whole of it in --arguments") from None


def set_limits(place: Place, name: str, pairs: Sequence[str], *, wait: bool, timeout: float, output: str) -> int:
    """Change limits and wait until they hold."""
    directive = limits_directive(parse_limits(pairs))
    runs = place.runs_of(name)
    run = _ask(runs, name, directive)
    return _report(runs, run, directive, wait=wait, timeout=timeout, output=output)


def parse_limits(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the limits of `name=value` words; an empty value takes the limit away. Raises CliError."""
    known = [field.alias or name for name, field in RunLimits.model_fields.items()]
    limits: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name not in known:
            raise CliError(f"{pair!r} is no limit", f"name=value, with one of {', '.join(known)}")
        if not value:
            limits[name] = None
        elif name in TEXT_LIMITS:
            limits[name] = value
        elif value.isascii() and value.isdigit():
            limits[name] = int(value)
        else:
            raise CliError(f"{name}={value!r} is no whole number", f"{name}=10")
    return limits


def _ask(runs: Runs, name: str, directive: Directive) -> AgentRun:
    _check_open(runs.get(name))
    return runs.patch(name, directive.patch)


def _check_open(run: AgentRun) -> None:
    if is_finished(run):
        name = run.metadata.name
        raise CliError(f"run {name} has ended ({run.status.phase})", f"pilothouse show {name}", EXIT_FAILED)


def _report(runs: Runs, run: AgentRun, directive: Directive, *, wait: bool, timeout: float, output: str) -> int:
    if not wait:
        answer = Answer("Asked")
    else:
        run, answer = wait_for_answer(runs, run, directive, timeout)
    code, sentence = _SENTENCES[answer.state](run, directive.title, answer, timeout)
    if output == "table":
        print_line(sentence)
    else:
        print_run(run, output)
        say(sentence)
    return code


def print_line(sentence: str) -> None:
    """Print what became of a directive: data, for a person."""
    print(clean_line(sentence, 500), flush=True)


def _landed(run: AgentRun, title: str, answer: Answer, timeout: float) -> tuple[int, str]:
    return EXIT_SUCCEEDED, f"{run.metadata.name}: {title} landed at turn {answer.turn}"


def _asked(run: AgentRun, title: str, answer: Answer, timeout: float) -> tuple[int, str]:
    return EXIT_SUCCEEDED, f"{run.metadata.name}: {title} asked for (generation {run.metadata.generation})"


def _kept(run: AgentRun, title: str, answer: Answer, timeout: float) -> tuple[int, str]:
    name = run.metadata.name
    return EXIT_SUCCEEDED, f"{name}: {title} is kept and lands when the run goes on: pilothouse resume {name}"


def _waiting(run: AgentRun, title: str, answer: Answer, timeout: float) -> tuple[int, str]:
    snapshot = snapshot_of(run)
    where = f"the run is at turn {snapshot.turn} in step {snapshot.step}" if snapshot.step else "it has not begun"
    name = run.metadata.name
    return EXIT_PARKED, f"{name}: {title} has not landed within {timeout:g} s, {where}: pilothouse watch {name}"


def _ended(run: AgentRun, title: str, answer: Answer, timeout: float) -> tuple[int, str]:
    return EXIT_FAILED, f"{run.metadata.name}: {title} came too late, the run has ended ({run.status.phase})"


def _not_landed(run: AgentRun, title: str, answer: Answer, timeout: float) -> tuple[int, str]:
    why = f": {answer.message}" if answer.message else ""
    return EXIT_FAILED, f"{run.metadata.name}: {title} was answered {answer.state} at turn {answer.turn}{why}"


_SENTENCES = {
    "Landed": _landed,
    "Asked": _asked,
    "Kept": _kept,
    "Waiting": _waiting,
    "Ended": _ended,
    "NotLanded": _not_landed,
    "Superseded": _not_landed,
    "NotPending": _not_landed,
    "Expired": _not_landed,
}
