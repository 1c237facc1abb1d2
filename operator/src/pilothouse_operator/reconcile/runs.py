"""AgentRuns: gather, classify, decide, write status, act on pods."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, assert_never

import structlog
from pydantic import ValidationError

from pilothouse_api import names
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import AgentRunSpec, AgentRunStatus, Snapshot
from pilothouse_control.resolution import NotResolved, resolve_plan
from pilothouse_kubernetes.client import (
    AGENTRUNS,
    NotFound,
    Raw,
)
from pilothouse_operator.conditions import is_true
from pilothouse_operator.reconcile.children import Children, find_lineage
from pilothouse_operator.reconcile.desk import Desk
from pilothouse_operator.reconcile.pods import AT_ONCE, Pods
from pilothouse_operator.reconcile.run_memories import RunMemories
from pilothouse_operator.reconcile.supervision import Supervision
from pilothouse_operator.reconcile.suspension import Suspensions
from pilothouse_operator.reconcile.writing import write_status
from pilothouse_operator.runs.attempts import (
    AttemptPlan,
    BeginAttempt,
    MakePod,
    RemovePod,
    Stay,
    plan_attempt,
)
from pilothouse_operator.runs.children import after_children, has_children
from pilothouse_operator.runs.classification import classify, is_told_by_runner
from pilothouse_operator.runs.looks import next_look
from pilothouse_operator.runs.situation import Ended, Situation
from pilothouse_operator.runs.view import Obstacle, RunView, Terms
from pilothouse_operator.status.events import build_event, plan_events
from pilothouse_operator.status.rendering import operator_part, render_status
from pilothouse_operator.watching.cache import Key, parent_key, workflow_of
from pilothouse_operator.watching.finished import read_finished
from pilothouse_operator.watching.references import Unreadable, explain, gather_references
from pilothouse_operator.watching.routing import SETTLED
from pilothouse_operator.watching.sessions import runs_of_session, session_holder, session_of, waiting_for
from pilothouse_operator.workloads.plans import NoPlan, StoredPlan

STEPS_IN_A_ROW = 4
"""From a new run to its pod in one go: behind a queue of hundreds its pod would wait for all their first steps."""

log = structlog.get_logger()


class RunReconciler:
    """Reconciles AgentRuns."""

    def __init__(self, desk: Desk, suspensions: Suspensions) -> None:
        self._desk = desk
        self._suspensions = suspensions
        self._memories = RunMemories()
        self._claims: dict[tuple[str, str], str] = {}
        """Uid of the run that was let begin last, by namespace and session."""
        self._pods = Pods(desk, self._memories)
        self._children = Children(desk)
        self._supervision = Supervision(desk)

    async def reconcile(self, key: Key) -> float | None:
        """Look at one run, again at once where a step of its own leads to the next; return when to look again."""
        for _ in range(STEPS_IN_A_ROW):
            pause = await self._step(key)
            if pause != AT_ONCE:
                return pause
        return AT_ONCE

    async def _step(self, key: Key) -> float | None:
        raw = self._desk.cache.get(key)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            forgotten = self._memories.forget(key)
            if forgotten is not None:
                self._children.forget(forgotten.uid)
            self._supervision.forget(key)
            return None
        run = read_run(raw)
        if is_true(run.status.conditions, "Finished"):
            return await self._leave(key, raw, run)
        view, stored = await self._gather(raw, run)
        if has_children(view):
            before = classify(view)
            if isinstance(before, Ended) and not await self._is_ended_as_seen(view):
                return AT_ONCE  # its children would be aborted for an end that is none
            view = await self._children.tend(view, stored, before)
        view = await self._supervision.look(key, raw, view, stored)
        situation = after_children(view, classify(view))
        plan = plan_attempt(view, situation)
        if self._needs_proof(view, situation, plan) and not await self._pods.is_as_seen(view):
            return AT_ONCE
        raw = await self._report(key, raw, view, situation, plan)
        if raw is None or await self._supervision.act(key, raw, view):
            return AT_ONCE
        return await self._act(view, stored, situation, plan)

    # ------------------------------------------------------------ gather

    async def _gather(self, raw: Raw, run: AgentRun) -> tuple[RunView, StoredPlan | None]:
        now = self._desk.now()
        snapshot = read_snapshot(run)
        pod, ghost = await self._pods.find(run, now)
        view = RunView(run, now, snapshot, pod, ghost, run.status.plan, children=tuple(run.status.children))
        view = replace(view, seen=self._memories.note_seen(view))
        if view.wants_abort and not view.has_begun:
            return view, None  # nothing will be started: no plan is needed
        if await self._is_suspended(raw, view):
            return replace(view, is_suspended=True), None  # before it claims its session
        holder = self._find_session_holder(raw)
        if holder is not None:
            return replace(view, session_holder=holder), None
        found = await self._find_plan(raw, run)
        if isinstance(found, StoredPlan):
            refused = self._memories.recall(run).obstacle()
            return replace(view, plan=found.report, terms=self._terms(found), obstacle=refused), found
        obstacle = Obstacle(found.reason, found.message, found.is_waiting, _created(run) or now)
        return replace(view, terms=self._terms(None), obstacle=obstacle), None

    async def _is_suspended(self, raw: Raw, view: RunView) -> bool:
        """Whether its namespace lets nothing begin and this would; a child belongs to what has begun."""
        if view.has_begun or parent_key(raw) is not None or (view.pod is not None and not view.pod.is_over(view.now)):
            return False
        return await self._suspensions.is_suspended(view.run.metadata.namespace or "")

    def _find_session_holder(self, raw: Raw) -> str | None:
        """Return the run that this one waits for; where there is none, no other of its session begins beside it."""
        session = session_of(raw)
        if session is None:
            return None
        key = (raw["metadata"].get("namespace", ""), session)
        holder = session_holder(raw, runs_of_session(raw, self._desk.cache), self._claims.get(key, ""))
        if holder is None:
            # Until the picture shows that it has begun: an older run that is seen late must not begin meanwhile.
            self._claims[key] = raw["metadata"].get("uid", "")
        return holder

    async def _find_plan(self, raw: Raw, run: AgentRun) -> StoredPlan | NoPlan | NotResolved:
        namespace, uid = run.metadata.namespace or "", run.metadata.uid or ""
        if run.status.plan is not None:
            return await self._desk.plans.load(namespace, run.metadata.name, uid, run.status.plan)
        try:
            AgentRunSpec.model_validate(raw["spec"])
            platform = self._desk.settings.platform()
            known = await gather_references(run, namespace, self._desk.cache, self._desk.client, platform)
        except ValidationError as error:
            return NotResolved("InvalidPlan", f"spec: {explain(error)}")
        except Unreadable as error:
            return NotResolved("InvalidPlan", str(error))
        lineage = await find_lineage(self._desk, run)
        if isinstance(lineage, NotResolved):
            return lineage
        plan = resolve_plan(run, known, lineage)
        if isinstance(plan, NotResolved):
            return plan
        problem = await self._supervision.find_problem(raw, run, plan)
        return problem if problem is not None else await self._desk.plans.store(plan)

    def _terms(self, stored: StoredPlan | None) -> Terms:
        settings = self._desk.settings
        terms = Terms(
            abort_grace=timedelta(seconds=settings.abort_grace_seconds),
            is_journal_durable=settings.is_journal_durable,
        )
        if stored is None:
            return terms
        deadline = timedelta(seconds=stored.plan.active_deadline_seconds)
        return replace(terms, max_attempts=stored.plan.max_attempts, active_deadline=deadline)

    # ------------------------------------------------------------ write

    def _needs_proof(self, view: RunView, situation: Situation, plan: AttemptPlan) -> bool:
        """Whether the pod must be looked at now and not in the picture: another may run, or none may be known."""
        if isinstance(plan, BeginAttempt):
            return view.attempt > 0
        return isinstance(situation, Ended) and view.run.status.pod is not None and not is_told_by_runner(view)

    async def _is_ended_as_seen(self, view: RunView) -> bool:
        return is_told_by_runner(view) or view.run.status.pod is None or await self._pods.is_as_seen(view)

    async def _report(self, key: Key, raw: Raw, view: RunView, situation: Situation, plan: AttemptPlan) -> Raw | None:
        """Write status where it differs; None when the object has changed and must be looked at again."""
        old, new = operator_part(view.run.status), render_status(view, situation, plan)
        if view.watch is not None and view.watch.is_put_off and _but_supervision(old) == _but_supervision(new):
            return raw
        written = await write_status(self._desk, AGENTRUNS, key, raw, old, new)
        if written is not None and written is not raw:
            self._tell(written, view.run.status, read_run(written).status, plan, situation)
        return written

    def _tell(
        self, raw: Raw, old: AgentRunStatus, new: AgentRunStatus, plan: AttemptPlan, situation: Situation
    ) -> None:
        parent = parent_key(raw)
        if parent is not None:  # the watch shows nothing new of what is written here
            self._desk.queue.add(parent)
        for draft in plan_events(old, new):
            self._desk.events.post(build_event(raw, draft, self._desk.now()))
        for waiting in waiting_for(raw, self._desk.cache):
            self._desk.queue.add(waiting)
        if new.phase != old.phase:
            metadata = raw["metadata"]
            log.info("run.phase", namespace=metadata["namespace"], run=metadata["name"], phase=new.phase)
            self._touch_workflow(raw)
        if isinstance(plan, BeginAttempt) and plan.attempts.last_failure:
            self._desk.metrics.attempts_failed.labels(plan.attempts.last_failure.split(":")[0]).inc()
        if isinstance(situation, Ended):
            self._desk.metrics.runs_ended.labels(new.phase).inc()

    def _touch_workflow(self, raw: Raw) -> None:
        workflow = workflow_of(raw)
        if workflow is not None:
            self._desk.queue.add_after(workflow, SETTLED)

    # ------------------------------------------------------------ act

    async def _act(
        self, view: RunView, stored: StoredPlan | None, situation: Situation, plan: AttemptPlan
    ) -> float | None:
        match plan:
            case BeginAttempt():
                if plan.is_old_pod_removed and view.pod is not None:
                    await self._pods.remove(view, view.pod)
                return AT_ONCE
            case MakePod():
                return await self._pods.make(view, stored, plan)
            case RemovePod():
                if view.pod is not None:
                    log.info("pod.removed", run=view.run.metadata.name, pod=view.pod.name, why=plan.why)
                    await self._pods.remove(view, view.pod)
                return None
            case Stay():
                if isinstance(situation, Ended):
                    return AT_ONCE
                return _seconds_until(view, situation, plan.until)
            case _:
                assert_never(plan)

    # ------------------------------------------------------------ ends

    async def _leave(self, key: Key, raw: Raw, run: AgentRun) -> float | None:
        """Label a finished run, so that it leaves the watch, and hand it to those who clean up."""
        uid = run.metadata.uid or ""
        self._memories.forget(key)
        self._desk.plans.forget(uid)
        self._children.forget(uid)
        record = read_finished(raw)
        self._desk.finished.add(record, is_fresh=True)
        self._desk.queue.add(record.key)
        for waiting in waiting_for(raw, self._desk.cache):
            self._desk.queue.add(waiting)
        self._touch_workflow(raw)
        self._supervision.forget(key)
        if names.LABEL_FINISHED not in run.metadata.labels and self._supervision.is_counted(key, raw):
            patch = {"metadata": {"uid": uid, "labels": {names.LABEL_FINISHED: record.phase}}}
            try:
                self._desk.cache.apply(await self._desk.client.merge_patch(AGENTRUNS, key.namespace, key.name, patch))
            except NotFound:
                self._desk.notice(raw, True)
        return None


def _but_supervision(status: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in status.items() if name != "supervision"}


def read_run(raw: Raw) -> AgentRun:
    """Return the run, as far as it is understood: a spec that is not leaves a run that will be Blocked."""
    try:
        return AgentRun.model_validate(raw)
    except ValidationError:
        header = {name: value for name, value in raw.items() if name != "spec"}
        return AgentRun.model_validate({**header, "spec": {}})


def read_snapshot(run: AgentRun) -> Snapshot | None:
    """Return what the runner reports; a report that is not understood still says that a runner has run."""
    if run.status.run is None:
        return None
    try:
        return Snapshot.model_validate(run.status.run)
    except ValidationError as error:
        log.warning("snapshot.unreadable", run=run.metadata.name, error=explain(error))
        return Snapshot(attempt=run.status.attempt or 0)


def _created(run: AgentRun) -> datetime | None:
    return datetime.fromisoformat(run.metadata.creation_timestamp) if run.metadata.creation_timestamp else None


def _seconds_until(view: RunView, situation: Situation, until: datetime | None) -> float | None:
    moments = [moment for moment in (until, next_look(view, situation)) if moment is not None]
    return max((min(moments) - view.now).total_seconds(), 0.05) if moments else None
