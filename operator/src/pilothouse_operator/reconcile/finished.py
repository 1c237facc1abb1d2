"""Finished runs: their pods go after a while; they themselves go as `plan_deletions` says."""

from collections.abc import Sequence

import structlog

from pilothouse_api.names import pod_name
from pilothouse_api.v1alpha1.workflow import History
from pilothouse_control.retention import plan_deletions
from pilothouse_kubernetes.client import AGENTRUNS, PODS
from pilothouse_operator.reconcile.desk import Desk, Pace
from pilothouse_operator.watching.cache import Key
from pilothouse_operator.watching.finished import FinishedRun
from pilothouse_operator.workloads.pods import read_pod

TASKS_RECHECK_SECONDS = 60.0
"""How often it is looked whether the tasks of a finished run have ended: no event of theirs is one of that run."""

log = structlog.get_logger()


class FinishedReconciler:
    """Cleans up after finished runs. Runs of a workflow that exists are deleted by that workflow's reconciler."""

    def __init__(self, desk: Desk, pace: Pace) -> None:
        self._desk = desk
        self._pace = pace

    async def reconcile(self, key: Key) -> float | None:
        """Delete what is due; return after how many seconds more is due."""
        record = self._desk.finished.get(key)
        if record is None:
            return None
        waits = [await self._clean_pods(record)]
        if self._desk.cache.get(record.workflow_key) is None:
            waits.append(await delete_due(self._desk, self._pace, [record], None, None))
        return min((wait for wait in waits if wait is not None), default=None)

    async def _clean_pods(self, record: FinishedRun) -> float | None:
        cache = self._desk.cache
        numbers = range(1, record.attempts + 1)
        keys = [Key("Pod", record.namespace, pod_name(record.name, number)) for number in numbers]
        pods = [read_pod(raw) for key in keys if (raw := cache.get(key)) is not None]
        own = [pod for pod in pods if pod.owner_uid == record.uid]
        if not own:
            return None
        age = (self._desk.now() - record.completion).total_seconds()
        if age < self._desk.settings.finished_pod_seconds:
            return self._desk.settings.finished_pod_seconds - age
        for pod in own:
            await self._pace.wait()
            await self._desk.client.delete(PODS, record.namespace, pod.name, uid=pod.uid)
        return None


async def delete_due(
    desk: Desk, pace: Pace, records: Sequence[FinishedRun], history: History | None, ttl_seconds: int | None
) -> float | None:
    """Delete the finished runs that are due; return after how many seconds more are.

    One whose tasks go on in its session is not due before they have ended.
    """
    now = desk.now()
    idle = [record for record in records if not has_tasks(desk, record)]
    decision = plan_deletions([record.to_ended() for record in idle], history, ttl_seconds, now)
    by_name = {record.name: record for record in records}
    for name in decision.names:
        record = by_name[name]
        await pace.wait()
        log.info("run.deleted", namespace=record.namespace, run=record.name, phase=record.phase)
        # With its uid: a run that was made anew under that name stays.
        await desk.client.delete(AGENTRUNS, record.namespace, record.name, uid=record.uid)
        desk.finished.drop(record.key)
    waits = [] if decision.next_due is None else [max((decision.next_due - now).total_seconds(), 0.05)]
    return min([*waits, *([TASKS_RECHECK_SECONDS] if len(idle) < len(records) else [])], default=None)


def has_tasks(desk: Desk, record: FinishedRun) -> bool:
    """Tell whether children of a finished run still run; those that have ended have left the picture."""
    return any(desk.cache.get(Key("AgentRun", record.namespace, name)) is not None for name in record.tasks)
