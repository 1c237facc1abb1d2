"""From step to step: routes, visits, steps of the graph, the end of a run (api.md "Signals and routes")."""

from typing import Any

import pytest

from pilothouse_engine.ports import FunctionFailure, HttpResponse
from pilothouse_engine.testing.http import ScriptedHttp
from unit.engine.scenarios import (
    agent_step,
    answer,
    call,
    calls,
    function_step,
    function_tool,
    response_step,
    scenario,
    text,
)

pytestmark = pytest.mark.anyio


def writes(**values: Any) -> Any:
    return lambda arguments: values


async def test_default_falls_through_to_the_next_step_that_is_not_tool_only() -> None:
    run = scenario(
        [],
        function_step("one"),
        function_step("tool", toolOnly=True),
        response_step("two", value="x"),
        functions={"steps:one": writes(x=1)},
    )
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason, end.result) == ("default", "Complete", {"value": 1})
    assert [step.id for step in run.snapshot.steps] == ["one", "two"]
    assert run.snapshot.turn == 2


async def test_the_run_begins_with_the_first_step_that_is_not_tool_only() -> None:
    run = scenario([], function_step("tool", toolOnly=True), function_step("one"), functions={"steps:one": writes()})
    await run.finish()
    assert [step.id for step in run.snapshot.steps] == ["one"]


async def test_end_finishes_the_run_whatever_the_signal() -> None:
    step = function_step("one", routes={"error": "end"})
    run = scenario([], step, functions={"steps:one": lambda arguments: FunctionFailure("Raised", "boom")})
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason) == ("error", "Complete")


@pytest.mark.parametrize(
    ("turns", "fields", "reason"),
    [
        ([text("")], {}, "Error"),
        ([calls(call("lookup"))], {"limits": {"maxIterations": 1}}, "MaxIterations"),
        ([], {"limits": {"tokenBudget": 10}}, "BudgetExceeded"),
        ([calls(call("lookup"), call("lookup"))], {"limits": {"maxToolCalls": 1}}, "Unrecoverable"),
        ([answer("needs_human")], {}, "UnroutedSignal"),
    ],
)
async def test_what_is_not_routed_fails_the_run_with_its_reason(turns: Any, fields: Any, reason: str) -> None:
    run = scenario(turns, agent_step(**fields))
    end = await run.finish()
    assert end.exit.reason == reason
    assert "routes do not map it" in end.exit.message.replace("which its routes do not map", "routes do not map it")
    assert end.result is None or reason == "UnroutedSignal"


async def test_a_cycle_of_routes_stops_at_the_limit_of_visits() -> None:
    run = scenario(
        [],
        function_step("one", routes={"default": "two"}),
        function_step("two", routes={"default": "one"}),
        functions={"steps:one": writes(), "steps:two": writes()},
        plan={"maxStepVisits": 7},
    )
    end = await run.finish()
    assert end.exit.reason == "StepVisitLimit"
    assert run.snapshot.visit == 7


async def test_an_abnormal_exit_leaves_its_error_and_partial_text_for_the_next_step() -> None:
    run = scenario(
        [calls(call("lookup"), text="I think so"), text("")],
        agent_step(routes={"error": "tell", "resolved": "end"}),
        response_step("tell", why="_last_error", kind="_last_error_type", partial="_partial_result"),
    )
    end = await run.finish()
    assert end.result == {
        "why": "the model answered with neither text nor a tool call",
        "kind": "error",
        "partial": "I think so",
    }
    assert end.exit.reason == "Complete"


async def test_an_api_call_sets_its_status_and_its_error_for_templates() -> None:
    step = {
        "id": "call",
        "kind": "APICall",
        "apiCall": {"url": "http://x.test/a", "output": "got"},
        "routes": {"error": "tell"},
    }
    run = scenario(
        [],
        step,
        response_step("tell", status="_api_status_code", error="_last_error"),
        http=ScriptedHttp(HttpResponse(404, body=b"{}")),
    )
    end = await run.finish()
    assert end.result is not None
    assert end.result["status"] == 404
    assert "404" in end.result["error"]


async def test_a_router_chooses_the_next_step() -> None:
    run = scenario(
        [],
        {"id": "choose", "kind": "Router", "router": {"match": "kind"}, "routes": {"billing": "b", "other": "o"}},
        response_step("o", routes={"default": "end"}, value="kind"),
        response_step("b", routes={"default": "end"}, value="kind"),
        plan={"input": {"kind": "billing"}},
    )
    await run.finish()
    assert [step.id for step in run.snapshot.steps] == ["choose", "b"]


async def test_a_missing_path_of_a_response_is_an_error() -> None:
    end = await scenario([], response_step("tell", a="nothing")).finish()
    assert (end.exit.signal, end.exit.reason) == ("error", "Error")
    assert end.exit.error is not None and end.exit.error.type == "MissingContext"


async def test_without_a_response_the_answer_of_the_last_agent_is_the_result() -> None:
    assert (await scenario([answer("resolved", {"a": 1})]).finish()).result == {"work_result": {"a": 1}}


async def test_values_that_would_grow_the_context_past_its_cap_become_pointers() -> None:
    run = scenario(
        [],
        function_step("one", routes={"default": "end"}),
        functions={"steps:one": writes(small=1, large="x" * 300_000)},
    )
    await run.finish()
    context = (await run.state()).context
    assert context["small"] == 1
    assert context["large"]["bytes"] == 300_002
    assert context["large"]["ref"].startswith("journal/t1-0-")


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [function_tool("lookup", background=True)]},
    ],
)
async def test_what_is_not_built_yet_is_never_ignored(fields: dict[str, Any]) -> None:
    end = await scenario([], agent_step(**fields)).finish()
    assert end.exit.error is not None and end.exit.error.type == "NotSupported"


async def test_a_visit_of_the_same_step_has_messages_of_its_own() -> None:
    step = agent_step(routes={"needs_human": "work", "resolved": "end"})
    run = scenario([calls(call("lookup")), answer("needs_human"), answer("resolved")], step)
    await run.finish()
    assert len(run.model.requests[2].messages) == 2  # type: ignore[attr-defined]
    assert [(s.visit, s.iterations) for s in run.snapshot.steps] == [(1, 2), (2, 1)]
