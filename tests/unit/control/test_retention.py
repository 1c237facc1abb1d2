"""Which finished runs go, and when."""

from datetime import UTC, datetime, timedelta

import pytest

from pilothouse_api.v1alpha1.workflow import History
from pilothouse_control.retention import Deletions, EndedRun, plan_deletions

NOW = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)


def ended(
    name: str, phase: str = "Succeeded", ago: int = 60, triggered: bool = True, ttl: int | None = None
) -> EndedRun:
    return EndedRun(name, phase, NOW - timedelta(seconds=ago), triggered, ttl)


@pytest.mark.parametrize(
    ("runs", "history", "ttl", "want", "due_in"),
    [
        ([ended("a", ago=30), ended("b", ago=20), ended("c", ago=10)], History(succeeded=2), None, ("a",), None),
        ([ended("a", ago=30), ended("b", ago=20)], History(succeeded=0), None, ("a", "b"), None),
        (
            [ended("a", ago=10), ended("b", "Failed", 20), ended("c", "Aborted", 30)],
            History(failed=1),
            None,
            ("c",),
            None,
        ),
        ([ended("a", triggered=False), ended("b", triggered=False)], History(succeeded=0), None, (), None),
        ([ended("a", ago=100), ended("b", ago=40)], History(), 60, ("a",), 20),
        ([ended("a", ago=60)], History(), 60, ("a",), None),
        ([ended("a", ago=100, triggered=False)], History(), 60, (), None),
        ([ended("a", ago=100, triggered=False, ttl=50)], History(), None, ("a",), None),
        ([ended("a", ago=100, ttl=500)], History(), 60, (), 400),
        ([ended("a", ago=100, ttl=0)], None, None, ("a",), None),
        ([ended("a", ago=100)], None, None, (), None),
        ([], History(), 60, (), None),
    ],
)
def test_runs_go_by_history_and_by_time_to_live(
    runs: list[EndedRun], history: History | None, ttl: int | None, want: tuple[str, ...], due_in: int | None
) -> None:
    next_due = NOW + timedelta(seconds=due_in) if due_in is not None else None
    assert plan_deletions(runs, history, ttl, NOW) == Deletions(want, next_due)
