"""What every adapter of the port Model does alike: scripted, OpenAI-compatible, LiteLLM (engine.md §5)."""

from typing import Any

import pytest

from pilothouse_engine.ports import RETRIED_FAILURES, FailureKind, ModelFailure, ModelReply, Usage

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("name", ["scripted", "openai", pytest.param("litellm", marks=pytest.mark.slow)]),
]


async def test_text_and_usage_come_as_the_model_said_them(name: str, make_adapter: Any) -> None:
    reply = await make_adapter(name, "turns: [{text: 'naïve 🙂', usage: {input: 412, output: 31}}]").reply()
    assert (reply.text, reply.calls, reply.finish, reply.usage) == ("naïve 🙂", (), "Stop", Usage(412, 31))


async def test_calls_come_with_their_raw_arguments_and_unique_ids(name: str, make_adapter: Any) -> None:
    script = """
    turns:
    - text: let me look
      toolCalls:
      - {name: lookup, arguments: {customer: c-17}}
      - {name: lookup, arguments: 'no {json'}
      - {name: ping}
    """
    reply = await make_adapter(name, script).reply()
    assert reply.text == "let me look"
    assert [(c.name, c.arguments) for c in reply.calls] == [
        ("lookup", '{"customer": "c-17"}'),
        ("lookup", "no {json"),
        ("ping", "{}"),
    ]
    assert len({call.provider_id for call in reply.calls} - {""}) == 3
    assert reply.finish == "Stop"


@pytest.mark.parametrize(
    "entry",
    [
        "{text: half of an ans, finish: Length}",
        '{toolCalls: [{name: t, arguments: \'{"a": "b\'}], finish: Length}',
        '{toolCalls: [{name: t, arguments: \'{"a": "b\'}]}',
    ],
)
async def test_a_cut_reply_is_length(name: str, make_adapter: Any, entry: str) -> None:
    assert (await make_adapter(name, f"turns: [{entry}]").reply()).finish == "Length"


async def test_usage_that_is_not_said_is_unknown(name: str, make_adapter: Any) -> None:
    assert (await make_adapter(name, "turns: [{text: a, usage: {}}]").reply()).usage == Usage(None, None)


@pytest.mark.parametrize(
    ("kind", "want", "want_sent"),
    [
        ("RateLimited", "RateLimited", False),
        ("ServerError", "ServerError", False),
        ("ContextWindowExceeded", "ContextWindowExceeded", False),
        ("Refused", "Refused", False),
        ("Authentication", "Authentication", False),
        ("Garbage", "Garbage", True),
        ("Disconnect", "Connection", True),
    ],
)
async def test_each_failure_has_its_kind(
    name: str, make_adapter: Any, kind: str, want: FailureKind, want_sent: bool
) -> None:
    failure = await make_adapter(name, f"turns: [{{error: {{kind: {kind}}}}}]").failure()
    assert (failure.kind, failure.sent) == (want, want_sent)


async def test_a_model_that_does_not_answer_times_out_within_its_deadline(name: str, make_adapter: Any) -> None:
    adapter = make_adapter(name, "turns: [{text: warm}, {error: {kind: Timeout}}]")
    await adapter.reply()
    failure = await adapter.failure(timeoutSeconds=1)
    assert (failure.kind, failure.sent) == ("Timeout", True)


async def test_retry_after_is_handed_on(name: str, make_adapter: Any) -> None:
    adapter = make_adapter(name, "turns: [{error: {kind: RateLimited, retryAfterSeconds: 7}}]")
    assert (await adapter.failure()).retry_after == 7.0


async def test_one_call_is_one_attempt(name: str, make_adapter: Any) -> None:
    adapter = make_adapter(name, "turns: [{error: {kind: ServerError}}, {error: {kind: RateLimited}}, {text: a}]")
    kinds = [(await adapter.failure()).kind, (await adapter.failure()).kind]
    assert kinds == ["ServerError", "RateLimited"]
    assert (await adapter.reply()).text == "a"
    assert adapter.server is None or len(adapter.server.requests) == 3


async def test_a_crash_between_two_plays_repeats_no_entry(name: str, make_adapter: Any) -> None:
    adapter = make_adapter(name, "turns: [{text: a}, {error: {kind: ServerError}}, {text: b}]")
    seen: list[ModelReply | ModelFailure] = []
    for _ in range(3):
        seen.append(await adapter.call())
        adapter.restart()
    assert [r.text if isinstance(r, ModelReply) else r.kind for r in seen] == ["a", "ServerError", "b"]


async def test_a_spent_script_is_not_tried_again(name: str, make_adapter: Any) -> None:
    adapter = make_adapter(name, "turns: [{text: a}]")
    await adapter.reply()
    failure = await adapter.failure()
    assert failure.kind == ("ScriptSpent" if name == "scripted" else "InvalidRequest")
    assert "the script is spent" in failure.message
    assert failure.kind not in RETRIED_FAILURES
