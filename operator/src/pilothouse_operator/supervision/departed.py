"""Runs that went before their end was counted: somebody deleted them. Their Supervisors add them up."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from pilothouse_api import names
from pilothouse_operator.supervision.tallies import RunTally, read_tally


class Departed:
    """What supervisors did to runs that are gone, by the supervisor's uid, until it is counted."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, RunTally]] = defaultdict(dict)

    def add(self, raw_run: Mapping[str, Any]) -> list[str]:
        """Take a run as it was last; return the names of the supervisors that have to count it.

        One that is labelled as finished is counted already: by that label it left the operator's watch.
        """
        if names.LABEL_FINISHED in raw_run["metadata"].get("labels", {}):
            return []
        supervision = raw_run.get("status", {}).get("supervision") or {}
        supervisors = []
        for uid, record in supervision.get("supervisors", {}).items():
            tally = read_tally(raw_run, uid)
            if tally is not None:
                self._runs[uid][tally.uid] = tally
                supervisors.append(str(record.get("name", "")))
        return supervisors

    def of(self, supervisor_uid: str) -> list[RunTally]:
        """Return what is not counted yet."""
        return list(self._runs.get(supervisor_uid, {}).values())

    def set_counted(self, supervisor_uid: str, runs: Iterable[RunTally]) -> None:
        """Forget what is counted by now."""
        waiting = self._runs.get(supervisor_uid, {})
        for run in runs:
            waiting.pop(run.uid, None)
        if not waiting:
            self._runs.pop(supervisor_uid, None)
