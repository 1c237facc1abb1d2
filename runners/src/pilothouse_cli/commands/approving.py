"""`approvals`, and `approve` and `deny` for many runs: what waits, the question, a patch for each, what became of it.

A decision names the call that the person was shown: what began to wait afterwards is not decided by it.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import ControlAnswer
from pilothouse_cli.commands.asking import SAID, Count, agree, plural, worst_exit
from pilothouse_cli.commands.places import Place
from pilothouse_cli.exits import EXIT_SUCCEEDED, CliError
from pilothouse_cli.runs.fleets import Fleet, Order, Outcome, Wait, carry_out
from pilothouse_cli.runs.pending import Choice, PendingCall, pending_calls
from pilothouse_cli.runs.port import snapshot_of
from pilothouse_cli.terminal import clean_line, print_data, print_names, say, show
from pilothouse_cli.views.tables import pending_data, pending_table
from pilothouse_control.directives import Directive, approval_directive

_WENT_WELL = frozenset({"Landed", "Asked", "Kept"})
_SAID_OF_ONE = {
    "Kept": "kept, and lands when the run goes on",
    "Ended": "too late, the run has ended",
    "Gone": "gone with its run",
}


def list_approvals(place: Place, choice: Choice, output: str) -> int:
    """Print the calls that wait for a person."""
    fleet = place.fleet()
    calls = pending_calls(fleet.select(choice.selector), choice)
    if output == "name":
        print_names(dict.fromkeys(call.run.metadata.name for call in calls))
    elif output != "table":
        print_data([pending_data(call) for call in calls], output)
    elif calls:
        show(pending_table(calls, datetime.now(UTC), fleet.called))
    else:
        say(_nothing(fleet, choice))
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
    fleet, verb = place.fleet(), str(decision["decision"])
    calls = [call for call in pending_calls(fleet.select(choice.selector), choice) if call.is_open]
    if calls:
        _ask(fleet, calls, verb, is_agreed=is_agreed, output=output)
    else:
        say(_nothing(fleet, choice))
    orders = [Order(call.run, approval_directive(call.call, decision)) for call in calls]
    by_order = {id(order): call for order, call in zip(orders, calls, strict=True)}
    with Count(len(calls), _WENT_WELL, "landed" if wait else "given") as count:
        outcomes = carry_out(
            fleet,
            orders,
            Wait(timeout if wait else 0.0, choice.selector),
            count.take,
            give=lambda fleet, order: _give(fleet, order, by_order[id(order)]),
            explain=lambda order, now, error: _why_not(order, by_order[id(order)], now, error),
        )
    _print_outcomes(fleet, calls, outcomes, verb, output)
    if calls:
        say(count.text())
    return worst_exit(outcomes, _WENT_WELL)


def _nothing(fleet: Fleet, choice: Choice) -> str:
    return f"no call{' of those' if choice.is_narrow else ''} waits for a person in {fleet.where}"


def _ask(fleet: Fleet, calls: Sequence[PendingCall], verb: str, *, is_agreed: bool, output: str) -> None:
    """Show what is decided on, and go on only when the person agrees; raises CliError."""
    table = pending_table(calls, datetime.now(UTC), fleet.called)
    if output == "table" and is_agreed:
        show(table)
    count = len({(call.run.metadata.namespace, call.run.metadata.name) for call in calls})
    question = f"{verb} {plural(len(calls), 'call')} of {plural(count, 'run')} in {fleet.where}?"
    agree(table, question, verb.lower(), is_agreed=is_agreed)


# ---------------------------------------------------------------- the decisions


def _give(fleet: Fleet, order: Order, call: PendingCall) -> AgentRun:
    if call.given is not None:  # it was refused: an entry cannot be changed, only taken back and set anew
        fleet.direct(order.run, Directive("taken back", {"control": {"approvals": {call.call: None}}}, _unasked))
    return fleet.direct(order.run, order.directive)


def _unasked(control: ControlAnswer, generation: int) -> None:
    return None


def _why_not(order: Order, call: PendingCall, now: AgentRun, refusal: CliError) -> Outcome:
    """Return why a decision was refused, as the run stands now."""
    if now.spec.control is not None and call.call in now.spec.control.approvals:
        return Outcome(order, now, "Decided", message=now.spec.control.approvals[call.call].decision)
    if call.call not in {pending.call_id for pending in snapshot_of(now).pending_approvals}:
        return Outcome(order, now, "NotPending")
    return Outcome(order, now, "Failed", message=refusal.message)


# ---------------------------------------------------------------- the report


def _print_outcomes(
    fleet: Fleet, calls: Sequence[PendingCall], outcomes: Sequence[Outcome], verb: str, output: str
) -> None:
    told = list(zip(calls, outcomes, strict=True))
    if output == "name":
        print_names(dict.fromkeys(call.run.metadata.name for call, one in told if one.state in _WENT_WELL))
    elif output != "table":
        print_data([{**pending_data(call), **_outcome_data(one, verb)} for call, one in told], output)
    else:
        for _, one in told:
            print(_line(fleet, one), flush=True)


def _outcome_data(outcome: Outcome, verb: str) -> dict[str, Any]:
    return {"decision": verb, "outcome": outcome.state, "turn": outcome.turn, "message": outcome.message}


def _line(fleet: Fleet, outcome: Outcome) -> str:
    said = _SAID_OF_ONE.get(outcome.state, SAID[outcome.state])
    where = f" at turn {outcome.turn}" if outcome.turn is not None and outcome.state == "Landed" else ""
    why = f": {outcome.message}" if outcome.message else ""
    return clean_line(f"{fleet.called(outcome.run)}: {outcome.order.directive.title} {said}{where}{why}", 500)
