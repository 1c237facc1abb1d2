"""Approvals: calls and steps that wait for a person (engine.md §9). Pure; imported where one waits.

A request and the park that it begins are one append. The decision names the engine's call id, which holds the digest
of the arguments; it lands once, and the start of the call spends it. A decision that comes when the time is up is
late, even where nobody was there to read it in time.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from pilothouse_api.patches import merge_patch
from pilothouse_api.structs import ApprovalDecision, Control, ControlAnswer, PendingApproval, Snapshot
from pilothouse_api.wake import decision_digest, is_answered, wake_due
from pilothouse_engine.actions import Action, Commit, Inputs
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.control import plan_mode, stray_approvals
from pilothouse_engine.facts import ApprovalAnswered, ApprovalRequested, CallCode, Fact, Facts, ParkBegan, ParkEnded
from pilothouse_engine.guardrails.masks import mask_value
from pilothouse_engine.parks import hold, parked_report
from pilothouse_engine.results import compact
from pilothouse_engine.snapshot import landing_report
from pilothouse_engine.state import Call, RunState
from pilothouse_engine.tool_schemas import InvalidArguments, check_arguments

AWAITING_APPROVAL = "AwaitingApproval"
TOOL_EXPIRES_SECONDS = 86_400
"""How long the call of a tool waits, as long as an Approval step does by default; the platform may cap both."""

MAX_SHOWN_BYTES = 4096
MAX_SHOWN_KEYS = 32
MAX_SHOWN_VALUES = 256
MAX_SHOWN_CHARS = 100
MAX_PROBLEM_CHARS = 300


# ---------------------------------------------------------------- the request


def plan_request(
    catalog: Catalog,
    state: RunState,
    inputs: Inputs,
    call_id: str,
    title: str,
    arguments: Mapping[str, Any],
    seconds: int = TOOL_EXPIRES_SECONDS,
) -> Facts:
    """Return the facts that publish a call and begin to wait; `title` and `arguments` are masked here."""
    call = state.visit.call_ids.get(call_id) if state.visit is not None else None
    if call is not None and call.approval is not None:  # it is published, but the wait was lost
        return (ParkBegan(inputs.now, AWAITING_APPROVAL, state.turn, call.approval.expires_at),)
    ceiling = catalog.plan.ceilings.approval_expires_seconds
    expires_at = inputs.now + (seconds if ceiling is None else min(seconds, ceiling))
    shown = shown_arguments(arguments)
    request = ApprovalRequested(inputs.now, call_id, state.turn, str(mask_value(title)), shown, expires_at)
    return (request, ParkBegan(inputs.now, AWAITING_APPROVAL, state.turn, expires_at))


def shown_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as people see them: masked, and bounded however many and long they are."""
    masked: dict[str, Any] = mask_value(_prune(arguments, iter(range(MAX_SHOWN_VALUES))))
    if _size(masked) <= MAX_SHOWN_BYTES:
        return masked
    shown: dict[str, Any] = {}
    for key, value in masked.items():
        wider = shown | {key[:MAX_SHOWN_CHARS]: _cut(value)}
        if _size(wider) > MAX_SHOWN_BYTES - MAX_SHOWN_CHARS:
            return shown | {"…": f"{len(arguments) - len(shown)} more"}
        shown = wider
    return shown


def _size(value: Any) -> int:
    return len(compact(value).encode("utf-8", "replace"))


def _prune(value: Any, budget: Iterator[int]) -> Any:
    """Return the first values of a JSON value: masking 100,000 of them would hold the loop for seconds."""
    if not isinstance(value, Mapping | list):
        return value
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    kept = {key: _prune(item, budget) for key, item in islice(items, MAX_SHOWN_KEYS) if next(budget, None) is not None}
    left_out = len(value) - len(kept)
    if isinstance(value, Mapping):
        return kept | ({"…": f"{left_out} more"} if left_out else {})
    return [*kept.values(), *([f"… {left_out} more"] if left_out else [])]


def _cut(value: Any) -> Any:
    text = compact(value)
    return value if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"


# ---------------------------------------------------------------- while it waits


def plan_awaiting(catalog: Catalog, state: RunState, inputs: Inputs, park: ParkBegan) -> Action:
    """Return what happens next to a run that waits for a decision, once its directives were read."""
    call = state.visit.waiting if state.visit is not None else None
    if call is None or call.approval is None:
        return Commit((ParkEnded(inputs.now, park.reason),))
    control = inputs.directives.control if inputs.directives is not None else None
    if inputs.failure is None:
        facts = tuple(_due(catalog, state, inputs, control, call))
        if facts:
            return Commit(facts)
    return hold(state, inputs, park, may_release=catalog.is_durable)


def _due(catalog: Catalog, state: RunState, inputs: Inputs, control: Control | None, call: Call) -> Iterator[Fact]:
    """Yield what is due: answers to stray decisions, and what ends the wait."""
    now, request = inputs.now, call.approval
    assert request is not None and state.park is not None
    given = control.approvals if control is not None else {}
    if control is not None:
        yield from stray_approvals(state, control, now, state.turn, request.call)
    answer = state.approvals.get(request.call)
    if answer is not None and request.call not in given:
        yield ApprovalAnswered(now, state.turn, request.call, "Withdrawn")
    if not wake_due(_as_published(state, inputs), control, datetime.fromtimestamp(now, UTC)):
        return
    ended = ParkEnded(now, state.park.reason)
    landed = plan_mode(state, control, now, state.turn)
    decision = given.get(request.call)
    if landed is not None and landed.mode in ("Finish", "Abort"):
        yield from (landed, ended)
    elif now >= request.expires_at:
        yield from (ApprovalAnswered(now, state.turn, request.call, "Expired"), ended)
    elif decision is not None and not is_answered(decision, landing_report(answer) if answer is not None else None):
        answered = _answer(catalog, state, inputs, call, decision)
        yield answered
        if answered.state == "Landed":
            yield ended


def _as_published(state: RunState, inputs: Inputs) -> Snapshot:
    """Return what `wake_due` needs of the snapshot, without building the rest of it."""
    assert state.park is not None and state.visit is not None and state.visit.waiting is not None
    call_id = state.visit.waiting.asked.id
    answer = state.approvals.get(call_id)
    return Snapshot(
        attempt=inputs.attempt,
        parked=parked_report(state.park, is_released=state.is_released),
        pending_approvals=[PendingApproval(call_id=call_id, tool="", requested_at="")],
        control=ControlAnswer(approvals={call_id: landing_report(answer)} if answer is not None else {}),
    )


# ---------------------------------------------------------------- the decision


def _answer(
    catalog: Catalog, state: RunState, inputs: Inputs, call: Call, decision: ApprovalDecision
) -> ApprovalAnswered:
    arguments, problem = None, ""
    if decision.decision == "Approve" and (decision.arguments or decision.remove):
        edited = _edit(catalog, state, call, decision)
        arguments, problem = (None, edited) if isinstance(edited, str) else (edited, "")
    return ApprovalAnswered(
        inputs.now,
        state.turn,
        call.asked.id,
        "NotLanded" if problem else "Landed",
        "" if problem else decision.decision,
        arguments,
        decision.reason,
        decision.by,
        decision_digest(decision),
        problem,
    )


def _edit(catalog: Catalog, state: RunState, call: Call, decision: ApprovalDecision) -> dict[str, Any] | str:
    """Return the arguments as the decision changes them, as valid as the model's must be, or what is wrong with it."""
    visit = state.visit
    assert visit is not None
    if not visit.is_agent:
        return "the inputs of a step of the graph cannot be edited: decide without arguments"
    tool = catalog.offer(visit).tools[call.asked.name].tool
    checked = check_arguments(tool, call.asked.arguments)
    if not isinstance(checked, InvalidArguments):
        strange = [name for name in decision.remove if name not in checked.value]
        if strange:
            return str(mask_value(f"remove: the call has no argument {', '.join(strange)}"))[:MAX_PROBLEM_CHARS]
        kept = {name: value for name, value in checked.value.items() if name not in decision.remove}
        checked = check_arguments(tool, json.dumps(merge_patch(kept, decision.arguments or {})))
    if isinstance(checked, InvalidArguments):
        return str(mask_value(checked.message))[:MAX_PROBLEM_CHARS]
    return checked.value


def denial_of(answer: ApprovalAnswered) -> tuple[CallCode, str] | None:
    """Return the code and the message of a call that is not run, None for one that was approved."""
    if answer.state == "Expired":
        return "tool_approval_expired", "nobody decided on this call in time, so it was not run; go on without it"
    if answer.decision == "Deny":
        why = f": {answer.reason}" if answer.reason else "; no reason was given"
        return "tool_approval_denied", f"a person has denied this call{why}"
    return None
