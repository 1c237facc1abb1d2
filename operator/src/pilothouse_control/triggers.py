"""Triggers: which runs a workflow should start, replace or wait for, from what was started already and the time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSimError

from pilothouse_api import names
from pilothouse_api.digests import digest
from pilothouse_api.v1alpha1 import Workflow
from pilothouse_api.v1alpha1.workflow import LastTriggered, Schedule, WorkflowSpec
from pilothouse_control.schedules import newest_slot, next_slot

_NOT_WHAT_RUNS = frozenset({"description", "suspend", "history", "concurrencyPolicy", "trigger"})
"""Fields of a workflow of which a change starts nothing."""


@dataclass(frozen=True, slots=True)
class TriggeredRun:
    """A run that the workflow's trigger made and that has not ended; parked ones are among them."""

    name: str
    is_aborting: bool = False


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to create. The name is deterministic: where it exists already, it has been started."""

    name: str
    raw: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TriggerDecision:
    """What the trigger should do now.

    Create first, then write `last_triggered` (None: as it is): a run that was created and not noted is created again
    under the same name, which the API server refuses. `aborts` are names of runs to abort. `next_due` is when to look
    again; `next_schedule_time` is for people. `waits_for` are the runs that hold a start back.
    """

    creates: tuple[NewRun, ...] = ()
    aborts: tuple[str, ...] = ()
    last_triggered: LastTriggered | None = None
    next_due: datetime | None = None
    next_schedule_time: datetime | None = None
    waits_for: tuple[str, ...] = ()

    @property
    def is_starting(self) -> bool:
        """Whether a run is started, or others make way for one."""
        return bool(self.creates or self.aborts)


def trigger_digest(spec: WorkflowSpec) -> str:
    """Return the digest of what decides whether a trigger has something new: for Schedule, of the schedule itself."""
    raw = spec.to_raw()
    if spec.trigger.type == "Schedule":
        return digest(raw["trigger"])
    return digest({key: value for key, value in raw.items() if key not in _NOT_WHAT_RUNS})


def plan_triggers(
    workflow: Workflow, active: Sequence[TriggeredRun], newest_completion: datetime | None, now: datetime
) -> TriggerDecision:
    """Return what the trigger of a workflow should do at `now` (aware).

    `active` are the live runs that the trigger made, `newest_completion` is when the newest of its finished ones
    ended: a slot that had to wait for it is late only from then on.
    """
    trigger = workflow.spec.trigger
    if trigger.type == "OnChange":
        return _on_change(workflow, active)
    if trigger.type == "Schedule" and trigger.schedule is not None:
        try:
            return _on_schedule(workflow, trigger.schedule, active, newest_completion, now)
        except (CronSimError, KeyError, ValueError, OSError):
            return TriggerDecision()  # validation says what is wrong with it
    return TriggerDecision()


def _on_change(workflow: Workflow, active: Sequence[TriggeredRun]) -> TriggerDecision:
    last = workflow.status.last_triggered or LastTriggered()
    generation = workflow.metadata.generation or 0
    wanted = trigger_digest(workflow.spec)
    if workflow.spec.suspend or last.digest == wanted or (last.generation or -1) >= generation:
        return TriggerDecision()
    name = names.generation_run_name(workflow.metadata.name, generation, workflow.metadata.uid or "")
    noted = LastTriggered(generation=generation, digest=wanted, slot=last.slot)
    return _start(workflow, name, noted, active)


def _start(workflow: Workflow, name: str, noted: LastTriggered, active: Sequence[TriggeredRun]) -> TriggerDecision:
    """Return the start of one run under the workflow's policy for runs that are still active."""
    others = [run for run in active if run.name != name]
    policy = workflow.spec.concurrency_policy
    if not others or policy == "Allow":
        return TriggerDecision(creates=(NewRun(name, build_run(workflow, name)),), last_triggered=noted)
    aborts = tuple(run.name for run in others if not run.is_aborting) if policy == "Replace" else ()
    return TriggerDecision(aborts=aborts, waits_for=tuple(run.name for run in others))


def _on_schedule(
    workflow: Workflow,
    schedule: Schedule,
    active: Sequence[TriggeredRun],
    newest_completion: datetime | None,
    now: datetime,
) -> TriggerDecision:
    zone = ZoneInfo(schedule.time_zone)
    following = next_slot(schedule.cron, zone, now)
    last = workflow.status.last_triggered or LastTriggered()
    generation = workflow.metadata.generation or 0
    mark = trigger_digest(workflow.spec)
    since = _since(workflow, last, mark, now)
    slot = newest_slot(schedule.cron, zone, since, now)
    noted = LastTriggered(generation=generation, digest=mark, slot=_minute(slot or since))
    decision = TriggerDecision(last_triggered=noted if last.slot is None or last.digest != mark else None)
    if slot is not None:
        decision = _at_slot(workflow, schedule, slot, noted, active, newest_completion, now)
    return TriggerDecision(
        creates=decision.creates,
        aborts=decision.aborts,
        last_triggered=decision.last_triggered,
        waits_for=decision.waits_for,
        next_due=following,
        next_schedule_time=None if workflow.spec.suspend else following,
    )


def _at_slot(
    workflow: Workflow,
    schedule: Schedule,
    slot: datetime,
    noted: LastTriggered,
    active: Sequence[TriggeredRun],
    newest_completion: datetime | None,
    now: datetime,
) -> TriggerDecision:
    """Decide about one due slot. A slot that is skipped is noted, so that it is not started later."""
    is_skipped = workflow.spec.suspend or _is_late(workflow, schedule, slot, newest_completion, active, now)
    name = names.slot_run_name(workflow.metadata.name, _minute(slot), workflow.metadata.uid or "")
    if is_skipped or (workflow.spec.concurrency_policy == "Forbid" and any(run.name != name for run in active)):
        return TriggerDecision(last_triggered=noted)
    return _start(workflow, name, noted, active)


def _is_late(
    workflow: Workflow,
    schedule: Schedule,
    slot: datetime,
    newest_completion: datetime | None,
    active: Sequence[TriggeredRun],
    now: datetime,
) -> bool:
    """Tell whether a slot is past its deadline; the wait for a run that it replaces does not count."""
    if schedule.starting_deadline_seconds is None:
        return False
    is_replacing = workflow.spec.concurrency_policy == "Replace"
    if is_replacing and any(run.is_aborting for run in active):
        return False
    since = max(slot, newest_completion) if is_replacing and newest_completion is not None else slot
    return now - since > timedelta(seconds=schedule.starting_deadline_seconds)


def _since(workflow: Workflow, last: LastTriggered, mark: str, now: datetime) -> datetime:
    """Return the moment after which slots count: a schedule never starts what was due before it was written."""
    if last.slot is not None and last.digest == mark:
        return datetime.fromtimestamp(last.slot * 60, UTC)
    created = workflow.metadata.creation_timestamp
    if last.slot is None and last.digest is None and (workflow.metadata.generation or 0) <= 1 and created:
        return datetime.fromisoformat(created)
    return now


def _minute(moment: datetime) -> int:
    return int(moment.timestamp()) // 60


def build_run(workflow: Workflow, name: str) -> dict[str, Any]:
    """Return the AgentRun that a trigger makes: owned by its workflow, so that it is deleted with it."""
    metadata = workflow.metadata
    labels: Mapping[str, str] = {
        **workflow.spec.run_template.labels,
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_WORKFLOW: metadata.name,
        names.LABEL_TRIGGER: workflow.spec.trigger.type,
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": "AgentRun",
        "metadata": {
            "name": name,
            "namespace": metadata.namespace or "default",
            "labels": dict(labels),
            "ownerReferences": [names.owner_reference("Workflow", metadata.name, metadata.uid or "")],
        },
        "spec": {"workflowRef": {"name": metadata.name}},
    }
