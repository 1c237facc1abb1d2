"""Supervision as people see it: by time among the frames, by turn among the turns, and nothing where nobody watches."""

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import Supervision
from pilothouse_cli.runs.interventions import action_lines, clock_line, frames_of, watcher_lines, with_actions
from pilothouse_cli.runs.turns import TurnRow
from pilothouse_cli.views.live import frame_line
from pilothouse_cli.views.tables import run_view, runs_table

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
STEER = {
    "id": "sup-000002-guard-loop",
    "time": "2026-01-01T00:00:02Z",
    "supervisor": "guard",
    "action": "Steer",
    "source": "Rule/loop",
    "reason": "tool look was called 3 times",
    "turn": 2,
    "state": "Done",
    "landedTurn": 3,
}
ABORT = {**STEER, "id": "sup-000009-guard-stop", "action": "Abort", "turn": 9, "state": "Intended", "landedTurn": None}
GUARD = {
    "name": "guard",
    "generation": 4,
    "spec": {"enforcement": "Sync"},
    "isDeleted": True,
    "actions": {"steer": 1},
    "judge": {"calls": 5, "failures": 1, "tokensUsed": 1200, "lastError": "Timeout: none"},
}


def a_run(
    *actions: dict[str, Any], name: str = "r1", trace: tuple[dict[str, Any], ...] = (), **record: Any
) -> AgentRun:
    supervision = {"supervisors": {"u": GUARD}, "actions": list(actions), **record}
    status = {"phase": "Running", "run": {"attempt": 1, "trace": list(trace)}, "supervision": supervision}
    return AgentRun.model_validate({"kind": "AgentRun", "metadata": {"name": "r1"}, "spec": {}, "status": status})


def printed(view: Any) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(view)
    return console.export_text()


def test_actions_stand_among_the_frames_by_their_time() -> None:
    frames = tuple({"kind": "Iteration", "turn": turn, "time": f"2026-01-01T00:00:0{turn}.500Z"} for turn in (1, 2, 3))
    merged = frames_of(a_run(STEER, ABORT, trace=frames))
    assert [(frame["kind"], frame["turn"]) for frame in merged] == [
        ("Iteration", 1),
        ("Supervisor", 2),
        ("Iteration", 2),
        ("Iteration", 3),
    ]
    assert frame_line(merged[1]) == "turn 2: supervisor guard: Steer by Rule/loop: tool look was called 3 times"


def test_actions_older_than_the_frames_that_are_kept_are_left_to_show() -> None:
    frames = ({"kind": "Iteration", "turn": 8, "time": "2026-01-01T00:01:00Z"},)
    assert [frame["kind"] for frame in frames_of(a_run(STEER, trace=frames))] == ["Iteration"]


def test_a_turn_says_what_was_done_about_it() -> None:
    supervision = a_run(STEER, ABORT).status.supervision
    rows = with_actions([TurnRow(1, "work"), TurnRow(2, "work"), TurnRow(3, "work")], supervision)
    assert [len(row.gates) for row in rows] == [0, 1, 1]
    assert rows[1].gates == ("supervisor guard: Steer by Rule/loop, landed at turn 3: tool look was called 3 times",)
    assert with_actions([], supervision) == []


def test_show_says_who_watches_what_was_done_and_how_far_it_was_seen() -> None:
    barrier = {"timeoutSeconds": 60, "onTimeout": "Pause"}
    run = a_run(STEER, ABORT, barrier=barrier, clock={"visit": 1, "turn": 8, "journalLength": 40})
    text = printed(run_view(run, NOW))
    assert "guard (generation 4, Sync, deleted, its last copy is in force); judge: 5 asked, 1 failed" in text
    assert "turn 8, 40 facts; a turn waits 60 s at most, then: Pause" in text
    assert "turn 9: supervisor guard: Abort (is about to be done) by Rule/loop" in text


def test_a_list_says_who_watches_where_anybody_does() -> None:
    watched, alone = a_run(STEER), AgentRun.model_validate({"kind": "AgentRun", "metadata": {"name": "r2"}, "spec": {}})
    text = printed(runs_table([watched, alone], NOW))
    assert "WATCHED BY" in text
    assert "guard (1)" in text
    assert "WATCHED BY" not in printed(runs_table([alone], NOW))


@pytest.mark.parametrize("supervision", [None, Supervision()])
def test_a_run_that_nobody_watches_says_nothing(supervision: Supervision | None) -> None:
    assert watcher_lines(supervision) == []
    assert action_lines(supervision) == []
    assert clock_line(supervision) is None
