"""How an attempt ends, waits and publishes where its ports fail it (engine.md §8, §10)."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from pilothouse_engine.control import RETRY_SECONDS
from pilothouse_engine.facts import (
    AttemptStarted,
    CallFinished,
    ModelFailed,
    ModelStarted,
    ParkEnded,
    ReplyReceived,
    RunEnded,
    RunStarted,
    SteerAnswered,
    encode,
)
from pilothouse_engine.observers import Observer
from pilothouse_engine.ports import Directives, JournalUnavailable, ModelFailure, StoreFailure, Usage
from pilothouse_engine.run import Released
from pilothouse_engine.testing.clock import START
from pilothouse_engine.testing.mcp import InProcessMcp
from unit.engine.scenarios import (
    Scenario,
    agent_step,
    answer,
    build_plan,
    call,
    calls,
    function_tool,
    response_step,
    scenario,
    text,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("kind", "want"), [("Gone", "Gone"), ("Fenced", "Fenced")])
async def test_an_object_that_cannot_be_read_any_more_ends_the_attempt(kind: Any, want: str) -> None:
    run = scenario([])
    run.store.failures = [StoreFailure(kind, "it is somebody else's")]
    end = await run.lose()
    assert (end.reason, end.message) == (want, "it is somebody else's")
    assert run.store.snapshots == []


@pytest.mark.parametrize(("kind", "want"), [("Gone", "Gone"), ("Fenced", "Fenced")])
async def test_an_object_that_cannot_be_written_any_more_ends_the_attempt(kind: Any, want: str) -> None:
    run = scenario([answer("resolved")])
    run.store.refusals = [StoreFailure(kind, "it is somebody else's")] * 9
    end = await run.lose()
    assert (end.reason, end.message) == (want, "it is somebody else's")


@pytest.mark.parametrize(("kind", "want"), [("Gone", "Gone"), ("Fenced", "Fenced")])
async def test_who_waits_for_the_journal_lets_go_when_the_object_is_not_its_own(kind: Any, want: str) -> None:
    def fail(request: Any) -> Any:
        run.journal.fail_next(*[JournalUnavailable("away")] * 99)
        run.store.refusals = [StoreFailure(kind, "it is somebody else's")] * 99
        return calls(call("lookup"))

    run = scenario([fail])
    end = await run.lose()
    assert (end.reason, end.message) == (want, "it is somebody else's")


async def test_who_waits_for_the_journal_goes_on_waiting_while_the_store_is_away_too() -> None:
    def fail(request: Any) -> Any:
        run.journal.fail_next(*[JournalUnavailable("away")] * 4)
        run.store.refusals = [StoreFailure("Unavailable", "503")] * 2
        return calls(call("lookup"))

    run = scenario([fail, answer("resolved")])
    assert (await run.finish()).exit.signal == "resolved"


async def test_the_waits_for_the_journal_double_up_to_a_quarter_of_a_minute() -> None:
    def fail(request: Any) -> Any:
        run.journal.fail_next(*[JournalUnavailable("away")] * 8)
        return answer("resolved")

    run = scenario([fail])
    await run.finish()
    assert run.clock.monotonic() == 0.5 + 1 + 2 + 4 + 8 + 15 + 15 + 15
    (ended,) = await run.facts_of(ParkEnded)
    assert (ended.reason, ended.at - ended.since) == ("JournalLost", run.clock.monotonic())


async def test_a_park_for_the_journal_is_published_with_what_the_journal_holds() -> None:
    def fail(request: Any) -> Any:
        run.journal.fail_next(*[JournalUnavailable("away")] * 99)
        return answer("resolved")

    run = scenario([fail])
    run.store.on_publish = lambda snapshot: run.stop.release() if snapshot.parked is not None else None
    end = await run.attempt()
    assert isinstance(end, Released)
    waiting, last = run.store.snapshots[-2:]
    assert end.snapshot == last
    held = len(await run.entries())
    for snapshot, released in ((waiting, False), (last, True)):
        assert snapshot.parked is not None
        assert (snapshot.parked.reason, snapshot.parked.released, snapshot.parked.turn) == ("JournalLost", released, 1)
        assert (snapshot.journal_length, snapshot.exit) == (held, None)
    assert last.parked is not None and waiting.parked is not None and last.parked.since == waiting.parked.since


async def test_a_park_for_the_journal_shows_nothing_that_a_crash_could_still_undo() -> None:
    """A steer that is said to have landed and was not journaled would land again, at another turn."""

    def steer(arguments: Any) -> Any:
        run.store.set_control(steer={"s": {"message": "Be short."}})
        return {"found": True}

    def fail(read: int) -> None:
        if run.store.directives.control is not None and not run.store.snapshots:
            run.journal.fail_next(*[JournalUnavailable("away")] * 2)

    run = scenario([calls(call("lookup")), answer("resolved")], functions={"tools:lookup": steer})
    run.store.on_read = fail
    await run.finish()
    waiting = [snapshot for snapshot in run.store.snapshots if snapshot.parked is not None]
    assert waiting
    assert all(not snapshot.control.steer and snapshot.turn < 2 for snapshot in waiting)
    assert run.snapshot.control.steer["s"].turn == 2


async def test_what_an_attempt_would_have_told_before_an_older_one_wrote_is_not_shown() -> None:
    """Its first append is refused, and it begins again with what the older one has written."""
    run = scenario([answer("resolved")])
    append, refused = run.journal.append, []

    async def outrun(attempt: int, expected_seq: int, entries: Any) -> None:
        if not refused:
            refused.append(attempt)
            await append(1, expected_seq, [encode(RunStarted(1.0, "p")), encode(AttemptStarted(1.0, 1))])
        await append(attempt, expected_seq, entries)

    run.journal.append = outrun  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="the journal is of the plan p"):
        await run.attempt(number=2)
    assert run.sink.frames == []


async def test_nothing_follows_the_end_of_a_run_that_the_journal_took_late() -> None:
    run = scenario([answer("resolved")])
    run.store.on_read = lambda read: run.journal.fail_next()
    assert (await run.finish()).exit.signal == "resolved"
    assert isinstance((await run.facts())[-1], RunEnded)


async def test_an_attempt_that_could_not_read_the_journal_has_nothing_to_publish() -> None:
    run = scenario([answer("resolved")])
    run.journal.read = unavailable_then(run, run.journal.read, 3)  # type: ignore[method-assign]
    await run.finish()
    assert all(snapshot.parked is None for snapshot in run.store.snapshots)


async def test_an_attempt_that_has_not_fenced_the_others_publishes_no_park() -> None:
    run = scenario([answer("resolved")])
    run.journal.fail_next(*[JournalUnavailable("away")] * 3)
    await run.finish()
    assert all(snapshot.parked is None for snapshot in run.store.snapshots)
    assert len(await run.facts_of(AttemptStarted)) == 1


def unavailable_then(run: Scenario, read: Any, times: int) -> Any:
    left = [times]

    async def failing() -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise JournalUnavailable("away")
        return await read()

    return failing


async def test_an_end_that_cannot_be_published_is_tried_for_a_while_and_left_to_the_next_attempt() -> None:
    run = scenario([answer("resolved")])
    publish, tries = run.store.publish, []

    async def refuse_the_end(snapshot: Any) -> StoreFailure | None:
        if snapshot.exit is None:
            return await publish(snapshot)
        run.stop.release()
        tries.append(run.clock.monotonic())
        return StoreFailure("Unavailable", "503")

    run.store.publish = refuse_the_end  # type: ignore[method-assign]
    end = await run.attempt()
    assert isinstance(end, Released)
    assert (end.parked.reason, end.parked.turn, end.parked.released) == ("StoreLost", 1, True)
    assert end.snapshot.exit is not None and end.snapshot.exit.signal == "resolved"
    assert (tries[0], tries[-1]) == (0, 10)
    assert len(tries) < 10
    run.store.publish = publish  # type: ignore[method-assign]
    assert (await run.finish()).exit.signal == "resolved"


async def test_an_end_is_published_however_long_the_store_is_away() -> None:
    run = scenario([answer("resolved")])
    publish, tries = run.store.publish, []

    async def refuse_the_end(snapshot: Any) -> StoreFailure | None:
        tries.append(run.clock.monotonic())
        return StoreFailure("Unavailable", "503") if snapshot.exit and len(tries) < 9 else await publish(snapshot)

    run.store.publish = refuse_the_end  # type: ignore[method-assign]
    await run.finish()
    assert run.snapshot.exit is not None
    assert [later - earlier for earlier, later in pairwise(tries)][-2:] == [15, 15]


async def test_a_release_that_cannot_be_published_is_said_to_the_host_with_the_state_as_it_is() -> None:
    def let_go(request: Any) -> Any:
        run.store.outage = StoreFailure("Unavailable", "503")
        run.stop.release()
        return calls(call("lookup"))

    run = scenario([let_go])
    end = await run.attempt()
    assert isinstance(end, Released)
    assert (end.parked.reason, end.parked.turn, end.parked.released) == ("Stopped", 1, True)
    assert end.snapshot.parked == end.parked
    assert end.snapshot.journal_length == len(await run.entries())
    assert run.store.snapshots == []


async def test_a_release_is_published_before_the_host_is_told() -> None:
    def let_go(request: Any) -> Any:
        run.stop.release()
        return calls(call("lookup"))

    run = scenario([let_go])
    end = await run.attempt()
    assert isinstance(end, Released)
    assert end.snapshot == run.snapshot


async def test_an_end_that_is_not_journaled_yet_is_not_published() -> None:
    run = scenario([answer("resolved")])
    append = run.journal.append

    async def away_for_the_end(attempt: int, seq: int, entries: Any) -> None:
        if any(entry["fact"] == "RunEnded" for entry in entries):
            raise JournalUnavailable("away")
        await append(attempt, seq, entries)

    run.journal.append = away_for_the_end  # type: ignore[method-assign]
    run.store.on_publish = lambda snapshot: run.stop.release() if snapshot.parked is not None else None
    end = await run.attempt()
    assert isinstance(end, Released)
    assert (end.parked.reason, end.snapshot.exit) == ("JournalLost", None)
    run.journal.append = append  # type: ignore[method-assign]
    assert (await run.finish()).exit.signal == "resolved"


async def test_after_something_urgent_was_published_the_rest_is_coalesced_again() -> None:
    turns = [calls(call(f"nobody_{n}")) for n in range(9)]
    step = agent_step(limits={"maxIterations": 20}, recovery={"maxFailingBatches": 50, "maxSameError": 50})
    run = scenario([*turns, answer("resolved")], step)
    run.store.set_control(steer={"s": {"message": "slow down"}})
    await run.finish()
    assert run.snapshot.turn == 10
    assert len(run.store.snapshots) <= 4


async def test_a_run_that_calls_no_mcp_server_ends_no_session() -> None:
    run = scenario([calls(call("lookup")), answer("resolved")])
    await run.finish()
    assert isinstance(run.mcp, InProcessMcp)
    assert run.mcp.visits_ended == 0


async def test_how_long_a_call_took_is_part_of_its_result_and_its_observers_are_told_when_it_begins() -> None:
    class Witness(Observer):
        def call_begins(self, call: str) -> None:
            begun.append(call)

    async def slow(arguments: dict[str, Any]) -> dict[str, Any]:
        await run.clock.sleep(2)
        return {}

    begun: list[str] = []
    turns = [calls(call("lookup", {"n": n})) for n in range(2)]
    run = scenario([*turns, answer("resolved")], functions={"tools:lookup": slow}, observers=(Witness(),))
    await run.finish()
    finished = await run.facts_of(CallFinished)
    assert [fact.seconds for fact in finished] == [2.0, 2.0]
    assert begun == [fact.id for fact in finished]


async def test_who_is_fenced_out_by_the_journal_says_by_whom() -> None:
    async def usurp(request: Any) -> Any:
        await run.journal.append(7, len(await run.entries()), [encode(AttemptStarted(0.0, 7))])
        return answer("resolved")

    run = scenario([usurp])
    end = await run.lose()
    assert (end.reason, end.message) == ("Fenced", "attempt 7 has written, this is attempt 1")


async def test_facts_of_a_later_attempt_are_of_their_wall_time() -> None:
    async def crash(request: Any) -> Any:
        await run.clock.sleep(10)
        raise RuntimeError("the pod is gone")

    run = scenario([crash, answer("resolved")])
    with pytest.raises(RuntimeError):
        await run.attempt()
    run.clock.advance(500)
    await run.finish()
    assert [fact.at - START.timestamp() for fact in await run.facts_of(AttemptStarted)] == [0.0, 510.0]


async def test_a_journal_that_is_shorter_than_what_was_published_is_found_when_the_object_is_read() -> None:
    run = scenario([])
    run.store.directives = replace(run.store.directives, snapshot={"attempt": 1, "journalLength": 5, "turn": 7})
    end = await run.finish()
    assert (end.exit.reason, run.snapshot.exit and run.snapshot.exit.reason) == ("JournalLost", "JournalLost")
    assert run.snapshot.turn == 7  # what the journal would have known is not made up


@pytest.mark.parametrize(
    "snapshot", [None, {}, {"journalLength": "many"}, {"journalLength": None}, {"journalLength": 0}]
)
async def test_a_snapshot_that_says_nothing_of_the_journal_loses_none(snapshot: Any) -> None:
    run = scenario([answer("resolved")])
    run.store.directives = replace(run.store.directives, snapshot=snapshot)
    assert (await run.finish()).exit.signal == "resolved"


async def test_guidance_lands_in_the_order_in_which_it_was_first_seen() -> None:
    async def pause(request: Any) -> Any:
        run.store.set_control(mode="Pause", steer={"b": {"message": "first"}})
        return calls(call("lookup"))

    async def resume() -> None:
        await run.clock.sleep(5)
        run.store.set_control(mode="Run", steer={"a": {"message": "second"}})

    run = scenario([pause, answer("resolved")])
    resuming = asyncio.ensure_future(resume())
    await run.finish()
    await resuming
    assert [fact.id for fact in await run.facts_of(SteerAnswered)] == ["b", "a"]


async def test_directives_that_changed_are_shown_to_observers_and_published() -> None:
    class Witness(Observer):
        def directives_seen(self, at: float, directives: Directives) -> None:
            seen.append((at - START.timestamp(), directives.generation))

    async def slow(request: Any) -> Any:
        run.store.set_limits(pauseSeconds=60)
        await run.clock.sleep(5)
        return calls(call("lookup", {"n": request.turn}))

    seen: list[tuple[float, int]] = []
    run = scenario([slow, slow, answer("resolved")], observers=(Witness(),))
    await run.finish()
    assert seen == [(0.0, 1), (5.0, 2), (10.0, 3)]
    assert run.snapshot.control.observed_generation == 3


async def test_a_run_that_is_deleted_or_is_another_one_is_let_go() -> None:
    run = scenario([])
    run.store.set_deleting()
    end = await run.lose()
    assert (end.reason, end.message) == ("Gone", "the run is being deleted")
    other = scenario([])
    other.store.directives = replace(other.store.directives, uid="uid-2")
    end = await other.lose()
    assert (end.reason, end.message) == ("Gone", "the run has the uid uid-2, the plan is for uid-1")


async def test_a_journal_of_another_plan_is_a_fault_that_names_both() -> None:
    run = scenario([answer("resolved")])
    await run.finish()
    (begun,) = await run.facts_of(RunStarted)
    run.plan = build_plan(agent_step("other"))
    with pytest.raises(ValueError, match=f"the journal is of the plan {begun.plan}, this is [0-9a-f]+"):
        await run.attempt()


@pytest.mark.parametrize(("effect", "is_shared"), [("ReadOnly", True), ("Idempotent", False), ("Once", False)])
async def test_only_the_result_of_a_call_that_reads_may_wait_for_the_next_append(effect: str, is_shared: bool) -> None:
    run = scenario(
        [calls(call("lookup")), answer("resolved")], agent_step(tools=[function_tool("lookup", effect=effect)])
    )
    append, appended = run.journal.append, []

    async def note(attempt: int, seq: int, entries: Any) -> None:
        appended.append([entry["fact"] for entry in entries])
        await append(attempt, seq, entries)

    run.journal.append = note  # type: ignore[method-assign]
    await run.finish()
    (batch,) = [facts for facts in appended if "CallFinished" in facts]
    assert ("ModelStarted" in batch) is is_shared


async def test_a_step_that_asks_nobody_is_journaled_with_what_follows_from_it() -> None:
    routes = {"resolved": "choose"}
    rule = {"cel": "ticket != ''", "signal": "go"}
    router = {"id": "choose", "kind": "Router", "router": {"conditions": [rule]}, "routes": {"go": "say"}}
    run = scenario([answer("resolved")], agent_step(routes=routes), router, response_step("say", text="ticket"))
    append, appended = run.journal.append, []

    async def note(attempt: int, seq: int, entries: Any) -> None:
        appended.append([entry["fact"] for entry in entries])
        await append(attempt, seq, entries)

    run.journal.append = note  # type: ignore[method-assign]
    await run.finish()
    step = ["StepEntered", "CallStarted", "CallFinished", "StepFinished"]
    assert appended[-2:] == [["ReplyReceived", "StepFinished"], [*step, *step, "RunEnded"]]


async def test_what_shows_progress_is_published_within_a_second_and_results_with_the_next_turn() -> None:
    async def slow(arguments: dict[str, Any]) -> dict[str, Any]:
        await run.clock.sleep(5)
        return {}

    async def think(request: Any) -> Any:
        await run.clock.sleep(3)
        return calls(call("lookup", {"n": request.turn})) if request.turn < 3 else answer("resolved")

    run = scenario([think] * 3, functions={"tools:lookup": slow})
    await run.finish()
    shown = [(at, s.turn, s.tokens.used) for at, s in zip(run.store.published_at, run.store.snapshots, strict=True)]
    assert shown == [(0.0, 1, 0), (3.0, 1, 60), (11.0, 2, 120), (19.0, 3, 180)]


RETRY = {"attempts": 2, "causes": ["Timeout", "Error"], "backoffSeconds": 0}


@pytest.mark.parametrize(
    ("kind", "sent", "is_charged"),
    [
        ("Timeout", False, True),
        ("Garbage", False, True),
        ("Connection", True, True),
        ("Connection", False, False),
        ("RateLimited", False, False),
    ],
)
async def test_a_failed_attempt_is_charged_where_it_may_have_been_billed(
    kind: Any, sent: bool, is_charged: bool
) -> None:
    failed = ModelFailure(kind, "m" * 600, 503, sent=sent, retry_after=0.5, mark=3)
    run = scenario([failed, answer("resolved")], agent_step(retry=RETRY), prices={"test-model": (1.0, 2.0)})
    await run.finish()
    started = (await run.facts_of(ModelStarted))[0]
    (fact,) = await run.facts_of(ModelFailed)
    assert started.hold_cost > 0
    hold = (started.hold_input, started.hold_output, started.hold_cost)
    assert (fact.input, fact.output, fact.cost) == (hold if is_charged else (0, 0, 0))
    assert (fact.kind, fact.message, fact.status, fact.retry_after, fact.mark) == (kind, "m" * 500, 503, 0.5, 3)


async def test_a_reply_keeps_its_mark_and_what_it_cost() -> None:
    said = replace(answer("resolved", usage=Usage(100, 10)), mark=7)
    run = scenario([said], prices={"test-model": (1.0, 2.0)})
    end = await run.finish()
    (fact,) = await run.facts_of(ReplyReceived)
    assert (fact.mark, fact.input, fact.output, fact.cost, fact.counted) == (7, 100, 10, 120_000, True)
    assert end.snapshot == run.snapshot


async def test_what_a_provider_did_not_count_costs_what_was_held() -> None:
    run = scenario([answer("resolved", usage=Usage())], prices={"test-model": (1.0, 2.0)})
    await run.finish()
    (started,), (fact,) = await run.facts_of(ModelStarted), await run.facts_of(ReplyReceived)
    assert (fact.input, fact.output, fact.cost) == (started.hold_input, started.hold_output, started.hold_cost)


async def test_a_snapshot_that_is_refused_is_a_fault_that_says_why() -> None:
    run = scenario([answer("resolved")])
    run.store.refusals = [StoreFailure("Refused", "422 too large")] * 9
    with pytest.raises(RuntimeError, match="the snapshot was refused: 422 too large"):
        await run.attempt()


async def test_a_changed_object_is_answered_soon_where_nothing_else_is_to_be_published() -> None:
    def cut(request: Any) -> Any:
        run.store.set_limits(maxIterations=8)
        run.store.directives = replace(run.store.directives, limits=None)
        return text('{"outcome": ', finish="Length")

    async def think(request: Any) -> Any:
        await run.clock.sleep(5)
        return text('"resolved"}')

    run = scenario([cut, think])
    await run.finish()
    first = next(at for at, s in zip(run.store.published_at, run.store.snapshots, strict=True) if newest(s) == 2)
    assert first <= 1


def newest(snapshot: Any) -> int:
    return int(snapshot.control.observed_generation)


async def test_a_once_call_asks_for_control_again_and_again_with_pauses_between() -> None:
    def lose(request: Any) -> Any:
        run.store.failures = [StoreFailure("Unavailable", "503")] * 3
        return calls(call("lookup"))

    run = scenario([lose, answer("resolved")], agent_step(tools=[function_tool("lookup", effect="Once")]))
    await run.finish()
    assert run.clock.monotonic() == 3 * RETRY_SECONDS
