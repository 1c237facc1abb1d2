"""What is asked of a run, as it is sent; and the judgement, on the run as it is, of what becomes of it. Pure.

The same values come over HTTP and over the control channel of a fleet.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from pilothouse_api.names import fit
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import ControlAnswer, RunLimits, Snapshot
from pilothouse_api.v1alpha1.base import JsonObject
from pilothouse_api.v1alpha1.common import Line
from pilothouse_api.wake import is_answered
from pilothouse_control.directives import (
    MAX_STEERS,
    Directive,
    WrongEdit,
    answered_steers,
    approval_directive,
    argument_edit,
    is_finished,
    limits_directive,
    mode_directive,
    prunable_steers,
    reason_to_go_on,
    steer_directive,
)

LONGEST_USER = 253
"""Most characters of `by`."""


class Order(BaseModel):
    """Base of what can be asked."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class ModeOrder(Order):
    """Pause, go on, finish or abort."""

    reason: Line | None = None
    """Why."""


class SteerOrder(Order):
    """Hand the model a message at the next turn boundary."""

    message: Annotated[str, Field(min_length=1, max_length=4096)]
    """The text."""
    id: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None
    """The id of the message: the same one is delivered once, however often it is asked for. Made up where absent."""


class ApprovalOrder(Order):
    """Decide on a call that waits for a person."""

    call_id: Annotated[str, Field(min_length=1, max_length=63)]
    """Which call, as `pendingApprovals` names it."""
    decision: Literal["Approve", "Deny"] = "Approve"
    """The decision."""
    arguments: JsonObject | None = None
    """Changes to the arguments, as a JSON merge-patch; a null takes one away."""
    remove: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=16)] = []
    """Arguments that are taken away."""
    reason: Line | None = None
    """Why; the model is told on Deny."""

    @field_validator("arguments")
    @classmethod
    def _is_json(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except ValueError:
            raise ValueError("NaN, Infinity and halves of surrogate pairs are no JSON that can be kept") from None
        return value


class LimitsOrder(RunLimits):
    """Change limits: what is given holds from now on, a null takes a limit away, what is left out stays."""

    model_config = ConfigDict(defer_build=False)


Mode = Literal["Run", "Pause", "Finish", "Abort"]

What = Literal["pause", "resume", "finish", "abort", "steer", "approve", "limits"]
"""What is asked, as the last part of a call's path names it."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A directive that can be written: its id without the generation that it makes, and what must be taken back first,
    since an entry cannot be changed."""

    id: str
    directive: Directive
    taken_back: Mapping[str, Any] | None = None
    is_written: bool = False
    """Whether it stands there already."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing is written: an HTTP status, one sentence, what to do."""

    status: int
    detail: str
    next: str


def plan_mode(mode: Mode, order: ModeOrder, run: AgentRun, by: str) -> Planned | Refusal:
    """Return the directive that sets a mode; Finish may only become Abort, and Abort stays."""
    if is_finished(run):
        return _ended(run)
    stands = (run.spec.control.mode if run.spec.control else None) or "Run"
    if (stands == "Abort" and mode != "Abort") or (stands == "Finish" and mode not in ("Finish", "Abort")):
        return Refusal(409, f"run {run.metadata.name} was asked to {stands.lower()}, which cannot be taken back", _LOOK)
    reason = order.reason or (reason_to_go_on(run) if mode == "Run" else None)
    return Planned(mode.lower(), mode_directive(mode, reason, fit(by, LONGEST_USER)))


def plan_steer(order: SteerOrder, new_id: str, run: AgentRun, by: str) -> Planned | Refusal:
    """Return the directive that steers; `new_id` is taken where the order names none."""
    if is_finished(run):
        return _ended(run)
    if not order.message.strip():
        return Refusal(400, "a steer message cannot be blank", 'send {"message": "what to look at"}')
    steer_id = order.id or new_id
    if steer_id.startswith(("sup-", "judge-")):
        what = f"the id {steer_id!r} begins with sup- or judge-: those are supervision's"
        return Refusal(422, what, "use another id, or leave it out")
    there = run.spec.control.steer if run.spec.control else {}
    answered = prunable_steers(there, answered_steers(run), OWN_STEER)
    directive = steer_directive(steer_id, order.message, fit(by, LONGEST_USER), answered)
    known = there.get(steer_id)
    if known is not None and known.message != order.message:
        return Refusal(409, f"the id {steer_id!r} has another message already", "use another id, or leave it out")
    if known is None and len(there) - len(answered) >= MAX_STEERS:
        what = f"run {run.metadata.name} holds {len(there)} steer messages, which is the most"
        return Refusal(409, what, "remove answered ones from spec.control.steer")
    return Planned(steer_id, directive, is_written=known is not None)


OWN_STEER = re.compile(r"api-[0-9a-f]{8}$")
"""Ids of messages for which nobody named one."""


def plan_approval(order: ApprovalOrder, run: AgentRun, snapshot: Snapshot, by: str) -> Planned | Refusal:
    """Return the directive that decides on a pending call."""
    if is_finished(run):
        return _ended(run)
    name, call_id = run.metadata.name, order.call_id
    pending = [approval.call_id for approval in snapshot.pending_approvals]
    if call_id not in pending:
        what = f"no call {call_id!r} of run {name} waits for a decision"
        return Refusal(409, what, f"these wait: {', '.join(pending)}" if pending else _LOOK)
    try:
        edit = argument_edit(order.arguments or {}, order.remove)
    except WrongEdit as error:
        return Refusal(422, f"arguments: {error}", "give that argument anew: name it in remove, and give all of it")
    reason = {"reason": order.reason} if order.reason is not None else {}
    decision = {"decision": order.decision, **edit, **reason, "by": fit(by, LONGEST_USER)}
    given = run.spec.control.approvals.get(call_id) if run.spec.control else None
    if given is not None and not is_answered(given, _answer(snapshot.control, call_id)):
        return Refusal(409, f"call {call_id} was decided on: {given.decision}, by {given.by or 'somebody'}", _LOOK)
    # It was answered and changed nothing: an entry cannot be changed, only taken back and set anew.
    taken_back = {"control": {"approvals": {call_id: None}}} if given is not None else None
    return Planned(call_id, approval_directive(call_id, decision), taken_back)


def _answer(control: ControlAnswer, call_id: str) -> Any:
    return control.approvals.get(call_id)


def plan_limits(order: LimitsOrder, run: AgentRun) -> Planned | Refusal:
    """Return the directive that changes limits."""
    if is_finished(run):
        return _ended(run)
    limits = order.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if not limits:
        return Refusal(422, "no limit is named", 'send {"maxIterations": 20}, or any other field of spec.limits')
    return Planned("limits", limits_directive(limits))


MODES: Mapping[What, Mode] = {"pause": "Pause", "resume": "Run", "finish": "Finish", "abort": "Abort"}


def read_order(what: What, raw_order: Mapping[str, Any]) -> Order | LimitsOrder:
    """Return what was sent to the call of that name (pause … limits); raises pydantic's ValidationError."""
    kinds: Mapping[str, type[Order | LimitsOrder]] = {
        "steer": SteerOrder,
        "approve": ApprovalOrder,
        "limits": LimitsOrder,
    }
    return kinds.get(what, ModeOrder).model_validate(raw_order)


def plan_order(
    what: What, order: Order | LimitsOrder, new_id: str, run: AgentRun, snapshot: Snapshot, by: str
) -> Planned | Refusal:
    """Return the directive of what `read_order` has read."""
    match order:
        case SteerOrder():
            return plan_steer(order, new_id, run, by)
        case ApprovalOrder():
            return plan_approval(order, run, snapshot, by)
        case LimitsOrder():
            return plan_limits(order, run)
        case _:
            assert isinstance(order, ModeOrder)
            return plan_mode(MODES[what], order, run, by)


def _ended(run: AgentRun) -> Refusal:
    return Refusal(409, f"run {run.metadata.name} has ended ({run.status.phase}): nothing was written", _LOOK)


_LOOK = "look at the run: GET the same path without its last part"
