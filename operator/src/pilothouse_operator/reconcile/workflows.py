"""Workflows: references and validity, triggers, counts, and the end of old runs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import structlog

from pilothouse_api import names
from pilothouse_api.v1alpha1 import Workflow
from pilothouse_api.v1alpha1.workflow import LastRun, RunCounts, WorkflowStatus
from pilothouse_control.judgement import MAX_WARNINGS, Judgement, evaluate_object, missing_since
from pilothouse_control.triggers import TriggerDecision, TriggeredRun, plan_triggers
from pilothouse_kubernetes.client import AGENTRUNS, WORKFLOWS, AlreadyExists, Invalid, NotFound, Raw
from pilothouse_operator.conditions import format_exact_time, format_time, merge_conditions
from pilothouse_operator.reconcile.desk import Desk, Pace
from pilothouse_operator.reconcile.finished import delete_due
from pilothouse_operator.reconcile.judging import UNRESOLVED_RECHECK_SECONDS, to_drafts, unreadable_drafts
from pilothouse_operator.reconcile.suspension import Suspensions
from pilothouse_operator.reconcile.writing import write_status
from pilothouse_operator.runs.looks import SUSPENDED_RECHECK
from pilothouse_operator.watching.cache import Key
from pilothouse_operator.watching.finished import FinishedRun
from pilothouse_operator.watching.references import Unreadable, gather_references, read_object

AT_ONCE = 0.0

log = structlog.get_logger()


class WorkflowReconciler:
    """Reconciles Workflows."""

    def __init__(self, desk: Desk, pace: Pace, suspensions: Suspensions) -> None:
        self._desk = desk
        self._suspensions = suspensions
        self._pace = pace

    async def reconcile(self, key: Key) -> float | None:
        """Look at one workflow; return after how many seconds to look again."""
        raw = self._desk.cache.get(key)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            return None
        try:
            workflow = read_object(Workflow, raw)
            judgement = await self._judge(key, raw, workflow)
        except Unreadable as error:
            return await self._report_unreadable(key, raw, error)
        active = self._active_runs(key)
        ended = self._desk.finished.of_workflow(key)
        decision = self._decide(workflow, judgement, active, ended)
        is_suspended = decision.is_starting and await self._suspensions.is_suspended(key.namespace)
        if is_suspended:
            held = self._decide(suspended(workflow), judgement, active, ended)
            decision = replace(held, next_schedule_time=decision.next_schedule_time)
            judgement = replace(judgement, warnings=(suspended_warning(workflow), *judgement.warnings)[:MAX_WARNINGS])
        active += await self._start(key, decision)
        await self._abort(key, decision)
        uncounted = self._desk.finished.uncounted(key)
        status = render_workflow_status(workflow, judgement, decision, len(active), uncounted, self._desk.now())
        written = await write_status(self._desk, WORKFLOWS, key, raw, raw.get("status", {}), status)
        if written is None:
            return AT_ONCE
        self._desk.finished.set_counted(key, uncounted)
        deletion = await self._delete(workflow, key)
        look = self._next_look(judgement, decision, deletion)
        return min(SUSPENDED_RECHECK.total_seconds(), look or math.inf) if is_suspended else look

    async def _judge(self, key: Key, raw: Raw, workflow: Workflow) -> Judgement:
        desk = self._desk
        platform = desk.settings.platform()
        known = await gather_references(workflow, key.namespace, desk.cache, desk.client, platform)
        since = missing_since(workflow.status.conditions)
        return evaluate_object(raw, workflow, known, since, desk.now())

    async def _report_unreadable(self, key: Key, raw: Raw, error: Unreadable) -> float | None:
        status = WorkflowStatus.model_validate(raw.get("status", {}))
        generation = raw["metadata"].get("generation", 0)
        merged = merge_conditions(status.conditions, unreadable_drafts(error), generation, self._desk.now())
        new = {
            **raw.get("status", {}),
            "observedGeneration": generation,
            "conditions": [condition.to_raw() for condition in merged],
        }
        await write_status(self._desk, WORKFLOWS, key, raw, raw.get("status", {}), new)
        return UNRESOLVED_RECHECK_SECONDS

    # ------------------------------------------------------------ triggers

    def _active_runs(self, key: Key) -> list[Raw]:
        return [raw for raw in self._desk.cache.runs_of(key) if not is_finished(raw)]

    def _decide(
        self, workflow: Workflow, judgement: Judgement, active: Sequence[Raw], ended: Sequence[FinishedRun]
    ) -> TriggerDecision:
        if not judgement.is_ready:
            return TriggerDecision()  # what cannot start is not started; it is caught up when it heals
        triggered = [
            TriggeredRun(raw["metadata"]["name"], raw["spec"].get("control", {}).get("mode") == "Abort")
            for raw in active
            if names.LABEL_TRIGGER in raw["metadata"].get("labels", {})
        ]
        newest = max((record.completion for record in ended if record.is_triggered), default=None)
        return plan_triggers(workflow, triggered, newest, self._desk.now())

    async def _start(self, key: Key, decision: TriggerDecision) -> list[Raw]:
        """Create runs; one that exists was started before, by whomever."""
        created = []
        for new in decision.creates:
            try:
                raw = await self._desk.client.create(AGENTRUNS, key.namespace, new.raw)
            except AlreadyExists:
                continue
            log.info("run.triggered", namespace=key.namespace, workflow=key.name, run=new.name)
            self._desk.cache.apply(raw)
            self._desk.queue.add(Key("AgentRun", key.namespace, new.name))
            created.append(raw)
        return created

    async def _abort(self, key: Key, decision: TriggerDecision) -> None:
        patch = {"spec": {"control": {"mode": "Abort", "reason": f"replaced by a newer run of {key.name}"}}}
        for name in decision.aborts:
            try:
                raw = await self._desk.client.merge_patch(AGENTRUNS, key.namespace, name, patch)
            except (Invalid, NotFound):
                continue  # it has ended meanwhile
            self._desk.cache.apply(raw)
            self._desk.queue.add(Key("AgentRun", key.namespace, name))

    # ------------------------------------------------------------ ends

    async def _delete(self, workflow: Workflow, key: Key) -> float | None:
        ttl = workflow.spec.run_template.ttl_seconds_after_finished
        ended = self._desk.finished.of_workflow(key)
        return await delete_due(self._desk, self._pace, ended, workflow.spec.history, ttl)

    def _next_look(self, judgement: Judgement, decision: TriggerDecision, deletion: float | None) -> float | None:
        now = self._desk.now()
        moments = [moment for moment in (judgement.judge_again_at, decision.next_due) if moment is not None]
        waits = [max((moment - now).total_seconds(), 0.05) for moment in moments]
        if deletion is not None:
            waits.append(deletion)
        if not judgement.is_ready:
            waits.append(UNRESOLVED_RECHECK_SECONDS)
        return min(waits, default=None)


def suspended(workflow: Workflow) -> Workflow:
    """Return a workflow as it is where its namespace lets nothing begin: as if it was suspended itself."""
    return workflow.model_copy(update={"spec": workflow.spec.model_copy(update={"suspend": True})})


def suspended_warning(workflow: Workflow) -> str:
    """Return what the status of a workflow says whose trigger would start something where nothing may begin."""
    namespace = workflow.metadata.namespace
    return f"the trigger starts nothing: namespace {namespace} has the annotation {names.ANNOTATION_SUSPEND}=true"


def is_finished(raw_run: Raw) -> bool:
    """Tell whether a run has ended, without parsing all of it."""
    conditions = raw_run.get("status", {}).get("conditions", ())
    return any(entry.get("type") == "Finished" and entry.get("status") == "True" for entry in conditions)


def render_workflow_status(
    workflow: Workflow,
    judgement: Judgement,
    decision: TriggerDecision,
    active: int,
    uncounted: Sequence[FinishedRun],
    now: datetime,
) -> dict[str, Any]:
    """Return the status of a workflow as it should be now, in wire form."""
    old = workflow.status
    generation = workflow.metadata.generation or 0
    conditions = merge_conditions(old.conditions, to_drafts(judgement), generation, now)
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": [condition.to_raw() for condition in conditions],
        "activeRuns": active,
        "counts": _count(old.counts or RunCounts(), uncounted),
    }
    if judgement.warnings:
        status["warnings"] = list(judgement.warnings)
    last_run = _newest(old.last_run, uncounted)
    if last_run is not None:
        status["lastRun"] = last_run.to_raw()
    last_triggered = decision.last_triggered or old.last_triggered
    if last_triggered is not None:
        status["lastTriggered"] = last_triggered.model_dump(mode="json", by_alias=True, exclude_none=True)
    if decision.next_schedule_time is not None:
        status["nextScheduleTime"] = format_time(decision.next_schedule_time)
    return status


def _count(old: RunCounts, uncounted: Sequence[FinishedRun]) -> dict[str, int]:
    phases = [record.phase for record in uncounted]
    return {
        "succeeded": old.succeeded + phases.count("Succeeded"),
        "failed": old.failed + phases.count("Failed"),
        "aborted": old.aborted + phases.count("Aborted"),
    }


def _newest(old: LastRun | None, uncounted: Sequence[FinishedRun]) -> LastRun | None:
    if not uncounted:
        return old
    newest = max(uncounted, key=lambda record: record.completion)
    finished_at = format_exact_time(newest.completion)
    if old is not None and (old.finished_at or "") > finished_at:
        return old
    return LastRun(name=newest.name, phase=newest.phase, finished_at=finished_at)
