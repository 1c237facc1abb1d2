"""A run whose calls a real policy server judges: what the server does wrong denies the call, and the run goes on."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from contract.policies.opa_server import OpaServer, serve_opa
from pilothouse_engine.facts import PolicyJudged
from pilothouse_engine.run import Attempt, Finished, Stop, run_attempt
from pilothouse_runner.adapters.clock import SystemClock
from pilothouse_runner.adapters.http import HttpxHttp
from unit.engine.policies.rules import endpoint
from unit.engine.scenarios import ListModel, Scenario, agent_step, answer, call, calls, codes, function_tool, scenario

pytestmark = pytest.mark.anyio


@pytest.fixture
async def opa() -> AsyncIterator[OpaServer]:
    async with serve_opa() as server:
        yield server


async def run_with(*rules: dict[str, Any]) -> Scenario:
    tools = [function_tool("refund", effect="Once")]
    run = scenario(
        [calls(call("refund", {"amount": 10})), answer("needs_human")],
        agent_step(tools=tools, policy=list(rules), routes={"needs_human": "end"}),
        functions={"tools:refund": lambda arguments: {"refunded": True}},
    )
    ports = replace(run.ports(), clock=SystemClock(), http=HttpxHttp())
    end = await run_attempt(run.plan, ports, Attempt(1), Stop())
    assert isinstance(end, Finished) and end.exit.signal == "needs_human", end
    return run


def shown_codes(run: Scenario) -> list[str | None]:
    assert isinstance(run.model, ListModel)
    return codes(run.model.requests[-1])


async def test_the_server_decides_by_what_the_run_asks(opa: OpaServer) -> None:
    run = await run_with(endpoint(url=opa.url("/v1/data/agents/decision")))
    assert (run.functions_run(), shown_codes(run)) == (["refund"], [None])
    (question,) = opa.asked
    asked = question["input"]
    assert (asked["tool"], asked["args"], asked["effect"]) == ("refund", {"amount": 10}, "Once")
    assert (asked["namespace"], asked["step"], asked["turn"], asked["at"]) == ("ns", "work", 1, "ToolCall")


SILENT = [pytest.param(path, marks=pytest.mark.slow) for path in ("/silent", "/slow")]


@pytest.mark.parametrize("path", [*SILENT, "/garbage", "/one-byte-more", "/endless", "/cut", "/nowhere"])
async def test_a_server_that_misbehaves_denies_and_the_run_goes_on(opa: OpaServer, path: str) -> None:
    began = time.monotonic()
    rule = endpoint(url=opa.url(path))
    # The others are refused for what they answer: a busy machine may need a second to ask.
    rule["http"]["timeoutSeconds"] = 2 if path in ("/silent", "/slow") else 5
    run = await run_with(rule)
    assert (run.functions_run(), shown_codes(run)) == ([], ["tool_policy_denied"])
    assert time.monotonic() - began < 30
    (judged,) = await run.facts_of(PolicyJudged)
    assert judged.is_failure and judged.is_asked
    assert len(opa.asked) == 1


async def test_an_answer_of_just_64_kib_is_read(opa: OpaServer) -> None:
    assert (await run_with(endpoint(url=opa.url("/largest")))).functions_run() == ["refund"]


@pytest.mark.slow
async def test_a_question_ends_after_five_seconds_at_the_latest(opa: OpaServer) -> None:
    began = time.monotonic()
    rule = endpoint(url=opa.url("/silent"))
    rule["http"]["timeoutSeconds"] = 5
    run = await run_with(rule)
    assert shown_codes(run) == ["tool_policy_denied"]
    assert 4.5 < time.monotonic() - began < 30
