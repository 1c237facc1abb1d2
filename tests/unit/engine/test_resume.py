"""Kill the process anywhere: the run goes on at the last fact (engine.md §10)."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pilothouse_api.digests import canonical_json, text_digest
from pilothouse_engine.facts import (
    AttemptStarted,
    CallFinished,
    CallStarted,
    ModelStarted,
    ParkBegan,
    ParkEnded,
    RunEnded,
    RunStarted,
    decode_all,
    encode,
)
from pilothouse_engine.frames import fold
from pilothouse_engine.ports import Fenced, JournalCorrupt, JournalUnavailable, RawEntry
from pilothouse_engine.run import Released
from pilothouse_engine.scripted import ScriptedModel
from pilothouse_engine.testing.journal import MemoryJournal
from unit.engine.scenarios import (
    ListModel,
    Scenario,
    agent_step,
    answer,
    build_plan,
    call,
    calls,
    codes,
    function_step,
    function_tool,
    response_step,
    scenario,
)

pytestmark = pytest.mark.anyio

RICH_SCRIPT = """
turns:
- toolCalls: [{name: lookup, arguments: {n: 1}}, {name: lookup, arguments: {n: 2}}, {name: refund, arguments: {eur: 5}}]
- {error: {kind: RateLimited, retryAfterSeconds: 1}}
- toolCalls: [{name: nothing}, {name: note, arguments: {text: hi}}, {name: refund, arguments: {eur: 7}}]
- {text: '{"outcome": "res', finish: Length}
- {text: 'olved", "result": {"answer": 42}'}
- {text: '{"outcome": "resolved", "result": {"answer": 42}}'}
"""


def rich_steps() -> tuple[dict[str, Any], ...]:
    tools = [
        function_tool("lookup"),
        function_tool("note", effect="Idempotent", writesContext=True),
        function_tool("refund", effect="Once"),
    ]
    model = {"name": "scripted", "script": {"inline": RICH_SCRIPT}, "maxOutputTokens": 100}
    return (
        function_step("fetch", effect="ReadOnly"),
        agent_step(
            tools=tools,
            model=model,
            routes={"resolved": "pay", "error": "tell"},
            outcome={"enum": ["resolved"], "write": "found"},
            limits={"maxParallelToolCalls": 2, "tokenBudget": 50_000},
        ),
        function_step("pay", effect="Once", routes={"default": "tell", "error": "tell"}),
        response_step("tell", answer="found.answer", noted="note"),
    )


class RecordingJournal(MemoryJournal):
    """Remembers where each append ended."""

    def __init__(self) -> None:
        super().__init__(durable=True)
        self.boundaries: list[int] = []

    async def append(self, attempt: int, expected_seq: int, entries: Sequence[RawEntry]) -> None:
        await super().append(attempt, expected_seq, entries)
        self.boundaries.append(len(self._lines))

    @staticmethod
    def of(lines: Sequence[str]) -> "RecordingJournal":
        journal = RecordingJournal()
        journal._lines = list(lines)
        return journal


@dataclass
class Effects:
    """What happened outside, over all attempts."""

    executed: Counter[str] = field(default_factory=Counter)

    def __call__(self, name: str, result: Any) -> Any:
        def work(arguments: dict[str, Any]) -> Any:
            self.executed[f"{name} {arguments.get('eur', arguments.get('n', ''))}".strip()] += 1
            return result

        return work


def rich_scenario(effects: Effects) -> Scenario:
    functions = {
        "steps:fetch": effects("fetch", {"fetched": True}),
        "steps:pay": effects("pay", {"paid": True}),
        "tools:lookup": effects("lookup", {"found": True}),
        "tools:note": effects("note", {"noted": True}),
        "tools:refund": effects("refund", {"refunded": True}),
    }
    run = Scenario(build_plan(*rich_steps()), ListModel([]), functions=functions)
    run.model = ScriptedModel(run.clock)
    return run


async def play_whole() -> tuple[list[str], list[int], Effects]:
    effects = Effects()
    run = rich_scenario(effects)
    run.journal = RecordingJournal()
    end = await run.finish()
    assert end.result == {"answer": 42, "noted": {"noted": True}}, end
    return run.journal._lines, run.journal.boundaries, effects


async def resume_from(lines: Sequence[str]) -> tuple[Scenario, Effects, Any]:
    effects = Effects()
    run = rich_scenario(effects)
    run.journal = RecordingJournal.of(lines)
    run.attempts = 1
    return run, effects, await run.finish()


def once_calls_under_way(lines: Sequence[str], names: set[str]) -> set[str]:
    """Ids of Once calls that a prefix has started and not finished."""
    import json

    facts = list(decode_all([json.loads(line) for line in lines]))
    started = {fact.id for fact in facts if isinstance(fact, CallStarted) and fact.tool in names}
    return started - {fact.id for fact in facts if isinstance(fact, CallFinished)}


async def test_a_rich_run_resumes_at_every_append() -> None:
    lines, boundaries, whole = await play_whole()
    assert len(boundaries) > 15
    for cut in boundaries:
        run, effects, end = await resume_from(lines[:cut])
        facts = await run.facts()
        under_way = once_calls_under_way(lines[:cut], {"refund", "pay"})

        finished = Counter(fact.id for fact in facts if isinstance(fact, CallFinished))
        assert set(finished.values()) == {1}, cut
        asked = {c.id for fact in facts for c in getattr(fact, "calls", ())}
        assert asked <= set(finished), cut
        assert end.result == {"answer": 42, "noted": {"noted": True}}, cut

        before = Counter(dict(whole.executed))
        for name in ("refund 5", "refund 7", "pay"):
            assert effects.executed[name] <= 1, (cut, name)
        unknown = {effect.call_id for effect in run.snapshot.effects.unknown}
        assert unknown == under_way, cut
        done = {f.id: f for f in decode_all_of(lines[:cut]) if isinstance(f, CallFinished)}
        for fact in facts:
            if isinstance(fact, CallFinished) and fact.id in done:
                assert fact == done[fact.id], cut
        assert before, cut
        assert fold(await run.entries(), run.plan.input) == await run.state()


def decode_all_of(lines: Sequence[str]) -> list[Any]:
    import json

    return list(decode_all([json.loads(line) for line in lines]))


@dataclass(frozen=True)
class Story:
    """A run with a script, and what a person asks once its first call has returned."""

    script: str
    steps: Callable[[str], tuple[dict[str, Any], ...]]
    control: dict[str, Any] = field(default_factory=dict)


def _tools(**fields: Any) -> dict[str, Any]:
    tools = [function_tool("lookup"), function_tool("refund", effect="Once")]
    return {"tools": tools, "limits": {"tokenBudget": 50_000} | fields.pop("limits", {})} | fields


def _agent_then_tell(script: str, **fields: Any) -> tuple[dict[str, Any], ...]:
    model = {"name": "scripted", "script": {"inline": script}, "maxOutputTokens": 600}
    routes = dict.fromkeys(("resolved", "aborted", "error", "unrecoverable", "max_iterations"), "tell")
    step = agent_step(model=model, routes=routes, **_tools(**fields))
    return (
        step,
        function_step("note", toolOnly=True),
        response_step("tell", ticket="ticket"),
    )


STORIES = {
    "aborted between two calls": Story(
        """
turns:
- toolCalls: [{name: lookup, arguments: {n: 1}}, {name: refund, arguments: {eur: 1}}]
""",
        lambda script: _agent_then_tell(script),
        {"mode": "Abort"},
    ),
    "finished between two calls": Story(
        """
turns:
- toolCalls: [{name: lookup, arguments: {n: 1}}, {name: refund, arguments: {eur: 1}}]
- {text: '{"outcome": "resolved", "result": 1}'}
""",
        lambda script: _agent_then_tell(script),
        {"mode": "Finish"},
    ),
    "repaired and wrapped up": Story(
        """
turns:
- toolCalls: [{name: refund, arguments: {eur: 1}}]
- {text: 'no json'}
- {text: '{"outcome": "resolved", "result": 1}'}
""",
        lambda script: _agent_then_tell(script, limits={"maxIterations": 3}),
        {"steer": {"a": {"message": "be brief"}}},
    ),
    "unrecoverable": Story(
        """
turns:
- toolCalls: [{name: refund, arguments: {eur: 1}}, {name: lookup, arguments: {n: 1}}, {name: lookup}]
""",
        lambda script: _agent_then_tell(script, limits={"maxToolCalls": 2}),
    ),
    "a fallback after failures": Story(
        """
turns:
- {error: {kind: ServerError}}
- {error: {kind: Timeout}}
- toolCalls: [{name: refund, arguments: {eur: 1}}]
- {text: '{"outcome": "resolved", "result": 1}'}
""",
        lambda script: _agent_then_tell(
            script, retry={"attempts": 3, "causes": ["Timeout", "Error"], "backoffSeconds": 1}
        ),
    ),
}


def tell_story(story: Story, lines: Sequence[str] = ()) -> tuple[Scenario, Effects]:
    effects = Effects()

    def lookup(arguments: dict[str, Any]) -> dict[str, Any]:
        run.store.set_control(**story.control)
        return {"found": True}

    functions: dict[str, Any] = {"tools:lookup": lookup, "tools:refund": effects("refund", {"refunded": True})}
    run = Scenario(build_plan(*story.steps(story.script)), ListModel([]), functions=functions)
    run.model = ScriptedModel(run.clock)
    run.journal = RecordingJournal.of(lines)
    if any(isinstance(fact, CallFinished) for fact in decode_all_of(lines)):
        run.store.set_control(**story.control)
    return run, effects


@pytest.mark.parametrize("name", STORIES)
async def test_every_story_has_the_same_end_wherever_it_was_cut(name: str) -> None:
    story = STORIES[name]
    whole, _ = tell_story(story)
    want = await whole.finish()
    assert want.result == {"ticket": "I was charged twice"}
    assert isinstance(whole.journal, RecordingJournal)
    lines = whole.journal._lines
    for cut in whole.journal.boundaries[:-1]:
        run, effects = tell_story(story, lines[:cut])
        run.attempts = 1
        end = await run.finish()
        is_unknown = bool(once_calls_under_way(lines[:cut], {"refund"}))
        assert (end.exit.signal, end.exit.reason) == (want.exit.signal, want.exit.reason), cut
        assert end.result == want.result, cut
        assert len(run.snapshot.effects.unknown) == is_unknown, cut
        ran_before = any(isinstance(f, CallStarted) and f.tool == "refund" for f in decode_all_of(lines[:cut]))
        assert effects.executed["refund 1"] <= (not ran_before), cut
        finished = Counter(f.id for f in await run.facts() if isinstance(f, CallFinished))
        assert set(finished.values()) <= {1}, cut
        state, wanted = await run.state(), await whole.state()
        assert (state.turn, state.context) == (wanted.turn, wanted.context), cut


async def test_no_fact_boundary_runs_a_once_call_twice_or_answers_a_call_twice() -> None:
    lines, _, _ = await play_whole()
    for cut in range(len(lines)):
        before = {f.id for f in decode_all_of(lines[:cut]) if isinstance(f, CallStarted) and f.effect == "Once"}
        run, _effects, _ = await resume_from(lines[:cut])
        facts = (await run.facts())[cut:]
        assert not before & {f.id for f in facts if isinstance(f, CallStarted)}, cut
        finished = Counter(f.id for f in await run.facts() if isinstance(f, CallFinished))
        assert set(finished.values()) <= {1}, cut


async def test_the_folded_state_equals_the_state_of_the_run_that_wrote_it() -> None:
    effects = Effects()
    run = rich_scenario(effects)
    from pilothouse_engine.driver import Driver
    from pilothouse_engine.run import Attempt, Stop

    driver = Driver(run.plan, run.ports(), Attempt(1), Stop())
    await run.clock.run(driver.run())
    folded = await run.state()
    driver._state.context_json(), folded.context_json()
    assert driver._state == folded


async def test_facts_survive_the_journal() -> None:
    lines, _, _ = await play_whole()
    import json

    facts = decode_all_of(lines)
    assert [json.loads(json.dumps(dict(encode(fact)))) for fact in facts] == [json.loads(line) for line in lines]


async def test_what_is_no_fact_is_a_corrupt_journal() -> None:
    for entry in ({}, {"v": 99, "fact": "RunStarted"}, {"v": 1, "fact": "Nope"}, {"v": 1, "fact": "AttemptStarted"}):
        with pytest.raises(JournalCorrupt, match="entry 0"):
            list(decode_all([entry]))


# ---------------------------------------------------------------- a crash under way


def crash(*args: Any) -> Any:
    raise RuntimeError("killed")


async def test_a_model_call_that_was_lost_is_made_again_and_charged_whole() -> None:
    run = scenario([crash, answer("resolved")])
    with pytest.raises(RuntimeError, match="killed"):
        await run.attempt()
    await run.finish()
    first, second = await run.facts_of(ModelStarted)
    assert (first.turn, first.iteration) == (second.turn, second.iteration) == (1, 1)
    assert run.snapshot.tokens.used == first.hold_input + first.hold_output + 60
    assert run.snapshot.steps[0].iterations == 1


@pytest.mark.parametrize(("effect", "runs"), [("ReadOnly", 2), ("Idempotent", 2), ("Once", 1)])
async def test_a_call_that_was_lost_is_repeated_only_where_its_effect_allows_it(effect: str, runs: int) -> None:
    asked = 0

    async def die_once(arguments: dict[str, Any]) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise asyncio.CancelledError
        return {"ok": True}

    step = agent_step(tools=[function_tool("note", effect=effect)], routes={"needs_human": "end"})
    run = scenario([calls(call("note", {"n": 1})), answer("needs_human")], step, functions={"tools:note": die_once})
    with pytest.raises(asyncio.CancelledError):
        await run.attempt()
    await run.finish()
    assert asked == runs
    keys = {fact.key for fact in await run.facts_of(CallStarted)}
    assert len(keys) == 1
    assert isinstance(run.model, ListModel)
    want = "tool_effect_unknown" if effect == "Once" else None
    assert codes(run.model.requests[1]) == [want]
    assert len(run.snapshot.effects.unknown) == (effect == "Once")


async def test_a_step_of_the_graph_that_was_lost_ends_error_where_it_runs_once() -> None:
    async def die(arguments: dict[str, Any]) -> dict[str, Any]:
        raise asyncio.CancelledError

    run = scenario([], function_step("pay"), functions={"steps:pay": die})
    with pytest.raises(asyncio.CancelledError):
        await run.attempt()
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason) == ("error", "Error")
    assert end.exit.error is not None and end.exit.error.type == "EffectUnknown"
    assert [effect.tool for effect in run.snapshot.effects.unknown] == ["pay"]


async def test_a_run_that_has_ended_is_only_published_again() -> None:
    run = scenario([answer("resolved")])
    await run.finish()
    end = await run.finish()
    assert end.exit.reason == "Complete"
    assert len(await run.facts_of(RunEnded)) == 1
    assert run.snapshot.attempt == 2


# ---------------------------------------------------------------- fences and stores


async def test_an_older_attempt_is_fenced_out() -> None:
    async def usurp(request: Any) -> Any:
        entry = encode(AttemptStarted(0.0, 7))
        await run.journal.append(7, len(await run.entries()), [entry])
        return answer("resolved")

    run = scenario([usurp])
    assert (await run.lose()).reason == "Fenced"
    assert run.store.snapshots == [] or run.snapshot.exit is None


@pytest.mark.parametrize("writes", [1, 2])
async def test_an_attempt_is_not_ended_by_an_older_one_that_wrote_before_it_was_fenced(writes: int) -> None:
    """A process that slept while its pod was declared gone wakes, and writes once more."""
    run = scenario([answer("resolved")])
    plan = text_digest(canonical_json(run.plan.to_raw()))
    await run.journal.append(1, 0, [encode(RunStarted(0.0, plan)), encode(AttemptStarted(0.0, 1))])
    read, late = run.journal.read, list(range(writes))

    async def read_and_be_late() -> Sequence[RawEntry]:
        entries = await read()
        if late:
            late.pop()
            await run.journal.append(1, len(entries), [encode(ParkBegan(0.0, "ControlLost", 0))])
            await run.journal.append(1, len(entries) + 1, [encode(ParkEnded(0.0, "ControlLost"))])
        return entries

    run.journal.read = read_and_be_late  # type: ignore[method-assign]
    assert (await run.finish(number=2)).exit.signal == "resolved"
    facts = await run.facts()
    assert [fact.attempt for fact in facts if isinstance(fact, AttemptStarted)] == [1, 2]
    assert run.snapshot.journal_length == len(facts)


async def test_a_snapshot_that_is_fenced_stops_the_attempt() -> None:
    from pilothouse_engine.ports import StoreFailure

    run = scenario([calls(call("lookup"))])
    run.store.set_control(steer={"a": {"message": "x"}})
    run.store.refusals = [StoreFailure("Fenced", "attempt 2")] * 5
    assert (await run.lose()).reason == "Fenced"


async def test_a_journal_that_is_away_parks_the_run_until_it_is_back() -> None:
    def fail(request: Any) -> Any:
        run.journal.fail_next(*[JournalUnavailable("redis is away")] * 3)
        return calls(call("lookup"))

    run = scenario([fail, answer("resolved")])
    await run.finish()
    parks = [s.parked.reason for s in run.store.snapshots if s.parked is not None]
    assert set(parks) == {"JournalLost"}
    assert run.snapshot.parked is None
    ended = (await run.facts_of(ParkEnded))[0]
    assert (ended.reason, ended.at - ended.since) == ("JournalLost", run.clock.monotonic())
    assert (await run.state()).active_seconds == 0
    assert await run.facts_of(ParkBegan) == []


@pytest.mark.parametrize("failing", range(2, 10))
async def test_a_park_for_the_journal_is_not_published_past_a_snapshot_under_way(failing: int) -> None:
    """Two writes at once could arrive the other way round, and a turn that was seen would be seen no more."""

    async def think(request: Any) -> Any:
        await run.clock.sleep(0.6)
        return calls(call("lookup", {"n": request.turn}))

    run = scenario([think, think, think, answer("resolved")])
    append, publish, appended = run.journal.append, run.store.publish, 0

    async def append_or_fail(attempt: int, expected: int, entries: Sequence[RawEntry]) -> None:
        nonlocal appended
        appended += 1
        if appended == failing:
            raise JournalUnavailable("away")
        await append(attempt, expected, entries)

    async def publish_slowly(snapshot: Any) -> Any:
        is_park = snapshot.parked is not None and snapshot.parked.reason == "JournalLost"
        assert not (is_park and under_way), "a snapshot was under way"
        under_way.append(snapshot)
        await run.clock.sleep(0.5)
        under_way.remove(snapshot)
        return await publish(snapshot)

    under_way: list[Any] = []
    run.journal.append = append_or_fail  # type: ignore[method-assign]
    run.store.publish = publish_slowly  # type: ignore[method-assign]
    assert (await run.finish()).exit.signal == "resolved"
    turns = [snapshot.turn for snapshot in run.store.snapshots]
    assert turns == sorted(turns)


async def test_a_release_before_the_journal_could_be_read_is_published_with_what_stood() -> None:
    """Else the pod has ended with neither exit nor park, and counts as a crash."""

    async def stop_and_hang(request: Any) -> Any:
        run.stop.release()
        await asyncio.Event().wait()

    run = scenario([stop_and_hang, answer("resolved")])
    await run.release()
    stood, read = run.snapshot, run.journal.read

    async def stop_and_fail() -> Sequence[RawEntry]:
        run.stop.release()
        raise JournalUnavailable("away")

    run.journal.read = stop_and_fail  # type: ignore[method-assign]
    assert (await run.release()).parked.reason == "JournalLost"
    assert run.snapshot.parked is not None
    assert (run.snapshot.attempt, run.snapshot.parked.released) == (2, True)
    assert (run.snapshot.turn, run.snapshot.journal_length) == (stood.turn, stood.journal_length)
    run.journal.read = read  # type: ignore[method-assign]
    assert (await run.finish()).exit.signal == "resolved"


async def test_a_release_while_the_journal_is_away_does_not_wait_for_it() -> None:
    def fail(request: Any) -> Any:
        run.journal.fail_next(*[JournalUnavailable("redis is away")] * 30)
        run.clock.advance(0)
        return calls(call("lookup"))

    run = scenario([fail])
    run.store.on_publish = lambda snapshot: run.stop.release() if snapshot.parked is not None else None
    end = await run.attempt()
    assert isinstance(end, Released)
    assert (end.parked.reason, run.snapshot.parked and run.snapshot.parked.released) == ("JournalLost", True)


async def test_a_journal_shorter_than_its_snapshot_ends_the_run() -> None:
    run = scenario([calls(call("lookup")), crash])
    run.store.set_control(steer={"a": {"message": "x"}})
    with pytest.raises(RuntimeError):
        await run.attempt()
    assert run.snapshot.journal_length > 0
    turn = run.snapshot.turn
    run.journal = MemoryJournal()
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason) == ("error", "JournalLost")
    assert run.snapshot.turn == turn
    assert run.snapshot.exit is not None and run.snapshot.exit.reason == "JournalLost"


async def test_a_journal_of_another_plan_is_a_fault() -> None:
    run = scenario([answer("resolved")])
    await run.finish()
    run.plan = build_plan(agent_step("other"))
    with pytest.raises(ValueError, match="journal is of the plan"):
        await run.attempt()


async def test_an_append_is_fenced_by_the_journal_itself() -> None:
    journal = MemoryJournal()
    await journal.append(2, 0, [encode(AttemptStarted(0.0, 2))])
    with pytest.raises(Fenced):
        await journal.append(1, 1, [encode(AttemptStarted(0.0, 1))])


# ---------------------------------------------------------------- settling


async def test_a_settling_attempt_lists_what_is_unknown_and_publishes_the_exit() -> None:
    async def die(arguments: dict[str, Any]) -> dict[str, Any]:
        raise asyncio.CancelledError

    tools = [function_tool("lookup"), function_tool("note", effect="Once")]
    run = scenario(
        [calls(call("lookup"), call("note"), call("note", {"n": 2}))],
        agent_step(tools=tools),
        functions={"tools:note": die},
    )
    with pytest.raises(asyncio.CancelledError):
        await run.attempt()
    run.store.set_control(mode="Abort", by="ann")
    end = await run.finish(settle="Aborted")
    assert (end.exit.signal, end.exit.reason) == ("aborted", "Aborted")
    assert [effect.tool for effect in run.snapshot.effects.unknown] == ["note"]
    finished = await run.facts_of(CallFinished)
    assert [fact.code for fact in finished] == [None, "tool_effect_unknown", "tool_call_unresolved"]
    assert run.snapshot.control.mode.value == "Abort"
    assert run.functions_run() == ["lookup", "note"]


async def test_a_settling_attempt_that_finds_no_journal_keeps_what_stood_and_its_reason() -> None:
    run = scenario([calls(call("lookup")), crash])
    run.store.set_control(steer={"a": {"message": "x"}})
    with pytest.raises(RuntimeError):
        await run.attempt()
    turn = run.snapshot.turn
    run.journal = MemoryJournal()
    run.store.set_control(mode="Abort")
    end = await run.finish(settle="Aborted")
    assert end.exit.reason == "Aborted"
    assert "journal was lost" in end.exit.message
    assert run.snapshot.turn == turn == 2


async def test_a_settling_attempt_for_a_deadline_names_it() -> None:
    run = scenario([crash])
    with pytest.raises(RuntimeError):
        await run.attempt()
    end = await run.finish(settle="DeadlineExceeded")
    assert (end.exit.signal, end.exit.reason) == ("error", "DeadlineExceeded")


class Overtaking(MemoryJournal):
    """An older attempt journals once more, between a new one's look and its first append."""

    def __init__(self, written: Sequence[RawEntry]) -> None:
        super().__init__(durable=True)
        self._written = list(written)

    async def append(self, attempt: int, expected_seq: int, entries: Sequence[RawEntry]) -> None:
        if attempt == 2 and self._written:
            written, self._written = self._written, []
            await super().append(1, expected_seq, written)
        await super().append(attempt, expected_seq, entries)


async def test_an_attempt_that_is_overtaken_by_an_older_one_while_it_begins_looks_again_and_fences_it() -> None:
    begun = scenario([answer("resolved")], function_step("pay", effect="Once"), functions={"steps:pay": lambda _: {}})
    await begun.finish()
    entries = list(await begun.entries())
    started = next(n for n, fact in enumerate(decode_all(entries)) if isinstance(fact, CallStarted))
    run = scenario([], function_step("pay", effect="Once"), functions={"steps:pay": lambda _: {}})
    run.journal = Overtaking(entries[: started + 1])

    end = await run.finish(number=2)

    assert end.exit.error is not None and end.exit.error.type == "EffectUnknown"
    assert [effect.tool for effect in run.snapshot.effects.unknown] == ["pay"]
    assert [fact.attempt for fact in await run.facts_of(AttemptStarted)] == [1, 2]
    assert run.functions_run() == []
