"""What is asked of a live run: the patch of its spec that asks, and what its status says became of it. Pure.

Everybody who steers goes through here: the command line, the operator API, the mirror of a fleet, supervision.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import FINISHED_PHASES, ApprovalDecision, ControlAnswer, Snapshot
from pilothouse_api.wake import is_answered


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a directive: `state` is Landed, NotLanded, NotPending, Expired, Superseded, Kept (until the run
    goes on), Waiting or Ended (the run has, first)."""

    state: str
    turn: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Directive:
    """Something that is asked of a run: how it is called, the merge-patch of its spec, and how its answer is found in
    the runner's answers, given the generation of the spec that the patch made."""

    title: str
    patch: Mapping[str, Any]
    answer: Callable[[ControlAnswer, int], Answer | None]


def mode_directive(mode: str, reason: str | None = None, by: str | None = None) -> Directive:
    """Return the directive that sets the mode: Run, Pause, Finish or Abort."""

    def answer(control: ControlAnswer, generation: int) -> Answer | None:
        if control.observed_generation < generation:
            return None
        if control.mode.value == mode:
            return Answer("Landed", control.mode.turn)
        return Answer(control.mode.state, control.mode.turn) if control.mode.state else None

    # A reason and a name that are not given again must not stay from the last directive: null removes them.
    return Directive(mode, {"control": {"mode": mode, "reason": reason, "by": by}}, answer)


def is_held_at_barrier(run: AgentRun) -> bool:
    """Tell whether the barrier of supervision has paused the run, although nobody asks for a Pause."""
    parked = (run.status.run or {}).get("parked") or {}
    return parked.get("reason") == "Barrier" and parked.get("wake") is None


def reason_to_go_on(run: AgentRun) -> str | None:
    """Return the reason of a Run for which nobody gave one, None where the mode alone says it.

    A run that the barrier has paused may stand at Run from before: a patch that changes nothing would not be seen.
    """
    control = run.spec.control
    if control is None or control.mode != "Run" or not is_held_at_barrier(run):
        return None
    snapshot = run.status.run or {}
    return f"resumed at the barrier of turn {snapshot.get('turn', 0)} ({snapshot.get('journalLength', 0)} facts)"


MAX_STEERS = 64
"""How many messages `spec.control.steer` may hold."""


def prunable_steers(steers: Collection[str], answered: Collection[str], own: re.Pattern[str]) -> frozenset[str]:
    """Return ids of messages that their writer takes away, so that there is room for others (supervision.md).

    They are those that the run has answered and whose id the writer (`own`) has made up, once the map is half full.
    """
    if 2 * len(steers) < MAX_STEERS:
        return frozenset()
    return frozenset(key for key in steers if key in answered and own.match(key))


def answered_steers(run: AgentRun) -> frozenset[str]:
    """Return the ids of messages that the runner says it has answered; nothing where what it says is no snapshot."""
    control = (run.status.run or {}).get("control")
    steers = control.get("steer") if isinstance(control, Mapping) else None
    return frozenset(steers) if isinstance(steers, Mapping) else frozenset()


def steer_directive(steer_id: str, message: str, by: str | None = None, taken_away: Collection[str] = ()) -> Directive:
    """Return the directive that hands the model a message, under an id that the run has not seen.

    `taken_away` are ids of messages that go with it: `prunable_steers`.
    """

    def answer(control: ControlAnswer, generation: int) -> Answer | None:
        landing = control.steer.get(steer_id)
        return Answer(landing.state, landing.turn) if landing else None

    text = {"message": message} | ({"by": by} if by else {})
    steers = {**dict.fromkeys(sorted(taken_away)), steer_id: text}
    return Directive(f"steer {steer_id}", {"control": {"steer": steers}}, answer)


def approval_directive(call_id: str, decision: Mapping[str, Any]) -> Directive:
    """Return the directive that decides on a pending call. `decision` is a raw `ApprovalDecision`."""
    asked = ApprovalDecision.model_validate(dict(decision))

    def answer(control: ControlAnswer, generation: int) -> Answer | None:
        landing = control.approvals.get(call_id)
        if landing is None or not is_answered(asked, landing):
            return None
        return Answer(landing.state, landing.turn, landing.message or "")

    title = f"{'approval' if asked.decision == 'Approve' else 'denial'} of {call_id}"
    return Directive(title, {"control": {"approvals": {call_id: dict(decision)}}}, answer)


class WrongEdit(Exception):
    """Changes to arguments that a merge-patch of the run cannot carry."""


def argument_edit(changes: Mapping[str, Any], remove: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of a decision that change the arguments of a call. Raises WrongEdit.

    The patch of the run is a merge-patch as well and would drop a null: a null becomes an entry of `remove`, and one
    within an argument cannot be said.
    """
    gone = [*remove, *(name for name, value in changes.items() if value is None and name not in remove)]
    kept = {name: value for name, value in changes.items() if value is not None}
    if _holds_null(kept):
        raise WrongEdit("a null within an argument cannot take a key away")
    return ({"arguments": kept} if kept else {}) | ({"remove": gone} if gone else {})


def _holds_null(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and any(_holds_null(item) for item in value.values()))


def limits_directive(limits: Mapping[str, Any]) -> Directive:
    """Return the directive that changes limits; a null takes one away."""

    def answer(control: ControlAnswer, generation: int) -> Answer | None:
        landing = control.limits
        return Answer("Landed", landing.turn) if landing and landing.generation >= generation else None

    return Directive("limits", {"limits": dict(limits)}, answer)


def snapshot_of(run: AgentRun) -> Snapshot:
    """Return what the run says about itself; one that has not begun has attempt 0. Raises pydantic's ValidationError
    for one that this version cannot read."""
    return Snapshot.model_validate({"attempt": 0, **(run.status.run or {})})


def is_finished(run: AgentRun) -> bool:
    """Tell whether the run has ended: nothing can be asked of it any more."""
    return run.status.phase in FINISHED_PHASES


def answer_of(run: AgentRun, snapshot: Snapshot, directive: Directive, generation: int) -> Answer | None:
    """Return what became of a directive that made this generation of the spec, or None while it is open.

    `snapshot` is `snapshot_of(run)`.
    """
    answer = directive.answer(snapshot.control, generation)
    if answer is not None:
        return answer
    if is_finished(run):
        return Answer("Ended", snapshot.turn)
    is_parked = snapshot.parked is not None and snapshot.control.mode.value == "Pause"
    if is_parked and snapshot.control.observed_generation >= generation:
        return Answer("Kept", snapshot.turn)
    return None
