"""What the adapters that reach a provider do with what really comes back (engine.md §5)."""

import asyncio
import json
import socket
import time
from typing import Any

import pytest

from contract.models.conftest import KEY, MESSAGES, PROMPT
from pilothouse_engine.ports import (
    RETRIED_FAILURES,
    FailureKind,
    Message,
    ModelFailure,
    ModelReply,
    ModelRequest,
    RequestedCall,
    ToolSpec,
    Usage,
)
from pilothouse_engine.script import Entry, Raw, Script

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("name", ["openai", pytest.param("litellm", marks=pytest.mark.slow)]),
]

JSON = {"content-type": "application/json"}


def raw(body: Any, status: int = 200, headers: dict[str, str] = JSON) -> Script:
    text = body if isinstance(body, str | bytes) else json.dumps(body)
    return Script(turns=[Entry(raw=Raw(status=status, headers=headers, body=text))], repeat="Last")


def completion(message: Any, finish: Any = "stop", usage: Any = None, **extra: Any) -> dict[str, Any]:
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": usage,
    } | extra


def said(text: Any, **extra: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | extra


def called(*calls: Any, **extra: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)} | extra


def function(name: Any, arguments: Any, call_id: Any = "c1", **extra: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}} | extra


# ---------------------------------------------------------------- replies


@pytest.mark.parametrize(
    "word", ["length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length", "token_limit", "ERROR_LIMIT"]
)
async def test_every_word_for_a_cut_reply_is_length(name: str, make_adapter: Any, word: str) -> None:
    assert (await make_adapter(name, raw(completion(said("half"), word))).reply()).finish == "Length"


@pytest.mark.parametrize("finish", ["stop", "tool_calls", None])
async def test_arguments_that_were_cut_are_length_whatever_the_finish_reason_claims(
    name: str, make_adapter: Any, finish: str | None
) -> None:
    reply = await make_adapter(name, raw(completion(called(function("t", '{"a": "b')), finish))).reply()
    assert (reply.finish, [call.arguments for call in reply.calls]) == ("Length", ['{"a": "b'])


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens": None, "completion_tokens": None},
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        {"prompt_tokens": -5, "completion_tokens": -1, "total_tokens": -6},
        {"prompt_tokens": 10**15, "completion_tokens": 10**12, "total_tokens": 10**16},
    ],
)
async def test_null_missing_and_absurd_usage_is_unknown(name: str, make_adapter: Any, usage: Any) -> None:
    reply = await make_adapter(name, raw(completion(said("a"), usage=usage))).reply()
    assert reply.usage == Usage(None, None)


@pytest.mark.parametrize("tokens", [0.5, "many", [1], {}])
async def test_usage_that_is_no_number_is_unknown(name: str, make_adapter: Any, tokens: Any) -> None:
    usage = {"prompt_tokens": tokens, "completion_tokens": tokens, "total_tokens": tokens}
    adapter = make_adapter(name, raw(completion(said("a"), usage=usage)))
    result = await adapter.call()
    if name == "litellm" and isinstance(result, ModelFailure):  # it refuses the whole reply
        assert result.kind == "Garbage"
    else:
        assert (await adapter.reply()).usage == Usage(None, None)


async def test_half_of_the_usage_is_known_where_half_is_said(name: str, make_adapter: Any) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 10**12, "total_tokens": 10**12}
    assert (await make_adapter(name, raw(completion(said("a"), usage=usage))).reply()).usage == Usage(10, None)


async def test_tokens_that_only_the_total_counts_are_output(name: str, make_adapter: Any) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 40}
    assert (await make_adapter(name, raw(completion(said("a"), usage=usage))).reply()).usage == Usage(10, 30)


@pytest.mark.parametrize(
    ("arguments", "want"),
    [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), (None, {}), ("", {})],
)
async def test_arguments_are_read_as_object_string_or_null(
    name: str, make_adapter: Any, arguments: Any, want: Any
) -> None:
    reply = await make_adapter(name, raw(completion(called(function("t", arguments)), "tool_calls"))).reply()
    assert [json.loads(call.arguments) for call in reply.calls] == [want]
    assert reply.finish == "Stop"


async def test_missing_empty_and_repeated_ids_are_replaced(name: str, make_adapter: Any) -> None:
    calls = [function("t", "{}", call_id) for call_id in ("same", "same", "", None)]
    without = {"type": "function", "function": {"name": "t", "arguments": "{}"}}
    reply = await make_adapter(name, raw(completion(called(*calls, without), "tool_calls"))).reply()
    assert len({call.provider_id for call in reply.calls} - {""}) == 5


async def test_an_id_that_the_prompt_leaves_out_is_replaced(name: str, make_adapter: Any) -> None:
    adapter = make_adapter(name, raw(completion(called(function("t", "{}", "call_0")), "tool_calls")))
    request = ModelRequest(adapter.endpoint(), MESSAGES, turn=20, left_out=("call_0",))
    assert [call.provider_id != "call_0" for call in (await adapter.reply(request)).calls] == [True]


async def test_an_id_of_an_earlier_turn_is_replaced(name: str, make_adapter: Any) -> None:
    adapter = make_adapter(name, raw(completion(called(function("t", "{}", "call_0")), "tool_calls")))
    earlier = (
        Message("assistant", calls=(RequestedCall("call_0", "t", "{}"),)),
        Message("tool", "done", provider_id="call_0"),
    )
    reply = await adapter.reply(ModelRequest(adapter.endpoint(), (*MESSAGES, *earlier), turn=2))
    assert [call.provider_id != "call_0" for call in reply.calls] == [True]


async def test_calls_count_whatever_the_finish_reason_claims(name: str, make_adapter: Any) -> None:
    reply = await make_adapter(name, raw(completion(called(function("t", "{}")), "stop"))).reply()
    assert len(reply.calls) == 1


async def test_the_deprecated_function_call_is_a_call(name: str, make_adapter: Any) -> None:
    message = said(None, function_call={"name": "t", "arguments": '{"a": 1}'})
    reply = await make_adapter(name, raw(completion(message, "function_call"))).reply()
    assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == [("t", {"a": 1})]
    assert reply.calls[0].provider_id


async def test_null_content_is_empty(name: str, make_adapter: Any) -> None:
    assert (await make_adapter(name, raw(completion(said(None)))).reply()).text == ""


async def test_content_in_parts_is_joined(name: str, make_adapter: Any) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    adapter = make_adapter(name, raw(completion(said(parts))))
    if name == "litellm":  # its OpenAI route cannot read them
        assert (await adapter.failure()).kind == "Garbage"
    else:
        assert (await adapter.reply()).text == "one two"


async def test_json_with_a_wrong_content_type_is_read(name: str, make_adapter: Any) -> None:
    script = raw(completion(said("a")), headers={"content-type": "text/plain"})
    assert (await make_adapter(name, script).reply()).text == "a"


async def test_an_empty_error_beside_a_reply_is_no_error(name: str, make_adapter: Any) -> None:
    script = raw(completion(said("a"), error={"message": "", "code": None}))
    assert (await make_adapter(name, script).reply()).text == "a"


# ---------------------------------------------------------------- failures


CONTEXT = {"message": f"maximum context length is 10 tokens, got: {PROMPT}", "code": "context_length_exceeded"}
ECHO = {"message": f"bad message: {PROMPT} for key {KEY}\x1b[31m", "type": "invalid_request_error"}


@pytest.mark.parametrize(
    ("script", "want", "want_of_litellm"),
    [
        (raw({"error": {"message": "quota"}}), "Garbage", set()),
        (raw({"error": "overloaded"}), "Garbage", set()),
        (raw({"error": {"code": 429, "message": "slow"}}), "RateLimited", set()),
        (raw({"error": {"code": 502, "message": "upstream"}}), "ServerError", set()),
        (raw({"error": {"type": "overloaded_error", "message": "x"}}), "ServerError", {"Garbage"}),
        (raw({"error": CONTEXT}), "ContextWindowExceeded", set()),
        (raw({"choices": []}), "Garbage", set()),
        (raw({"choices": [{"index": 0}]}), "Garbage", set()),
        (raw({}), "Garbage", set()),
        (raw("null"), "Garbage", set()),
        (raw("[1, 2]"), "Garbage", set()),
        (raw(""), "Garbage", set()),
        (raw('{"choices": [{"mess'), "Garbage", set()),
        (raw("<html>hi", headers={"content-type": "text/html"}), "Garbage", set()),
        (raw(b"\xff\xfe\x00"), "Garbage", set()),
        (raw({"error": CONTEXT}, 400), "ContextWindowExceeded", set()),
        (raw({"error": ECHO}, 400), "InvalidRequest", set()),
        (raw({"error": {"message": "x", "code": "content_filter"}}, 400), "Refused", set()),
        (raw({"error": {"message": "no such model"}}, 404), "InvalidRequest", set()),
        (raw({"error": {"message": f"bad key {KEY}"}}, 401), "Authentication", set()),
        (raw({"error": {"message": "x"}}, 403), "Authentication", set()),
        (raw({"error": {"message": "x"}}, 408), "RateLimited", {"Timeout"}),
        (raw({"error": {"message": "x"}}, 409), "RateLimited", set()),
        (raw({"error": {"message": "x"}}, 429), "RateLimited", set()),
        (raw("<html><title>502 Bad Gateway</title>", 502, {"content-type": "text/html"}), "ServerError", set()),
        (raw("", 503), "ServerError", set()),
        (raw({"error": {"type": "overloaded_error"}}, 529), "ServerError", set()),
        (raw(completion(said(None, refusal="I cannot help with that."))), "Refused", set()),
        (raw(completion(said(""), "content_filter")), "Refused", set()),
    ],
)
async def test_what_is_no_reply_has_its_kind(
    name: str, make_adapter: Any, script: Script, want: FailureKind, want_of_litellm: set[FailureKind]
) -> None:
    failure = await make_adapter(name, script).failure()
    assert failure.kind in ({want} | (want_of_litellm if name == "litellm" else set()))
    assert (failure.kind in RETRIED_FAILURES) == (want in RETRIED_FAILURES)


async def test_retry_after_may_be_a_date_and_has_an_end(name: str, make_adapter: Any) -> None:
    dates = {"date": "Thu, 01 Jan 2026 00:00:00 GMT", "retry-after": "Thu, 01 Jan 2026 00:00:09 GMT"}
    assert (await make_adapter(name, raw({}, 503, JSON | dates)).failure()).retry_after == 9.0
    far = JSON | {"retry-after": "99999999"}
    assert (await make_adapter(name, raw({}, 429, far)).failure()).retry_after == 3600.0
    nonsense = JSON | {"retry-after": "soon"}
    assert (await make_adapter(name, raw({}, 429, nonsense)).failure()).retry_after is None


async def test_an_endpoint_that_is_not_there_is_a_connection_fault(name: str, make_adapter: Any) -> None:
    adapter = make_adapter(name, "turns: [{text: a}]")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        failure = await adapter.failure(apiBase=base)
    assert (failure.kind, failure.sent) == ("Connection", False)


async def test_a_name_that_does_not_resolve_is_a_connection_fault(name: str, make_adapter: Any) -> None:
    failure = await make_adapter(name, "turns: [{text: a}]").failure(apiBase="http://nowhere.invalid/v1")
    assert (failure.kind, failure.sent) == ("Connection", False)


async def test_tls_with_a_server_that_speaks_none_is_a_connection_fault(name: str, make_adapter: Any) -> None:
    adapter = make_adapter(name, "turns: [{text: a}]")
    failure = await adapter.failure(apiBase=adapter.server.url.replace("http://", "https://"))
    assert failure.kind == "Connection"


async def test_a_cancelled_call_closes_its_connection(name: str, make_adapter: Any) -> None:
    adapter = make_adapter(name, "turns: [{text: warm}, {error: {kind: Timeout}}]")
    await adapter.reply()
    adapter.server.arrived.clear()
    call = asyncio.create_task(adapter.call())
    await asyncio.to_thread(adapter.server.arrived.wait, 30)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await asyncio.to_thread(adapter.server.left.wait, 30)


async def test_a_slow_reply_is_bounded_by_the_whole_deadline(name: str, make_adapter: Any) -> None:
    adapter = make_adapter(name, "turns: [{text: warm}, {text: late, delaySeconds: 90}]")
    await adapter.reply()
    begin = time.monotonic()
    failure = await adapter.failure(timeoutSeconds=1)
    assert failure.kind == "Timeout"
    assert time.monotonic() - begin < 45


# ---------------------------------------------------------------- requests


async def test_the_request_says_what_was_asked_and_the_key_travels_in_its_header(name: str, make_adapter: Any) -> None:
    adapter = make_adapter(name, "turns: [{text: a}]")
    request = ModelRequest(
        endpoint=adapter.endpoint(temperature=0.5, maxOutputTokens=64),
        messages=(
            *MESSAGES,
            Message("assistant", "", calls=(RequestedCall("c1", "look up", '{"cut'), RequestedCall("c2", "b", "{}"))),
            Message("tool", "no", provider_id="c1"),
            Message("tool", "yes", provider_id="c2"),
            Message("assistant", "so far"),
            Message("user", "lone \ud800 surrogate"),
        ),
        tools=(ToolSpec("b", "what it does", {"type": "object"}),),
        turn=3,
    )
    await adapter.reply(request)
    sent = adapter.server.requests[0]
    assert adapter.server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("scripted", 0.5, 64)
    assert [message["role"] for message in sent["messages"]] == [m.role for m in request.messages]
    assert [
        (c["id"], c["function"]["name"], c["function"]["arguments"]) for c in sent["messages"][2]["tool_calls"]
    ] == [("c1", "look_up", "{}"), ("c2", "b", "{}")]
    assert [m.get("tool_call_id") for m in sent["messages"][3:5]] == ["c1", "c2"]
    assert sent["tools"] == [
        {
            "type": "function",
            "function": {"name": "b", "description": "what it does", "parameters": {"type": "object"}},
        }
    ]
    assert sent.get("stream", False) is False
    assert KEY not in json.dumps(sent)


async def test_what_is_not_set_is_not_sent(name: str, make_adapter: Any) -> None:
    adapter = make_adapter(name, "turns: [{text: a}]")
    await adapter.reply()
    assert set(adapter.server.requests[0]) <= {"model", "messages", "stream"}


async def test_the_form_of_the_answer_is_asked_for_as_it_stands(name: str, make_adapter: Any) -> None:
    schema = {"type": "object", "properties": {"passed": {"type": "boolean"}}, "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": schema}}
    adapter = make_adapter(name, "turns: [{text: a}]")
    await adapter.reply(ModelRequest(adapter.endpoint(), MESSAGES, turn=1, response_format=form))
    assert adapter.server.requests[0]["response_format"] == form


async def test_thinking_goes_back_with_the_calls_it_led_to(name: str, make_adapter: Any) -> None:
    signed = function("t", "{}", "c1", provider_specific_fields={"thought_signature": "abc"})
    first = completion(called(signed, reasoning_content="hmm"), "tool_calls")
    adapter = make_adapter(name, raw(first))
    reply = await adapter.reply()
    assert reply.raw is not None
    journaled = json.loads(json.dumps(reply.raw))
    again = Message("assistant", reply.text, reply.calls, raw=journaled)
    await adapter.call(ModelRequest(adapter.endpoint(), (*MESSAGES, again, Message("tool", "x", provider_id="c1"))))
    sent = adapter.server.requests[1]["messages"][2]
    assert sent["reasoning_content"] == "hmm"
    assert sent["tool_calls"][0]["provider_specific_fields"] == {"thought_signature": "abc"}


async def test_thinking_of_another_endpoint_stays_here(name: str, make_adapter: Any) -> None:
    adapter = make_adapter(name, "turns: [{text: a}]")
    raw_of_other = {"origin": "anthropic/other", "message": {"reasoning_content": "hmm"}, "calls": {}}
    message = Message("assistant", "", (RequestedCall("c1", "t", "{}"),), raw=raw_of_other)
    await adapter.reply(ModelRequest(adapter.endpoint(), (*MESSAGES, message, Message("tool", "x", provider_id="c1"))))
    assert "reasoning_content" not in adapter.server.requests[0]["messages"][2]


async def test_many_calls_at_once_each_get_their_own_reply(name: str, make_adapter: Any) -> None:
    texts = [f"reply {number}" for number in range(24)]
    adapter = make_adapter(name, Script(turns=[Entry(text=text) for text in texts]))
    replies = await asyncio.gather(*(adapter.call() for _ in texts))
    assert sorted(r.text for r in replies if isinstance(r, ModelReply)) == sorted(texts)
    assert not [r for r in replies if isinstance(r, ModelFailure)]
