"""The scripted model: the choice of the next entry, and what it answers."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from textwrap import dedent

import pytest

from pilothouse_api.structs import ModelEndpoint
from pilothouse_engine.ports import Message, ModelFailure, ModelReply, ModelRequest, RequestedCall, ToolSpec, Usage
from pilothouse_engine.replies import ends_early, with_unique_ids
from pilothouse_engine.script import parse_script
from pilothouse_engine.scripted import Played, ScriptedModel, Spent, next_entry

ENDPOINT = ModelEndpoint.read({"name": "scripted", "script": {"inline": "…"}})


class RecordingClock:
    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def ask(
    script: str = "",
    *,
    user: str = "hello",
    step: str = "work",
    turn: int = 1,
    marks: tuple[int, ...] = (),
    endpoint: ModelEndpoint = ENDPOINT,
    messages: tuple[Message, ...] | None = None,
) -> ModelRequest:
    messages = messages if messages is not None else (Message("system", "be brief"), Message("user", user))
    return ModelRequest(
        endpoint=endpoint, messages=messages, step=step, turn=turn, script=dedent(script) or None, marks=marks
    )


async def play(script: str, clock: RecordingClock | None = None, **kwargs: object) -> ModelReply | ModelFailure:
    return await ScriptedModel(clock or RecordingClock()).call(ask(script, **kwargs))  # type: ignore[arg-type]


ORDERED = """
turns:
- {text: one}
- {match: {step: review}, text: two}
- {match: {turn: 4}, text: three}
- {match: {contains: refund}, text: four}
- {text: five}
"""


@pytest.mark.parametrize(
    ("request_", "want"),
    [
        (ask(), 0),
        (ask(marks=(0,)), 4),
        (ask(marks=(0,), step="review"), 1),
        (ask(marks=(0,), turn=4), 2),
        (ask(marks=(0,), user="a refund, please"), 3),
        (ask(marks=(0, 3), user="a refund, please"), 4),
        (ask(marks=(0,), step=""), 1),
        (ask(marks=(4, 0)), None),
        (
            ask(
                marks=(0,),
                messages=(Message("user", "a refund"), Message("assistant"), Message("tool", "no such account")),
            ),
            4,
        ),
        (
            ask(marks=(0,), messages=(Message("user", "hi"), Message("tool", "refund 7"), Message("system", "steer"))),
            3,
        ),
        (
            ask(marks=(0,), messages=(Message("user", "hi"), Message("assistant"), Message("system", "refund it"))),
            3,
        ),
        (ask(marks=(0,), messages=(Message("system", "about refund"), Message("user", "hi"))), 4),
    ],
)
def test_the_first_unused_entry_that_matches_is_played(request_: ModelRequest, want: int | None) -> None:
    chosen = next_entry(parse_script(dedent(ORDERED)), request_, request_.marks)
    assert (chosen.index if isinstance(chosen, Played) else None) == want


def test_a_spent_script_says_what_was_left_unused() -> None:
    chosen = next_entry(parse_script(dedent(ORDERED)), ask(turn=2), (0, 4))
    assert isinstance(chosen, Spent)
    assert chosen.message == (
        "no turn of the script matches step work, turn 2; unused: turns[1], turns[2], turns[3]; see their match"
    )


def test_repeat_last_plays_the_last_matching_entry_again() -> None:
    script = parse_script("{turns: [{text: a}, {text: b}, {text: c, match: {step: other}}], repeat: Last}")
    assert [played(script, marks) for marks in ((), (0,), (0, 1), (0, 1, 1))] == [0, 1, 1, 1]


def played(script: object, marks: tuple[int, ...]) -> int:
    chosen = next_entry(script, ask(), marks)  # type: ignore[arg-type]
    assert isinstance(chosen, Played)
    return chosen.index


@pytest.mark.anyio
async def test_two_plays_with_a_crash_between_do_not_repeat_entries() -> None:
    script = "turns: [{text: a}, {error: {kind: ServerError}}, {text: b}]"
    first = await play(script)
    failed = await play(script, marks=(0,))
    # A new process with nothing but the journaled marks.
    second = await play(script, marks=(0, 1))
    assert isinstance(first, ModelReply)
    assert isinstance(failed, ModelFailure)
    assert isinstance(second, ModelReply)
    assert (first.text, failed.mark, second.text, second.mark) == ("a", 1, "b", 2)


@pytest.mark.anyio
async def test_text_calls_and_stated_usage_are_answered_as_written() -> None:
    reply = await play(
        """
        turns:
        - text: let me look
          toolCalls: [{name: lookup, arguments: {customer: c-17}}, {name: lookup, arguments: 'not json'}]
          usage: {input: 412, output: 31}
        """,
        turn=3,
    )
    assert reply == ModelReply(
        text="let me look",
        calls=(
            RequestedCall("call_t3_0", "lookup", '{"customer": "c-17"}'),
            RequestedCall("call_t3_1", "lookup", "not json"),
        ),
        usage=Usage(412, 31),
        mark=0,
    )


@pytest.mark.anyio
async def test_usage_is_estimated_from_bytes_unless_it_is_stated() -> None:
    estimated = await play("turns: [{text: '12345678'}]", messages=(Message("user", "x" * 40),))
    unknown = await play("turns: [{text: a, usage: {}}]")
    assert isinstance(estimated, ModelReply)
    assert isinstance(unknown, ModelReply)
    assert (estimated.usage, unknown.usage) == (Usage(10, 2), Usage(None, None))


@pytest.mark.anyio
async def test_tools_and_earlier_calls_count_in_the_estimate() -> None:
    request = ModelRequest(
        endpoint=ENDPOINT,
        messages=(Message("assistant", "", calls=(RequestedCall("i", "abcd", "{}  "),)),),
        tools=(ToolSpec("abcd", "efgh", {"a": 1}),),
        script="turns: [{text: a}]",
    )
    reply = await ScriptedModel(RecordingClock()).call(request)
    assert isinstance(reply, ModelReply)
    assert reply.usage.input == 6  # 4 + 4, 4 + 4, and 8 of the schema


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("entry", "want"),
    [
        ("{text: half of an ans, finish: Length}", "Length"),
        ('{toolCalls: [{name: t, arguments: \'{"a": "b\'}]}', "Length"),
        ("{toolCalls: [{name: t, arguments: 'nonsense'}]}", "Stop"),
        ("{text: ''}", "Stop"),
    ],
)
async def test_a_cut_reply_is_length(entry: str, want: str) -> None:
    reply = await play(f"turns: [{entry}]")
    assert isinstance(reply, ModelReply)
    assert reply.finish == want


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("kind", "want_kind", "want_status"),
    [
        ("RateLimited", "RateLimited", 429),
        ("Timeout", "Timeout", None),
        ("ServerError", "ServerError", 500),
        ("ContextWindowExceeded", "ContextWindowExceeded", 400),
        ("Refused", "Refused", 400),
        ("Disconnect", "Connection", None),
        ("Garbage", "Garbage", 200),
        ("Authentication", "Authentication", 401),
    ],
)
async def test_each_error_kind_is_the_failure_of_that_name(kind: str, want_kind: str, want_status: int | None) -> None:
    clock = RecordingClock()
    failure = await play(f"turns: [{{error: {{kind: {kind}, retryAfterSeconds: 1.5}}}}]", clock)
    assert isinstance(failure, ModelFailure)
    assert (failure.kind, failure.status, failure.retry_after, failure.mark) == (want_kind, want_status, 1.5, 0)
    assert clock.slept == []


@pytest.mark.anyio
async def test_delay_is_slept_on_the_clock_and_cut_at_the_deadline() -> None:
    endpoint = ModelEndpoint.read({"name": "scripted", "script": {"inline": "x"}, "timeoutSeconds": 2})
    clock = RecordingClock()
    reply = await play("turns: [{text: a, delaySeconds: 0.4}]", clock, endpoint=endpoint)
    late = await play("turns: [{text: a, delaySeconds: 5}]", clock, endpoint=endpoint)
    assert isinstance(reply, ModelReply)
    assert isinstance(late, ModelFailure)
    assert (late.kind, late.mark, clock.slept) == ("Timeout", 0, [0.4, 2.0])


@pytest.mark.anyio
async def test_what_cannot_be_played_is_a_failure_that_says_what_to_change() -> None:
    outcomes = [
        await play(""),
        await play("turns: [{text: [}]"),
        await play("turns: [{raw: {body: x}}]"),
        await play("turns: [{text: a}]", marks=(0,)),
    ]
    assert [(f.kind, f.mark) for f in outcomes if isinstance(f, ModelFailure)] == [
        ("InvalidRequest", None),
        ("InvalidRequest", None),
        ("InvalidRequest", 0),
        ("ScriptSpent", None),
    ]
    assert "all 1 turns were played" in str(outcomes[3])


def test_price_and_window_are_the_endpoints_own() -> None:
    priced = ModelEndpoint.read(
        {
            "name": "scripted",
            "script": {"inline": "x"},
            "contextWindow": 4096,
            "price": {"inputPerMillionUSD": "0.5", "outputPerMillionUSD": "2"},
        }
    )
    model = ScriptedModel(RecordingClock())
    assert (model.price(priced), model.context_window(priced)) == ((0.5, 2.0), 4096)
    assert (model.price(ENDPOINT), model.context_window(ENDPOINT)) == (None, None)


WHOLE = '{"a": "b\\u00e9\\n", "n": [1, -2.5, true, null, {"c": false}]}'


@pytest.mark.parametrize("size", range(1, len(WHOLE)))
def test_every_proper_prefix_of_an_object_ends_early(size: int) -> None:
    assert ends_early(WHOLE[:size])


@pytest.mark.parametrize(
    "text",
    [
        WHOLE,
        "",
        "  ",
        "{}",
        "null",
        "nonsense",
        "{'a': 1}",
        '{"a": 1} tail',
        '{"a": tru}',
        '{"a": \\x}',
        "[" * 9999 + "x",
    ],
)
def test_what_is_whole_or_plainly_wrong_does_not_end_early(text: str) -> None:
    assert not ends_early(text)


def test_missing_and_repeated_ids_are_replaced() -> None:
    earlier = Message("assistant", calls=(RequestedCall("call_0", "t", "{}"), RequestedCall("call_t2_1", "t", "{}")))
    request = ask(messages=(earlier,), turn=2)
    calls = [RequestedCall(i, "t", json.dumps({"n": n})) for n, i in enumerate(["call_0", "", "x", "x", "call_1"])]
    unique = with_unique_ids(calls, request)
    assert [call.provider_id for call in unique] == ["call_t2_0", "call_t2_1_2", "x", "call_t2_3", "call_1"]
    assert [call.arguments for call in unique] == [call.arguments for call in calls]


LOADED = """
import pilothouse_engine.scripted, sys
from pilothouse_engine.script import parse_script
parse_script("turns: [{text: a}]")
print({"pydantic", "pydantic_core"} & sys.modules.keys())
"""


def test_the_scripted_model_needs_no_pydantic() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
