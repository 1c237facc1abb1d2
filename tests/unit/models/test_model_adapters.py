"""The parts of the model adapters that need no server: routing, prices, requests, odd replies."""

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from pilothouse_api.structs import ModelEndpoint
from pilothouse_engine.ports import (
    Message,
    ModelFailure,
    ModelReply,
    ModelRequest,
    RequestedCall,
    SecretUnavailable,
    ToolSpec,
    Usage,
)
from pilothouse_runner.adapters.models import ModelRouter, price_table
from pilothouse_runner.adapters.models.chat import encode_messages, parse_reply
from pilothouse_runner.adapters.models.litellm import LiteLLMModel, arguments_of
from pilothouse_runner.adapters.models.redaction import Redaction


class NoSecrets:
    def read(self, name: str, key: str) -> str:
        raise SecretUnavailable(f"Secret {name} has no key {key}")


class StandingClock:
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here sleeps")


def endpoint(name: str, **more: Any) -> ModelEndpoint:
    return ModelEndpoint.read({"name": name} | more)


def parse(body: Any, request: ModelRequest | None = None) -> ModelReply | ModelFailure:
    request = request or ModelRequest(endpoint("openai/m"), (), turn=1)
    return parse_reply(body, request, Redaction("", request))


def parse_message(message: Any, finish: Any = "stop", **more: Any) -> ModelReply:
    reply = parse({"choices": [{"message": message, "finish_reason": finish}]} | more)
    assert isinstance(reply, ModelReply), reply
    return reply


# ---------------------------------------------------------------- routing


@pytest.fixture
def router() -> ModelRouter:
    return ModelRouter(NoSecrets(), StandingClock())


@pytest.mark.anyio
async def test_the_name_chooses_the_adapter(router: ModelRouter) -> None:
    request = ModelRequest(endpoint("scripted", script={"inline": "-"}), (), script="turns: [{text: played}]")
    played = await router.call(request)
    unreadable = {"apiKeySecretRef": {"name": "model", "key": "token"}}
    refused = [
        await router.call(ModelRequest(endpoint(name, **unreadable), ())) for name in ("openai/gpt", "anthropic/claude")
    ]
    assert isinstance(played, ModelReply)
    want = ModelFailure("Authentication", "Secret model has no key token; see model.apiKeySecretRef")
    assert refused == [want, want]
    await router.aclose()


@pytest.mark.anyio
async def test_without_litellm_the_failure_names_the_extra(
    router: ModelRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    assert await router.call(ModelRequest(endpoint("anthropic/claude"), ())) == ModelFailure(
        "InvalidRequest",
        "model.name anthropic/claude needs LiteLLM, which is not installed: install pilothouse[litellm], or name an "
        "OpenAI-compatible endpoint as openai/<model> with apiBase",
    )


# ---------------------------------------------------------------- prices and windows

TABLE = {
    "gpt-x": {"litellm_provider": "openai", "input_cost_per_token": 4e-07, "output_cost_per_token": 1.6e-06},
    "claude-x": {
        "litellm_provider": "anthropic",
        "input_cost_per_token": 3e-06,
        "output_cost_per_token": 15e-06,
        "max_input_tokens": 200_000,
    },
    "gemini/g": {"litellm_provider": "gemini", "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06},
    "odd": {
        "litellm_provider": "openai",
        "input_cost_per_token": "free",
        "output_cost_per_token": -1,
        "max_input_tokens": "many",
    },
}


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("openai/gpt-x", (0.4, 1.6)),
        ("gpt-x", (0.4, 1.6)),
        ("anthropic/claude-x", (3.0, 15.0)),
        ("gemini/g", (1.0, 2.0)),
        ("bedrock/claude-x", None),
        ("openai/odd", None),
        ("openai/unknown", None),
        ("scripted", None),
    ],
)
def test_a_price_is_the_named_providers_own(
    name: str, want: tuple[float, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(price_table, "_table", lambda: TABLE)
    assert price_table.price(endpoint(name)) == want


def test_what_the_manifest_states_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(price_table, "_table", lambda: TABLE)
    stated = endpoint(
        "anthropic/claude-x", contextWindow=5000, price={"inputPerMillionUSD": "0.1", "outputPerMillionUSD": "0"}
    )
    assert (price_table.price(stated), price_table.context_window(stated)) == ((0.1, 0.0), 5000)
    assert price_table.context_window(endpoint("anthropic/claude-x")) == 200_000
    assert price_table.context_window(endpoint("openai/odd")) is None


def test_the_real_table_is_read_without_loading_litellm() -> None:
    code = (
        "import sys; from pilothouse_api.v1alpha1.agent import ModelEndpoint as E\n"
        "from pilothouse_runner.adapters.models import price_table as t\n"
        "e = E(name='anthropic/claude-sonnet-4-5'); w = t.context_window(e); p = t.price(e)\n"
        "assert w >= 200_000, w\nassert 0 < p[0] < p[1] < 1000, p\nassert 'litellm' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------- LiteLLM's arguments


def test_litellm_is_told_not_to_try_again() -> None:
    request = ModelRequest(endpoint("anthropic/claude", maxOutputTokens=9, timeoutSeconds=5), (Message("user", "hi"),))
    assert arguments_of(request, "k") == {
        "model": "anthropic/claude",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
        "api_key": "k",
        "timeout": 5,
        "num_retries": 0,
        "max_retries": 0,
    }


@pytest.mark.parametrize(("name", "want"), [("bedrock/claude", ["lookup"]), ("anthropic/claude", [])])
def test_bedrock_is_offered_the_tools_of_earlier_calls_when_tools_are_off(name: str, want: list[str]) -> None:
    called = Message("assistant", "", (RequestedCall("1", "lookup", "{}"), RequestedCall("2", "lookup", "{}")))
    sent = arguments_of(ModelRequest(endpoint(name), (called,)), "")
    assert [tool["function"]["name"] for tool in sent.get("tools", [])] == want
    on = arguments_of(ModelRequest(endpoint(name), (called,), (ToolSpec("other", "", {}),)), "")
    assert [tool["function"]["name"] for tool in on["tools"]] == ["other"]


@pytest.mark.anyio
async def test_a_cancelled_call_is_cancelled_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    started = asyncio.Event()

    class Library:
        @staticmethod
        async def acompletion(**_: Any) -> None:
            started.set()
            await asyncio.Event().wait()

    async def library() -> Any:
        return Library

    monkeypatch.setattr("pilothouse_runner.adapters.models.litellm._library", library)
    call = asyncio.create_task(LiteLLMModel(NoSecrets()).call(ModelRequest(endpoint("anthropic/claude"), ())))
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


# ---------------------------------------------------------------- odd replies


@pytest.mark.parametrize(
    "word", ["length", "LENGTH", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length", "token_limit"]
)
def test_every_word_for_length_is_known(word: str) -> None:
    assert parse_message({"content": "half"}, word).finish == "Length"


@pytest.mark.parametrize("word", ["stop", "end_turn", "tool_calls", "eos", "", None, 7, ["length"]])
def test_every_other_word_is_a_stop(word: Any) -> None:
    assert parse_message({"content": "all"}, word).finish == "Stop"


@pytest.mark.parametrize("word", ["content_filter", "SAFETY", "refusal", "guardrail_intervened"])
def test_a_provider_that_stepped_in_has_refused(word: str) -> None:
    failure = parse({"choices": [{"message": {"content": "par"}, "finish_reason": word}]})
    assert isinstance(failure, ModelFailure)
    assert (failure.kind, failure.sent) == ("Refused", True)


@pytest.mark.parametrize(
    ("content", "want"),
    [
        ([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}, "b", 7, None], "ab"),
        ([{"text": "a"}, {"type": "output_text", "text": "b"}, {"type": "text", "text": {"value": "c"}}], "ab"),
        ({"type": "text", "text": "a"}, "a"),
        (12, ""),
        ("lone \ud800 here", "lone \ufffd here"),
        ("\ud83d\ude42", "🙂"),
    ],
)
def test_text_is_read_out_of_any_content(content: Any, want: str) -> None:
    assert parse_message({"content": content}).text == want


def test_a_refusal_beside_an_answer_is_an_answer() -> None:
    assert parse_message({"content": "a", "refusal": ""}).text == "a"
    refused = parse({"choices": [{"message": {"content": [{"type": "refusal", "refusal": "no"}]}}]})
    assert isinstance(refused, ModelFailure)
    assert refused.kind == "Refused"


@pytest.mark.parametrize(
    ("raw_calls", "want"),
    [
        ({"id": "a", "function": {"name": "t", "arguments": "{}"}}, [("a", "t", "{}")]),
        ([{"id": 7, "function": {"name": None, "arguments": [1]}}], [("call_t1_0", "", "[1]")]),
        ([{"name": "flat", "arguments": {"a": "é"}}], [("call_t1_0", "flat", '{"a": "é"}')]),
        (["nonsense", None, 5], []),
        ("nonsense", []),
        ([{"id": "x" * 300, "function": {"name": "t"}}], [("x" * 256, "t", "{}")]),
    ],
)
def test_calls_of_any_form_are_read(raw_calls: Any, want: list[tuple[str, str, str]]) -> None:
    reply = parse_message({"content": None, "tool_calls": raw_calls})
    assert [(call.provider_id, call.name, call.arguments) for call in reply.calls] == want


@pytest.mark.parametrize(
    ("usage", "want"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2}, Usage(3, 2)),
        ({"input_tokens": 3, "output_tokens": 2}, Usage(3, 2)),
        ({"prompt_tokens": 3.0, "completion_tokens": 2.5}, Usage(3, None)),
        ({"prompt_tokens": True, "completion_tokens": "2"}, Usage(None, None)),
        ({"prompt_tokens": 0, "completion_tokens": 2}, Usage(None, 2)),
        ({"prompt_tokens": 3, "completion_tokens": 0}, Usage(3, None)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 9}, Usage(3, 6)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 1}, Usage(3, 2)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 10**12}, Usage(3, 2)),
        ({"prompt_tokens": 100_000_001, "completion_tokens": -1}, Usage(None, None)),
        ("nonsense", Usage(None, None)),
    ],
)
def test_only_plausible_usage_counts(usage: Any, want: Usage) -> None:
    assert parse_message({"content": "a"}, usage=usage).usage == want


def test_an_empty_reply_may_have_used_no_output() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 0}
    assert parse_message({"content": ""}, usage=usage).usage == Usage(3, 0)


@pytest.mark.parametrize(
    "body", [None, [], 1, "x", {}, {"choices": {}}, {"choices": [1]}, {"choices": [{"message": 1}]}]
)
def test_what_has_no_message_is_garbage(body: Any) -> None:
    failure = parse(body)
    assert isinstance(failure, ModelFailure)
    assert (failure.kind, failure.sent) == ("Garbage", True)


def test_an_error_inside_a_choice_is_an_error() -> None:
    failure = parse({"choices": [{"error": {"code": 502, "message": "upstream"}, "message": {"content": "par"}}]})
    assert isinstance(failure, ModelFailure)
    assert (failure.kind, failure.status) == ("ServerError", 502)


# ---------------------------------------------------------------- what goes back


def test_only_what_cannot_be_rebuilt_is_kept_and_it_goes_back_to_its_endpoint_alone() -> None:
    signed = {"id": "c1", "function": {"name": "t", "arguments": "{}"}, "extra_content": {"google": {"sig": "s"}}}
    message = {"content": "x", "annotations": [], "reasoning_content": "hm", "tool_calls": [signed]}
    reply = parse_message(message)
    assert reply.raw == {
        "origin": "openai/m",
        "message": {"reasoning_content": "hm"},
        "calls": {"c1": {"extra_content": {"google": {"sig": "s"}}}},
    }
    again = Message("assistant", "masked", reply.calls, raw=json.loads(json.dumps(reply.raw)))
    (here,) = encode_messages(ModelRequest(endpoint("openai/m"), (again,)))
    (elsewhere,) = encode_messages(ModelRequest(endpoint("openai/m", apiBase="http://other/v1"), (again,)))
    call = {"id": "c1", "type": "function", "function": {"name": "t", "arguments": "{}"}}
    assert elsewhere == {"role": "assistant", "content": "masked", "tool_calls": [call]}
    assert here == elsewhere | {
        "reasoning_content": "hm",
        "tool_calls": [call | {"extra_content": {"google": {"sig": "s"}}}],
    }


def test_a_plain_reply_keeps_nothing() -> None:
    assert parse_message({"content": "x", "reasoning_content": "hm"}).raw is None
    assert parse_message({"tool_calls": [{"function": {"name": "t", "arguments": "{}"}}]}).raw is None


def test_what_a_model_made_up_cannot_spoil_later_turns() -> None:
    odd = Message("assistant", "", (RequestedCall("1", "a b/c", "not json"), RequestedCall("2", "", "[1]")))
    (sent,) = encode_messages(ModelRequest(endpoint("openai/m"), (odd,)))
    assert sent["content"] is None
    assert [call["function"] for call in sent["tool_calls"]] == [
        {"name": "a_b_c", "arguments": "{}"},
        {"name": "unnamed", "arguments": "{}"},
    ]
