"""Journal away, API server away, both; and what happens to a run that is let go meanwhile (engine.md §8)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pilothouse_api.structs import Snapshot
from pilothouse_engine.facts import CallFinished, CallStarted, ParkBegan, ParkEnded
from pilothouse_engine.ports import JournalUnavailable, StoreFailure
from pilothouse_engine.run import Released
from unit.engine.scenarios import Scenario, agent_step, answer, call, calls, failure, function_tool, scenario

pytestmark = pytest.mark.anyio

FULL = JournalUnavailable("cannot write journal.jsonl: No space left on device")
NO_ANSWER = StoreFailure("Unavailable", "no answer within 4 s")


def lose_journal(run: Scenario) -> None:
    run.journal.outage = FULL


def lose_control(run: Scenario) -> None:
    run.store.outage = NO_ANSWER


def lose_both(run: Scenario) -> None:
    lose_journal(run)
    lose_control(run)


def heal(run: Scenario) -> None:
    run.journal.outage = run.store.outage = None


def parks_shown(run: Scenario) -> list[tuple[Any, Any, Any]]:
    frames = [frame for frame in run.sink.frames if frame["kind"] == "Park"]
    return [(frame["reason"], frame["event"], frame.get("message")) for frame in frames]


async def after(run: Scenario, seconds: float, act: Callable[[Scenario], None]) -> None:
    await run.clock.sleep(seconds)
    act(run)


# ---------------------------------------------------------------- outages that end


@pytest.mark.parametrize("lose", [lose_journal, lose_control, lose_both])
async def test_an_outage_longer_than_the_deadline_is_outlived(lose: Callable[[Scenario], None]) -> None:
    def lose_in_the_call(request: Any) -> Any:
        lose(run)
        return calls(call("pay"), call("lookup"))

    step = agent_step(tools=[function_tool("pay", effect="Once"), function_tool("lookup")])
    run = scenario([lose_in_the_call, answer("resolved")], step, plan={"active_deadline_seconds": 100})
    run.ran._functions["tools:pay"] = lambda arguments: {"paid": True}
    healing = asyncio.ensure_future(after(run, 600, heal))

    assert (await run.finish()).exit.reason == "Complete"

    await healing
    assert run.functions_run() == ["pay", "lookup"]
    assert run.clock.monotonic() >= 600
    assert (await run.state()).active_seconds < 100
    assert run.snapshot.parked is None


async def test_a_journal_that_is_away_is_told_once_with_its_reason_and_told_again_when_it_is_back() -> None:
    def fill(request: Any) -> Any:
        lose_journal(run)
        return calls(call("lookup"))

    run = scenario([fill, answer("resolved")])
    healing = asyncio.ensure_future(after(run, 90, heal))

    await run.finish()

    await healing
    assert parks_shown(run) == [("JournalLost", "Began", FULL.args[0]), ("JournalLost", "Ended", None)]
    shown = [snapshot.parked for snapshot in run.store.snapshots if snapshot.parked is not None]
    assert {(park.reason, park.message, park.turn) for park in shown} == {("JournalLost", FULL.args[0], 1)}
    assert len({park.since for park in shown}) == 1


async def test_a_park_for_lost_control_says_what_the_api_server_said() -> None:
    def forbid(request: Any) -> Any:
        run.store.failures = [StoreFailure("Forbidden", "prun may not get agentruns")] * 3
        return calls(call("lookup"))

    run = scenario([forbid, answer("resolved")])

    await run.finish()

    parks = [snapshot.parked for snapshot in run.store.snapshots if snapshot.parked is not None]
    assert {(park.reason, park.message) for park in parks} == {("ControlLost", "Forbidden: prun may not get agentruns")}
    assert [fact.reason for fact in await run.facts_of(ParkEnded)] == ["ControlLost"]


async def test_what_was_said_of_an_outage_is_bounded() -> None:
    run = scenario([answer("resolved")])
    run.store.failures = [StoreFailure("Forbidden", "x" * 5000)] * 2

    await run.finish()

    (park,) = await run.facts_of(ParkBegan)
    assert len(park.message) == 300


async def test_an_end_that_cannot_be_published_is_told_and_published_when_the_store_is_back() -> None:
    def lose(request: Any) -> Any:
        lose_control(run)
        return answer("resolved")

    run = scenario([lose])
    healing = asyncio.ensure_future(after(run, 45, heal))

    assert (await run.finish()).exit.signal == "resolved"

    await healing
    assert parks_shown(run) == [("StoreLost", "Began", NO_ANSWER.message)]
    assert run.clock.monotonic() >= 45
    assert run.snapshot.exit is not None


# ---------------------------------------------------------------- let go, whatever the state


@dataclass(frozen=True)
class State:
    """A state in which the host asks a run to let go: how it comes about, and what must come of it."""

    turns: Callable[[Scenario], list[Any]]
    prepare: Callable[[Scenario], None] = lambda run: None
    seconds: float = 5
    want_reason: str = "Stopped"
    want_pay: int = 1
    want_unknown: int = 0
    resume: Callable[[Scenario], None] = lambda run: None


PAY = calls(call("pay"))
LOOK = calls(call("lookup"))


async def hang(argument: Any) -> Any:
    await asyncio.Event().wait()


def hanging(name: str) -> Callable[[Scenario], None]:
    """The function hangs the first time."""

    def prepare(run: Scenario) -> None:
        usual = run.ran._functions[f"tools:{name}"]

        async def first(arguments: Any) -> Any:
            run.ran._functions[f"tools:{name}"] = usual
            return await hang(arguments)

        run.ran._functions[f"tools:{name}"] = first

    return prepare


def losing(lose: Callable[[Scenario], None], reply: Any) -> Callable[[Scenario], list[Any]]:
    def turns(run: Scenario) -> list[Any]:
        def turn(request: Any) -> Any:
            lose(run)
            return reply

        # A reply that could not be journaled is asked for again.
        return [turn, *([] if lose is lose_control else [PAY]), answer("resolved")]

    return turns


def plain(run: Scenario) -> list[Any]:
    return [PAY, answer("resolved")]


def pause(run: Scenario) -> None:
    run.store.set_control(mode="Pause")


def unpause(run: Scenario) -> None:
    run.store.set_control(mode="Run")


def forbid(run: Scenario) -> None:
    run.store.outage = StoreFailure("Forbidden", "403")


def approve(run: Scenario) -> None:
    call_id = run.snapshot.pending_approvals[0].call_id
    run.store.set_control(approvals={call_id: {"decision": "Approve"}})


LET_GO: dict[str, State] = {
    "before the journal can be read": State(plain, lose_journal, want_reason="JournalLost"),
    "before the run was ever read": State(plain, lose_control),
    "before anything can be reached": State(plain, lose_both, want_reason="JournalLost"),
    "in a model call": State(lambda run: [hang, PAY, answer("resolved")]),
    "in a call that only reads": State(lambda run: [LOOK, PAY, answer("resolved")], hanging("lookup")),
    "in a call that runs once": State(plain, hanging("pay"), want_unknown=1),
    "between tries of a model": State(lambda run: [failure("ServerError"), PAY, answer("resolved")], seconds=0.2),
    "while it is paused": State(plain, pause, want_reason="Paused", resume=unpause),
    "while it awaits an approval": State(
        lambda run: [calls(call("ask")), PAY, answer("resolved")], want_reason="AwaitingApproval", resume=approve
    ),
    "while control is lost": State(losing(forbid, LOOK), want_reason="ControlLost"),
    "while a call that runs once waits for control": State(losing(lose_control, PAY)),
    "while the journal is away": State(losing(lose_journal, PAY), want_reason="JournalLost"),
    "while both are away": State(losing(lose_both, PAY), want_reason="JournalLost"),
}


@pytest.mark.parametrize("name", LET_GO)
async def test_a_run_lets_go_in_every_state_and_the_next_attempt_goes_on(name: str) -> None:
    state = LET_GO[name]
    tools = [
        function_tool("pay", effect="Once"),
        function_tool("lookup"),
        function_tool("ask", effect="Once", approval="Always"),
    ]
    retry = {"attempts": 3, "causes": ["Error"], "backoffSeconds": 1}
    run = scenario([], agent_step(tools=tools, retry=retry))
    run.model.turns = state.turns(run)  # type: ignore[attr-defined]
    run.ran._functions.update({f"tools:{tool}": lambda arguments: {"ok": True} for tool in ("pay", "ask")})
    state.prepare(run)
    stopping = asyncio.ensure_future(after(run, state.seconds, lambda run: run.stop.release()))

    end = await run.attempt()

    await stopping
    assert isinstance(end, Released)
    assert (end.parked.reason, end.parked.released) == (state.want_reason, True)
    assert run.clock.monotonic() < state.seconds + 20, "a pod has 30 s, and a store that hangs takes more of them"
    heal(run)
    state.resume(run)
    assert (await run.finish()).exit.signal == "resolved"
    assert run.functions_run().count("pay") == state.want_pay
    assert len(run.snapshot.effects.unknown) == state.want_unknown
    started = [fact.id for fact in await run.facts_of(CallStarted)]
    finished = [fact.id for fact in await run.facts_of(CallFinished)]
    assert sorted(set(started)) == sorted(finished), "each call has one result"


async def test_a_run_that_is_let_go_while_nothing_answers_ends_within_the_grace_of_its_pod() -> None:
    """An API server that hangs takes 5 s of each read and 10 s of each write (the store's own deadlines)."""

    async def slow_read() -> Any:
        await run.clock.sleep(5)
        return NO_ANSWER

    async def slow_publish(snapshot: Snapshot) -> StoreFailure:
        await run.clock.sleep(10)
        return NO_ANSWER

    def lose(request: Any) -> Any:
        run.store.read, run.store.publish = slow_read, slow_publish  # type: ignore[method-assign, assignment]
        return PAY

    step = agent_step(tools=[function_tool("pay", effect="Once")])
    run = scenario([lose], step)
    stopping = asyncio.ensure_future(after(run, 7, lambda run: run.stop.release()))

    end = await run.release()

    await stopping
    assert end.parked.reason == "Stopped"
    assert run.clock.monotonic() - 7 <= 29
