"""The judge against an OpenAI-compatible server: what it sends, and what it makes of each way to fail."""

import asyncio
from typing import Any

import pytest

from pilothouse_api.judging import JudgeAnswer, JudgeFailure, Verdict
from pilothouse_engine.script import parse_script, read_script
from pilothouse_engine.testing.secrets import DictSecrets
from pilothouse_runner.judge import local
from pilothouse_runner.judge.prompt import RESPONSE_FORMATS
from pilothouse_runner.judge.table import parse_models
from support.observations import judge_request
from support.stub_models import StubServer, stub_server

pytestmark = pytest.mark.anyio

KEY = "sk-the-platforms-own-key-4711"
CRITERIA = "The agent must not call the tool pay_refund more than twice."


async def ask(server: StubServer, timeout_seconds: int = 20, **fields: Any) -> JudgeAnswer:
    entry = {"name": "careful", "model": "openai/scripted", "apiBase": server.url, **fields}
    entry |= {"apiKeySecretRef": {"name": "judge", "key": "token"}, "maxOutputTokens": 200}
    judge = local.LocalJudge(parse_models(str({"models": [entry]})), DictSecrets({"judge/token": KEY}))
    try:
        return await judge.ask(judge_request(CRITERIA, timeout_seconds=timeout_seconds))
    finally:
        await judge.aclose()


async def play(script: str, **fields: Any) -> JudgeAnswer:
    with stub_server(parse_script(script)) as server:
        return await ask(server, **fields)


@pytest.mark.parametrize("form", ["JsonSchema", "JsonObject", "Text"])
async def test_a_verdict_comes_over_http(form: Any) -> None:
    script = """turns: [{text: '{"passed": false, "reason": "Too many."}', usage: {input: 400, output: 12}}]"""
    with stub_server(parse_script(script)) as server:
        answer = await ask(server, answerFormat=form)

    sent = server.requests[0]
    assert answer == Verdict(passed=False, reason="Too many.", tokens=412)
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert sent.get("response_format") == RESPONSE_FORMATS[form]
    assert (sent["model"], sent["max_tokens"], [one["role"] for one in sent["messages"]]) == (
        "scripted",
        200,
        ["system", "user"],
    )
    assert CRITERIA in sent["messages"][0]["content"] and '"lookup": 2' in sent["messages"][1]["content"]


@pytest.mark.parametrize(
    ("entry", "want"),
    [
        ("error: {kind: Timeout}", "Timeout"),
        ("error: {kind: Disconnect}", "Unavailable"),
        ("error: {kind: RateLimited, retryAfterSeconds: 60}", "Unavailable"),
        ("error: {kind: ServerError}", "Unavailable"),
        ("error: {kind: Authentication}", "Unavailable"),
        ("error: {kind: ContextWindowExceeded}", "Unavailable"),
        ("error: {kind: Refused}", "Refused"),
        ("error: {kind: Garbage}", "BadAnswer"),
        ("text: 'I think that is fine.'", "BadAnswer"),
        ("text: '{\"passed\": true}', finish: Length", "BadAnswer"),
        ("toolCalls: [{name: verdict, arguments: {passed: true}}]", "BadAnswer"),
        ('raw: {status: 400, body: \'{"error": {"message": "response_format is not supported"}}\'}', "Unavailable"),
        ('raw: {body: \'{"choices": [{"message": {"content": "{\'}', "BadAnswer"),
    ],
)
async def test_each_way_to_fail_has_its_type_and_shows_no_criteria(
    entry: str, want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "RETRY_PAUSES", ())
    seconds = 1 if "Timeout" in entry else 50

    answer = await asyncio.wait_for(play(f"turns: [{{{entry}}}]\nrepeat: Last", timeout_seconds=seconds), 60)

    assert isinstance(answer, JudgeFailure), answer
    assert answer.type == want
    assert answer.message.startswith("careful: ")
    assert KEY not in answer.message and "pay_refund" not in answer.message and "lookup" not in answer.message


async def test_an_endpoint_that_sends_without_end_is_left() -> None:
    with stub_server(read_script({"turns": [{"raw": {"body": " " * 50_000_000}}]})) as server:
        answer = await ask(server)

    assert isinstance(answer, JudgeFailure) and answer.type == "BadAnswer"
    assert "sent more than" in answer.message


async def test_an_endpoint_that_is_away_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "RETRY_PAUSES", ())

    answer = await ask(StubServer("http://127.0.0.1:1/v1"))

    assert isinstance(answer, JudgeFailure)
    assert (answer.type, answer.tokens) == ("Unavailable", 0)


async def test_a_key_that_cannot_be_read_names_its_secret() -> None:
    entry = {"name": "careful", "model": "openai/x", "apiKeySecretRef": {"name": "judge", "key": "token"}}
    judge = local.LocalJudge(parse_models(str({"models": [entry]})), DictSecrets({}))

    answer = await judge.ask(judge_request())

    assert isinstance(answer, JudgeFailure) and answer.type == "Unavailable"
    assert "judge" in answer.message and "token" in answer.message
