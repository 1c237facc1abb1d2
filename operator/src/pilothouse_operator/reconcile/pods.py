"""Pods of a run: found in the picture, looked at where the picture is no proof, made, and removed."""

from dataclasses import replace
from datetime import datetime

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_kubernetes.client import PODS, AlreadyExists, Forbidden, Invalid, NotFound, Unavailable
from pilothouse_operator.reconcile.desk import Desk
from pilothouse_operator.reconcile.run_memories import RunMemories
from pilothouse_operator.runs.attempts import MakePod
from pilothouse_operator.runs.classification import SILENT_START
from pilothouse_operator.runs.view import Obstacle, RunView
from pilothouse_operator.watching.cache import Key
from pilothouse_operator.workloads.manifests import build_pod
from pilothouse_operator.workloads.plans import StoredPlan
from pilothouse_operator.workloads.pod_warnings import PodWarnings
from pilothouse_operator.workloads.pods import PodView, read_pod
from pilothouse_operator.workloads.start_problems import WEBHOOK_UNAVAILABLE, explain_refusal, problem_of_events

AT_ONCE = 0.0
RECHECK_SECONDS = 10.0


class Pods:
    """What is done with the pods of runs. `memories`: what was made and refused is noted there."""

    def __init__(self, desk: Desk, memories: RunMemories) -> None:
        self._desk = desk
        self._memories = memories
        self._settings = desk.settings.pods()
        self._warnings = PodWarnings(desk.client)

    async def find(self, run: AgentRun, now: datetime) -> tuple[PodView | None, PodView | None]:
        """Return the pod of the current attempt, and that pod as it was last where it is deleted."""
        if run.status.pod is None:
            return None, None
        key = Key("Pod", run.metadata.namespace or "", run.status.pod.name)
        cache = self._desk.cache
        found = (read_pod(raw) if raw is not None else None for raw in (cache.get(key), cache.ghost(key)))
        pod, ghost = (one if one is not None and one.owner_uid == run.metadata.uid else None for one in found)
        if pod is not None and is_silent(pod, now):
            warnings = await self._warnings.of_pod(run.metadata.namespace or "", pod.uid)
            pod = replace(pod, problem=problem_of_events(warnings))
        return pod, ghost

    async def is_as_seen(self, view: RunView) -> bool:
        """Ask the API server whether the pod of the current attempt is what the view says of it."""
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

    async def remove(self, view: RunView, pod: PodView) -> None:
        """Delete this very pod."""
        await self._desk.client.delete(PODS, view.run.metadata.namespace or "", pod.name, uid=pod.uid)

    async def make(self, view: RunView, stored: StoredPlan | None, plan: MakePod) -> float | None:
        """Make the pod of an attempt, or note why it was refused; return when to look again."""
        if stored is None:
            return RECHECK_SECONDS
        due = self._memories.recall(view.run).next_try(plan.number, view.now)
        if due is not None:
            return (due - view.now).total_seconds()
        body = build_pod(stored.plan, stored.report, plan.number, plan.settle, self._settings)
        try:
            raw = await self._desk.client.create(PODS, view.run.metadata.namespace or "", body)
        except AlreadyExists:
            return await self._adopt(view, plan.number, body["metadata"]["name"])
        except (Forbidden, Invalid, Unavailable) as error:
            reason, message, is_waiting = explain_refusal(str(error))
            if isinstance(error, Unavailable) and reason != WEBHOOK_UNAVAILABLE:
                raise
            return self._refuse(view, Obstacle(reason, message, is_waiting, view.now))
        self._memories.note_made(view, plan.number)
        self._desk.cache.apply(raw)
        return AT_ONCE

    async def _adopt(self, view: RunView, attempt: int, name: str) -> float | None:
        """A pod of that name exists: it is ours only where it has our owner."""
        raw = await self._desk.client.get(PODS, view.run.metadata.namespace or "", name)
        if read_pod(raw).owner_uid != view.run.metadata.uid:
            message = f"pod {name} belongs to another object: delete it, or wait until its owner is cleaned up"
            return self._refuse(view, Obstacle("PodNameTaken", message, True, view.now))
        self._memories.note_made(view, attempt)
        self._desk.cache.apply(raw)
        return AT_ONCE

    def _refuse(self, view: RunView, obstacle: Obstacle) -> float:
        self._memories.note_refused(view, obstacle)
        return AT_ONCE  # the refusal is shown, then the retry is waited for


def is_silent(pod: PodView, now: datetime) -> bool:
    """Tell whether a pod should have started by now and says nothing about why it does not."""
    is_waiting = pod.phase == "Pending" and not pod.has_started and pod.failure is None
    return is_waiting and pod.problem is None and now - pod.created >= SILENT_START
