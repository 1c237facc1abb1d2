"""Finished runs: they leave the watch by a label, and what is still to be done about them is remembered here."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from pilothouse_api import names
from pilothouse_control.retention import EndedRun
from pilothouse_kubernetes.client import Raw
from pilothouse_operator.conditions import parse_time
from pilothouse_operator.watching.cache import Key, parent_key

FINISHED = "Finished"
"""The kind under which the key of a finished run waits in the queue."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """One run that has ended. `ttl_seconds`: the run's own; `is_triggered`: a trigger made it.

    `workflow` is empty for a run of an Agent, and for a child: it is no run of a workflow's history.
    """

    namespace: str
    name: str
    uid: str
    workflow: str
    phase: str
    completion: datetime
    attempts: int
    is_triggered: bool
    ttl_seconds: int | None
    tasks: tuple[str, ...] = ()
    """Children that have outlived it: they would be deleted with it."""

    @property
    def key(self) -> Key:
        """Its key in the queue."""
        return Key(FINISHED, self.namespace, self.name)

    @property
    def workflow_key(self) -> Key:
        """The key of its workflow."""
        return Key("Workflow", self.namespace, self.workflow)

    def to_ended(self) -> EndedRun:
        """Return it as decisions about deletion read it."""
        return EndedRun(self.name, self.phase, self.completion, self.is_triggered, self.ttl_seconds)


def read_finished(raw_run: Raw) -> FinishedRun:
    """Return the record of a finished run."""
    metadata, spec, status = raw_run["metadata"], raw_run["spec"], raw_run.get("status", {})
    return FinishedRun(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        workflow=spec.get("workflowRef", {}).get("name", "") if parent_key(raw_run) is None else "",
        phase=status.get("phase", "Failed"),
        completion=parse_time(status.get("completionTime")) or datetime.now(UTC),
        attempts=status.get("attempt") or 0,
        is_triggered=names.LABEL_TRIGGER in metadata.get("labels", {}),
        ttl_seconds=spec.get("overrides", {}).get("ttlSecondsAfterFinished"),
        tasks=tuple(it["name"] for it in status.get("children", ()) if "exit" not in it and "name" in it),
    )


class FinishedRuns:
    """Finished runs by key and by workflow, and those whose end no workflow has counted yet."""

    def __init__(self) -> None:
        self._records: dict[Key, FinishedRun] = {}
        self._by_workflow: dict[Key, set[Key]] = defaultdict(set)
        self._uncounted: dict[Key, dict[str, FinishedRun]] = defaultdict(dict)

    def add(self, record: FinishedRun, is_fresh: bool) -> None:
        """Remember a run. `is_fresh`: it ended under this process, so its workflow has not counted it."""
        known = self._records.get(record.key)
        if known is not None and known.uid == record.uid:
            return
        self._records[record.key] = record
        if record.workflow:
            workflow = record.workflow_key
            self._by_workflow[workflow].add(record.key)
            if is_fresh:
                self._uncounted[workflow][record.uid] = record

    def get(self, key: Key) -> FinishedRun | None:
        """Return a record, or None."""
        return self._records.get(key)

    def drop(self, key: Key) -> None:
        """Forget a run that was deleted; its end still counts."""
        record = self._records.pop(key, None)
        if record is not None:
            self._by_workflow[record.workflow_key].discard(key)

    def of_workflow(self, workflow: Key) -> list[FinishedRun]:
        """Return the finished runs of a workflow, oldest first."""
        found = (self._records[key] for key in self._by_workflow.get(workflow, ()))
        return sorted(found, key=lambda record: (record.completion, record.name))

    def uncounted(self, workflow: Key) -> list[FinishedRun]:
        """Return the ends that are not counted yet."""
        return list(self._uncounted.get(workflow, {}).values())

    def set_counted(self, workflow: Key, records: Iterable[FinishedRun]) -> None:
        """Note that the workflow's status counts these ends."""
        waiting = self._uncounted.get(workflow, {})
        for record in records:
            waiting.pop(record.uid, None)

    def keys(self) -> list[Key]:
        """Return all keys."""
        return list(self._records)
