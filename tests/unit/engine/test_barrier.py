"""The barrier of Sync supervision: who waits for whom, for how long, and what ends it (supervision.md)."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pilothouse_api.structs import Barrier, Control, Snapshot, SteerMessage, SupervisionClock
from pilothouse_engine.actions import Action, Commit, Inputs, WaitParked
from pilothouse_engine.barrier import LONGEST_WAIT_SECONDS, plan_at_barrier, plan_barrier
from pilothouse_engine.control import RETRY_SECONDS
from pilothouse_engine.facts import (
    AttemptStarted,
    BarrierTimedOut,
    CallStarted,
    ModeAnswered,
    ModelStarted,
    ParkBegan,
    ParkEnded,
    RunStarted,
    SteerAnswered,
)
from pilothouse_engine.ports import Directives, StoreFailure
from pilothouse_engine.settings import Settings
from pilothouse_engine.state import BARRIER, RunState
from unit.engine.scenarios import (
    ListModel,
    Scenario,
    agent_step,
    answer,
    call,
    calls,
    function_step,
    function_tool,
    scenario,
)

pytestmark = pytest.mark.anyio

NOW = 1000.0
BARRIER_OF_A_MINUTE = Barrier(timeout_seconds=60, on_timeout="Pause")
LOOK_AGAIN = calls(call("lookup"))
AWAY = StoreFailure("Unavailable", "no answer")


def hold(run: Scenario, on_timeout: str = "Pause", seconds: int = 60) -> Scenario:
    """Let a Sync supervisor watch the run; nobody judges it yet."""
    run.store.set_supervision(barrier={"timeoutSeconds": seconds, "onTimeout": on_timeout})
    return run


def judge(run: Scenario, act: Callable[[Snapshot], None] = lambda snapshot: None) -> Scenario:
    """Judge each snapshot of the barrier at once: directives first, then the clock."""

    def look(snapshot: Snapshot) -> None:
        if snapshot.parked is not None and snapshot.parked.reason == BARRIER and not snapshot.parked.released:
            act(snapshot)
            run.store.raise_clock()

    run.store.on_publish = look
    return run


def later(run: Scenario, seconds: float, act: Callable[[], None]) -> None:
    """Do something so long after the first snapshot of the barrier."""
    begun: list[asyncio.Task[None]] = []

    async def wait() -> None:
        await run.clock.sleep(seconds)
        act()

    def look(snapshot: Snapshot) -> None:
        if snapshot.parked is not None and snapshot.parked.reason == BARRIER and not begun:
            begun.append(asyncio.ensure_future(wait()))

    run.store.on_publish = look


def asked(run: Scenario) -> int:
    assert isinstance(run.model, ListModel)
    return len(run.model.requests)


async def parks_of(run: Scenario) -> list[ParkBegan]:
    return [park for park in await run.facts_of(ParkBegan) if park.reason == BARRIER]


# ---------------------------------------------------------------- where it stands


async def test_a_run_waits_behind_each_turn_of_an_agent_and_neither_before_its_first_call_nor_behind_its_answer() -> (
    None
):
    run = judge(hold(scenario([LOOK_AGAIN, calls(call("lookup", {"n": 1})), answer("resolved")])))
    assert (await run.finish()).exit.signal == "resolved"
    parks = await parks_of(run)
    assert [(park.turn, park.on_timeout) for park in parks] == [(1, "Pause"), (2, "Pause")]
    assert all(park.wake == park.at + 60 for park in parks)
    kinds = [type(fact).__name__ for fact in await run.facts()]
    assert kinds.index("ModelStarted") < kinds.index("ParkBegan")
    assert kinds[-2:] == ["StepFinished", "RunEnded"]


async def test_what_supervision_sees_at_the_barrier_is_the_turn_that_ended_and_is_published_at_once() -> None:
    seen: list[tuple[Snapshot, float]] = []
    run = hold(scenario([LOOK_AGAIN, answer("resolved")]))
    judge(run, lambda snapshot: seen.append((snapshot, run.clock.monotonic())))
    await run.finish()
    [(snapshot, at)] = seen
    assert (snapshot.visit, snapshot.turn, snapshot.iteration) == (1, 1, 1)
    assert snapshot.visit_counts is not None and snapshot.visit_counts.tool_calls == {"lookup": 1}
    [park] = await parks_of(run)
    assert (await run.facts()).index(park) + 1 == snapshot.journal_length
    assert at == 0.0


async def test_a_clock_that_is_one_fact_behind_passes_nobody() -> None:
    def look(snapshot: Snapshot) -> None:
        if snapshot.parked is not None:
            behind = SupervisionClock(visit=1, turn=1, journal_length=snapshot.journal_length - 1)
            run.store.set_supervision(clock=behind.to_raw())

    run = hold(scenario([LOOK_AGAIN, answer("resolved")]), "Continue")
    run.store.on_publish = look
    await run.finish()
    assert run.clock.monotonic() == 60.0
    assert len(await run.facts_of(BarrierTimedOut)) == 1


async def test_steps_of_the_graph_do_not_wait_and_the_next_agent_waits_for_what_the_last_one_spent() -> None:
    run = scenario(
        [answer("resolved"), answer("resolved")],
        agent_step("first", {"resolved": "pay"}),
        function_step("pay", {"default": "second"}, effect="Once"),
        agent_step("second"),
        functions={"steps:pay": lambda arguments: {"paid": True}},
    )
    judge(hold(run))
    await run.finish()
    [park] = await parks_of(run)
    facts = await run.facts()
    assert [type(fact).__name__ for fact in facts[: facts.index(park)]][-2:] == ["StepEntered", "PromptOpened"]
    assert next(fact for fact in facts[facts.index(park) :] if isinstance(fact, ModelStarted)).turn == 3


async def test_what_supervision_asks_for_at_the_barrier_lands_before_the_next_model_call() -> None:
    run = hold(scenario([LOOK_AGAIN, answer("resolved")]))
    judge(run, lambda snapshot: run.store.set_control(steer={"sup-000001-guard-loop": {"message": "be quick"}}))
    await run.finish()
    kinds = [type(fact) for fact in await run.facts()]
    assert kinds.index(ParkEnded) < kinds.index(SteerAnswered) < len(kinds) - kinds[::-1].index(ModelStarted)
    assert isinstance(run.model, ListModel)
    assert "be quick" in run.model.requests[1].messages[-1].text


@pytest.mark.parametrize(("mode", "signal"), [("Abort", "aborted"), ("Finish", "resolved")])
async def test_an_abort_or_a_finish_of_supervision_comes_before_the_next_turn(mode: str, signal: str) -> None:
    replies = [LOOK_AGAIN, answer("resolved")][: 1 + (mode == "Finish")]
    run = hold(scenario(replies))
    judge(run, lambda snapshot: run.store.set_control(mode=mode, reason="looping"))
    end = await run.finish()
    assert (end.exit.signal, asked(run)) == (signal, len(replies))
    assert [park.reason for park in await run.facts_of(ParkBegan)] == [BARRIER]


async def test_a_pause_of_supervision_parks_behind_the_barrier() -> None:
    run = hold(scenario([LOOK_AGAIN]))
    judge(run, lambda snapshot: run.store.set_control(mode="Pause"))
    released = await run.release()
    assert (released.parked.reason, released.parked.turn, asked(run)) == ("Paused", 2, 1)


async def test_a_run_that_was_asked_to_finish_before_the_barrier_does_not_wait() -> None:
    def finish(request: Any) -> Any:
        run.store.set_control(mode="Finish")
        return LOOK_AGAIN

    run = hold(scenario([finish, answer("resolved")]))
    await run.finish()
    assert await parks_of(run) == []


# ---------------------------------------------------------------- past its time


async def test_past_its_time_the_run_goes_on_where_supervision_says_continue() -> None:
    run = hold(scenario([LOOK_AGAIN, answer("resolved")]), "Continue", 45)
    await run.finish()
    assert run.clock.monotonic() == 45.0
    park = [frame for frame in run.snapshot.trace if frame["kind"] == "Park"]
    assert [(frame["event"], frame.get("verdict"), frame.get("seconds")) for frame in park] == [
        ("TimedOut", "Continue", None),
        ("Ended", None, 45.0),
    ]
    assert park[0]["message"] == "supervision has not judged turn 1 within 45 s"


async def test_past_its_time_the_run_is_aborted_where_supervision_says_abort() -> None:
    run = hold(scenario([LOOK_AGAIN]), "Abort")
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason, asked(run)) == ("aborted", "BarrierTimeout", 1)
    assert end.exit.message == (
        "aborted at turn 1: supervision has not judged turn 1 within 60 s, and onBarrierTimeout is Abort"
    )


@pytest.mark.parametrize("on_timeout", ["Pause", "SomethingNewer"])
async def test_past_its_time_the_run_stays_held_where_supervision_says_pause_and_a_late_verdict_ends_it(
    on_timeout: str,
) -> None:
    run = hold(scenario([LOOK_AGAIN, answer("resolved")]), on_timeout)
    later(run, 4000, run.store.raise_clock)
    end = await run.finish()
    assert (end.exit.signal, run.clock.monotonic()) == ("resolved", 4000.0)
    held = [s.parked for s in run.store.snapshots if s.parked is not None]
    assert [(park.is_barrier_pause, park.released, park.message) for park in held] == [
        (False, False, None),
        (True, False, "supervision has not judged turn 1 within 60 s"),
    ]


def _word(run: Scenario, **control: Any) -> Callable[[], None]:
    return lambda: run.store.set_control(**control)


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        ([{"mode": "Run"}], True),
        ([{"mode": "Run", "reason": "seen"}], True),
        ([{"mode": "Pause"}], False),
        ([{"steer": {"sup-000001-guard-loop": {"message": "be quick"}}}], False),
        ([{"mode": "Run", "steer": {"a": {"message": "be quick"}}}], True),
    ],
)
async def test_past_its_time_a_person_lets_the_run_go_on_with_more_than_a_steer_message(
    words: list[dict[str, Any]], passes: bool
) -> None:
    run = hold(scenario([LOOK_AGAIN, answer("resolved")]))

    def speak() -> None:
        for word in words:
            run.store.set_control(**word)
        asyncio.ensure_future(stop())  # noqa: RUF006  awaited by the clock

    async def stop() -> None:
        await run.clock.sleep(5)
        run.stop.release()

    later(run, 100, speak)
    end = await run.attempt()
    assert (type(end).__name__, asked(run)) == (("Finished", 2) if passes else ("Released", 1))


@pytest.mark.parametrize(("mode", "signal"), [("Abort", "aborted"), ("Finish", "resolved")])
@pytest.mark.parametrize("seconds", [10, 100])
async def test_an_abort_or_a_finish_of_a_person_does_not_wait_for_the_barrier(
    mode: str, signal: str, seconds: float
) -> None:
    run = hold(scenario([LOOK_AGAIN, answer("resolved")][: 1 + (mode == "Finish")]))
    later(run, seconds, _word(run, mode=mode))
    end = await run.finish()
    assert (end.exit.signal, run.clock.monotonic()) == (signal, seconds)


async def test_a_person_who_says_run_while_the_verdict_may_still_come_in_time_changes_nothing() -> None:
    run = hold(scenario([LOOK_AGAIN, answer("resolved")]), "Continue")
    later(run, 10, _word(run, mode="Run", reason="go on"))
    await run.finish()
    assert run.clock.monotonic() == 60.0


async def test_the_barrier_ends_where_supervision_lets_the_run_alone() -> None:
    run = hold(scenario([LOOK_AGAIN, answer("resolved")]))
    later(run, 10, lambda: run.store.set_supervision(barrier=None))
    await run.finish()
    assert run.clock.monotonic() == 10.0


async def test_time_at_the_barrier_is_counted_in_no_deadline() -> None:
    run = scenario([LOOK_AGAIN, answer("resolved")], plan={"active_deadline_seconds": 30})
    later(hold(run), 1000, run.store.raise_clock)
    assert (await run.finish()).exit.signal == "resolved"
    assert (await run.state()).active_seconds < 30


# ---------------------------------------------------------------- without the operator, and across attempts


@pytest.mark.parametrize(("on_timeout", "signal"), [("Continue", "resolved"), ("Abort", "aborted")])
async def test_an_object_that_cannot_be_read_at_the_barrier_is_no_verdict(on_timeout: str, signal: str) -> None:
    def break_off(snapshot: Snapshot) -> None:
        if snapshot.parked is not None:
            run.store.outage = AWAY
            run.store.raise_clock()  # nobody can read it

    async def come_back() -> None:
        await run.clock.sleep(70)
        run.store.outage = None

    run = hold(scenario([LOOK_AGAIN, answer("resolved")][: 1 + (on_timeout == "Continue")]), on_timeout)
    run.store.on_publish = break_off
    back = asyncio.ensure_future(come_back())
    end = await run.finish()
    await back
    assert end.exit.signal == signal
    [timed_out] = await run.facts_of(BarrierTimedOut)
    assert timed_out.verdict == on_timeout


async def test_a_turn_whose_end_could_not_be_read_waits_at_the_barrier_all_the_same() -> None:
    def reply(request: Any) -> Any:
        run.store.failures = [AWAY]
        return LOOK_AGAIN

    run = judge(hold(scenario([reply, answer("resolved")])))
    await run.finish()
    assert len(await parks_of(run)) == 1


async def test_a_run_that_is_asked_to_let_go_at_the_barrier_does_so_and_waits_there_again() -> None:
    run = hold(scenario([LOOK_AGAIN, answer("resolved")]))
    later(run, 5, lambda: run.stop.release())
    released = await run.release()
    assert (released.parked.reason, released.parked.is_barrier_pause) == (BARRIER, False)
    judge(run)
    assert (await run.finish()).exit.signal == "resolved"
    assert len(await parks_of(run)) == 1


@pytest.mark.parametrize("was_judged", [False, True])
async def test_a_run_that_was_killed_at_the_barrier_waits_for_what_it_published_or_goes_on(was_judged: bool) -> None:
    def die(timeout: float) -> Any:
        run.store.wait = wait  # type: ignore[method-assign]
        raise RuntimeError("killed")

    run = hold(scenario([LOOK_AGAIN, answer("resolved")]))
    wait, run.store.wait = run.store.wait, die  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="killed"):
        await run.attempt()
    run.clock.advance(5)
    if was_judged:
        run.store.raise_clock()
    later(run, 20, run.store.raise_clock)
    await run.finish()
    assert run.clock.monotonic() == (5.0 if was_judged else 25.0)
    assert len(await parks_of(run)) == 1


async def test_a_settling_attempt_closes_a_run_at_the_barrier() -> None:
    run = hold(scenario([LOOK_AGAIN]))
    later(run, 5, lambda: run.stop.release())
    await run.release()
    end = await run.finish(settle="Aborted")
    assert (end.exit.signal, run.clock.monotonic()) == ("aborted", 5.0)


# ---------------------------------------------------------------- behind a call with effect Once


def two_payments(**fields: Any) -> Scenario:
    tools = [function_tool("pay", effect="Once"), function_tool("lookup")]
    ran = {"tools:pay": lambda arguments: {"paid": True}}
    reply = calls(call("pay", {"n": 1}), call("pay", {"n": 2}), call("lookup"))
    return scenario([reply, answer("resolved")], agent_step(tools=tools), functions=ran, **fields)


async def test_what_a_once_call_did_is_published_before_the_next_call_of_its_reply() -> None:
    run = two_payments()
    run.store.set_supervision()
    await run.finish()
    seen = [snapshot for snapshot in run.store.snapshots if snapshot.effects.settled]
    assert [(s.effects.settled, s.visit_counts and s.visit_counts.tool_calls) for s in seen[:2]] == [
        (1, {"pay": 1}),
        (2, {"pay": 2}),
    ]
    assert await parks_of(run) == []


async def test_an_abort_of_supervision_stops_the_rest_of_a_reply() -> None:
    def look(snapshot: Snapshot) -> None:
        if snapshot.effects.settled:
            run.store.set_control(mode="Abort", reason="it pays twice")

    run = two_payments()
    run.store.set_supervision()
    run.store.on_publish = look
    end = await run.finish()
    assert (end.exit.signal, run.functions_run()) == ("aborted", ["pay"])


async def test_under_sync_the_barrier_stands_behind_each_once_call_while_more_follow() -> None:
    run = judge(hold(two_payments()))
    await run.finish()
    kinds = [
        fact.reason if isinstance(fact, ParkBegan) else fact.tool if isinstance(fact, CallStarted) else ""
        for fact in await run.facts()
    ]
    assert [kind for kind in kinds if kind] == ["pay", BARRIER, "pay", BARRIER, "lookup", BARRIER]
    assert [park.turn for park in await parks_of(run)] == [1, 1, 1]


async def test_under_sync_no_second_once_call_begins_before_the_verdict() -> None:
    run = hold(two_payments(), "Abort")
    end = await run.finish()
    assert (end.exit.reason, run.functions_run()) == ("BarrierTimeout", ["pay"])


# ---------------------------------------------------------------- without supervision


async def test_a_run_that_nothing_watches_publishes_reads_and_journals_as_ever() -> None:
    alone, watched = two_payments(), two_payments()
    watched.store.set_supervision()
    await alone.finish()
    await watched.finish()
    assert await alone.facts() == await watched.facts()
    assert alone.store.reads == watched.store.reads
    assert len(watched.store.snapshots) - len(alone.store.snapshots) == 2


# ---------------------------------------------------------------- the decisions


def at_barrier(*, timed_out: bool = False, generation: int = 3) -> RunState:
    state = RunState()
    for fact in (RunStarted(NOW, "d"), AttemptStarted(NOW, 1), ParkBegan(NOW, BARRIER, 0, NOW + 60, "Pause")):
        state.apply(fact)
    if timed_out:
        stood = plan_at_barrier(state, inputs(now=NOW + 60, generation=generation), _park(state))
        assert isinstance(stood, Commit)
        [fact] = stood.facts
        state.apply(fact)
    return state


def _park(state: RunState) -> ParkBegan:
    assert state.park is not None
    return state.park


def inputs(
    *,
    now: float = NOW + 10,
    clock: int | None = None,
    generation: int = 3,
    control: Control | None = None,
    failure: StoreFailure | None = None,
    barrier: Barrier | None = BARRIER_OF_A_MINUTE,
    is_read: bool = True,
) -> Inputs:
    directives = Directives(
        "u",
        generation,
        control=control,
        is_supervised=True,
        barrier=barrier,
        clock=None if clock is None else SupervisionClock(journal_length=clock),
    )
    return Inputs(1, None, Settings(), "d", now, NOW, directives=directives if is_read else None, failure=failure)


def _said(action: Action | None) -> Any:
    """What a decision comes to: the names of its facts, or how long it waits."""
    if isinstance(action, Commit):
        return tuple(
            fact.verdict if isinstance(fact, BarrierTimedOut) else type(fact).__name__ for fact in action.facts
        )
    return action.seconds if isinstance(action, WaitParked) else action


STEER = {"sup": SteerMessage(message="be quick")}
PASSED, ASKED = ("ParkEnded",), ("ModeAnswered", "ParkEnded")


@pytest.mark.parametrize(
    ("known", "want"),
    [
        ({}, 50.0),
        ({"clock": 2}, 50.0),
        ({"clock": 3}, PASSED),
        ({"clock": 9}, PASSED),
        ({"clock": 3, "failure": AWAY}, RETRY_SECONDS),
        ({"failure": AWAY, "now": NOW + 59}, 1.0),
        ({"failure": AWAY, "now": NOW + 60}, ("Pause",)),
        ({"now": NOW + 60}, ("Pause",)),
        ({"now": NOW + 60, "clock": 3}, PASSED),
        ({"now": NOW + 60, "is_read": False}, RETRY_SECONDS),
        ({"barrier": None}, PASSED),
        ({"control": Control(mode="Abort")}, ASKED),
        ({"control": Control(mode="Finish")}, ASKED),
        ({"control": Control(mode="Abort"), "clock": 3}, ASKED),
        ({"control": Control(mode="Pause")}, 50.0),
        ({"control": Control(mode="Run"), "generation": 9}, 50.0),
    ],
)
def test_what_happens_next_at_the_barrier(known: dict[str, Any], want: Any) -> None:
    state = at_barrier()
    assert _said(plan_at_barrier(state, inputs(**known), _park(state))) == want


@pytest.mark.parametrize(
    ("known", "want"),
    [
        ({}, LONGEST_WAIT_SECONDS),
        ({"clock": 2}, LONGEST_WAIT_SECONDS),
        ({"clock": 3}, PASSED),
        ({"failure": AWAY}, RETRY_SECONDS),
        ({"barrier": None}, PASSED),
        ({"control": Control(mode="Run")}, LONGEST_WAIT_SECONDS),
        ({"control": Control(mode="Run"), "generation": 4}, PASSED),
        ({"generation": 5}, PASSED),
        ({"control": Control(steer=STEER), "generation": 4}, LONGEST_WAIT_SECONDS),
        ({"control": Control(steer=STEER, mode="Run"), "generation": 5}, PASSED),
        ({"control": Control(mode="Pause"), "generation": 4}, LONGEST_WAIT_SECONDS),
        ({"control": Control(mode="Pause"), "generation": 4, "clock": 3}, PASSED),
        ({"control": Control(mode="Abort"), "generation": 4}, ASKED),
    ],
)
def test_what_happens_next_at_a_barrier_whose_time_is_up(known: dict[str, Any], want: Any) -> None:
    state = at_barrier(timed_out=True)
    assert _said(plan_at_barrier(state, inputs(now=NOW + 70, **known), _park(state))) == want


@pytest.mark.parametrize(
    ("known", "newest", "mode", "want"),
    [
        ({}, 5, "Run", ("ParkBegan",)),
        ({}, 4, "Run", None),
        ({}, 0, "Run", None),
        ({"barrier": None}, 5, "Run", None),
        ({"is_read": False}, 5, "Run", None),
        ({"failure": AWAY}, 5, "Run", ("ParkBegan",)),
        ({"control": Control(mode="Abort")}, 5, "Run", None),
        ({"control": Control(mode="Finish")}, 5, "Run", None),
        ({"control": Control(mode="Finish")}, 5, "Finish", None),
        ({"control": Control(mode="Pause")}, 5, "Run", ("ParkBegan",)),
    ],
)
def test_whether_there_is_a_barrier(known: dict[str, Any], newest: int, mode: str, want: Any) -> None:
    state = RunState(seen_length=4, mode=mode)
    assert _said(plan_barrier(state, inputs(**known), newest)) == want


def test_a_barrier_that_was_passed_has_shown_everything_before_it() -> None:
    state = at_barrier()
    state.apply(ParkEnded(NOW + 1, BARRIER))
    assert (state.seen_length, state.park, state.barrier_timeout) == (3, None, None)
    state.apply(ParkBegan(NOW + 2, "Paused", 1, NOW + 300, "Release"))
    state.apply(ModeAnswered(NOW + 3, 1, "Run"))
    state.apply(ParkEnded(NOW + 3, "Paused"))
    assert state.seen_length == 3
