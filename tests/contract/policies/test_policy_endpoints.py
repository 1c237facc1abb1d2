"""HTTP policy rules against a real server that decides, is slow, lies, and floods: only a clear answer allows."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from contract.policies.opa_server import OpaServer, serve_opa
from pilothouse_api.structs import PolicyRule
from pilothouse_engine.policies.evaluation import judge_call, plan_policy
from pilothouse_engine.policies.questions import Question
from pilothouse_engine.policies.verdicts import Decision
from pilothouse_runner.adapters.http import HttpxHttp

pytestmark = pytest.mark.anyio

QUESTION = Question(
    at="ToolCall",
    step="a",
    agent="b",
    workflow="w",
    namespace="team-a",
    turn=1,
    iteration=1,
    now=datetime(2026, 11, 30, tzinfo=UTC),
    tool="refund",
    args={"amount": 10},
    effect="Once",
)


@pytest.fixture
async def opa() -> AsyncIterator[OpaServer]:
    async with serve_opa() as server:
        yield server


async def ask(url: str, question: Question = QUESTION, timeout: int = 5) -> Decision:
    rule = {"name": "central", "at": "ToolCall", "http": {"url": url, "timeoutSeconds": timeout}}
    return await judge_call([plan_policy("agent b", [PolicyRule.read(rule)])], question, HttpxHttp())


@pytest.mark.parametrize(
    ("changes", "verdict", "message"),
    [
        ({}, "Allow", ""),
        ({"args": {"amount": 51}}, "RequireApproval", "large"),
        ({"namespace": "prod"}, "Deny", "prod is closed"),
        ({"tool": "delete"}, "Deny", ""),
        ({"args": {"note": "ünï\u200bcode \U0001f4b6", "amount": 1}}, "Allow", ""),
    ],
)
async def test_the_server_decides(opa: OpaServer, changes: dict[str, Any], verdict: str, message: str) -> None:
    decision = await ask(opa.url("/v1/data/agents/decision"), replace(QUESTION, **changes))
    assert (decision.verdict, decision.message, decision.is_failure) == (verdict, message, False)
    want = {**opa.asked[0]["input"], **changes}
    assert opa.asked == [{"input": want}]
    assert "content-type: application/json" in opa.headers[0].lower()


async def test_an_undefined_decision_denies(opa: OpaServer) -> None:
    decision = await ask(opa.url("/v1/data/agents/decision"), replace(QUESTION, tool="unknown_to_the_policy"))
    assert decision.verdict == "Deny" and "undefined" in decision.message


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("/silent", "no complete answer within 2 s"),
        ("/slow", "no complete answer within 2 s"),
        ("/garbage", "the endpoint did not answer"),
        ("/html", "not valid JSON"),
        ("/cut", "the endpoint did not answer"),
        ("/error", "status 500"),
        ("/redirect", "status 302"),
        ("/see-other", "status 307"),
        ("/one-byte-more", "larger than 65,536 bytes"),
        ("/huge", "larger than 65,536 bytes"),
        ("/endless", "larger than 65,536 bytes"),
        ("/bomb", "not valid JSON"),
        ("/nowhere", "status 404"),
    ],
)
async def test_a_server_that_misbehaves_denies_in_time(opa: OpaServer, path: str, want: str) -> None:
    began = time.monotonic()
    decision = await ask(opa.url(path), timeout=2 if "within 2 s" in want else 5)
    assert (decision.verdict, decision.rule, decision.is_failure) == ("Deny", "central", True)
    assert want in decision.message
    assert time.monotonic() - began < 30
    assert len(opa.asked) == 1, "a policy is asked once, and no redirect is followed"


async def test_a_server_that_is_not_there_denies() -> None:
    async with serve_opa() as gone:
        url = gone.url("/allow")
    decision = await ask(url)
    assert decision.verdict == "Deny" and "the endpoint did not answer" in decision.message


async def test_an_address_that_the_platform_refuses_denies() -> None:
    decision = await ask("http://169.254.169.254/latest")
    assert decision.verdict == "Deny" and decision.is_failure
