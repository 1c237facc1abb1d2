"""What the picture takes for the newest, whatever comes in which order; and a run in one line."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse_console.picture import Picture, RunKey
from pilothouse_console.summaries import summarize


def raw_run(name: str = "r1", version: int = 1, uid: str = "u1", **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "pilothouse.dev/v1alpha1",
        "kind": "AgentRun",
        "metadata": {
            "namespace": "a",
            "name": name,
            "uid": uid,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{}],
        },
        "spec": {"workflowRef": {"name": "triage"}},
        "status": status,
    }


KEY = RunKey("a", "r1")


def test_an_older_version_never_replaces_a_newer_one() -> None:
    picture = Picture()
    for version in (3, 2, 3, 5, 4):
        picture.apply(raw_run(version=version))
    entry = picture.get(KEY)
    assert entry is not None
    assert entry.version == 5
    assert "managedFields" not in entry.read()["metadata"]


def test_a_late_answer_brings_no_deleted_run_back() -> None:
    picture = Picture()
    picture.apply(raw_run(version=3))
    picture.remove(raw_run(version=4))
    assert picture.apply(raw_run(version=9)) is None
    assert picture.get(KEY) is None
    assert picture.apply(raw_run(version=10, uid="u2")) is not None


def test_the_deletion_of_a_run_does_not_take_the_next_one_of_its_name() -> None:
    picture = Picture()
    picture.apply(raw_run(version=3))
    picture.apply(raw_run(version=5, uid="u2"))
    picture.remove(raw_run(version=4))
    assert picture.get(KEY) is not None


def test_a_list_takes_away_what_is_gone_and_leaves_what_is_newer() -> None:
    picture = Picture()
    for number, version in enumerate((2, 4, 9)):
        picture.apply(raw_run(f"r{number}", version, f"u{number}"))
    picture.retain("b", frozenset(), 5)
    assert len(picture) == 3
    picture.retain(None, frozenset({"u0"}), 5)
    assert {entry.key.name for entry in picture.entries()} == {"r0", "r2"}


@pytest.mark.anyio
async def test_whoever_waits_is_told_of_the_next_version() -> None:
    picture = Picture()
    picture.apply(raw_run(version=1))
    waiting = asyncio.create_task(picture.wait_for_change(KEY, 1, 10))
    await asyncio.sleep(0)
    picture.apply(raw_run(version=2))
    entry = await waiting
    assert entry is not None
    assert entry.version == 2
    unchanged = await picture.wait_for_change(KEY, 2, 0)
    assert unchanged is entry
    assert picture._listeners == {}


def test_a_run_is_one_line() -> None:
    pending = {"callId": "t1", "tool": "refund", "requestedAt": "t"}
    run = {
        "attempt": 1,
        "step": "classify",
        "turn": 4,
        "iteration": 2,
        "maxIterations": 8,
        "tokens": {"used": 120, "budget": 1000},
        "cost": {"usedUSD": "0.5"},
        "parked": {"reason": "AwaitingApproval", "turn": 4, "since": "t"},
        "pendingApprovals": [pending],
        "effects": {"settled": 1, "unknown": [{"callId": "t0", "tool": "x", "at": "t"}]},
    }
    child = {"callId": "c1", "pendingApprovals": [{"run": "r2", "callId": "t9", "tool": "y"}]}
    line = summarize(raw_run(phase="AwaitingApproval", run=run, children=[child]))
    assert line.model_dump(exclude_none=True, exclude={"namespace", "name", "uid", "created_at"}) == {
        "workflow": "triage",
        "phase": "AwaitingApproval",
        "mode": "Run",
        "step": "classify",
        "turn": 4,
        "iteration": 2,
        "max_iterations": 8,
        "tokens": {"used": "120", "budget": "1000"},
        "cost": {"used": "0.5"},
        "parked": "AwaitingApproval",
        "approvals": 2,
        "unknown_effects": 1,
        "is_readable": True,
    }


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_SNAPSHOT = st.dictionaries(st.sampled_from(["attempt", "turn", "parked", "trace", "tokens", "control"]), _JSON)


@given(_SNAPSHOT)
def test_whatever_a_runner_writes_there_is_a_line(snapshot: dict[str, Any]) -> None:
    picture = Picture()
    entry = picture.apply(raw_run(phase="Running", run=snapshot))
    assert entry is not None
    assert (entry.summary.phase, entry.summary.workflow) == ("Running", "triage")
