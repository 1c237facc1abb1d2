"""Children of a run: gather what is known of them, decide (`plan_children`), make and tell them (engine.md §12).

All of it is repeated at every look at the parent: a child is made under a name that follows from its call, what is
told is told until it stands on the child, and ends are read from the children themselves.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

import structlog
from pydantic import ValidationError

from pilothouse_api import names
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import ChildRequest, Snapshot
from pilothouse_control.children import (
    HANDED_ON,
    WANTED,
    ChildPatch,
    ChildrenPlan,
    Family,
    NewChild,
    calls_of,
    child_name,
    parent_of,
    past_tasks,
    plan_children,
    read_snapshot,
)
from pilothouse_control.lineage import Lineage, lineage_of
from pilothouse_control.resolution import NotResolved
from pilothouse_kubernetes.client import (
    AGENTRUNS,
    AGENTS,
    WORKFLOWS,
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Raw,
)
from pilothouse_operator.reconcile.desk import Desk
from pilothouse_operator.reconcile.writing import refresh
from pilothouse_operator.runs.situation import Ended, Settling, Situation
from pilothouse_operator.runs.view import RunView
from pilothouse_operator.watching.cache import Key
from pilothouse_operator.workloads.plans import StoredPlan

RECHECK_SECONDS = 5.0
NOT_ASKED = "NotAskedFor"
"""A run says that it is a child, and the run that it names does not (any more)."""

log = structlog.get_logger()


class Children:
    """Looks after the children of runs."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._since: dict[str, dict[str, datetime]] = {}
        self._refusals: dict[str, dict[str, str]] = {}

    async def tend(self, view: RunView, stored: StoredPlan | None, situation: Situation) -> RunView:
        """Do what is to be done about the children of a run; return the view with what is known of them."""
        family = await self._gather(view, stored, situation)
        plan = plan_children(family)
        self._remember(view, plan)
        untold = [await self._create(view, new) for new in plan.creates]
        for patch in plan.patches:
            await self._tell(view, patch)
        missed = {call for call in untold if call is not None}
        reports = tuple(report for report in plan.reports if report.call_id not in missed)
        if plan.waiting or (plan.handed_on and not missed):  # no event of a task of another run is one of this run
            self._desk.queue.add_after(_key(view.run), RECHECK_SECONDS)
        elif missed:
            self._desk.queue.add_after(_key(view.run), 0.0)
        return replace(view, children=reports, open_children=plan.open)

    def forget(self, uid: str) -> None:
        """Forget what is remembered of a run that has ended."""
        self._since.pop(uid, None)
        self._refusals.pop(uid, None)

    # ------------------------------------------------------------ gather

    async def _gather(self, view: RunView, stored: StoredPlan | None, situation: Situation) -> Family:
        run, snapshot = view.run, view.snapshot or Snapshot(attempt=0)
        uid = run.metadata.uid or ""
        is_ending = view.wants_abort or isinstance(situation, Ended | Settling)
        past = past_tasks(snapshot)
        found = {
            call: await self._find_past(run, call) if call in past else await self._find(run, call, is_ending)
            for call in calls_of(run, snapshot)
        }
        namespace = run.metadata.namespace or ""
        owners = {name: await self._look_up(namespace, name) for name in sorted(set(past.values()))}
        new = [
            request
            for request in snapshot.children
            if _is_to_be_made(request, is_ending) and found.get(request.call_id) is None
        ]
        return Family(
            parent=run,
            snapshot=snapshot,
            plan=stored.plan if stored is not None else None,
            is_ending=is_ending,
            now=view.now,
            found=found,
            targets=await self._targets(run, new),
            since=self._since.get(uid, {}),
            refusals=self._refusals.get(uid, {}),
            owners=owners,
        )

    async def _find_past(self, run: AgentRun, name: str) -> AgentRun | None:
        """Return a task of an earlier run of the session; nothing more is asked once its end was reported."""
        if any(report.call_id == name and report.exit is not None for report in run.status.children):
            return None
        return await self._look_up(run.metadata.namespace or "", name)

    async def _look_up(self, namespace: str, name: str) -> AgentRun | None:
        """Return a run from the picture, which finished ones have left, else from the API server."""
        raw = self._desk.cache.get(Key("AgentRun", namespace, name))
        if raw is None:
            try:
                raw = await self._desk.client.get(AGENTRUNS, namespace, name)
            except NotFound:
                return None
        return _read(raw)

    async def _find(self, parent: AgentRun, call_id: str, is_ending: bool) -> AgentRun | None:
        """Return the run under a child's name: from the picture, which finished ones have left, else asked for."""
        name, namespace = child_name(parent, call_id), parent.metadata.namespace or ""
        raw = self._desk.cache.get(Key("AgentRun", namespace, name))
        report = next((report for report in parent.status.children if report.call_id == call_id), None)
        if raw is None and report is not None and report.exit is not None:
            return None  # it has ended and left the picture
        if raw is None and (report is not None or is_ending or _is_dropped(parent, call_id)):
            return await self._look_up(namespace, name)
        return _read(raw) if raw is not None else None

    async def _targets(self, parent: AgentRun, requests: Iterable[ChildRequest]) -> frozenset[tuple[str, str]]:
        """Return which of the things that children are to run exist."""
        namespace, there = parent.metadata.namespace or "", set()
        for request in requests:
            ref = request.ref
            resource = AGENTS if ref.kind == "Agent" else WORKFLOWS
            if self._desk.cache.get(Key(resource.kind, namespace, ref.name)) is None:
                try:
                    await self._desk.client.get(resource, namespace, ref.name)
                except NotFound:
                    continue
            there.add((ref.kind, ref.name))
        return frozenset(there)

    # ------------------------------------------------------------ act

    def _remember(self, view: RunView, plan: ChildrenPlan) -> None:
        uid = view.run.metadata.uid or ""
        known = self._since.get(uid, {})
        self._since[uid] = {call: known.get(call, view.now) for call in plan.waiting}
        self._refusals[uid] = {}

    async def _create(self, view: RunView, new: NewChild) -> str | None:
        """Make a child; return its call where it cannot be reported yet."""
        namespace, name = view.run.metadata.namespace or "", new.raw["metadata"]["name"]
        uid = view.run.metadata.uid or ""
        try:
            raw = await self._desk.client.create(AGENTRUNS, namespace, new.raw)
        except AlreadyExists:  # made before a crash, or somebody else's: the next look tells
            self._desk.notice(await self._desk.client.get(AGENTRUNS, namespace, name), False)
            return new.call_id
        except (Forbidden, Invalid) as error:
            self._refusals[uid][new.call_id] = str(error)
            self._since[uid].setdefault(new.call_id, view.now)
            self._desk.queue.add_after(_key(view.run), RECHECK_SECONDS)
            return new.call_id
        log.info("run.child", namespace=namespace, run=view.run.metadata.name, child=name)
        self._desk.notice(raw, False)
        return None

    async def _tell(self, view: RunView, patch: ChildPatch) -> None:
        namespace = view.run.metadata.namespace or ""
        key = Key("AgentRun", namespace, patch.name)
        try:
            self._desk.notice(await self._desk.client.merge_patch(AGENTRUNS, namespace, patch.name, patch.raw), False)
        except (Invalid, Conflict, NotFound):  # it has ended, or another one has the name: the next look tells
            known = self._desk.cache.get(key)
            if known is not None:
                await refresh(self._desk, AGENTRUNS, key, known)


async def find_lineage(desk: Desk, run: AgentRun) -> Lineage | NotResolved | None:
    """Return what a run inherits of the one that asked for it, None where it is no child.

    The parent must ask for it, with this call and this reference: an owner is easily written.
    """
    parent = parent_of(run)
    if parent is None:
        return None
    name, uid = parent
    namespace = run.metadata.namespace or ""
    raw = desk.cache.get(Key("AgentRun", namespace, name))
    if raw is None:
        try:
            raw = await desk.client.get(AGENTRUNS, namespace, name)
        except NotFound:
            return NotResolved("ParentNotFound", f"there is no run {name}, which this one is a child of", True)
    asking = _read(raw)
    request = _request_of(asking, run) if asking is not None and asking.metadata.uid == uid else None
    if asking is None or request is None or asking.status.plan is None:
        return NotResolved(NOT_ASKED, f"the run {name} does not ask for this child (any more)", True)
    stored = await desk.plans.load(namespace, name, uid, asking.status.plan)
    if isinstance(stored, StoredPlan):
        return lineage_of(stored.plan, request)
    return NotResolved(stored.reason, f"the run {name}: {stored.message}", stored.is_waiting)


def _request_of(parent: AgentRun, run: AgentRun) -> ChildRequest | None:
    snapshot = read_snapshot(parent)
    call_id = run.metadata.labels.get(names.LABEL_PARENT_CALL)
    target = run.spec.agent_ref or run.spec.workflow_ref
    kind = "Agent" if run.spec.agent_ref is not None else "Workflow"
    for request in snapshot.children if snapshot is not None else ():
        is_it = request.call_id == call_id and request.state in (*WANTED, HANDED_ON) and request.owner is None
        if is_it and target is not None and (request.ref.kind, request.ref.name) == (kind, target.name):
            return request
    return None


def _is_to_be_made(request: ChildRequest, is_ending: bool) -> bool:
    if request.owner is not None:
        return False
    return request.state == HANDED_ON or (request.state in WANTED and not is_ending)


def _is_dropped(parent: AgentRun, call_id: str) -> bool:
    """Tell whether a call is wanted no more: a child that was made and not reported must be found and ended."""
    snapshot = read_snapshot(parent)
    requests = snapshot.children if snapshot is not None else ()
    return any(request.call_id == call_id and request.state not in WANTED for request in requests)


def _read(raw: Raw) -> AgentRun | None:
    try:
        return AgentRun.model_validate(raw)
    except ValidationError:
        return None


def _key(run: AgentRun) -> Key:
    return Key("AgentRun", run.metadata.namespace or "", run.metadata.name)
