"""Metrics of a run by name and label, against an in-memory reader (engine.md §17)."""

import asyncio
from typing import Any

import pytest

from pilothouse_engine.ports import HttpResponse
from unit.engine.scenarios import agent_step, answer, call, calls, failure, function_tool, response_step, scenario
from unit.runner.telemetry.traced import Traced

pytestmark = pytest.mark.anyio

WORK = {"workflow": "flow", "step": "work"}
MODEL = {**WORK, "model": "test-model"}
PRICE = {"inputPerMillionUSD": "10", "outputPerMillionUSD": "20"}


async def test_iterations_tokens_cost_and_calls_are_counted_by_step_model_and_tool() -> None:
    model = {"name": "test-model", "maxOutputTokens": 100, "price": PRICE}
    turns = [calls(call("lookup"), call("drop_tables")), answer("resolved")]
    traced = Traced(scenario(turns, agent_step(model=model)))
    await traced.attempt()
    assert traced.points("pilothouse_agent_iterations_total") == [(MODEL, 2)]
    assert traced.points("pilothouse_agent_tokens_total") == [
        ({**MODEL, "type": "input"}, 100),
        ({**MODEL, "type": "output"}, 20),
    ]
    assert traced.points("pilothouse_agent_cost_usd_total") == [(MODEL, pytest.approx(0.0014))]
    assert traced.points("pilothouse_agent_tool_calls_total") == [
        ({**WORK, "tool": "lookup", "code": "ok"}, 1),
        ({**WORK, "tool": "(undeclared)", "code": "tool_unknown"}, 1),
    ]


async def test_turns_tools_and_model_calls_are_timed_without_the_time_that_is_parked() -> None:
    async def think(request: Any) -> Any:
        await run.clock.sleep(3)
        return calls(call("lookup")) if request.turn == 1 else answer("resolved")

    async def slow(arguments: dict[str, Any]) -> dict[str, Any]:
        await run.clock.sleep(2)
        run.store.set_control(mode="Pause")
        return {}

    run = scenario(
        [think, think],
        agent_step(routes={"resolved": "tell"}),
        response_step("tell", a="work_result"),
        functions={"tools:lookup": slow},
    )
    run.store.on_publish = lambda s: s.parked and run.store.set_control(mode="Run")  # type: ignore[assignment,func-returns-value]
    traced = Traced(run)
    await traced.attempt()
    assert traced.points("pilothouse_agent_turn_seconds") == [
        (WORK, pytest.approx(8.0)),
        ({**WORK, "step": "tell"}, 0.0),
    ]
    assert traced.points("pilothouse_agent_tool_seconds") == [({**WORK, "tool": "lookup"}, pytest.approx(2.0))]
    names = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")
    [(labels, seconds)] = traced.points("gen_ai.client.operation.duration")
    assert labels == dict(zip(names, ("chat", "test-model", "test-model"), strict=True))
    assert seconds == pytest.approx(6.0)


async def test_a_failed_model_call_that_may_be_billed_is_counted_and_named() -> None:
    traced = Traced(scenario([failure("Timeout"), answer("resolved")]))
    await traced.attempt()
    tokens = {labels["type"]: value for labels, value in traced.points("pilothouse_agent_tokens_total")}
    assert tokens["output"] == 110
    errors = [labels.get("error.type") for labels, _ in traced.points("gen_ai.client.operation.duration")]
    assert errors == ["Timeout", None]


async def test_a_budget_that_is_spent_is_counted() -> None:
    traced = Traced(scenario([], agent_step(limits={"tokenBudget": 1})))
    await traced.attempt()
    assert traced.points("pilothouse_agent_budget_exceeded_total") == [(WORK, 1)]


async def test_control_latency_is_the_time_from_the_first_sight_of_a_directive_to_its_landing() -> None:
    def steer(request: Any) -> Any:
        run.store.set_control(steer={"a1": {"message": "Look at invoice 42."}})
        run.store.set_limits(maxIterations=5)
        return calls(call("lookup"))

    async def slow(arguments: dict[str, Any]) -> dict[str, Any]:
        await run.clock.sleep(4)
        return {}

    def abort(request: Any) -> Any:
        run.store.set_control(mode="Abort")
        return calls(call("lookup", {"n": 2}))

    tools = [function_tool("lookup", effect="Once")]
    run = scenario([steer, abort], agent_step(tools=tools), functions={"tools:lookup": slow})
    traced = Traced(run)
    await traced.attempt()
    got = {labels["directive"]: value for labels, value in traced.points("pilothouse_control_latency_seconds")}
    assert got == {"Steer": pytest.approx(4.0), "Limits": pytest.approx(4.0), "Abort": 0.0}
    assert traced.points("pilothouse_agent_aborts_total") == [(WORK, 1)]


@pytest.mark.parametrize(("seconds", "outcome"), [(20, "Passed"), (100, "Continue")])
async def test_the_wait_at_a_barrier_is_timed_and_is_no_part_of_a_turn(seconds: float, outcome: str) -> None:
    async def see() -> None:
        await run.clock.sleep(seconds)
        run.store.raise_clock()

    run = scenario([calls(call("lookup")), answer("resolved")])
    run.store.set_supervision(barrier={"timeoutSeconds": 60, "onTimeout": "Continue"})
    traced, seeing = Traced(run), asyncio.ensure_future(see())
    await traced.attempt()
    seeing.cancel()
    waited = min(seconds, 60)
    assert traced.points("pilothouse_agent_barrier_wait_seconds") == [({**WORK, "outcome": outcome}, waited)]
    assert traced.points("pilothouse_agent_turn_seconds") == [(WORK, 0.0)]


async def test_hooks_and_verdicts_are_counted() -> None:
    hooks = [{"event": "AfterTool", "action": "Metric"}, {"event": "OnError", "action": "Log"}]
    policy = [{"name": "never", "at": "ToolCall", "cel": "tool == 'lookup'", "verdict": "Deny"}]
    run = scenario([calls(call("lookup")), answer("resolved")], agent_step(policy=policy), plan={"hooks": hooks})
    run.http._answers = [HttpResponse(200)]
    traced = Traced(run)
    await traced.attempt()
    assert traced.points("pilothouse_hook_events_total") == [
        ({**WORK, "event": "AfterTool", "action": "Metric", "result": "Done", "tool": "lookup"}, 1)
    ]
    assert traced.points("pilothouse_policy_decisions_total") == [
        ({"workflow": "flow", "at": "ToolCall", "verdict": "Deny"}, 1)
    ]


async def test_no_label_names_a_run_and_what_an_attempt_folds_is_not_counted_again() -> None:
    def let_go(request: Any) -> Any:
        run.stop.release()
        return calls(call("lookup"))

    run = scenario([let_go])
    traced = Traced(run)
    await traced.attempt()
    assert traced.points("pilothouse_agent_iterations_total") == [(MODEL, 1)]
    run.model.turns.append(answer("resolved"))  # type: ignore[attr-defined]
    await traced.attempt()
    assert traced.points("pilothouse_agent_iterations_total") == [(MODEL, 1)]
    values = {value for labels in traced.all_labels() for value in labels.values()}
    assert not {"run-1", "uid-1", "ns"} & values
    assert "pilothouse_agent_turn_seconds" in traced.metric_names()
