"""Which finished runs are deleted, and when: by time to live, and by the history of their workflow."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pilothouse_api.v1alpha1.workflow import History


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that has ended. `ttl_seconds`: of its own overrides; `is_triggered`: the operator made it."""

    name: str
    phase: str
    completion: datetime
    is_triggered: bool
    ttl_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Deletions:
    """Runs to delete now, oldest first, and when the next one is due."""

    names: tuple[str, ...]
    next_due: datetime | None


def plan_deletions(
    runs: Iterable[EndedRun],
    history: History | None,
    template_ttl_seconds: int | None,
    now: datetime,
) -> Deletions:
    """Return which finished runs of a workflow are deleted.

    A run with a time to live of its own goes when that is over, whoever made it. Of the others only those that the
    operator made go: when the template's time to live is over, or the history has newer ones enough. `history` None:
    the workflow is gone, its runs stay until they expire.
    """
    candidates = sorted(runs, key=lambda run: (run.completion, run.name))
    surplus = _surplus([run for run in candidates if run.is_triggered], history)
    due: list[str] = []
    later: list[datetime] = []
    for run in candidates:
        expiry = _expiry(run, template_ttl_seconds)
        if run.name in surplus or (expiry is not None and expiry <= now):
            due.append(run.name)
        elif expiry is not None:
            later.append(expiry)
    return Deletions(tuple(due), min(later, default=None))


def _expiry(run: EndedRun, template_ttl_seconds: int | None) -> datetime | None:
    ttl = run.ttl_seconds
    if ttl is None and run.is_triggered:
        ttl = template_ttl_seconds
    return None if ttl is None else run.completion + timedelta(seconds=ttl)


def _surplus(triggered: Sequence[EndedRun], history: History | None) -> frozenset[str]:
    """Return the names that a history has no room for; `triggered` is sorted, oldest first."""
    if history is None:
        return frozenset()
    succeeded = [run.name for run in triggered if run.phase == "Succeeded"]
    failed = [run.name for run in triggered if run.phase != "Succeeded"]
    return frozenset(
        [*succeeded[: max(0, len(succeeded) - history.succeeded)], *failed[: max(0, len(failed) - history.failed)]]
    )
