"""What a run does as events in the runner's log, with the ids of its spans where there are some (engine.md §17)."""

import io
import json
from typing import Any

import pytest

from pilothouse_engine.ports import HttpResponse
from pilothouse_runner.log_events import LogEvents
from pilothouse_runner.log_lines import LogLines
from unit.engine.scenarios import (
    Scenario,
    agent_step,
    answer,
    call,
    calls,
    failure,
    function_step,
    function_tool,
    scenario,
    text,
)
from unit.runner.telemetry.traced import Traced

pytestmark = pytest.mark.anyio

Lines = list[dict[str, Any]]


async def logged(run: Scenario, **lines: Any) -> Lines:
    stream = io.StringIO()
    log = LogLines(stream, {"run": "run-1"})
    run.observers = (LogEvents(log, **lines),)
    await run.attempt()
    log.close()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def of(lines: Lines, event: str) -> Lines:
    return [
        {key: value for key, value in line.items() if key not in ("time", "event", "run")}
        for line in lines
        if line["event"] == event
    ]


async def test_turns_and_calls_are_lines_with_step_turn_and_iteration() -> None:
    turns = [calls(call("lookup", {"card": "4111-1111"}), call("drop_tables"), text="let me see"), answer("resolved")]
    lines = await logged(scenario(turns))
    where = {"level": "info", "step": "work", "turn": 1, "iteration": 1}
    tokens = {"inputTokens": 50, "outputTokens": 10, "seconds": 0.0}
    assert of(lines, "agent.turn") == [
        {**where, "toolCalls": 2, **tokens},
        {**where, "turn": 2, "iteration": 2, "toolCalls": 0, **tokens},
    ]
    assert of(lines, "agent.tool_call") == [
        {**where, "tool": "lookup", "code": "ok", "seconds": 0.0},
        {**where, "tool": "(undeclared)", "code": "tool_unknown", "seconds": 0.0},
    ]
    assert {line["run"] for line in lines} == {"run-1"}
    for hidden in ("4111", "drop_tables", "let me see", "done"):
        assert hidden not in json.dumps(lines)


def aborted() -> Scenario:
    def abort(request: Any) -> Any:
        run.store.set_control(mode="Abort", reason="wrong customer")
        return calls(call("lookup"), call("lookup", {"n": 2}))

    run = scenario([abort])
    return run


def timed_out() -> Scenario:
    async def hang(arguments: dict[str, Any]) -> dict[str, Any]:
        await run.clock.sleep(100)
        return {}

    tools = [function_tool("lookup", timeoutSeconds=5)]
    run = scenario([calls(call("lookup"))], agent_step(tools=tools), functions={"tools:lookup": hang})
    return run


SHORT = {"check": "MaxChars", "maxChars": {"limit": 3}}
EXITS = [
    (scenario([calls(call("lookup"))], agent_step(limits={"maxIterations": 1})), "agent.max_iterations"),
    (scenario([], agent_step(limits={"tokenBudget": 1})), "agent.budget_exceeded"),
    (scenario([text("what?"), text("no")]), "agent.invalid_outcome"),
    (aborted(), "agent.aborted"),
    (timed_out(), "agent.tool_timeout"),
    (scenario([text("what?")], agent_step(guardrails={"output": [SHORT]})), "agent.guardrail_violation"),
]


@pytest.mark.parametrize(("run", "event"), EXITS, ids=[event for _, event in EXITS])
async def test_each_abnormal_exit_is_one_warning(run: Scenario, event: str) -> None:
    lines = await logged(run)
    [line] = of(lines, event)
    assert (line["level"], line["step"]) == ("warning", "work")
    assert {"wrong customer", "what?"} & set(json.dumps(lines).split('"')) == set()
    exits = {name for _, name in EXITS}
    assert [found["event"] for found in lines if found["event"] in exits] == [event]


async def test_a_failed_model_call_names_its_kind_and_not_what_the_provider_said() -> None:
    lines = await logged(scenario([failure("RateLimited", status=429), answer("resolved")]))
    where = {"level": "warning", "step": "work", "turn": 1, "iteration": 1}
    assert of(lines, "agent.llm_error") == [
        {**where, "kind": "RateLimited", "status": 429, "endpoint": 0, "modelAttempt": 1}
    ]
    assert "the provider said" not in json.dumps(lines)


async def test_a_step_that_calls_no_model_has_no_agent_events() -> None:
    lines = await logged(scenario([], function_step("fetch"), functions={"steps:fetch": lambda arguments: {}}))
    assert lines == []


async def test_hooks_that_log_and_hooks_that_fail_are_lines() -> None:
    notify = {"action": "Notify", "notify": {"step": "page"}}
    hooks = [
        {"event": "AfterTool", "action": "Log"},
        {"event": "AfterTool", "action": "Metric"},
        {"event": "BeforeStep", **notify},
    ]
    page = {"id": "page", "kind": "APICall", "toolOnly": True, "apiCall": {"url": "http://pager/{{ step }}"}}
    run = scenario([calls(call("lookup")), answer("resolved")], agent_step(), page, plan={"hooks": hooks})
    run.http._answers = [HttpResponse(503)]
    lines = await logged(run)
    assert sorted(of(lines, "hook"), key=lambda line: line["hook"], reverse=True) == [
        {
            "level": "warning",
            "hook": "workflow/2",
            "hookEvent": "BeforeStep",
            "action": "Notify",
            "step": "work",
            "result": "Failed",
            "message": "step page: GET http://pager answered 503",
        },
        {
            "level": "info",
            "hook": "workflow/0",
            "hookEvent": "AfterTool",
            "action": "Log",
            "step": "work",
            "tool": "lookup",
            "result": "Done",
        },
    ]


async def test_lines_carry_the_ids_of_the_spans_that_they_are_about() -> None:
    stream = io.StringIO()
    log = LogLines(stream, {})
    traced = Traced(scenario([calls(call("lookup")), text("what?"), text("no")]))

    traced.run.observers = (LogEvents(log, lambda fact: traced.telemetry.span_ids(fact)),)
    await traced.attempt()
    log.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    spans = {f"{span.context.span_id:016x}": span for span in traced.spans}
    said = [(line["event"], spans[line["spanId"]].name) for line in lines]
    assert said == [
        ("agent.turn", "agent.iteration"),
        ("agent.tool_call", "agent.tool_call"),
        ("agent.turn", "agent.iteration"),
        ("agent.turn", "agent.iteration"),
        ("agent.invalid_outcome", "step.Agent"),
    ]
    assert {line["traceId"] for line in lines} == {f"{traced.spans[0].context.trace_id:032x}"}
