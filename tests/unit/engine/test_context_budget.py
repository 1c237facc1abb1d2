"""The level of a prompt: chosen by its size, tightened by a provider's refusal, journaled (engine.md §6)."""

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilothouse_engine.facts import CallFinished, Level, ModelFailed, ModelStarted, PromptMessage, ReplyReceived
from pilothouse_engine.ports import HttpResponse, Message, ModelRequest, Usage
from pilothouse_engine.prompts.budget import (
    CUT_OVERHEAD,
    UNKNOWN_WINDOW_BUDGET,
    Around,
    Prompt,
    full_size,
    plan_prompt,
    prompt_tokens,
)
from pilothouse_engine.prompts.levels import LEVELS, sent_at
from pilothouse_engine.scripted import ScriptedModel
from pilothouse_engine.state import RunState, Visit, bytes_of, text_bytes
from pilothouse_engine.testing.http import ScriptedHttp
from pilothouse_engine.testing.journal import MemoryJournal
from unit.engine.hostile import examples
from unit.engine.scenarios import (
    ListModel,
    Scenario,
    agent_step,
    answer,
    build_plan,
    call,
    calls,
    failure,
    scenario,
    tool_texts,
)
from unit.engine.transcripts import opened_visits, play_turn, play_visit, turns

pytestmark = pytest.mark.anyio

NOTHING_AROUND = Around(tools=0, pinned=0)
OPENING = [PromptMessage("system", "s" * 400), PromptMessage("user", "u" * 400)]
LONG = ("calls", "", [("r" * 8000, False)])


def requests_of(run: Scenario) -> list[ModelRequest]:
    assert isinstance(run.model, ListModel)
    return run.model.requests


def refuse(visit: Visit, endpoint: int = 0, level: Level = "full") -> Visit:
    visit.refused[endpoint] = level
    return visit


def level_of(visit: Visit, window: int | None, endpoint: int = 0, around: Around = NOTHING_AROUND) -> Level | None:
    prompt = plan_prompt(visit, endpoint, window, around)
    return None if prompt is None else prompt.level


# ---------------------------------------------------------------- how much fits


@pytest.mark.parametrize(
    ("window", "want"),
    [
        (None, 52_000),
        (1024, 512),
        (8193, 4096),
        (20_000, 10_000),
        (31_999, 15_999),
        (32_000, 16_000),  # half of the window and the window without 16,000 are the same here
        (64_000, 48_000),
        (106_666, 90_666),  # 16,000 is the larger reserve
        (106_674, 90_672),  # 15 % is: 16,001.1, rounded up
        (128_000, 108_800),
        (1_000_000, 850_000),
    ],
)
def test_the_budget_is_the_window_without_its_reserve(window: int | None, want: int) -> None:
    assert prompt_tokens(window) == want


def counted_visit(tokens: int, *, endpoint: int = 0, level: Level = "full", had_tools: bool = True) -> Visit:
    """A visit whose newest reply was counted so, with one long result after it."""
    state = RunState()
    visit = play_visit(OPENING, [LONG] * 3)
    state.visit, state.turn = visit, 3
    purpose: Any = "Regular" if had_tools else "WrapUp"
    state.apply(ModelStarted(1.0, 4, 4, purpose, endpoint, 1, 0, 0, 0, None, level))
    state.apply(ReplyReceived(1.0, "an answer", input=tokens - 10, output=10, counted=True, level=level))
    visit.add(Message("user", "n" * 4000))
    return visit


def test_the_size_is_what_was_counted_and_an_estimate_of_what_came_after() -> None:
    after = -(-(4000 + 16) // 4)
    assert full_size(counted_visit(7000), 0, NOTHING_AROUND) == 7000 + after
    assert full_size(counted_visit(7000), 0, Around(tools=400, pinned=40)) == 7000 + after + 10
    assert full_size(counted_visit(7000, had_tools=False), 0, Around(tools=400, pinned=40)) == 7000 + after + 110


@pytest.mark.parametrize("visit", [counted_visit(7000, endpoint=1), counted_visit(7000, level="default")])
def test_only_a_count_of_the_same_model_at_full_is_taken(visit: Visit) -> None:
    assert full_size(visit, 0, Around(tools=400, pinned=40)) == -(-(visit.prompt_bytes + 440) // 4)


def test_the_last_count_at_full_serves_on_at_tighter_levels() -> None:
    visit = counted_visit(7000)
    state = RunState(visit=visit)
    play_turn(state, ("text", "x" * 400), 9, input=100, output=10, counted=True, level="default")
    assert full_size(visit, 0, NOTHING_AROUND) == 7000 + -(-(4000 + 400 + len("go on") + 3 * 16) // 4)


@pytest.mark.parametrize(
    ("window", "want"),
    [
        (200_000, "full"),
        (None, "full"),
        (60_000, "default"),  # 20 results of 2,000 tokens are 40,000; 15 of 550 fit
        (16_000, "aggressive"),
        (3000, "minimal"),
        (1024, "minimal"),  # it does not fit either, but the provider has the last word
    ],
)
def test_the_first_level_that_fits_is_used(window: int | None, want: Level) -> None:
    visit = play_visit(OPENING, [LONG] * 23)
    assert level_of(visit, window) == want


def test_an_unknown_window_is_a_budget_of_52_000_estimated_tokens() -> None:
    fits = play_visit([PromptMessage("user", "u" * (4 * UNKNOWN_WINDOW_BUDGET - 8000 - 200))], [LONG])
    while full_size(fits, 0, NOTHING_AROUND) < UNKNOWN_WINDOW_BUDGET:
        fits.add(Message("user", ""))
    assert level_of(fits, None) == "full"
    fits.add(Message("user", ""))
    assert level_of(fits, None) == "default"


def test_the_count_tells_how_many_tokens_the_provider_makes_of_bytes() -> None:
    visit = play_visit(OPENING, [LONG] * 20)
    assert level_of(visit, 80_000) == "full"
    state = RunState(visit=visit)
    play_turn(state, ("text", "ok"), 9, input=160_000, output=1, counted=True)  # a token a byte
    assert level_of(visit, 80_000) == "default"
    assert level_of(visit, 48_000) == "aggressive"  # 33,000 bytes at default


def test_where_nothing_can_be_cut_the_prompt_is_sent_whole() -> None:
    assert level_of(play_visit([PromptMessage("user", "u" * 900_000)], []), 32_000) == "full"


def test_tools_and_the_pinned_note_count() -> None:
    visit = play_visit(OPENING, [LONG] * 2)
    assert level_of(visit, 10_000) == "full"
    assert level_of(visit, 10_000, around=Around(tools=12_000, pinned=0)) == "default"
    assert level_of(visit, 10_000, around=Around(tools=0, pinned=12_000)) == "default"


class Untouchable(list[Message]):
    """Messages that nobody may look at."""

    def __iter__(self) -> Any:
        raise AssertionError("the messages were read")

    __len__ = __getitem__ = __iter__  # type: ignore[assignment]


def test_a_prompt_that_fits_is_judged_without_a_look_at_its_messages() -> None:
    visit = counted_visit(7000)
    visit.messages = Untouchable()
    assert level_of(visit, 100_000) == "full"


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("refused", "want"), [("full", "default"), ("default", "aggressive"), ("aggressive", "minimal"), ("minimal", None)]
)
def test_a_refused_prompt_goes_to_tighter_levels_only(refused: Level, want: Level | None) -> None:
    visit = play_visit(OPENING, [LONG] * 20)
    assert level_of(refuse(visit, level=refused), 1_000_000) == want


def test_a_level_that_cuts_nothing_more_is_not_asked_for() -> None:
    short = ("calls", "", [("r" * 700, False)])
    assert level_of(refuse(play_visit(OPENING, [short])), None) == "minimal"
    assert level_of(refuse(play_visit(OPENING, [("calls", "", [("r", False)])])), None) is None
    assert level_of(refuse(play_visit(OPENING, [])), None) is None


def test_another_model_has_refused_nothing() -> None:
    visit = refuse(play_visit(OPENING, [LONG] * 20), endpoint=1)
    assert (level_of(visit, 1_000_000), level_of(visit, 1_000_000, endpoint=1)) == ("full", "default")


# ---------------------------------------------------------------- the bound


def tokens_of(messages: list[Message]) -> int:
    """A tokenizer: three bytes a token, begun anew for each message."""
    return sum(4 + -(-text_bytes(m.text) // 3) + sum(8 + len(c.arguments) for c in m.calls) for m in messages)


TOOLS, TOOL_TOKENS = 900, 300


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    st.lists(turns, min_size=1, max_size=25),
    st.sampled_from([None, 2000, 8000, 16_000, 40_000, 120_000]),
    st.lists(st.booleans(), min_size=25, max_size=25),
    st.sampled_from([200, 8000, 200_000]),
)
def test_a_prompt_never_takes_more_than_its_bound(
    played: list[Any], window: int | None, counts: list[bool], cut_at: int
) -> None:
    state = RunState()
    visit = state.visit = play_visit(OPENING, [])
    for number, item in enumerate(played):
        prompt = plan_prompt(visit, 0, window, Around(TOOLS, 0))
        assert prompt is not None
        sent = [item.message for item in sent_at(visit, visit.messages, prompt.level)]
        taken = tokens_of(sent) + TOOL_TOKENS
        assert taken <= prompt.bound
        output = tokens_of([Message("assistant", item[1])]) + 40
        usage = {"input": taken, "output": output, "counted": counts[number]}
        play_turn(state, item, number, cut_at, **(usage if item[0] != "steer" else {}), level=prompt.level)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(opened_visits(), st.sampled_from([None, 1024, 8000, 40_000]), st.sampled_from([None, *LEVELS]))
def test_a_level_is_chosen_or_everything_shorter_was_refused(
    visit: Visit, window: int | None, refused: Level | None
) -> None:
    if refused is not None:
        refuse(visit, level=refused)
    before = copy.deepcopy(visit)
    prompt = plan_prompt(visit, 0, window, NOTHING_AROUND)
    assert visit == before
    assert prompt is not None or refused is not None
    if prompt is not None and refused is not None:
        assert LEVELS.index(prompt.level) > LEVELS.index(refused)


@pytest.mark.parametrize(("had_tools", "want"), [(True, 7000 + 4016 + 40), (False, 7000 + 4016 + 440)])
def test_a_bound_at_full_is_the_count_and_the_bytes_of_what_is_new(had_tools: bool, want: int) -> None:
    visit = counted_visit(7000, had_tools=had_tools)
    assert plan_prompt(visit, 0, None, Around(tools=400, pinned=40)) == Prompt("full", want)
    other = plan_prompt(visit, 1, None, Around(tools=400, pinned=40))
    assert other == Prompt("full", visit.prompt_bytes + 440)


def test_a_bound_at_a_tighter_level_is_the_count_of_the_prompt_before_and_what_is_new() -> None:
    visit, around = play_visit(OPENING, [LONG] * 20), Around(tools=400, pinned=40)
    sent = sent_at(visit, visit.messages, "default")
    assert plan_prompt(visit, 0, 48_000, around) == Prompt("default", sum(bytes_of(i.message) for i in sent) + 440)
    play_turn(RunState(visit=visit), ("text", "ok"), 9, input=9000, output=1, counted=True, level="default")
    cuts = sum(item.is_cut for item in sent_at(visit, visit.messages, "default"))
    want = 9001 + bytes_of(Message("user", "go on")) + cuts * CUT_OVERHEAD + 40
    assert plan_prompt(visit, 0, 48_000, around) == Prompt("default", want)


# ---------------------------------------------------------------- in a run


LONG_RESULT = {"text": "".join(f"{n:05d} " for n in range(1200))}


def long_run(turns: Any, window: int | None = None, **fields: Any) -> Scenario:
    model = {"name": "m", "maxOutputTokens": 100} | ({"contextWindow": window} if window else {})
    limits = {"maxIterations": 20}
    step = agent_step(model=model, limits=limits, **fields)
    return scenario(turns, step, functions={"tools:lookup": lambda arguments: LONG_RESULT | arguments})


def lookups(count: int, usage: Usage) -> list[Any]:
    return [calls(call("lookup", {"n": n}), usage=usage) for n in range(count)]


async def test_a_long_transcript_is_sent_at_a_tighter_level_and_kept_whole_in_the_journal() -> None:
    run = long_run([*lookups(4, Usage()), answer("resolved")], window=12_000)
    await run.finish()
    levels = ["full", "full", "full", "full", "default"]
    assert [fact.level for fact in await run.facts_of(ModelStarted)] == levels
    assert [fact.level for fact in await run.facts_of(ReplyReceived)] == levels
    last = requests_of(run)[-1]
    assert {len(text) for text in tool_texts(last)} == {2200}
    assert all("read_tool_result" in text for text in tool_texts(last))
    assert {len(fact.content) > 7000 for fact in await run.facts_of(CallFinished)} == {True}
    frames = [frame for frame in run.sink.frames if frame["kind"] == "Iteration"]
    assert [frame.get("level") for frame in frames] == [None, None, None, None, "default"]
    assert [f.get("level") for f in run.snapshot.trace if f["kind"] == "Iteration"][-1] == "default"


async def test_the_pointer_of_a_cut_result_is_read_in_a_slice_that_is_sent_whole() -> None:
    def read(request: ModelRequest) -> Any:
        call_id = tool_texts(request)[0].rsplit("[cut: ", 1)[1].split()[0]
        return calls(call("read_tool_result", {"call_id": call_id, "offset": 3000}), usage=Usage())

    run = long_run([*lookups(4, Usage()), read, answer("resolved")], window=12_000)
    await run.finish()
    texts = tool_texts(requests_of(run)[-1])
    assert len(texts[-1]) > 4000
    assert "characters 3000 to" in texts[-1]


async def test_a_refused_prompt_is_sent_at_tighter_levels_and_costs_no_attempt() -> None:
    too_long = failure("ContextWindowExceeded")
    run = long_run([*lookups(4, Usage(100, 10)), too_long, too_long, call_more, answer("resolved")])
    assert (await run.finish()).exit.signal == "resolved"
    started = (await run.facts_of(ModelStarted))[4:]
    assert [(fact.turn, fact.attempt, fact.level) for fact in started] == [
        (5, 1, "full"),
        (5, 1, "default"),
        (5, 1, "aggressive"),
        (6, 1, "default"),  # the whole is not tried again: it has only grown
    ]
    sizes = [sum(len(m.text) for m in request.messages) for request in requests_of(run)[4:]]
    assert sizes[0] > sizes[1] > sizes[2]
    assert [fact.input + fact.output for fact in await run.facts_of(ModelFailed)] == [0, 0]


def call_more(request: ModelRequest) -> Any:
    return calls(call("lookup", {"n": "more"}), usage=Usage(100, 10))


async def test_refusals_at_every_level_exit_with_advice() -> None:
    run = long_run([*lookups(4, Usage()), *[failure("ContextWindowExceeded")] * 4])
    end = await run.finish()
    assert end.exit.signal == "error"
    assert end.exit.error is not None
    assert end.exit.error.type == "ContextWindowExceeded"
    assert "start a new session" in end.exit.error.message
    assert "the provider said ContextWindowExceeded" in end.exit.error.message
    assert [fact.level for fact in (await run.facts_of(ModelStarted))[4:]] == list(LEVELS)


async def test_a_retry_after_a_refusal_stays_at_the_tighter_level() -> None:
    turns = [*lookups(4, Usage()), failure("ContextWindowExceeded"), failure("ServerError"), answer("resolved")]
    run = long_run(turns)
    assert (await run.finish()).exit.signal == "resolved"
    assert [(fact.attempt, fact.level) for fact in (await run.facts_of(ModelStarted))[4:]] == [
        (1, "full"),
        (1, "default"),
        (2, "default"),
    ]


async def test_ids_of_calls_that_a_prompt_leaves_out_are_named_to_the_adapter() -> None:
    too_long = [failure("ContextWindowExceeded")] * 3
    run = long_run([*lookups(6, Usage()), *too_long, answer("resolved")])
    await run.finish()
    full, default, aggressive, minimal = requests_of(run)[6:]
    assert (full.left_out, default.left_out) == ((), ())
    ids = [message.provider_id for message in full.messages if message.role == "tool"]
    assert list(minimal.left_out) == ids[:3]
    assert [m.provider_id for m in minimal.messages if m.role == "tool"] == ids[3:]
    assert aggressive.left_out == ()


def test_what_a_provider_wants_back_counts() -> None:
    plain, thinking = Message("assistant", "t"), Message("assistant", "t", raw={"thinking": "x" * 1000})
    assert bytes_of(thinking) - bytes_of(plain) >= 1000


async def test_a_reply_of_another_model_ends_the_refusals_of_a_turn_too() -> None:
    model = {"name": "m", "fallbacks": [{"name": "other"}]}
    step = agent_step(model=model, retry={"attempts": 1}, limits={"maxIterations": 20})
    too_long = [failure("ContextWindowExceeded")] * 2
    turns = [*lookups(4, Usage()), *too_long, failure("ServerError"), call_more, answer("resolved")]
    run = scenario(turns, step, functions={"tools:lookup": lambda arguments: LONG_RESULT | arguments})
    await run.finish()
    assert [(f.endpoint, f.level) for f in (await run.facts_of(ModelStarted))[4:]] == [
        (0, "full"),
        (0, "default"),
        (0, "aggressive"),
        (1, "full"),
        (0, "default"),
    ]


async def test_a_fallback_is_judged_by_its_own_window() -> None:
    model = {"name": "m", "contextWindow": 200_000, "fallbacks": [{"name": "small", "contextWindow": 12_000}]}
    step = agent_step(model=model, retry={"attempts": 1}, limits={"maxIterations": 20})
    turns = [*lookups(4, Usage()), failure("ServerError"), answer("resolved")]
    run = scenario(turns, step, functions={"tools:lookup": lambda arguments: LONG_RESULT | arguments})
    await run.finish()
    assert [(f.endpoint, f.level) for f in (await run.facts_of(ModelStarted))[4:]] == [(0, "full"), (1, "default")]


async def test_a_result_as_large_as_a_response_may_be_is_kept_whole_and_read_to_its_end() -> None:
    body = b"x" * (1_048_576 - 5) + b" tail"
    step = {"kind": "APICall", "apiCall": {"url": "http://x.test"}}
    tool = {"name": "get", "description": "Gets.", "inlineStep": step}

    def read(request: ModelRequest) -> Any:
        call_id = tool_texts(request)[0].rsplit("[cut: ", 1)[1].split()[0]
        return calls(call("read_tool_result", {"call_id": call_id, "offset": 1_048_576}))

    run = scenario(
        [calls(call("get")), read, answer("resolved")],
        agent_step(tools=[tool]),
        http=ScriptedHttp(HttpResponse(200, (("content-type", "text/plain"),), body)),
    )
    await run.finish()
    assert run.http.requests[0].max_bytes == 1_048_576
    content = (await run.facts_of(CallFinished))[0].content
    assert json.loads(content)["output"]["get_result"] == body.decode()
    shown, end = tool_texts(requests_of(run)[-1])
    assert len(shown) == 8000
    assert end.endswith(' tail"}}')


SCRIPT = """
turns:
- toolCalls: [{name: lookup, arguments: {n: 1}}]
- toolCalls: [{name: lookup, arguments: {n: 2}}]
- {error: {kind: ContextWindowExceeded}}
- toolCalls: [{name: lookup, arguments: {n: 3}}]
- {error: {kind: ContextWindowExceeded}}
- {error: {kind: ServerError}}
- {text: '{"outcome": "resolved", "result": 42}'}
"""


async def test_levels_and_refusals_survive_a_kill_at_every_fact() -> None:
    def played(lines: list[str]) -> Scenario:
        model = {"name": "scripted", "script": {"inline": SCRIPT}, "maxOutputTokens": 100}
        run = Scenario(
            build_plan(agent_step(model=model)),
            ScriptedModel(None),  # type: ignore[arg-type]  # nothing in this script takes time
            functions={"tools:lookup": lambda arguments: LONG_RESULT | arguments},
        )
        run.journal = MemoryJournal(durable=True)
        run.journal._lines = list(lines)
        return run

    whole = played([])
    await whole.finish()
    replies = [fact.level for fact in await whole.facts_of(ReplyReceived)]
    assert replies == ["full", "full", "default", "aggressive"]
    for length in range(1, len(whole.journal._lines)):
        run = played(whole.journal._lines[:length])
        run.attempts = 1
        assert (await run.finish()).exit.signal == "resolved"
        levels = [fact.level for fact in await run.facts_of(ReplyReceived)]
        assert levels == replies, json.loads(whole.journal._lines[length - 1])["fact"]
