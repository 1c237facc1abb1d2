"""Supervision of a run: gather who watches it, decide (`plan_supervision`), tell and act (supervision.md).

All of it is repeated at every look at the run. What must not happen twice stands in `status.supervision` before it
happens; what may be lost with the process (that a verdict is awaited, that an intent has just been carried out) is
kept in memory and joins the next write of the run's status.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from pilothouse_api.names import FIELD_MANAGER_SUPERVISION
from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1 import AgentRun, Supervisor
from pilothouse_api.v1alpha1.agentrun import Supervision as Record
from pilothouse_api.v1alpha1.agentrun import SupervisionAction
from pilothouse_control.resolution import NotResolved
from pilothouse_control.supervision import (
    Binding,
    Bindings,
    Directive,
    JudgeAvailability,
    JudgeAvailable,
    JudgeUnavailable,
    SupervisionView,
    find_bound,
    identity_of,
    plan_supervision,
)
from pilothouse_kubernetes.client import AGENTRUNS, SUPERVISORS, Conflict, Invalid, NotFound, Raw
from pilothouse_operator.reconcile.desk import Desk
from pilothouse_operator.reconcile.writing import refresh
from pilothouse_operator.runs.directives import DIRECTIVE_PATIENCE
from pilothouse_operator.runs.view import RunView
from pilothouse_operator.status.events import build_event, draft_intervention, recent_interventions
from pilothouse_operator.supervision.criteria import Criteria
from pilothouse_operator.supervision.record import Watch, awaited_length, may_wait, note_failures, to_raw
from pilothouse_operator.supervision.tallies import is_counted
from pilothouse_operator.watching.cache import Key, parent_key
from pilothouse_operator.watching.references import Unreadable, read_object
from pilothouse_operator.watching.routing import COUNTED
from pilothouse_operator.workloads.plans import StoredPlan

REFUSED_AGAIN = timedelta(seconds=30)
"""How long a directive waits that the API server refused although the run takes it."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A record that is not written: it goes on from the one that stands in status."""

    base: Record | None
    record: Record


@dataclass(slots=True)
class _Memory:
    """What this process remembers of a supervised run."""

    uid: str
    ahead: _Ahead | None = None
    unapplied: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    again: datetime | None = None
    """When a directive may be given again that was refused without a cause in the run."""
    is_told: bool = False


class Supervision:
    """Supervises runs."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._memory: dict[Key, _Memory] = {}
        self._criteria = Criteria(desk.cache, desk.client)

    # ------------------------------------------------------------ before the run starts

    async def find_problem(self, raw: Raw, run: AgentRun, plan: Plan) -> NotResolved | None:
        """Return why a run may not start with a plan: somebody who must watch it is not there."""
        bindings = self._find_bound(raw, run, plan)
        namespace = run.metadata.namespace or ""
        for name in bindings.missing:
            try:  # the watch of Supervisors may be behind the one of runs
                self._desk.notice(await self._desk.client.get(SUPERVISORS, namespace, name), False)
            except NotFound:
                continue
        problem = (self._find_bound(raw, run, plan) if bindings.missing else bindings).problem
        return NotResolved(*problem, is_waiting=True) if problem is not None else None

    def _find_bound(self, raw: Raw, run: AgentRun, plan: Plan) -> Bindings:
        namespace = run.metadata.namespace or ""
        refs = [ref.name for ref in plan.spec.supervisor_refs]
        supervisors = self._supervisors(namespace)
        parent = self._record_of_parent(raw)
        if not refs and not supervisors and parent is None and run.status.supervision is None:
            return Bindings({})
        return find_bound(run, refs, supervisors, parent)

    def _supervisors(self, namespace: str) -> list[Supervisor]:
        found = []
        for raw in self._desk.cache.objects("Supervisor", namespace):
            try:
                found.append(read_object(Supervisor, raw))
            except Unreadable:
                continue  # its own status says so
        return found

    def _record_of_parent(self, raw: Raw) -> Record | None:
        parent = parent_key(raw)
        found = self._desk.cache.get(parent) if parent is not None else None
        report = found.get("status", {}).get("supervision") if found is not None else None
        return Record.model_validate(report) if report else None

    # ------------------------------------------------------------ look

    async def look(self, key: Key, raw: Raw, view: RunView, stored: StoredPlan | None) -> RunView:
        """Return the view with what is to be done about its supervision; a run that nobody watches is left alone."""
        if stored is None:
            return view
        bound = self._find_bound(raw, view.run, stored.plan).bound
        if not bound and view.run.status.supervision is None:
            return view
        uid = view.run.metadata.uid or ""
        memory = self._memory.get(key)
        if memory is None or memory.uid != uid:
            memory = self._memory[key] = _Memory(uid)
        run = _as_known(view.run, memory)
        verdicts = self._desk.judges.answers(uid)
        judges = {one: known for one in bound if (known := await self._availability(bound[one])) is not None}
        plan = plan_supervision(
            SupervisionView(
                run=run,
                now=view.now,
                bound=bound,
                plan=stored.plan,
                snapshot=view.snapshot,
                judges=judges,
                verdicts=verdicts,
                underway=self._desk.judges.underway(uid),
                unapplied=memory.unapplied,
                refused=memory.refused,
            )
        )
        if plan.record is None:
            return view
        if not plan.is_changed and memory.ahead is None:
            return replace(view, watch=Watch(plan.record, plan, judges, verdicts, is_news=False))
        record = note_failures(plan.record, plan, verdicts)
        put_off = may_wait(
            view.run.status.supervision,
            record,
            is_landing=view.seen.directive is not None and view.now - view.seen.directive < DIRECTIVE_PATIENCE,
            awaited=awaited_length(view.snapshot),
        )
        return replace(view, watch=Watch(record, plan, judges, verdicts, is_put_off=put_off))

    async def _availability(self, binding: Binding) -> JudgeAvailability | None:
        """Tell whether a supervisor's judge can be asked; None where there is none, or where nobody knows yet."""
        judge, judges = binding.spec.judge, self._desk.judges
        if judge is None or not judges.is_known:
            return None
        problem = judges.find_problem(judge.model)
        if problem is not None:
            return problem
        criteria = await self._criteria.read(binding, judge)
        return criteria if isinstance(criteria, JudgeUnavailable) else JudgeAvailable(criteria)

    # ------------------------------------------------------------ tell and act

    async def act(self, key: Key, raw: Raw, view: RunView) -> bool:
        """Do what a look has decided, once its record stands (or may wait); tell whether to look again at once."""
        watch, memory = view.watch, self._memory.get(key)
        if watch is None or memory is None:
            return False
        if not self._keep(memory, raw, view, watch):
            return False
        memory.unapplied |= frozenset(watch.plan.intended)
        self._tell(key, raw, view, watch, memory)
        uid = view.run.metadata.uid or ""
        self._desk.judges.take(uid, watch.verdicts)
        for ask in watch.plan.asks:
            self._desk.judges.ask(key, uid, ask)
        if watch.plan.directive is not None:
            if memory.again is None or view.now >= memory.again:
                await self._patch(key, raw, watch.plan.directive, memory)
                return True
            self._desk.queue.add_after(key, (memory.again - view.now).total_seconds())
        return watch.plan.is_changed

    def _keep(self, memory: _Memory, raw: Raw, view: RunView, watch: Watch) -> bool:
        """Remember the record; tell whether it stands, or may wait. Where it could not be written, it is void."""
        if not watch.is_news or raw.get("status", {}).get("supervision") == to_raw(watch.record):
            memory.ahead = None
            return True
        if watch.is_put_off:
            memory.ahead = _Ahead(view.run.status.supervision, watch.record)
            return True
        return False

    def _tell(self, key: Key, raw: Raw, view: RunView, watch: Watch, memory: _Memory) -> None:
        desk, plan = self._desk, watch.plan
        told = list(plan.acted)
        if not memory.is_told:
            told = [*recent_interventions(watch.record.actions, desk.now()), *told]
            memory.is_told = True
        for action in {identity_of(one): one for one in told}.values():
            draft = draft_intervention(action)
            if draft is not None:
                desk.events.post(build_event(raw, draft, desk.now()))
        run = {"namespace": key.namespace, "run": key.name}
        for action in plan.acted:
            log.info("supervisor.action", **run, **_logged(action))
            if action.state == "Done":
                desk.metrics.supervisor_actions.labels(action.action, action.source.partition("/")[0]).inc()
        for failure in plan.failures:
            said = {"supervisor": failure.supervisor, "type": failure.type, "error": failure.message}
            log.warning("supervisor.judge_failed", **run, **said)
            desk.metrics.judge_failures.labels(failure.type).inc()
        for line in plan.log:
            log.warning(line.event, **run, supervisor=line.supervisor, message=line.message)
        before = view.run.status.supervision
        for uid, record in watch.record.supervisors.items():
            old = before.supervisors.get(uid) if before is not None else None
            if old is None or (old.actions, old.judge) != (record.actions, record.judge):
                self._touch(key.namespace, record.name)

    def _touch(self, namespace: str, supervisor: str) -> None:
        """Have a Supervisor's counters written, some seconds from now: what comes meanwhile goes with them."""
        self._desk.queue.add_after(Key("Supervisor", namespace, supervisor), COUNTED)

    async def _patch(self, key: Key, raw: Raw, directive: Directive, memory: _Memory) -> None:
        """Carry out intents that stand in the record, on the very object that was judged."""
        metadata, actions = raw["metadata"], frozenset(directive.actions)
        precondition = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        body = {"metadata": precondition, "spec": dict(directive.patch)}
        memory.unapplied -= actions  # from here on nobody can say whether it was made, unless the answer does
        try:
            written = await self._desk.client.merge_patch(
                AGENTRUNS, key.namespace, key.name, body, field_manager=FIELD_MANAGER_SUPERVISION
            )
        except Conflict:
            memory.unapplied |= actions
            await refresh(self._desk, AGENTRUNS, key, raw)
        except Invalid as error:
            self._note_refusal(key, raw, actions, memory, error)
            await refresh(self._desk, AGENTRUNS, key, raw)
        except NotFound:
            self._desk.notice(raw, True)
        else:
            self._desk.cache.apply(written)

    def _note_refusal(self, key: Key, raw: Raw, actions: frozenset[str], memory: _Memory, error: Invalid) -> None:
        """After Finish or Abort a refusal means superseded; any other one (a cluster's own policy) is a fault.

        Then the intent stands, the clock does not go on, and the directive is given again after a while.
        """
        run = {"namespace": key.namespace, "run": key.name}
        if (raw.get("spec", {}).get("control") or {}).get("mode") in ("Finish", "Abort"):
            memory.refused |= actions
            log.info("supervisor.superseded", **run, error=str(error))
            return
        memory.unapplied |= actions
        memory.again = self._desk.now() + REFUSED_AGAIN
        log.warning("supervisor.refused", **run, error=str(error), retry_seconds=REFUSED_AGAIN.total_seconds())

    # ------------------------------------------------------------ ends

    def is_counted(self, key: Key, raw: Raw) -> bool:
        """Tell whether everybody who watched a run that has ended has counted it; have those do so that have not."""
        supervision, waiting = raw.get("status", {}).get("supervision") or {}, False
        for uid, record in supervision.get("supervisors", {}).items():
            supervisor = self._desk.cache.get(Key("Supervisor", key.namespace, record["name"]))
            metadata = supervisor["metadata"] if supervisor is not None else {}
            if supervisor is None or metadata.get("uid") != uid or "deletionTimestamp" in metadata:
                continue  # it goes, and its counters with it
            self._touch(key.namespace, record["name"])
            waiting |= not is_counted(supervisor, raw)
        return not waiting

    def forget(self, key: Key) -> None:
        """Forget a run that has ended or is gone."""
        memory = self._memory.pop(key, None)
        if memory is not None:
            self._desk.judges.forget(memory.uid)


def _as_known(run: AgentRun, memory: _Memory) -> AgentRun:
    """Return the run with the record that is ahead of the one that stands, as long as it goes on from that one."""
    ahead = memory.ahead
    if ahead is None:
        return run
    if ahead.base != run.status.supervision:
        memory.ahead = None
        return run
    status = run.status.model_copy(update={"supervision": ahead.record})
    return run.model_copy(update={"status": status})


def _logged(action: SupervisionAction) -> Mapping[str, object]:
    return {
        "id": action.id,
        "supervisor": action.supervisor,
        "generation": action.generation,
        "action": action.action,
        "state": action.state,
        "source": action.source,
        "reason": action.reason,
        "turn": action.turn,
    }
