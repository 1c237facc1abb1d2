"""What a terminal shows: pure functions from objects to text."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console, RenderableType

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.runs.turns import CallRow, TurnRow
from pilothouse_cli.terminal import clean, clean_line
from pilothouse_cli.views.live import frame_line, live_view
from pilothouse_cli.views.tables import duration, findings_view, money, run_view, runs_table, turns_view
from pilothouse_control.findings import Finding

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def text_of(renderable: RenderableType, *, colours: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=120, color_system="standard" if colours else None, highlight=False, markup=False
    )
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def a_run(phase: str = "Running", **snapshot: Any) -> AgentRun:
    return AgentRun.model_validate(
        {
            "metadata": {"name": "r1", "creationTimestamp": "2026-01-01T11:58:56Z"},
            "spec": {"workflowRef": {"name": "triage"}},
            "status": {
                "phase": phase,
                "run": {
                    "attempt": 1,
                    "step": "investigate",
                    "visit": 2,
                    "turn": 4,
                    "iteration": 3,
                    "maxIterations": 8,
                    "tokens": {"used": 2311, "held": 300, "budget": 60000},
                    "cost": {"usedUSD": "0.0031", "budgetUSD": "0.50"},
                    "toolCalls": {"look_up": 2},
                    **snapshot,
                },
            },
        }
    )


def test_a_cost_of_which_nothing_is_known_is_no_zero() -> None:
    rows = text_of(runs_table([a_run(cost={"usedUSD": "0", "unknown": True})], NOW)).splitlines()
    assert rows[1].split()[-2:] == ["?", "1m4s"]
    rows = text_of(runs_table([a_run(cost={"usedUSD": "0.5", "unknown": True})], NOW)).splitlines()
    assert rows[1].split()[-2:] == ["$0.5000", "1m4s"]


def test_runs_are_rows() -> None:
    assert text_of(runs_table([a_run(), a_run("Failed")], NOW)).splitlines() == [
        "NAME   WORKFLOW   PHASE     STEP          TURN   TOKENS      COST   AGE",
        "r1     triage     Running   investigate      4    2,311   $0.0031   1m4s",
        "r1     triage     Failed    investigate      4    2,311   $0.0031   1m4s",
    ]


def test_one_run_says_where_it_is_what_it_spent_and_what_waits() -> None:
    shown = text_of(
        run_view(
            a_run(
                "Paused",
                toolErrors=1,
                undeclaredToolCalls=1,
                parked={"reason": "Paused", "turn": 4, "since": "t", "wake": "12:05"},
                control={
                    "observedGeneration": 2,
                    "mode": {"value": "Pause", "turn": 4},
                    "steer": {"a1": {"state": "Landed", "turn": 3}, "b2": {"state": "NotLanded"}},
                    "limits": {"generation": 2, "turn": 2},
                },
                effects={"unknown": [{"callId": "t3-0-9f", "tool": "refund", "at": "t"}]},
                steps=[{"id": "classify", "visit": 1, "kind": "Agent", "signal": "billing", "iterations": 1}],
            ),
            NOW,
        )
    )
    for line in (
        "Step            investigate, turn 4, iteration 3 of 8, visit 2",
        "Tokens          2,311 of 60,000 (300 held)",
        "Cost            $0.0031 of $0.50",
        "Tool calls      look_up 2, (undeclared) 1; 1 with errors",
        "Control         Pause landed at turn 4",
        "Control         steer a1 landed at turn 3",
        "Control         steer b2 NotLanded",
        "Control         limits hold from turn 2",
        "Effect unknown  refund (t3-0-9f)",
        "Waits           Paused since turn 4, until 12:05; goes on with: pilothouse resume r1",
        "classify       1   Agent   billing            1        0",
    ):
        assert line in shown


def test_an_ended_run_says_how_and_shows_what_came_of_it() -> None:
    run = a_run("Failed", exit={"signal": "error", "reason": "Error", "partial": "half an answer"})
    run = run.model_copy(
        update={
            "status": run.status.model_validate(
                {**run.status.to_raw(), "exit": {"signal": "error", "reason": "Error", "message": "no key"}}
            )
        }
    )
    shown = text_of(run_view(run, NOW))
    assert "Failed  Error: no key" in shown
    assert "half an answer" in shown


def test_turns_are_rows_with_calls_and_notes() -> None:
    rows = [
        TurnRow(1, "classify", iteration=1, input_tokens=90, output_tokens=16, cost=1_500_000, ends="billing"),
        TurnRow(
            2,
            "investigate",
            iteration=1,
            calls=(CallRow("look_up", None, 0.254), CallRow("refund", "tool_error", 1.0), CallRow("x", is_done=False)),
            finish="ToolCalls",
            notes=("Pause", "parked: Paused"),
        ),
        TurnRow(3, "answer", iteration=2, ends="aborted", why="Aborted"),
        TurnRow(4, "answer", iteration=1, ends="error", why="ModelAuthentication: set\x1b[31m\nTHE_KEY"),
    ]
    assert text_of(turns_view(rows)).splitlines() == [
        "TURN   STEP             ITER   CALLS                     TOKENS      COST   ENDS",
        "   1   classify            1                                106   $0.0015   billing",
        "       Pause",
        "       parked: Paused",
        "   2   investigate         1   look_up 0.25s                                ToolCalls",
        "                               refund tool_error 1.00s",
        "                               x …",
        "   3   answer              2                                                aborted",
        "   4   answer              1                                                error",
        "",
        "turn 4: answer ended with error: ModelAuthentication: set�[31m THE_KEY",
    ]


def test_findings_name_file_line_field_what_and_what_to_do() -> None:
    finding = Finding("Error", "C", "Workflow", "w", ("spec", "steps", 0), "is wrong", "write it", "w.yaml", 3, 7)
    assert text_of(findings_view([finding])).splitlines() == [
        "w.yaml:3:7: error: Workflow/w spec.steps[0]: is wrong",
        "    write it",
    ]
    nameless = Finding("Error", "Yaml", "", "", (), "no YAML: a tab", file="w.yaml", line=3, column=7)
    assert text_of(findings_view([nameless])) == "w.yaml:3:7: error: no YAML: a tab"


def test_the_live_view_shows_gauges_the_newest_frames_and_how_to_steer() -> None:
    frames = [
        {"kind": "Step", "turn": 1, "step": "a", "event": "Entered"},
        {"kind": "ToolCall", "turn": 3, "tool": "look_up", "code": "ok", "seconds": 0.2},
    ]
    shown = text_of(live_view(a_run(), frames, NOW, "pilothouse"))
    assert "r1  Running  investigate, turn 4" in shown
    assert "2,311 of 60,000 (300 held)" in shown
    assert "turn 3: look_up ok in 0.20 s" in shown
    assert "from another terminal: pilothouse pause │ steer │ limit │ finish │ abort r1" in shown
    assert "from another terminal" not in text_of(live_view(a_run("Succeeded"), frames, NOW, "pilothouse"))
    assert "letting go" in text_of(live_view(a_run(), frames, NOW, "pilothouse", "letting go"))


FRAMES: list[tuple[dict[str, Any], str | None]] = [
    ({"kind": "Step", "step": "s", "event": "Finished", "signal": "x", "turn": 2}, "turn 2: step s finished with x"),
    ({"kind": "Iteration", "iteration": 1, "tokens": 9, "toolCalls": 2}, "iteration 1, 9 tokens, 2 tool calls"),
    ({"kind": "ToolCall", "tool": "t", "code": "tool_error", "seconds": None}, "t tool_error"),
    (
        {"kind": "ToolCall", "tool": "t", "code": "ok", "seconds": 0.2, "cutFrom": 24_930},
        "t ok in 0.20 s, cut from 24,930 characters",
    ),
    (
        {"kind": "Guardrail", "gate": "tools", "check": "PiiMask", "verdict": "Rewritten"},
        "guardrail tools, PiiMask: Rewritten",
    ),
    ({"kind": "Control", "directive": "Steer", "id": "a1", "landing": "NotLanded"}, "Steer a1 notlanded"),
    ({"kind": "Control", "directive": "Pause", "landing": "Landed", "landedTurn": 4}, "Pause landed at turn 4"),
    ({"kind": "Park", "reason": "Paused", "event": "Ended"}, "goes on after: Paused"),
    ({"kind": "Park", "reason": "Barrier", "event": "Ended", "seconds": 0.4}, "goes on after: Barrier (0.4 s)"),
    (
        {"kind": "Park", "reason": "Barrier", "event": "TimedOut", "verdict": "Pause", "message": "not judged"},
        "waited too long: Barrier (Pause): not judged",
    ),
    ({"kind": "Outcome", "signal": "x", "reason": "Complete"}, "run ended with x (Complete)"),
    ({"kind": "Outcome", "step": "s", "signal": "error", "reason": "Odd"}, "step s ended with error (Odd)"),
    ({"kind": "Outcome", "signal": "x"}, None),
    (
        {"kind": "Hook", "hook": "work/0", "event": "AfterTool", "step": "s", "tool": "t", "result": "Done"},
        "hook work/0 AfterTool s t",
    ),
    ({"kind": "Hook", "hook": "a@1", "event": "", "result": "Failed", "why": "no YAML"}, "hook a@1 failed: no YAML"),
    ({"kind": "Tools", "step": "s", "offered": 2, "warnings": 0}, "step s offers 2 tools of MCP servers"),
    (
        {"kind": "Tools", "step": "s", "offered": 0, "leftOut": ["a", "b"], "warnings": 2},
        "step s offers 0 tools of MCP servers, without a, b (warnings in the runner's log: 2)",
    ),
    ({"kind": "New"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("frame", "want"), FRAMES)
def test_a_frame_is_one_line(frame: dict[str, Any], want: str | None) -> None:
    assert frame_line(frame) == want


HOSTILE = "\x1b[31mred\x1b]0;title\x07\r\x00\u202egnp.exe[bold]x[/bold]"


def test_what_a_model_says_cannot_drive_the_terminal() -> None:
    run = a_run(step=HOSTILE, result={"text": HOSTILE}, toolCalls={HOSTILE: 1})
    rows = [TurnRow(1, HOSTILE, calls=(CallRow(HOSTILE, HOSTILE),), ends=HOSTILE, why=HOSTILE, notes=(HOSTILE,))]
    for shown in (text_of(run_view(run, NOW)), text_of(turns_view(rows)), text_of(live_view(run, [], NOW, "p"))):
        assert not any(char in shown for char in "\x1b\x07\r\x00\u202e")
        assert "[bold]" in shown


def test_colours_are_for_terminals_only() -> None:
    assert "\x1b[36m" in text_of(runs_table([a_run()], NOW), colours=True)
    assert "\x1b" not in text_of(runs_table([a_run()], NOW))


def test_texts_are_cut_with_a_sign() -> None:
    assert clean("x" * 30, 10) == "x" * 10 + "…"
    assert clean("a\nb\tc") == "a\nb�c"
    assert clean_line("a\n  b\tc") == "a b c"


@pytest.mark.parametrize(
    ("seconds", "want"),
    [(-5, "0s"), (59, "59s"), (60, "1m"), (64, "1m4s"), (3600, "1h"), (7300, "2h"), (200_000, "2d")],
)
def test_spans_of_time_are_short(seconds: int, want: str) -> None:
    assert duration(timedelta(seconds=seconds).total_seconds()) == want


@pytest.mark.parametrize(
    ("amount", "want"), [("0", "$0.00"), ("0.00312", "$0.0031"), ("12.345", "$12.34"), ("odd", "odd")]
)
def test_money_has_the_digits_that_say_something(amount: str, want: str) -> None:
    assert money(amount) == want


def of_family(name: str, parent: str | None = None, **status: Any) -> AgentRun:
    owner = {"apiVersion": "pilothouse.dev/v1alpha1", "kind": "AgentRun", "controller": True}
    owners = [{**owner, "name": parent, "uid": f"uid-{parent}"}] if parent else []
    metadata = {"name": name, "uid": f"uid-{name}", "ownerReferences": owners}
    return AgentRun.model_validate({"metadata": metadata, "spec": {"agentRef": {"name": "a"}}, "status": status})


def test_children_are_listed_below_their_parents_and_orphans_by_themselves() -> None:
    runs = [
        of_family("a"),
        of_family("b"),
        of_family("a-1", "a"),
        of_family("a-1-1", "a-1"),
        of_family("a-2", "a"),
        of_family("lone", "gone"),
    ]
    rows = [line.rstrip() for line in text_of(runs_table(runs, NOW)).splitlines()[1:]]
    assert [row[: row.index(" a ")].rstrip() for row in rows] == ["a", "└ a-1", "  └ a-1-1", "└ a-2", "b", "lone"]


def test_a_run_shows_its_children_what_became_of_them_and_what_they_ask() -> None:
    ended = {"callId": "t1-0-1", "name": "r1-x", "exit": {"signal": "default", "reason": "Complete"}}
    refused = {"callId": "t2-0-2", "exit": {"signal": "error", "reason": "ChildRefused"}}
    asked = {"run": "r1-y", "callId": "t9-0-9", "tool": "refund"}
    asking = {"callId": "t3-0-3", "name": "r1-y", "pendingApprovals": [asked]}
    shown = text_of(run_view(of_family("r1", children=[ended, refused, asking]), NOW))
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "Child r1-x: default (Complete)" in lines
    assert "Child t2-0-2: error (ChildRefused)" in lines
    assert "Child r1-y: under way" in lines
    assert "Waits refund of r1-y waits for a person: pilothouse approve r1-y t9-0-9" in lines
