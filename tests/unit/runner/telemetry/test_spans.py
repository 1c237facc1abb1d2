"""Spans of a run, against an in-memory exporter: names, nesting, attributes (engine.md §17)."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from pilothouse_engine import facts
from pilothouse_engine.ports import HttpRequest, HttpResponse
from pilothouse_runner.adapters.telemetry import spans
from pilothouse_runner.telemetry import trace_headers
from unit.engine.hooks.test_running import Recorder
from unit.engine.scenarios import (
    agent_step,
    answer,
    call,
    calls,
    failure,
    function_step,
    function_tool,
    response_step,
    scenario,
    text,
)
from unit.engine.test_children import ASK, ended, researching
from unit.runner.telemetry.traced import Traced

pytestmark = pytest.mark.anyio

CRM = {"id": "crm", "kind": "APICall", "toolOnly": True, "apiCall": {"url": "http://crm/"}}
FETCH = {"name": "fetch", "description": "x", "step": "crm", "effect": "ReadOnly"}


def attributes(span: Any) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_spans_nest_as_run_step_iteration_model_call_and_tool_call() -> None:
    run = scenario(
        [calls(call("lookup", {"n": 1}), call("fetch")), answer("resolved")],
        agent_step(routes={"resolved": "tell"}, tools=[function_tool("lookup"), FETCH]),
        response_step("tell", a="work_result"),
        CRM,
    )
    run.http._answers = [HttpResponse(200)]
    traced = Traced(run)
    await traced.attempt()
    iteration = "pilothouse.run > step.Agent > agent.iteration"
    assert traced.tree() == [
        "pilothouse.run",
        "pilothouse.run > step.Agent",
        iteration,
        iteration,
        f"{iteration} > agent.tool_call",
        f"{iteration} > agent.tool_call",
        f"{iteration} > agent.tool_call > step.APICall",
        f"{iteration} > agent.tool_call > step.Function",
        f"{iteration} > chat test-model",
        f"{iteration} > chat test-model",
        "pilothouse.run > step.Response",
    ]


async def test_spans_say_where_they_belong_and_how_they_ended() -> None:
    turns = [calls(call("lookup"), call("drop_tables")), answer("resolved")]
    traced = Traced(scenario(turns))
    await traced.attempt()

    [run] = traced.named("pilothouse.run")
    assert attributes(run) == {
        "pilothouse.workflow": "flow",
        "pilothouse.namespace": "ns",
        "pilothouse.run": "run-1",
        "pilothouse.attempt": 1,
        "pilothouse.signal": "resolved",
        "pilothouse.reason": "Complete",
        "pilothouse.attempt.end": "Finished",
    }
    [step] = traced.named("step.Agent")
    assert attributes(step) == {"pilothouse.step": "work", "pilothouse.visit": 1, "pilothouse.signal": "resolved"}
    first, second = traced.named("agent.iteration")
    assert attributes(first) == {
        "pilothouse.step": "work",
        "pilothouse.turn": 1,
        "pilothouse.iteration": 1,
        "pilothouse.tokens": 60,
        "pilothouse.tool_calls": 2,
    }
    assert attributes(second)["pilothouse.turn"] == 2
    tools = {attributes(span)["pilothouse.tool"]: span for span in traced.named("agent.tool_call")}
    assert attributes(tools["lookup"])["pilothouse.code"] == "ok"
    assert attributes(tools["(undeclared)"])["pilothouse.code"] == "tool_unknown"
    assert attributes(tools["(undeclared)"])["gen_ai.operation.name"] == "execute_tool"
    assert tools["(undeclared)"].status.status_code == StatusCode.ERROR
    assert "drop_tables" not in str([span.to_json() for span in traced.spans])


async def test_a_model_call_has_the_attributes_of_the_genai_conventions() -> None:
    model = {
        "name": "openai/gpt-small",
        "apiBase": "http://llm.models.svc:4000/v1",
        "maxOutputTokens": 100,
        "temperature": 0.5,
    }
    traced = Traced(scenario([answer("resolved")], agent_step(model=model)))
    await traced.attempt()
    [span] = traced.named("chat gpt-small")
    assert span.kind == SpanKind.CLIENT
    assert attributes(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-small",
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 50,
        "gen_ai.usage.output_tokens": 10,
        "server.address": "llm.models.svc",
        "server.port": 4000,
        "pilothouse.purpose": "Regular",
        "pilothouse.model.attempt": 1,
    }


async def test_every_attempt_of_a_model_call_is_a_span_and_says_why_it_failed() -> None:
    model = {"name": "a/one", "maxOutputTokens": 100, "fallbacks": [{"name": "bedrock/two", "maxOutputTokens": 9}]}
    turns = [failure("RateLimited", status=429), failure("Authentication"), answer("resolved")]
    traced = Traced(scenario(turns, agent_step(model=model)))
    await traced.attempt()
    one, again = traced.named("chat one")
    [two] = traced.named("chat two")
    assert attributes(one)["error.type"] == "RateLimited"
    assert attributes(one)["http.response.status_code"] == 429
    assert attributes(again)["error.type"] == "Authentication"
    assert attributes(again)["pilothouse.model.attempt"] == 2
    assert attributes(two)["gen_ai.provider.name"] == "aws.bedrock"
    assert (one.status.status_code, two.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert len(traced.named("agent.iteration")) == 1


async def test_times_are_those_of_the_facts() -> None:
    async def think(request: Any) -> Any:
        await run.clock.sleep(3)
        return calls(call("lookup")) if request.turn == 1 else answer("resolved")

    async def slow(arguments: dict[str, Any]) -> dict[str, Any]:
        await run.clock.sleep(2)
        return {}

    run = scenario([think, think], functions={"tools:lookup": slow})
    traced = Traced(run)
    await traced.attempt()
    seconds = {
        span.name: ((span.end_time or 0) - (span.start_time or 0)) / 1e9 for span in traced.spans if span.parent is None
    }
    assert seconds == pytest.approx({"pilothouse.run": 8.0})
    iterations = traced.named("agent.iteration")
    assert [((s.end_time or 0) - (s.start_time or 0)) / 1e9 for s in iterations] == pytest.approx([5.0, 3.0])


async def test_all_attempts_of_a_run_are_one_trace_and_what_was_under_way_goes_on() -> None:
    def let_go(request: Any) -> Any:
        run.stop.release()
        return calls(call("lookup"))

    run = scenario([let_go])
    traced = Traced(run)
    await traced.attempt()
    run.model.turns.append(answer("resolved"))  # type: ignore[attr-defined]
    await traced.attempt()
    assert len({span.context.trace_id for span in traced.spans}) == 1
    ends = [attributes(span)["pilothouse.attempt.end"] for span in traced.named("pilothouse.run")]
    assert ends == ["Released", "Finished"]
    assert [attributes(span).get("pilothouse.is_resumed") for span in traced.named("step.Agent")] == [None, True]
    other = Traced(scenario([answer("resolved")]))
    other.run.plan = replace(run.plan, run=replace(run.plan.run, uid="uid-2"))
    other.run.store.uid = "uid-2"
    await other.attempt()
    assert other.spans[0].context.trace_id != traced.spans[0].context.trace_id


async def test_a_step_that_fails_is_an_error_and_a_reserved_exit_is_not() -> None:
    for step, name, want in (
        (response_step("tell", a="nothing"), "step.Response", ("MissingContext", StatusCode.ERROR)),
        (agent_step(limits={"maxIterations": 1}), "step.Agent", ("MaxIterations", StatusCode.UNSET)),
    ):
        traced = Traced(scenario([calls(call("lookup"))], step))
        await traced.attempt()
        [span] = traced.named(name)
        assert (attributes(span)["error.type"], span.status.status_code) == want


async def test_a_signal_that_a_model_chose_is_told_nowhere() -> None:
    router = {"kind": "Router", "router": {"match": "choice"}}
    parameters = {"type": "object", "properties": {"choice": {"type": "string"}}}
    tool = {"name": "choose", "description": "x", "effect": "ReadOnly", "parameters": parameters, "inlineStep": router}
    hooks = [{"event": "AfterTool", "action": "Log"}]
    turns = [calls(call("choose", {"choice": "pin-4711"})), answer("resolved")]
    recorder = Recorder()
    run = scenario(turns, agent_step(tools=[tool]), plan={"hooks": hooks}, observers=(recorder,))
    traced = Traced(run)
    await traced.attempt()
    assert "pin-4711" in (await run.facts_of(facts.CallFinished))[0].signal
    assert "pin-4711" not in str([span.to_json() for span in traced.spans])
    assert "pin-4711" not in str(traced.all_labels())
    assert [event.tool for event in recorder.hooks] == ["choose"]
    assert "pin-4711" not in str(recorder.hooks)


async def test_directives_and_parks_are_events() -> None:
    def pause(request: Any) -> Any:
        run.store.set_control(mode="Pause", steer={"a1": {"message": "look at invoice 42"}})
        return calls(call("lookup"))

    async def resume() -> None:
        await run.clock.sleep(100)
        run.store.set_control(mode="Run")

    run = scenario([pause, answer("resolved")])
    traced = Traced(run)
    task = asyncio.ensure_future(resume())
    await traced.attempt()
    await task
    [step] = traced.named("step.Agent")
    said = [(event.name.removeprefix("pilothouse."), dict(event.attributes or {})) for event in step.events]
    assert said == [
        ("control", {"pilothouse.directive": "Pause", "pilothouse.landing": "Landed", "pilothouse.turn": 2}),
        ("park.began", {"pilothouse.reason": "Paused"}),
        ("control", {"pilothouse.directive": "Run", "pilothouse.landing": "Landed", "pilothouse.turn": 2}),
        ("park.ended", {"pilothouse.reason": "Paused"}),
        ("control", {"pilothouse.directive": "Steer", "pilothouse.landing": "Landed", "pilothouse.turn": 2}),
    ]
    assert "invoice" not in str([span.to_json() for span in traced.spans])


async def test_a_barrier_is_a_span_below_the_step_or_between_two_calls_below_the_iteration() -> None:
    run = scenario(
        [calls(call("pay"), call("lookup")), answer("resolved")],
        agent_step(tools=[function_tool("pay", effect="Once"), function_tool("lookup")]),
        functions={"tools:pay": lambda arguments: {"paid": True}},
    )
    run.store.set_supervision(barrier={"timeoutSeconds": 60, "onTimeout": "Continue"})
    run.store.on_publish = lambda snapshot: snapshot.turn and run.store.raise_clock()  # type: ignore[assignment,func-returns-value]
    traced = Traced(run)
    await traced.attempt()
    assert [path for path in traced.tree() if path.endswith("agent.barrier")] == [
        "pilothouse.run > step.Agent > agent.barrier",
        "pilothouse.run > step.Agent > agent.iteration > agent.barrier",
    ]
    want = {"pilothouse.step": "work", "pilothouse.turn": 1, "pilothouse.outcome": "Passed"}
    assert [attributes(span) for span in traced.named("agent.barrier")] == [want, want]
    assert [event.name for span in traced.spans for event in span.events] == []


async def test_requests_carry_the_span_that_they_belong_to() -> None:
    seen: dict[str, str] = {}

    def think(request: Any) -> Any:
        seen[f"model {request.turn}"] = trace_headers()["traceparent"]
        return calls(call("fetch"), call("lookup")) if request.turn == 1 else answer("resolved")

    def http(request: HttpRequest) -> HttpResponse:
        seen["fetch"] = trace_headers()["traceparent"]
        assert get_current_span().get_span_context().span_id == int(seen["fetch"].split("-")[2], 16)
        return HttpResponse(200)

    def lookup(arguments: dict[str, Any]) -> dict[str, Any]:
        seen["lookup"] = trace_headers()["traceparent"]
        return {}

    run = scenario(
        [think, think],
        agent_step(tools=[function_tool("lookup"), FETCH], limits={"maxParallelToolCalls": 2}),
        CRM,
        functions={"tools:lookup": lookup},
    )
    run.http._answers = [http]
    traced = Traced(run)
    await traced.attempt()
    want = {
        "model 1": traced.named("chat test-model")[0],
        "model 2": traced.named("chat test-model")[1],
        "fetch": traced.named("step.APICall")[0],
        "lookup": traced.named("step.Function")[0],
    }
    assert seen == {
        name: f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"
        for name, span in want.items()
    }


async def test_a_step_of_the_graph_carries_its_span_too() -> None:
    seen: list[str] = []

    def fetch(arguments: dict[str, Any]) -> dict[str, Any]:
        seen.append(trace_headers()["traceparent"].split("-")[2])
        return {}

    traced = Traced(scenario([text("x")], function_step("fetch"), functions={"steps:fetch": fetch}))
    await traced.attempt()
    assert seen == [f"{traced.named('step.Function')[0].context.span_id:016x}"]


async def test_a_completion_that_is_asked_again_is_two_iterations_of_one_step() -> None:
    completion = {
        "id": "classify",
        "kind": "Agent",
        "agent": {
            "mode": "Completion",
            "model": {"name": "m", "maxOutputTokens": 10},
            "prompt": {"inline": "x"},
            "outcome": {"enum": ["a"]},
            "retry": {"causes": ["ParseError"]},
        },
        "routes": {"a": "end"},
    }
    traced = Traced(scenario([text("no"), answer("a")], completion))
    await traced.attempt()
    assert [span.name for span in traced.spans].count("chat m") == 2
    assert len(traced.named("step.Agent")) == 1


IGNORED = {facts.RunStarted, facts.PromptOpened, facts.SessionLoaded}
"""Facts that no span, attribute or event is about."""


def test_every_fact_is_told_or_left_out_on_purpose() -> None:
    assert set(spans._TAKES) | IGNORED == set(facts.FACTS.values())
    assert not set(spans._TAKES) & IGNORED


def judged(gate: str, *checks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return agent_step(guardrails={gate: list(checks)}, **fields)


JUDGE = {"check": "LlmJudge", "llmJudge": {"criteria": {"inline": "It promises no refund."}}}


async def test_a_judge_is_a_model_call_of_the_iteration_whose_results_it_judges() -> None:
    turns = [calls(call("lookup")), text('{"holds": true, "reason": "fine"}'), answer("resolved")]
    traced = Traced(scenario(turns, judged("tools", JUDGE)))
    await traced.attempt()
    iteration = "pilothouse.run > step.Agent > agent.iteration"
    assert traced.tree().count(f"{iteration} > chat test-model") == 3
    purposes = [attributes(span)["pilothouse.purpose"] for span in traced.named("chat test-model")]
    assert sorted(purposes) == ["Judge", "Regular", "Regular"]
    [judge] = [span for span in traced.named("chat test-model") if attributes(span)["pilothouse.purpose"] == "Judge"]
    assert attributes(judge)["pilothouse.gate"] == "tools"


async def test_a_gate_that_does_something_is_an_event_without_the_text() -> None:
    mask = {"check": "PiiMask", "piiMask": {"entities": ["Email"]}}
    run = scenario(
        [calls(call("lookup")), answer("resolved")],
        judged("tools", mask),
        functions={"tools:lookup": lambda arguments: {"mail": "ann@example.org"}},
    )
    traced = Traced(run)
    await traced.attempt()
    [event] = traced.named("agent.iteration")[0].events
    assert (event.name, dict(event.attributes or {})) == (
        "pilothouse.guardrail",
        {"pilothouse.gate": "tools", "pilothouse.check": "PiiMask", "pilothouse.verdict": "Passed"},
    )
    assert "ann@example" not in str([span.to_json() for span in traced.spans])


async def test_a_request_for_approval_is_an_event_of_its_iteration_and_parks() -> None:
    def approve(snapshot: Any) -> None:
        for pending in snapshot.pending_approvals:
            run.store.set_control(approvals={pending.call_id: {"decision": "Approve"}})

    run = scenario(
        [calls(call("lookup")), answer("resolved")], agent_step(tools=[function_tool("lookup", approval="Always")])
    )
    run.store.on_publish = approve
    traced = Traced(run)
    await traced.attempt()
    events = [event.name.removeprefix("pilothouse.") for event in traced.named("agent.iteration")[0].events]
    assert events == ["approval", "park.began", "control", "park.ended"]
    assert attributes(traced.named("agent.tool_call")[0])["pilothouse.code"] == "ok"


async def test_a_delegate_is_a_tool_call_as_long_as_the_run_that_carries_it_out() -> None:
    run = researching([ASK, answer("resolved")])

    def end_it(snapshot: Any) -> None:
        for child in snapshot.children:
            if child.state == "Awaited" and child.call_id not in run.store.directives.children:
                run.clock.advance(20)
                run.store.set_child(child.call_id, **ended())

    run.store.on_publish = end_it
    traced = Traced(run)
    await traced.attempt()
    [span] = traced.named("agent.tool_call")
    assert attributes(span)["pilothouse.code"] == "ok"
    assert ((span.end_time or 0) - (span.start_time or 0)) / 1e9 >= 20
    events = [event.name for event in traced.named("agent.iteration")[0].events]
    assert "pilothouse.child.requested" in events
    assert "pilothouse.child.delivered" in events
