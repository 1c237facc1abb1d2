"""Sessions: what a run begins with of earlier ones, what it leaves, and a store that is away (engine.md §11)."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from pilothouse_engine.facts import ParkBegan, ParkEnded, RunEnded, SessionLoaded, StepFinished
from pilothouse_engine.ports import (
    Message,
    ModelReply,
    ModelRequest,
    RequestedCall,
    SessionCorrupt,
    SessionKey,
    SessionsUnavailable,
)
from pilothouse_engine.run import Finished, Released
from pilothouse_engine.sessions.records import (
    MAX_MESSAGE_CHARS,
    OPENING_NOTE,
    Conversation,
    PastRun,
    decode_conversation,
    encode_conversation,
)
from pilothouse_engine.settings import Settings
from pilothouse_engine.testing.sessions import MemorySessions
from unit.engine.scenarios import (
    ListModel,
    Scenario,
    Turn,
    agent_step,
    answer,
    build_plan,
    call,
    calls,
    function_tool,
    response_step,
    text,
)

pytestmark = pytest.mark.anyio

KEY = SessionKey("ns", "c-17", "work")


def run_of(
    sessions: MemorySessions, uid: str, turns: Sequence[Turn], *steps: dict[str, Any], said: str = "", **fields: Any
) -> Scenario:
    """A run of the session c-17, whose input is what its person said."""
    plan = build_plan(*(steps or (agent_step(),)), input={"said": said or uid}, session="c-17", uid=uid)
    return Scenario(plan, ListModel(turns), sessions=sessions, **fields)


def record_of(uid: str, *messages: Message) -> bytes:
    """The content of a record with one run."""
    return encode_conversation(Conversation((PastRun(uid, messages),)))


def requests_of(run: Scenario) -> list[ModelRequest]:
    assert isinstance(run.model, ListModel)
    return run.model.requests


def shown(request: ModelRequest) -> list[tuple[str, str]]:
    """The prompt behind the system text, without the engine's note about earlier runs."""
    return [(one.role, one.text) for one in request.messages[1:] if one.text != OPENING_NOTE]


async def kept(sessions: MemorySessions, key: SessionKey = KEY) -> list[PastRun]:
    return list(decode_conversation((await sessions.load(key)).content).runs)


async def kept_texts(sessions: MemorySessions, key: SessionKey = KEY) -> list[str]:
    return [message.text for run in await kept(sessions, key) for message in run.messages]


# ---------------------------------------------------------------- from run to run


async def test_a_run_begins_with_what_was_said_in_the_runs_before() -> None:
    sessions = MemorySessions()
    await run_of(sessions, "one", [calls(call("lookup")), answer("resolved", "first")]).finish()
    second = run_of(sessions, "two", [answer("resolved", "second")])
    await second.finish()
    third = run_of(sessions, "three", [answer("resolved")])
    await third.finish()

    (request,) = requests_of(third)
    assert shown(request) == [
        ("user", '{"said":"one"}'),
        ("assistant", ""),
        ("tool", '{"signal":"default","output":{"lookup":{"found":true}}}'),
        ("assistant", '{"outcome": "resolved", "result": "first"}'),
        ("user", '{"said":"two"}'),
        ("assistant", '{"outcome": "resolved", "result": "second"}'),
        ("user", '{"said":"three"}'),
    ]
    assert request.messages[1] == Message("user", OPENING_NOTE)
    assert request.messages[3].calls[0].provider_id == request.messages[4].provider_id


async def test_the_first_run_of_a_session_is_like_one_without() -> None:
    first = run_of(MemorySessions(), "one", [answer("resolved")])
    alone = Scenario(build_plan(agent_step(), input={"said": "one"}), ListModel([answer("resolved")]))
    await first.finish()
    await alone.finish()

    assert requests_of(first)[0].messages == requests_of(alone)[0].messages
    assert await first.facts_of(SessionLoaded) == [SessionLoaded(first.clock.now().timestamp(), "work")]
    assert await alone.facts_of(SessionLoaded) == []


async def test_agent_steps_sessions_and_namespaces_have_conversations_of_their_own() -> None:
    sessions = MemorySessions()
    steps = [agent_step("ask", {"resolved": "work"}), agent_step("work", {"resolved": "end"})]
    await run_of(sessions, "one", [answer("resolved", "asked"), answer("resolved", "worked")], *steps).finish()
    second = run_of(sessions, "two", [answer("resolved"), answer("resolved")], *steps)
    await second.finish()

    ask, work = ([said for role, said in shown(request) if role == "assistant"] for request in requests_of(second))
    assert (len(ask), "asked" in ask[0]) == (1, True)
    assert (len(work), "worked" in work[0]) == (1, True)
    other = Scenario(build_plan(agent_step(), session="c-18"), ListModel([answer("resolved")]), sessions=sessions)
    await other.finish()
    assert len(shown(requests_of(other)[0])) == 1


async def test_each_visit_of_a_step_begins_with_the_ended_runs_and_all_of_them_are_kept() -> None:
    sessions = MemorySessions()
    await run_of(sessions, "one", [answer("resolved", "first")]).finish()
    again = agent_step("work", {"resolved": "end", "needs_human": "work"})
    run = run_of(sessions, "two", [answer("needs_human", "visit 1"), answer("resolved", "visit 2")], again)
    await run.finish()

    visits = [[said for role, said in shown(request) if role == "assistant"] for request in requests_of(run)]
    assert visits == [['{"outcome": "resolved", "result": "first"}']] * 2
    assert len(await run.facts_of(SessionLoaded)) == 1
    last = (await kept(sessions))[-1]
    said = [message.text for message in last.messages if message.role == "assistant"]
    assert ["visit 1" in said[0], "visit 2" in said[1], len(said)] == [True, True, 2]


async def test_a_completion_goes_on_with_its_conversation_too() -> None:
    sessions = MemorySessions()
    model = {"name": "m"}
    chat = {"mode": "Completion", "model": model, "prompt": {"inline": "{{ said }}"}, "outcome": {"format": "Text"}}
    step = {"id": "work", "kind": "Agent", "agent": chat, "routes": {"default": "end"}}
    await run_of(sessions, "one", [text("hello Ada")], step, said="I am Ada").finish()
    second = run_of(sessions, "two", [text("Ada")], step, said="who am I?")
    await second.finish()

    (request,) = requests_of(second)
    assert [message.text for message in request.messages[-3:]] == ["I am Ada", "hello Ada", "who am I?"]


async def test_old_steers_and_system_text_do_not_come_back() -> None:
    sessions = MemorySessions()
    first = run_of(sessions, "one", [calls(call("lookup")), answer("resolved")], agent_step(steering={"inline": "OLD"}))
    first.store.set_control(steer={"a1": {"message": "look at invoice 42"}})
    await first.finish()
    assert any("invoice 42" in message.text for message in requests_of(first)[-1].messages)

    second = run_of(sessions, "two", [answer("resolved")])
    await second.finish()
    assert [role for role, _ in shown(requests_of(second)[0])] == ["user", "assistant", "tool", "assistant", "user"]
    everything = " ".join(message.text for message in requests_of(second)[0].messages)
    assert "invoice 42" not in everything and "OLD" not in everything


async def test_what_a_provider_keeps_with_a_reply_does_not_come_back() -> None:
    sessions = MemorySessions()
    thinking = ModelReply(text="", calls=calls(call("lookup")).calls, raw={"signature": "s"})
    await run_of(sessions, "one", [thinking, answer("resolved")]).finish()
    second = run_of(sessions, "two", [answer("resolved")])
    await second.finish()

    assert all(message.raw is None for message in requests_of(second)[0].messages)


# ---------------------------------------------------------------- ends of every kind


async def test_a_failed_run_is_part_of_the_conversation() -> None:
    sessions = MemorySessions()
    end = await run_of(sessions, "one", [text("no JSON"), text("none again")]).finish()
    assert end.exit.reason == "Error"

    second = run_of(sessions, "two", [answer("resolved")])
    await second.finish()
    assert [said for role, said in shown(requests_of(second)[0]) if role == "assistant"] == ["no JSON", "none again"]


async def test_an_aborted_run_is_part_of_the_conversation_and_its_open_calls_are_answered() -> None:
    sessions = MemorySessions()

    def abort(arguments: Any) -> dict[str, Any]:
        first.store.set_control(mode="Abort")
        return {"found": 1}

    asked = calls(call("lookup", {"n": 1}), call("lookup", {"n": 2}))
    first = run_of(sessions, "one", [asked], functions={"tools:lookup": abort})
    assert (await first.finish()).exit.reason == "Aborted"

    second = run_of(sessions, "two", [answer("resolved")])
    await second.finish()
    results = [json.loads(said) for role, said in shown(requests_of(second)[0]) if role == "tool"]
    assert results[0]["output"] == {"lookup": {"found": 1}}
    assert results[1]["error"]["code"] == "tool_call_unresolved"


async def test_a_call_that_was_stored_without_a_result_is_answered_on_load() -> None:
    sessions = MemorySessions()
    messages = (
        Message("user", "hi"),
        Message("assistant", "", (RequestedCall("p1", "lookup", "{}"), RequestedCall("p2", "lookup", "{}"))),
        Message("tool", "found", provider_id="p2", name="lookup"),
    )
    await sessions.replace(KEY, 0, record_of("old", *messages))
    run = run_of(sessions, "two", [answer("resolved")])
    await run.finish()

    prompt = requests_of(run)[0].messages
    assert [message.provider_id for message in prompt if message.role == "tool"] == ["p1", "p2"]
    unresolved, found = (message.text for message in prompt if message.role == "tool")
    assert json.loads(unresolved)["error"]["code"] == "tool_call_unresolved"
    assert found == "found"


async def test_a_settling_attempt_keeps_what_was_said() -> None:
    sessions = MemorySessions()
    run = run_of(sessions, "one", [calls(call("lookup")), lambda request: run.stop.release() or answer("resolved")])
    await run.attempt()
    end = await run.finish(settle="MaxAttempts")
    assert end.exit.reason == "MaxAttempts"

    assert len(await kept(sessions)) == 1
    assert (await kept_texts(sessions))[:2] == ['{"said":"one"}', ""]


async def test_a_run_that_never_came_to_an_agent_leaves_nothing() -> None:
    sessions = MemorySessions()
    await run_of(sessions, "one", [], response_step("reply", {"default": "end"}, answer="said")).finish()

    assert (await sessions.load(KEY)).version == 0


# ---------------------------------------------------------------- bounds, and ids that repeat


async def test_the_newest_messages_come_and_a_reply_comes_with_its_results_or_not_at_all() -> None:
    sessions = MemorySessions()
    asked = calls(call("lookup", {"n": 1}), call("lookup", {"n": 2}))
    await run_of(sessions, "one", [asked, answer("resolved", "first")]).finish()
    content = (await sessions.load(KEY)).content
    for most, want in ((1, 1), (3, 1), (4, 4), (5, 5), (200, 5)):
        sessions = MemorySessions()
        await sessions.replace(KEY, 0, content)
        run = run_of(sessions, "two", [answer("resolved")], settings=Settings(max_session_messages=most))
        await run.finish()
        (loaded,) = await run.facts_of(SessionLoaded)
        assert len(loaded.history) - 1 == want, most


async def test_ids_of_providers_that_runs_share_are_told_apart() -> None:
    sessions = MemorySessions()
    for uid in ("one", "two"):
        await run_of(sessions, uid, [calls(call("lookup")), answer("resolved")]).finish()
    third = run_of(sessions, "three", [answer("resolved")])
    await third.finish()

    prompt = requests_of(third)[0].messages
    asked = [one.provider_id for message in prompt for one in message.calls]
    answered = [message.provider_id for message in prompt if message.role == "tool"]
    assert asked == answered
    assert len(set(asked)) == len(asked) == 2


async def test_a_result_of_an_earlier_run_cannot_be_read_as_one_of_this_run() -> None:
    """Both runs ask for the same with the same id of the engine's."""
    sessions = MemorySessions()
    step = agent_step(limits={"maxToolResultChars": 1000})
    long_ago = {"tools:lookup": lambda arguments: {"text": "old" * 1000}}
    await run_of(sessions, "one", [calls(call("lookup")), answer("resolved")], step, functions=long_ago).finish()
    (old,) = [one.text for run in await kept(sessions) for one in run.messages if one.role == "tool"]
    assert old.endswith("characters; no more of it is kept]") and "read_tool_result" not in old

    def read(request: ModelRequest) -> ModelReply:
        call_id = request.messages[-1].text.rpartition('"call_id": "')[2].partition('"')[0]
        return calls(call("read_tool_result", {"call_id": call_id, "limit": 100}))

    now = {"tools:lookup": lambda arguments: {"text": "new" * 1000}}
    run = run_of(sessions, "two", [calls(call("lookup")), read, answer("resolved")], step, functions=now)
    await run.finish()
    assert "new" in requests_of(run)[-1].messages[-1].text and "old" not in requests_of(run)[-1].messages[-1].text


async def test_long_texts_and_arguments_are_kept_without_their_middle() -> None:
    sessions = MemorySessions()
    asked = calls(call("lookup", {"text": "x" * 50_000}), text="thinking " * 10_000)
    await run_of(sessions, "one", [asked, answer("resolved")]).finish()

    reply = (await kept(sessions))[0].messages[1]
    assert len(reply.text) == MAX_MESSAGE_CHARS and "cut: this text has 90000 characters" in reply.text
    assert json.loads(reply.calls[0].arguments) == {"cut": "these arguments had 50012 characters"}


async def test_in_a_small_window_the_history_is_cut_as_older_messages_are() -> None:
    sessions = MemorySessions()
    big = {"tools:lookup": lambda arguments: {"text": "x" * 4000}}
    turns = [calls(call("lookup", {"n": number})) for number in range(6)]
    await run_of(sessions, "one", [*turns, answer("resolved", "first")], functions=big).finish()
    model = {"name": "m", "maxOutputTokens": 100, "contextWindow": 4000}
    run = run_of(sessions, "two", [answer("resolved")], agent_step(model=model))
    await run.finish()

    (request,) = requests_of(run)
    assert [request.messages[0].role, request.messages[1].text] == ["system", OPENING_NOTE]
    assert request.messages[-1].text == '{"said":"two"}'
    results = [message for message in request.messages if message.role == "tool"]
    assert 0 < len(results) < 6
    assert all("cut: this text has" in message.text for message in results)
    asked = [one.provider_id for message in request.messages for one in message.calls]
    assert asked == [message.provider_id for message in results]
    assert len(request.left_out) == 6 - len(results)


# ---------------------------------------------------------------- guardrails


MASK = {"check": "PiiMask", "piiMask": {"entities": ["Email"]}}
DENY = {"check": "RegexDeny", "regexDeny": {"patterns": ["guarantee"]}}
JANE = "jane@example.com"


def gated(gate: str, *checks: dict[str, Any]) -> dict[str, Any]:
    return agent_step(guardrails={gate: list(checks)})


@pytest.mark.parametrize(
    ("gate", "turns", "functions"),
    [
        ("tools", [calls(call("lookup")), answer("resolved")], {"tools:lookup": lambda arguments: {"mail": JANE}}),
        ("output", [answer("resolved", f"write to {JANE}")], {}),
        ("output", [text(f"write to {JANE}"), answer("resolved")], {}),
        ("output", [calls(call("lookup"), text=f"I write to {JANE}"), answer("resolved")], {}),
        ("output", [text("write to jane@exam", finish="Length"), text("ple.com"), answer("resolved")], {}),
        ("output", [text("jane@exam", finish="Length"), calls(call("lookup"), text="ple.com"), answer("resolved")], {}),
    ],
    ids=["result", "answer", "rejected answer", "text beside a call", "continued answer", "continued by a call"],
)
async def test_what_a_guardrail_masked_does_not_come_back(gate: str, turns: list[Turn], functions: Any) -> None:
    sessions = MemorySessions()
    run = run_of(sessions, "one", turns, gated(gate, MASK), functions=functions)
    await run.finish()

    content = (await sessions.load(KEY)).content.decode()
    assert "jane" not in content and "ple.com" not in content
    assert "[" in " ".join(await kept_texts(sessions))
    asked = [one for past in await kept(sessions) for message in past.messages for one in message.calls]
    assert len(asked) == sum(len(turn.calls) for turn in turns if isinstance(turn, ModelReply))


async def test_a_masked_input_does_not_come_back() -> None:
    sessions = MemorySessions()
    await run_of(sessions, "one", [answer("resolved")], gated("input", MASK), said=f"I am {JANE}").finish()

    assert "jane" not in (await sessions.load(KEY)).content.decode()
    assert len(await kept_texts(sessions)) == 2


@pytest.mark.parametrize(
    ("gate", "turns", "functions", "want"),
    [
        ("input", [], {}, []),
        ("tools", [calls(call("lookup"))], {"tools:lookup": lambda arguments: "a guarantee"}, ["user", "assistant"]),
        ("output", [answer("resolved", "a guarantee")], {}, ["user"]),
    ],
)
async def test_what_a_guardrail_refused_does_not_come_back(
    gate: str, turns: list[Turn], functions: Any, want: Any
) -> None:
    sessions = MemorySessions()
    given = "a guarantee" if gate == "input" else "hello"
    run = run_of(sessions, "one", turns, gated(gate, DENY), said=given, functions=functions)
    assert (await run.finish()).exit.reason == "GuardrailViolation"

    assert "guarantee" not in (await sessions.load(KEY)).content.decode()
    assert [message.role for past in await kept(sessions) for message in past.messages] == want


@pytest.mark.parametrize(("check", "want"), [(MASK, ["user", "assistant"]), (DENY, ["user"])])
async def test_an_answer_that_nobody_judged_passes_the_pure_checks_or_is_left_out(check: Any, want: list[str]) -> None:
    sessions = MemorySessions()

    def aborted(request: ModelRequest) -> ModelReply:
        run.store.set_control(mode="Abort")
        return text(f"a guarantee for {JANE}", finish="Length")

    run = run_of(sessions, "one", [aborted], gated("output", check))
    assert (await run.finish()).exit.reason == "Aborted"
    (past,) = await kept(sessions)
    assert [message.role for message in past.messages] == want
    assert "jane" not in (await sessions.load(KEY)).content.decode()


# ---------------------------------------------------------------- a store that is away


async def test_a_store_that_is_away_parks_the_run_until_it_is_back() -> None:
    sessions = MemorySessions()
    await run_of(sessions, "one", [answer("resolved", "first")]).finish()
    sessions.fail_next(*[SessionsUnavailable("no route to the store")] * 3)
    run = run_of(sessions, "two", [answer("resolved")])
    await run.finish()

    parked = [snapshot.parked for snapshot in run.store.snapshots if snapshot.parked is not None]
    assert {(park.reason, park.message, park.released) for park in parked} == {
        ("StoreLost", "no route to the store", False)
    }
    (began,), (ended,) = await run.facts_of(ParkBegan), await run.facts_of(ParkEnded)
    assert (began.reason, ended.reason, ended.at - began.at) == ("StoreLost", "StoreLost", 6.0)
    assert len(shown(requests_of(run)[0])) == 3


async def test_time_in_which_the_store_is_away_is_not_counted() -> None:
    sessions = MemorySessions()
    sessions.fail_next(*[SessionsUnavailable("away")] * 2000)
    run = run_of(sessions, "one", [answer("resolved")])
    assert (await run.finish()).exit.reason == "Complete"
    (began,), (ended,) = await run.facts_of(ParkBegan), await run.facts_of(ParkEnded)
    assert ended.at - began.at > run.plan.active_deadline_seconds


async def test_a_run_that_waits_for_the_store_can_be_aborted() -> None:
    sessions = MemorySessions()
    sessions.fail_next(*[SessionsUnavailable("away")] * 100)
    run = run_of(sessions, "one", [])
    run.store.on_publish = lambda snapshot: snapshot.parked and run.store.set_control(mode="Abort")
    end = await run.finish()

    assert (end.exit.signal, end.exit.reason) == ("aborted", "Aborted")


async def test_a_run_that_waits_for_the_store_lets_go_when_its_host_asks_and_the_next_attempt_waits_on() -> None:
    sessions = MemorySessions()
    sessions.fail_next(*[SessionsUnavailable("away")] * 5)
    run = run_of(sessions, "one", [answer("resolved")])
    run.store.on_publish = lambda snapshot: snapshot.parked and run.stop.release()
    end = await run.attempt()
    assert isinstance(end, Released) and (end.parked.reason, end.parked.released) == ("StoreLost", True)

    run.store.on_publish = lambda snapshot: None
    assert (await run.finish()).exit.reason == "Complete"
    assert len(await run.facts_of(SessionLoaded)) == 1


async def test_a_store_that_does_not_answer_is_away() -> None:
    class Silent(MemorySessions):
        async def load(self, key: SessionKey) -> Any:
            if run.clock.monotonic() - began < 100:
                await run.clock.sleep(1e6)
            return await super().load(key)

    run = run_of(Silent(), "one", [answer("resolved")])
    began = run.clock.monotonic()
    await run.finish()
    (park,) = await run.facts_of(ParkBegan)
    assert park.message == "the store of sessions gave no answer within 30 s"


async def test_a_conversation_that_cannot_be_read_is_an_error_and_never_an_empty_one() -> None:
    sessions = MemorySessions()
    for content in (b"{", b'{"v":1}', b"[]", b'{"v":2,"runs":[]}', b'{"v":1,"runs":[{"uid":"a","messages":[{}]}]}'):
        sessions = MemorySessions()
        await sessions.replace(KEY, 0, content)
        run = run_of(sessions, "two", [])
        await run.finish()
        (ended,) = await run.facts_of(StepFinished)
        assert (ended.signal, ended.error_type) == ("error", "SessionCorrupt")
        assert ended.error_message.startswith("session c-17, step work: what is stored")
        assert (await sessions.load(KEY)).content == content


async def test_a_damaged_store_is_an_error_that_says_what_to_do() -> None:
    sessions = MemorySessions()
    sessions.fail_next(SessionsUnavailable("away"), SessionCorrupt("the file is damaged: restore it"))
    run = run_of(sessions, "two", [])
    end = await run.finish()
    assert end.exit.error is not None
    assert end.exit.error.type == "SessionCorrupt"
    assert "session c-17, step work: the file is damaged: restore it" in end.exit.error.message
    assert (await run.state()).park is None


async def test_a_host_that_keeps_no_sessions_says_so() -> None:
    run = run_of(MemorySessions(), "one", [])
    run.sessions = None
    end = await run.finish()
    assert end.exit.error is not None
    assert end.exit.error.message == "this host keeps no sessions: remove spec.session"


# ---------------------------------------------------------------- what is said is kept, once


async def test_the_end_of_a_run_is_not_told_before_what_it_said_is_kept() -> None:
    sessions = MemorySessions()
    run = run_of(sessions, "one", [lambda request: sessions.fail_next(*outage) or answer("resolved")])
    outage = [SessionsUnavailable("away"), SessionsUnavailable("still away"), SessionCorrupt("damaged")]
    end = await run.finish()

    told = [(one.parked.message if one.parked else None, one.exit is not None) for one in run.store.snapshots[-4:]]
    assert told == [("away", False), ("still away", False), ("damaged", False), (None, True)]
    assert end.exit.reason == "Complete" and len(await kept(sessions)) == 1
    assert all(one.result is None for one in run.store.snapshots[:-1])
    assert isinstance((await run.facts())[-1], RunEnded)


async def test_a_run_that_cannot_keep_what_it_said_lets_go_and_the_next_attempt_keeps_it() -> None:
    sessions = MemorySessions()
    run = run_of(
        sessions, "one", [lambda request: sessions.fail_next(*[SessionsUnavailable("away")] * 9) or answer("resolved")]
    )
    run.store.on_publish = lambda snapshot: snapshot.parked and run.stop.release()
    end = await run.attempt()
    assert isinstance(end, Released) and (end.parked.reason, end.parked.released) == ("StoreLost", True)
    assert run.snapshot.exit is None

    run.store.on_publish = lambda snapshot: None
    end = await run.attempt()
    assert isinstance(end, Finished) and len(await kept(sessions)) == 1


async def test_what_is_kept_twice_is_there_once() -> None:
    sessions = MemorySessions()
    sessions.lose_next()
    run = run_of(sessions, "one", [answer("resolved")])
    await run.finish()
    await run.attempt()
    await run.attempt()

    assert [past.uid for past in await kept(sessions)] == ["one"]
    assert (await sessions.load(KEY)).version == 1


async def test_an_attempt_that_comes_back_late_adds_nothing_behind_later_runs() -> None:
    sessions = MemorySessions()
    one = run_of(sessions, "one", [answer("resolved")], settings=Settings(max_session_messages=4))
    await one.finish()
    for number in range(5):
        many = Settings(max_session_messages=4)
        await run_of(sessions, f"later-{number}", [answer("resolved")], settings=many).finish()
    before = await sessions.load(KEY)
    await one.attempt()

    assert await sessions.load(KEY) == before
    assert [len(past.messages) for past in await kept(sessions)] == [0, 0, 0, 0, 2, 2]


async def test_runs_that_end_at_once_are_both_kept() -> None:
    sessions = MemorySessions()

    class Racing(MemorySessions):
        async def load(self, key: SessionKey) -> Any:
            stored = await sessions.load(key)
            if not raced and await run.facts_of(RunEnded):
                raced.append(True)
                await sessions.replace(key, stored.version, record_of("other", Message("user", "x")))
            return stored

        async def replace(self, key: SessionKey, version: int, content: bytes) -> bool:
            return await sessions.replace(key, version, content)

    raced: list[bool] = []
    run = run_of(Racing(), "one", [answer("resolved")])
    await run.finish()
    assert [past.uid for past in await kept(sessions)] == ["other", "one"]


async def test_a_resumed_run_sees_the_history_that_it_began_with() -> None:
    sessions = MemorySessions()
    await run_of(sessions, "one", [answer("resolved", "first")]).finish()

    async def hang(request: ModelRequest) -> ModelReply:
        run.stop.release()
        await run.clock.sleep(1e6)
        raise AssertionError("it is cut short")

    run = run_of(sessions, "two", [calls(call("lookup")), hang])
    await run.release()
    stored = await sessions.load(KEY)
    await sessions.replace(KEY, stored.version, record_of("other", Message("user", "changed")))
    run.model = ListModel([answer("resolved")])
    await run.finish()

    assert [said for role, said in shown(requests_of(run)[0]) if role == "user"] == ['{"said":"one"}', '{"said":"two"}']


async def test_tools_are_offered_and_the_loop_guard_counts_as_in_any_run() -> None:
    sessions = MemorySessions()
    same = [calls(call("lookup")), calls(call("lookup")), answer("resolved")]
    await run_of(sessions, "one", same, agent_step(tools=[function_tool("lookup")])).finish()
    run = run_of(sessions, "two", same, agent_step(tools=[function_tool("lookup")]))
    await run.finish()
    assert run.functions_run() == ["lookup", "lookup"]


# ---------------------------------------------------------------- tasks that outlive their run

TASK = {"name": "research", "description": "Finds out.", "agentRef": {"name": "researcher"}, "background": True}
START = calls(call("start_research_task", {"topic": "invoices"}))
ENDED = {
    "name": "child",
    "exit": {"signal": "default", "reason": "Complete", "message": ""},
    "result": {"found": 3},
    "inputTokens": 70,
    "outputTokens": 30,
}


def researching(sessions: MemorySessions, name: str, turns: Sequence[Turn]) -> Scenario:
    run = run_of(sessions, f"uid of {name}", turns, agent_step(tools=[TASK, function_tool("lookup")]))
    run.plan = replace(run.plan, run=replace(run.plan.run, name=name))
    return run


def notes(request: ModelRequest) -> list[str]:
    return [message.text for message in request.messages if message.role == "user" and "Task " in message.text]


async def started(sessions: MemorySessions) -> tuple[Scenario, str]:
    """A run that has ended while its task went on, and the task's call."""
    first = researching(sessions, "run-1", [START, answer("resolved")])
    assert isinstance(await first.finish(), Finished)
    [task] = first.snapshot.children
    return first, task.call_id


async def test_a_task_goes_on_when_its_run_ends_and_nothing_of_it_is_unknown() -> None:
    first, _ = await started(MemorySessions())

    [task] = first.snapshot.children
    assert (task.state, task.owner, task.input) == ("HandedOn", None, {"topic": "invoices"})
    assert first.snapshot.effects.unknown == []


async def test_the_end_of_a_task_is_told_once_in_the_next_run_of_the_session() -> None:
    sessions = MemorySessions()
    first, call_id = await started(sessions)

    second = researching(sessions, "run-2", [calls(call("lookup")), answer("resolved")])
    second.store.set_child(f"run-1-{call_id}", **ENDED)
    await second.finish()

    [task] = second.snapshot.children
    assert (task.call_id, task.owner, task.state, task.input) == (f"run-1-{call_id}", "run-1", "Delivered", {})
    told = [notes(request) for request in requests_of(second)]
    assert [len(one) for one in told] == [1, 1] and call_id in told[0][0] and '"found":3' in told[0][0]
    assert second.snapshot.tokens.used == first.snapshot.tokens.used, "what it took was the first run's"

    third = researching(sessions, "run-3", [answer("resolved")])
    await third.finish()
    assert third.snapshot.children == []
    assert sum("Task " in text for _, text in shown(requests_of(third)[0])) == 1, "as it was said in the second run"


async def test_a_task_that_goes_on_for_several_runs_is_handed_on_by_each() -> None:
    sessions = MemorySessions()
    _, call_id = await started(sessions)

    second = researching(sessions, "run-2", [answer("resolved")])
    await second.finish()
    third = researching(sessions, "run-3", [answer("resolved")])
    third.store.set_child(f"run-1-{call_id}", **ENDED)
    await third.finish()

    assert [(task.owner, task.state) for task in second.snapshot.children] == [("run-1", "HandedOn")]
    assert [len(notes(request)) for request in requests_of(third)] == [1]


async def test_an_aborted_run_aborts_its_own_tasks_and_hands_on_those_of_others() -> None:
    sessions = MemorySessions()
    _, call_id = await started(sessions)

    second = researching(sessions, "run-2", [START, answer("resolved")])

    def abort(snapshot: Any) -> None:
        if len(snapshot.children) == 2:
            second.store.set_control(mode="Abort")

    second.store.on_publish = abort
    await second.finish()

    assert second.snapshot.exit is not None and second.snapshot.exit.signal == "aborted"
    assert [(task.owner, task.state) for task in second.snapshot.children] == [
        ("run-1", "HandedOn"),
        (None, "Abandoned"),
    ]
    third = researching(sessions, "run-3", [answer("resolved")])
    await third.finish()
    assert [task.call_id for task in third.snapshot.children] == [f"run-1-{call_id}"]
