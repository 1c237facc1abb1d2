"""The rows of a trace: out of a journal, and out of the newest frames."""

from typing import Any

from pilothouse_cli.runs.turns import CallRow, TurnRow, turns_of_journal, turns_of_trace
from pilothouse_engine import facts
from pilothouse_engine.frames import advance
from pilothouse_engine.state import RunState

ASKED = facts.AskedCall(id="t1-0-x", provider_id="p", name="look_up", arguments="{}", digest="x")


def started(turn: int, iteration: int) -> facts.ModelStarted:
    return facts.ModelStarted(0, turn, iteration, "Regular", 0, 1, 10, 10)


def journal(*entries: facts.Fact) -> list[Any]:
    return [facts.encode(entry) for entry in entries]


def test_a_journal_tells_turns_with_calls_tokens_cost_directives_and_ends() -> None:
    entries = journal(
        facts.RunStarted(0, "d"),
        facts.AttemptStarted(0, 1),
        facts.StepEntered(0, "ask", 1, "Agent"),
        facts.ToolSurface(0, (), left_out=("ops",), warnings=("MCP server ops is left out: gone",)),
        started(1, 1),
        facts.ModelFailed(0, "Timeout", "late", input=7, cost=100),
        started(1, 1),
        facts.ReplyReceived(0, "", (ASKED,), input=10, output=5, cost=200),
        facts.CallStarted(0, "t1-0-x", "look_up", "ReadOnly", "k", "x", 1),
        facts.CallFinished(0, "t1-0-x", "{}", code="tool_error", seconds=0.5),
        facts.ModeAnswered(0, 2, "Pause"),
        facts.ParkBegan(0, "Paused", 2),
        facts.SteerAnswered(0, 2, "a1", text="x"),
        facts.SteerAnswered(0, 2, "a2", state="Superseded"),
        started(2, 2),
        facts.ReplyReceived(0, "done", input=20, output=6),
        facts.StepFinished(0, "default"),
        facts.StepEntered(0, "reply", 2, "Response", turn=3),
        facts.CallStarted(0, "t3-0-y", "reply", "ReadOnly", "k", "y", 1),
        facts.CallFinished(0, "t3-0-y", "{}", seconds=0.1),
        facts.StepFinished(0, "default"),
        facts.RunEnded(0, "default", "Complete"),
    )
    assert turns_of_journal(entries) == [
        TurnRow(
            1,
            "ask",
            iteration=1,
            calls=(CallRow("look_up", "tool_error", 0.5),),
            input_tokens=17,
            output_tokens=5,
            cost=300,
            finish="ToolCalls",
            notes=("MCP server ops is left out: gone",),
        ),
        TurnRow(
            2,
            "ask",
            iteration=2,
            input_tokens=20,
            output_tokens=6,
            finish="Stop",
            ends="default",
            notes=("Pause", "parked: Paused", "steer a1", "steer a2: Superseded"),
        ),
        TurnRow(3, "reply", "Response", ends="default"),
    ]


def test_a_journal_tells_why_steps_ended_abnormally() -> None:
    entries = journal(
        facts.StepEntered(0, "ask", 1, "Agent"),
        started(1, 1),
        facts.ModelFailed(0, "Authentication", "no key"),
        facts.StepFinished(0, "error", error_type="ModelAuthentication", error_message="set THE_KEY"),
        facts.StepEntered(0, "again", 2, "Agent"),
        facts.StepFinished(0, "budget_exceeded", error_type="BudgetExceeded"),
        facts.StepEntered(0, "reply", 3, "Response", turn=2),
        facts.StepFinished(0, "default"),
    )
    rows = [(row.step, row.ends, row.why, row.notes) for row in turns_of_journal(entries)]
    assert rows == [
        ("ask", "error", "ModelAuthentication: set THE_KEY", ()),
        ("reply", "default", "", ("again ended with budget_exceeded: BudgetExceeded",)),
    ]


def judged(gate: facts.GateName, check: str, text: str | None = None, call: str = "") -> facts.TextJudged:
    return facts.TextJudged(0, gate, call, "Passed", text, check=check)


GUARDED = [
    facts.StepEntered(0, "ask", 1, "Agent"),
    facts.PromptOpened(0, (facts.PromptMessage("user", "look"),), is_gated=True),
    judged("input", ""),
    judged("input", "PromptInjection", "wrapped"),
    facts.PolicyJudged(0, "", 1, "ModelCall", "Allow", "hours"),
    started(1, 1),
    facts.ReplyReceived(0, "", (ASKED,)),
    facts.PolicyJudged(0, "t1-0-x", 1, "ToolCall", "Allow", "lookups"),
    facts.CallStarted(0, "t1-0-x", "look_up", "ReadOnly", "", "x", 1),
    facts.CallFinished(0, "t1-0-x", "x" * 300, cut_at=200, seconds=0.5),
    judged("tools", "PiiMask", "masked", ASKED.id),
    started(2, 2),
    facts.ReplyReceived(0, "done"),
    judged("output", "LlmJudge"),
    facts.StepFinished(0, "default"),
]


def test_verdicts_stand_before_the_turn_or_beside_the_calls_that_they_are_about() -> None:
    first, second = turns_of_journal(journal(*GUARDED))
    assert first.notes == ("guardrail input, PromptInjection: Rewritten", "policy hours: Allow")
    assert first.gates == ("policy lookups: Allow", "guardrail tools, PiiMask: Rewritten")
    assert first.calls == (CallRow("look_up", None, 0.5, cut=300),)
    assert (second.notes, second.gates) == ((), ("guardrail output, LlmJudge: Noted",))


def test_a_trace_tells_the_same_verdicts_as_the_journal() -> None:
    state, shown = RunState(), []
    for fact in GUARDED:
        shown += advance(state, fact)
    rows = [(row.turn, row.notes, row.gates, row.calls) for row in turns_of_trace(shown)]
    assert rows == [(row.turn, row.notes, row.gates, row.calls) for row in turns_of_journal(journal(*GUARDED))]


def test_a_journal_that_was_cut_anywhere_still_tells_its_turns() -> None:
    entries = journal(
        facts.RunStarted(0, "d"),
        facts.CallFinished(0, "t9", "{}"),
        facts.ModelFailed(0, "Timeout", "late"),
        facts.StepFinished(0, "default"),
    )
    assert turns_of_journal(entries) == []


def frames(*fields: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"time": "t", **frame} for frame in fields]


TRACE = frames(
    {"kind": "Step", "turn": 0, "step": "ask", "stepKind": "Agent", "event": "Entered"},
    {"kind": "Tools", "turn": 1, "step": "ask", "offered": 2, "leftOut": ["ops"], "warnings": 1},
    {"kind": "Iteration", "turn": 1, "step": "ask", "iteration": 1, "toolCalls": 1, "tokens": 15},
    {"kind": "ToolCall", "turn": 1, "tool": "look_up", "code": "ok", "seconds": 0.5},
    {"kind": "Control", "turn": 1, "directive": "Pause", "landing": "Landed", "landedTurn": 2},
    {"kind": "Park", "turn": 2, "reason": "Paused", "event": "Began"},
    {"kind": "Park", "turn": 2, "reason": "Paused", "event": "Ended"},
    {"kind": "Control", "turn": 2, "directive": "Steer", "id": "a1", "landing": "Landed"},
    {"kind": "Iteration", "turn": 2, "step": "ask", "iteration": 2, "toolCalls": 0, "tokens": 41},
    {"kind": "Step", "turn": 2, "step": "ask", "stepKind": "Agent", "event": "Finished", "signal": "default"},
    {"kind": "Step", "turn": 2, "step": "reply", "stepKind": "Response", "event": "Entered"},
    {"kind": "Step", "turn": 3, "step": "reply", "stepKind": "Response", "event": "Finished", "signal": "default"},
    {"kind": "Outcome", "turn": 3, "signal": "default", "reason": "Complete"},
)


def test_a_trace_tells_the_same_as_far_back_as_it_goes() -> None:
    rows = turns_of_trace(TRACE)
    assert [(row.turn, row.step, row.iteration, row.tokens, row.ends) for row in rows] == [
        (1, "ask", 1, 15, ""),
        (2, "ask", 2, 26, "default"),
        (3, "reply", 0, 0, "default"),
    ]
    assert rows[0].calls == (CallRow("look_up", None, 0.5),)
    assert rows[0].notes == ("without ops",)
    assert rows[1].notes == ("Pause", "parked: Paused", "steer a1")


def test_a_barrier_is_noted_only_where_supervision_did_not_judge_in_time() -> None:
    entries = journal(
        facts.StepEntered(0, "ask", 1, "Agent"),
        started(1, 1),
        facts.ReplyReceived(0, "", (ASKED,), input=10, output=5),
        facts.CallFinished(0, "t1-0-x", "{}"),
        facts.ParkBegan(0, "Barrier", 1, 60.0, "Continue"),
        facts.BarrierTimedOut(60, 1, "Continue", 1, "c", "s", "supervision has not judged turn 1 within 60 s"),
        facts.ParkEnded(60, "Barrier"),
    )
    park = {"kind": "Park", "turn": 1, "reason": "Barrier"}
    trace = frames(
        *TRACE[:4],
        {**park, "event": "TimedOut", "verdict": "Continue"},
        {**park, "event": "Ended", "seconds": 60.0},
        *TRACE[8:],
    )
    assert turns_of_journal(entries)[0].notes == ("not judged in time: Continue",)
    assert turns_of_trace(trace)[1].notes == ("not judged in time: Continue",)


def test_the_tokens_of_the_first_kept_turn_are_not_known_when_older_ones_are_gone() -> None:
    rows = turns_of_trace(TRACE[8:])
    assert [(row.turn, row.tokens) for row in rows] == [(2, 0), (3, 0)]
    assert turns_of_trace([]) == []
    assert turns_of_trace([{"kind": "Odd"}, {}]) == []


def test_a_prompt_that_was_cut_is_noted_at_its_turn() -> None:
    entries = journal(
        facts.StepEntered(0, "ask", 1, "Agent"),
        started(1, 1),
        facts.ReplyReceived(0, "", (ASKED,), input=10, output=5),
        started(2, 2),
        facts.ReplyReceived(0, "done", input=20, output=6, level="aggressive"),
    )
    assert [row.notes for row in turns_of_journal(entries)] == [(), ("prompt cut: level aggressive",)]
    frames = [
        {"kind": "Iteration", "turn": 1, "step": "ask", "iteration": 1, "toolCalls": 1, "tokens": 15},
        {"kind": "Iteration", "turn": 2, "step": "ask", "iteration": 2, "tokens": 41, "level": "aggressive"},
    ]
    assert [row.notes for row in turns_of_trace(frames)] == [(), ("prompt cut: level aggressive",)]
