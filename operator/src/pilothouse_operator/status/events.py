"""Events: the few turns of a run that a person should see in `kubectl describe`. Pure.

Each has a name that follows from what it says, so that a repeated reconcile or a restarted operator posts it once.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from pilothouse_api.names import FIELD_MANAGER_OPERATOR, short_hash
from pilothouse_api.v1alpha1.agentrun import FINISHED_PHASES, AgentRunStatus, SupervisionAction
from pilothouse_control.supervision import identity_of
from pilothouse_operator.conditions import find_condition, format_time, is_true, parse_time
from pilothouse_operator.status.run_conditions import LOST_SERVICES
from pilothouse_operator.supervision.record import describe

RETOLD = timedelta(minutes=10)
"""How old an intervention may be for its Event to be posted by a process that has not seen it decided."""
INTERVENTIONS: Mapping[str, tuple[Literal["Normal", "Warning"], str]] = {
    "Pause": ("Warning", "SupervisorPaused"),
    "Steer": ("Normal", "SupervisorSteered"),
    "Abort": ("Warning", "SupervisorAborted"),
}
PARK_PHASES = frozenset({"Paused", "AwaitingApproval"})


@dataclass(frozen=True, slots=True)
class EventDraft:
    """One thing that happened. `once` tells it from the same thing happening another time."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    once: str


def plan_events(old: AgentRunStatus, new: AgentRunStatus) -> Iterator[EventDraft]:
    """Yield what became of a run between two of its statuses."""
    turn = _turn(new)
    if is_true(new.conditions, "Started") and not is_true(old.conditions, "Started"):
        yield EventDraft("Normal", "Started", "a runner has begun", "started")
    old_failure = (old.attempts.last_failure if old.attempts else None) or ""
    new_failure = (new.attempts.last_failure if new.attempts else None) or ""
    if new.attempt != old.attempt and new_failure and (new_failure != old_failure or new.attempts != old.attempts):
        yield EventDraft("Warning", "AttemptFailed", f"attempt {old.attempt}: {new_failure}", f"failed-{old.attempt}")
    if new.phase != old.phase:
        yield from _plan_phase_events(old, new, turn)
    for service in LOST_SERVICES:
        away = find_condition(new.conditions, service)
        if away is not None and away.status == "True" and not is_true(old.conditions, service):
            yield EventDraft("Warning", service, away.message, f"{service}-{away.last_transition_time}")
    stalled = find_condition(new.conditions, "Stalled")
    if stalled is not None and stalled.status == "True" and new.phase not in FINISHED_PHASES:
        before = find_condition(old.conditions, "Stalled")
        if before is None or before.status != "True" or before.reason != stalled.reason:
            yield EventDraft("Warning", "Stalled", f"{stalled.reason}: {stalled.message}", f"stalled-{stalled.reason}")


def _plan_phase_events(old: AgentRunStatus, new: AgentRunStatus, turn: int) -> Iterator[EventDraft]:
    if new.phase in PARK_PHASES:
        yield EventDraft("Normal", str(new.phase), f"waits since turn {turn}", f"{new.phase}-{turn}")
    elif old.phase in PARK_PHASES and new.phase not in FINISHED_PHASES:
        yield EventDraft("Normal", "Resumed", f"goes on after turn {turn}", f"resumed-{turn}")
    elif new.phase in FINISHED_PHASES and new.exit is not None:
        kind: Literal["Normal", "Warning"] = "Normal" if new.phase == "Succeeded" else "Warning"
        message = f"{new.exit.reason}: {new.exit.message}" if new.exit.message else new.exit.reason
        yield EventDraft(kind, str(new.phase), message, "end")


def draft_intervention(action: SupervisionAction) -> EventDraft | None:
    """Return the Event of an intervention, None for one that is not settled or that another one outweighed."""
    once = "/".join(map(str, identity_of(action)))
    if action.state == "Done":
        kind, reason = INTERVENTIONS[action.action]
        return EventDraft(kind, reason, describe(action), once)
    if action.state == "Superseded":
        message = f"not done, another hand was first: {describe(action)}"
        return EventDraft("Normal", "SupervisorSuperseded", message, once)
    return None


def recent_interventions(actions: Iterable[SupervisionAction], now: datetime) -> list[SupervisionAction]:
    """Return what a process that has just started tells again: its forerunner may have died before it did."""
    times = ((action, parse_time(action.time)) for action in actions if action.state != "Intended")
    return [action for action, at in times if at is not None and now - at < RETOLD]


def _turn(status: AgentRunStatus) -> int:
    turn = (status.run or {}).get("turn", 0)
    return turn if isinstance(turn, int) else 0


def build_event(raw_object: Mapping[str, Any], draft: EventDraft, now: datetime) -> dict[str, Any]:
    """Return the manifest of an event about an object."""
    metadata = raw_object["metadata"]
    identity = short_hash(f"{metadata['uid']}/{draft.reason}/{draft.once}", 16)
    moment = format_time(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{identity}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": raw_object["apiVersion"],
            "kind": raw_object["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "type": draft.type,
        "reason": draft.reason,
        "message": draft.message[:1024],
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
        "source": {"component": FIELD_MANAGER_OPERATOR},
        "reportingComponent": FIELD_MANAGER_OPERATOR,
        "reportingInstance": FIELD_MANAGER_OPERATOR,
    }
