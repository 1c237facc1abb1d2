"""AgentRuns: gather, classify, decide, write status, act on pods."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    PODS,
    AlreadyExists,
    Forbidden,
    Invalid,
    NotFound,
    Raw,
    Unavailable,
)
from pilothouse_operator.conditions import is_true
from pilothouse_operator.reconcile.children import Children, find_lineage
from pilothouse_operator.reconcile.desk import Desk
from pilothouse_operator.reconcile.supervision import Supervision
from pilothouse_operator.reconcile.suspension import Suspensions
from pilothouse_operator.reconcile.writing import write_status
from pilothouse_operator.runs.attempts import (
    DISRUPTION_BACKOFF,
    AttemptPlan,
    BeginAttempt,
    MakePod,
    RemovePod,
    Stay,
    plan_attempt,
)
from pilothouse_operator.runs.children import after_children, has_children
from pilothouse_operator.runs.classification import SILENT_START, classify, is_told_by_runner
from pilothouse_operator.runs.directives import pending_directives
from pilothouse_operator.runs.looks import next_look
from pilothouse_operator.runs.situation import Ended, Situation
from pilothouse_operator.runs.view import Obstacle, RunView, Seen, Terms
from pilothouse_operator.status.events import build_event, plan_events
from pilothouse_operator.status.rendering import operator_part, render_status
from pilothouse_operator.watching.cache import Key, parent_key, workflow_of
from pilothouse_operator.watching.finished import read_finished
from pilothouse_operator.watching.references import Unreadable, explain, gather_references
from pilothouse_operator.watching.routing import SETTLED
from pilothouse_operator.watching.sessions import runs_of_session, session_holder, session_of, waiting_for
from pilothouse_operator.workloads.manifests import build_pod
from pilothouse_operator.workloads.plans import NoPlan, StoredPlan
from pilothouse_operator.workloads.pod_warnings import PodWarnings
from pilothouse_operator.workloads.pods import PodView, read_pod
from pilothouse_operator.workloads.start_problems import (
    WEBHOOK_UNAVAILABLE,
    explain_refusal,
    problem_of_events,
)

AT_ONCE = 0.0
STEPS_IN_A_ROW = 4
"""From a new run to its pod in one go: behind a queue of hundreds its pod would wait for all their first steps."""
RECHECK_SECONDS = 10.0
FIRST_REFUSAL = timedelta(seconds=2)
LONGEST_REFUSAL = timedelta(seconds=60)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server refused the pod: why, and when to try again."""

    obstacle: Obstacle
    retry: datetime
    pause: timedelta


@dataclass(frozen=True, slots=True)
class Made:
    """How often the pod of an attempt was made, none of which began, and when it may be made again."""

    attempt: int
    times: int
    again: datetime


@dataclass(frozen=True, slots=True)
class Memory:
    """What this process remembers of a run, because no object says it."""

    uid: str = ""
    seen: Seen = field(default_factory=Seen)
    generation: int = 0
    refusal: Refusal | None = None
    made: Made | None = None


class RunReconciler:
    """Reconciles AgentRuns."""

    def __init__(self, desk: Desk, suspensions: Suspensions) -> None:
        self._desk = desk
        self._suspensions = suspensions
        self._memory: dict[Key, Memory] = {}
        self._claims: dict[tuple[str, str], str] = {}
        """Uid of the run that was let begin last, by namespace and session."""
        self._pods = desk.settings.pods()
        self._warnings = PodWarnings(desk.client)
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
            forgotten = self._memory.pop(key, None)
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
        if self._needs_proof(view, situation, plan) and not await self._is_pod_as_seen(view):
            return AT_ONCE
        raw = await self._report(key, raw, view, situation, plan)
        if raw is None or await self._supervision.act(key, raw, view):
            return AT_ONCE
        return await self._act(view, stored, situation, plan)

    # ------------------------------------------------------------ gather

    async def _gather(self, raw: Raw, run: AgentRun) -> tuple[RunView, StoredPlan | None]:
        now = self._desk.now()
        snapshot = read_snapshot(run)
        pod, ghost = self._find_pod(run)
        if pod is not None and is_silent(pod, now):
            warnings = await self._warnings.of_pod(run.metadata.namespace or "", pod.uid)
            pod = replace(pod, problem=problem_of_events(warnings))
        view = RunView(run, now, snapshot, pod, ghost, run.status.plan, children=tuple(run.status.children))
        view = replace(view, seen=self._look(view))
        if view.wants_abort and not view.has_begun:
            return view, None  # nothing will be started: no plan is needed
        if await self._is_suspended(raw, view):
            return replace(view, is_suspended=True), None  # before it claims its session
        holder = self._find_session_holder(raw)
        if holder is not None:
            return replace(view, session_holder=holder), None
        found = await self._find_plan(raw, run)
        if isinstance(found, StoredPlan):
            return replace(view, plan=found.report, terms=self._terms(found), obstacle=self._refusal(run)), found
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

    def _find_pod(self, run: AgentRun) -> tuple[PodView | None, PodView | None]:
        """Return the pod of the current attempt, and that pod as it was last where it is deleted."""
        if run.status.pod is None:
            return None, None
        key = Key("Pod", run.metadata.namespace or "", run.status.pod.name)
        cache = self._desk.cache
        pod, ghost = (read_pod(raw) if raw is not None else None for raw in (cache.get(key), cache.ghost(key)))
        own = [one if one is not None and one.owner_uid == run.metadata.uid else None for one in (pod, ghost)]
        return own[0], own[1]

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

    def _look(self, view: RunView) -> Seen:
        """Return when things were first seen, and remember it."""
        generation = view.run.metadata.generation or 0
        memory = self._recall(view.run)
        before = memory.seen if memory.generation == generation else replace(memory.seen, directive=None)
        seen = Seen(
            abort=(before.abort or view.now) if view.wants_abort else None,
            directive=(before.directive or view.now) if pending_directives(view) else None,
            exit=(before.exit or view.now) if is_leaving(view) else None,
        )
        self._memory[_key_of(view.run)] = replace(memory, seen=seen, generation=generation)
        return seen

    def _recall(self, run: AgentRun) -> Memory:
        """Return what is remembered of this very run: another one may have had its name."""
        uid = run.metadata.uid or ""
        memory = self._memory.get(_key_of(run))
        return memory if memory is not None and memory.uid == uid else Memory(uid)

    def _refusal(self, run: AgentRun) -> Obstacle | None:
        refusal = self._recall(run).refusal
        return refusal.obstacle if refusal else None

    # ------------------------------------------------------------ write

    def _needs_proof(self, view: RunView, situation: Situation, plan: AttemptPlan) -> bool:
        """Whether the pod must be looked at now and not in the picture: another may run, or none may be known."""
        if isinstance(plan, BeginAttempt):
            return view.attempt > 0
        return isinstance(situation, Ended) and view.run.status.pod is not None and not is_told_by_runner(view)

    async def _is_ended_as_seen(self, view: RunView) -> bool:
        return is_told_by_runner(view) or view.run.status.pod is None or await self._is_pod_as_seen(view)

    async def _is_pod_as_seen(self, view: RunView) -> bool:
        namespace, name = view.run.metadata.namespace or "", view.run.status.pod.name if view.run.status.pod else ""
        cached = self._desk.cache.get(Key("Pod", namespace, name))
        try:
            raw = await self._desk.client.get(PODS, namespace, name)
        except NotFound:
            if cached is not None:
                self._desk.notice(cached, True)
            return view.pod is None
        self._desk.cache.apply(raw)
        pod = read_pod(raw)
        if view.pod is not None:
            pod = replace(pod, problem=view.pod.problem)  # events may have said it
        return (pod if pod.owner_uid == view.run.metadata.uid else None) == view.pod

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
                    await self._remove(view, view.pod)
                return AT_ONCE
            case MakePod():
                return await self._make(view, stored, plan)
            case RemovePod():
                if view.pod is not None:
                    log.info("pod.removed", run=view.run.metadata.name, pod=view.pod.name, why=plan.why)
                    await self._remove(view, view.pod)
                return None
            case Stay():
                if isinstance(situation, Ended):
                    return AT_ONCE
                return _seconds_until(view, situation, plan.until)
            case _:
                assert_never(plan)

    async def _remove(self, view: RunView, pod: PodView) -> None:
        await self._desk.client.delete(PODS, view.run.metadata.namespace or "", pod.name, uid=pod.uid)

    async def _make(self, view: RunView, stored: StoredPlan | None, plan: MakePod) -> float | None:
        memory = self._recall(view.run)
        if stored is None:
            return RECHECK_SECONDS
        if memory.refusal is not None and view.now < memory.refusal.retry:
            return (memory.refusal.retry - view.now).total_seconds()
        if memory.made is not None and memory.made.attempt == plan.number and view.now < memory.made.again:
            return (memory.made.again - view.now).total_seconds()
        body = build_pod(stored.plan, stored.report, plan.number, plan.settle, self._pods)
        try:
            raw = await self._desk.client.create(PODS, view.run.metadata.namespace or "", body)
        except AlreadyExists:
            return await self._adopt(view, plan.number, body["metadata"]["name"])
        except (Forbidden, Invalid, Unavailable) as error:
            reason, message, is_waiting = explain_refusal(str(error))
            if isinstance(error, Unavailable) and reason != WEBHOOK_UNAVAILABLE:
                raise
            return self._refuse(view, Obstacle(reason, message, is_waiting, view.now))
        self._accept(view, plan.number)
        self._desk.cache.apply(raw)
        return AT_ONCE

    async def _adopt(self, view: RunView, attempt: int, name: str) -> float | None:
        """A pod of that name exists: it is ours only where it has our owner."""
        raw = await self._desk.client.get(PODS, view.run.metadata.namespace or "", name)
        if read_pod(raw).owner_uid != view.run.metadata.uid:
            message = f"pod {name} belongs to another object: delete it, or wait until its owner is cleaned up"
            return self._refuse(view, Obstacle("PodNameTaken", message, True, view.now))
        self._accept(view, attempt)
        self._desk.cache.apply(raw)
        return AT_ONCE

    def _accept(self, view: RunView, attempt: int) -> None:
        memory = self._recall(view.run)
        made = _made_again(memory.made, attempt, view.now)
        self._memory[_key_of(view.run)] = replace(memory, refusal=None, made=made)

    def _refuse(self, view: RunView, obstacle: Obstacle) -> float:
        memory = self._recall(view.run)
        pause = min(memory.refusal.pause * 2, LONGEST_REFUSAL) if memory.refusal else FIRST_REFUSAL
        since = memory.refusal.obstacle.since if memory.refusal else view.now
        refusal = Refusal(replace(obstacle, since=since), view.now + pause, pause)
        self._memory[_key_of(view.run)] = replace(memory, refusal=refusal)
        return AT_ONCE  # the refusal is shown, then the retry is waited for

    # ------------------------------------------------------------ ends

    async def _leave(self, key: Key, raw: Raw, run: AgentRun) -> float | None:
        """Label a finished run, so that it leaves the watch, and hand it to those who clean up."""
        uid = run.metadata.uid or ""
        self._memory.pop(key, None)
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


def _key_of(run: AgentRun) -> Key:
    return Key("AgentRun", run.metadata.namespace or "", run.metadata.name)


def _created(run: AgentRun) -> datetime | None:
    return datetime.fromisoformat(run.metadata.creation_timestamp) if run.metadata.creation_timestamp else None


def is_silent(pod: PodView, now: datetime) -> bool:
    """Tell whether a pod should have started by now and says nothing about why it does not."""
    is_waiting = pod.phase == "Pending" and not pod.has_started and pod.failure is None
    return is_waiting and pod.problem is None and now - pod.created >= SILENT_START


def is_leaving(view: RunView) -> bool:
    """Tell whether the runner has said that it ends: with the run's exit, or letting go of the run."""
    snapshot = view.snapshot
    if snapshot is None:
        return False
    is_released = snapshot.parked is not None and snapshot.parked.released and snapshot.attempt == view.attempt
    return snapshot.exit is not None or is_released


def _made_again(made: Made | None, attempt: int, now: datetime) -> Made:
    """Return the memory of one more pod: somebody who deletes each before it begins is not raced."""
    times = made.times + 1 if made is not None and made.attempt == attempt else 1
    pause = timedelta(0) if times == 1 else min(DISRUPTION_BACKOFF * 2.0 ** min(times - 2, 8), LONGEST_REFUSAL)
    return Made(attempt, times, now + pause)


def _seconds_until(view: RunView, situation: Situation, until: datetime | None) -> float | None:
    moments = [moment for moment in (until, next_look(view, situation)) if moment is not None]
    return max((min(moments) - view.now).total_seconds(), 0.05) if moments else None
