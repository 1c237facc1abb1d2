"""Judges in a run: what they are asked, what they may cost, and what becomes of the text (engine.md §4)."""

from typing import Any

import pytest

from pilothouse_engine.facts import JudgeAnswered, JudgeStarted, StepFinished, TextJudged
from pilothouse_engine.guardrails.judges import MAX_OUTPUT_TOKENS, TIMEOUT_SECONDS
from pilothouse_engine.ports import ModelRequest, Usage
from pilothouse_engine.scripted import ScriptedModel
from unit.engine.scenarios import (
    ListModel,
    Scenario,
    agent_step,
    answer,
    build_plan,
    call,
    calls,
    failure,
    scenario,
    text,
)

pytestmark = pytest.mark.anyio

HOLDS = '{"holds": true}'
FAILS = '{"holds": false, "reason": "it promises jane@example.com a refund"}'


def judge(on_error: str = "Ignore") -> dict[str, Any]:
    return {"check": "LlmJudge", "llmJudge": {"criteria": {"inline": "promise nothing"}, "onError": on_error}}


def gated(gate: str, *checks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return agent_step(guardrails={gate: list(checks)}, **fields)


def requests_of(run: Scenario) -> list[ModelRequest]:
    assert isinstance(run.model, ListModel)
    return run.model.requests


async def test_the_judge_is_the_steps_own_model_without_tools_and_with_a_short_answer() -> None:
    model = {"name": "m", "maxOutputTokens": 4000, "timeoutSeconds": 600, "fallbacks": [{"name": "other"}]}
    run = scenario([calls(call("lookup")), text(HOLDS), answer("resolved")], gated("tools", judge(), model=model))
    await run.finish()
    asked = requests_of(run)[1]
    assert (asked.endpoint.name, asked.endpoint.max_output_tokens) == ("m", MAX_OUTPUT_TOKENS)
    assert asked.endpoint.timeout_seconds == TIMEOUT_SECONDS
    assert asked.tools == ()
    assert "promise nothing" in asked.messages[0].text and '{"found":true}' in asked.messages[1].text
    assert [message.role for message in requests_of(run)[2].messages] == ["system", "user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("reply", "on_error", "signal", "said"),
    [
        (text(HOLDS), "Violation", "resolved", "Holds"),
        (text(FAILS), "Ignore", "guardrail_violation", "Violated"),
        (text("I think so"), "Ignore", "resolved", "Failed"),
        (text("I think so"), "Violation", "guardrail_violation", "Failed"),
        (failure("ServerError"), "Ignore", "resolved", "Failed"),
        (failure("ServerError"), "Violation", "guardrail_violation", "Failed"),
    ],
)
@pytest.mark.parametrize("gate", ["input", "tools", "output"])
async def test_what_a_judge_says_decides_at_every_gate(
    gate: str, reply: Any, on_error: str, signal: str, said: str
) -> None:
    ordinary = [calls(call("lookup")), answer("resolved")]
    at = {"input": 0, "tools": 1, "output": 2}[gate]
    run = scenario([*ordinary[:at], reply, *ordinary[at:]], gated(gate, judge(on_error)))
    await run.finish()
    (ended,) = await run.facts_of(StepFinished)
    assert ended.signal == signal
    assert [fact.said for fact in await run.facts_of(JudgeAnswered)] == [said]
    (judged,) = await run.facts_of(TextJudged)
    assert judged.verdict == ("Refused" if signal == "guardrail_violation" else "Passed")
    assert bool(judged.notes) == (said == "Failed" and signal == "resolved")


async def test_words_of_a_judge_stay_in_the_journal() -> None:
    run = scenario([calls(call("lookup")), text(FAILS)], gated("tools", judge()))
    await run.finish()
    assert (await run.facts_of(JudgeAnswered))[0].reason.startswith("it promises")
    assert "jane" not in repr(run.snapshot)
    assert "the judge found that the criteria do not hold" in repr(run.snapshot)


async def test_what_a_judge_could_not_say_makes_a_frame() -> None:
    run = scenario([calls(call("lookup")), text("?"), answer("resolved")], gated("tools", judge()))
    await run.finish()
    (frame,) = [frame for frame in run.sink.frames if frame["kind"] == "Guardrail"]
    assert (frame["gate"], frame["check"], frame["verdict"]) == ("tools", "LlmJudge", "Noted")


# ---------------------------------------------------------------- money


async def test_a_judge_is_held_before_it_is_asked_and_charged_to_run_and_visit() -> None:
    prices = {"test-model": (1.0, 2.0)}
    usage = Usage(input=30, output=5)
    turns = [calls(call("lookup")), text(HOLDS, usage=usage), answer("resolved")]
    run = scenario(turns, gated("tools", judge()), prices=prices)
    await run.finish()
    (started,), (answered,) = await run.facts_of(JudgeStarted), await run.facts_of(JudgeAnswered)
    assert started.hold_output == 100 and started.hold_input > 100 and started.hold_cost > 0
    assert (answered.input, answered.output, answered.cost) == (30, 5, 40_000)
    tokens = run.snapshot.tokens
    assert (tokens.used, tokens.input, tokens.output, tokens.held) == (155, 130, 25, 0)
    assert run.snapshot.steps[0].tokens == 155


@pytest.mark.parametrize(("kind", "charged"), [("Timeout", True), ("ServerError", False), ("Garbage", True)])
async def test_a_judge_that_failed_is_charged_as_a_model_is(kind: str, charged: bool) -> None:
    run = scenario([calls(call("lookup")), failure(kind), answer("resolved")], gated("tools", judge()))
    await run.finish()
    (started,), (answered,) = await run.facts_of(JudgeStarted), await run.facts_of(JudgeAnswered)
    assert (answered.input, answered.output) == ((started.hold_input, started.hold_output) if charged else (0, 0))


@pytest.mark.parametrize(("on_error", "signal"), [("Ignore", "resolved"), ("Violation", "guardrail_violation")])
async def test_a_judge_for_whom_the_budget_has_no_room_is_not_asked(on_error: str, signal: str) -> None:
    """A step whose input was judged for 700 tokens may have room for one more short call, not for a long text."""
    step = gated("tools", judge(on_error), limits={"tokenBudget": 4000})
    functions = {"tools:lookup": lambda arguments: {"x": "y" * 5000}}
    run = scenario([calls(call("lookup")), answer("resolved")], step, functions=functions)
    step["agent"]["limits"]["maxToolResultChars"] = 6000
    await run.finish()
    assert await run.facts_of(JudgeStarted) == []
    (judged,) = await run.facts_of(TextJudged)
    assert "no budget has room for it" in (judged.notes or (judged.reason,))[0]


async def test_a_judge_that_does_not_answer_in_time_has_failed() -> None:
    async def slow(request: ModelRequest) -> Any:
        await run.clock.sleep(1000)
        return text(HOLDS)

    model = {"name": "m", "maxOutputTokens": 100, "timeoutSeconds": 600}
    run = scenario([calls(call("lookup")), slow, answer("resolved")], gated("tools", judge(), model=model))
    await run.finish()
    assert (await run.facts_of(JudgeAnswered))[0].reason == "Timeout: no answer within 30 s"


# ---------------------------------------------------------------- the end of an attempt, control, scripts


async def test_a_judge_that_was_under_way_is_charged_whole_and_asked_again() -> None:
    async def die(request: ModelRequest) -> Any:
        run.stop.release()
        await run.clock.sleep(1000)

    run = scenario([calls(call("lookup")), die, text(HOLDS), answer("resolved")], gated("tools", judge()))
    await run.release()
    assert len(await run.facts_of(TextJudged)) == 0
    await run.finish()
    first, _ = await run.facts_of(JudgeStarted)
    assert run.snapshot.tokens.used == 180 + first.hold_input + first.hold_output
    assert len(await run.facts_of(TextJudged)) == 1


async def test_an_abort_lands_before_a_judge_is_asked() -> None:
    def abort(arguments: dict[str, Any]) -> dict[str, Any]:
        run.store.set_control(mode="Abort")
        return {"a": 1}

    run = scenario([calls(call("lookup"))], gated("tools", judge()), functions={"tools:lookup": abort})
    end = await run.finish()
    assert end.exit.reason == "Aborted"
    assert await run.facts_of(JudgeStarted) == []


async def test_an_abort_lands_before_an_answer_is_judged() -> None:
    def abort(request: ModelRequest) -> Any:
        run.store.set_control(mode="Abort")
        return answer("resolved")

    run = scenario([abort], gated("output", judge()))
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason) == ("aborted", "Aborted")
    assert await run.facts_of(JudgeStarted) == []


SCRIPT = """
turns:
- toolCalls: [{name: lookup, arguments: {}}]
- {match: {contains: "<text>\\n{\\"signal\\""}, text: '{"holds": true}'}
- text: '{"outcome": "resolved", "result": "done"}'
- {match: {contains: "<text>\\n{\\"outcome\\""}, text: '{"holds": true}', usage: {input: 7, output: 3}}
"""


async def test_a_script_plays_judges_too_and_goes_on_where_it_stood() -> None:
    model = {"name": "scripted", "script": {"inline": SCRIPT}, "maxOutputTokens": 100}
    step = agent_step(model=model, guardrails={"tools": [judge()], "output": [judge()]})
    whole = Scenario(build_plan(step), ScriptedModel(None))  # type: ignore[arg-type]
    await whole.finish()
    assert whole.snapshot.exit is not None and whole.snapshot.exit.signal == "resolved"
    assert [fact.mark for fact in await whole.facts_of(JudgeAnswered)] == [1, 3]
    entries = await whole.entries()
    for length in range(1, len(entries)):
        run = Scenario(build_plan(step), ScriptedModel(None))  # type: ignore[arg-type]
        await run.journal.append(1, 0, entries[:length])
        end = await run.finish(number=2)
        assert end.exit.signal == "resolved"
        assert len(await run.facts_of(TextJudged)) == len(await run.facts_of(JudgeAnswered)) == 2
