"""SIGTERM is a release and never an abort; active time is bounded (engine.md §8)."""

import asyncio
from typing import Any

import pytest

from pilothouse_engine.facts import CallFinished, CallStarted, ModelStarted, ParkBegan
from pilothouse_engine.ports import StoreFailure
from pilothouse_engine.run import Released
from unit.engine.scenarios import (
    Scenario,
    agent_step,
    answer,
    call,
    calls,
    failure,
    function_step,
    function_tool,
    scenario,
)

pytestmark = pytest.mark.anyio


async def hang(*args: Any) -> Any:
    await asyncio.Event().wait()


def stop_then(run_of: Any, work: Any = hang) -> Any:
    """Work during which the host asks to let go."""

    async def act(argument: Any) -> Any:
        run_of().stop.release()
        return await work(argument)

    return act


async def released(run: Scenario) -> Released:
    end = await run.release()
    assert run.snapshot.parked is not None and run.snapshot.parked.released
    assert run.snapshot.exit is None
    assert run.clock.monotonic() < 1
    return end


async def test_a_release_during_a_model_call_cancels_it_and_the_next_attempt_makes_it_again() -> None:
    run = scenario([stop_then(lambda: run), answer("resolved")])
    end = await released(run)
    assert (end.parked.reason, end.parked.turn) == ("Stopped", 1)
    assert (await run.finish()).exit.signal == "resolved"
    lost, made = await run.facts_of(ModelStarted)
    assert run.snapshot.tokens.used == lost.hold_input + lost.hold_output + 60
    assert (made.turn, made.iteration) == (1, 1)


@pytest.mark.parametrize(("effect", "unknown"), [("ReadOnly", 0), ("Once", 1)])
async def test_a_release_during_a_call_leaves_it_repeatable_or_unknown(effect: str, unknown: int) -> None:
    step = agent_step(tools=[function_tool("note", effect=effect)])
    run = scenario([calls(call("note")), answer("resolved")], step)
    run.ran._functions["tools:note"] = stop_then(lambda: run)
    await released(run)
    run.ran._functions["tools:note"] = lambda arguments: {"ok": True}
    assert (await run.finish()).exit.signal == "resolved"
    assert len(run.snapshot.effects.unknown) == unknown
    assert len(await run.facts_of(CallFinished)) == 1


async def test_a_release_during_a_parallel_run_keeps_what_has_finished() -> None:
    async def work(arguments: dict[str, Any]) -> Any:
        if arguments["n"] == 0:
            return {"n": 0}
        for _ in range(3):
            await asyncio.sleep(0)
        run.stop.release()
        return await hang()

    step = agent_step(limits={"maxParallelToolCalls": 2})
    run = scenario([calls(call("lookup", {"n": 0}), call("lookup", {"n": 1})), answer("resolved")], step)
    run.ran._functions["tools:lookup"] = work
    await released(run)
    assert [fact.id[:4] for fact in await run.facts_of(CallFinished)] == ["t1-0"]


async def test_a_release_during_a_step_of_the_graph() -> None:
    run = scenario([], function_step("pay", effect="Idempotent"))
    run.ran._functions["steps:pay"] = stop_then(lambda: run)
    await released(run)
    run.ran._functions["steps:pay"] = lambda arguments: {"paid": True}
    assert (await run.finish()).exit.reason == "Complete"
    assert len({fact.key for fact in await run.facts_of(CallStarted)}) == 1


async def test_a_release_during_a_wait_between_retries() -> None:
    retry = {"attempts": 3, "causes": ["Timeout", "Error"], "backoffSeconds": 200, "maxBackoffSeconds": 300}
    run = scenario([failure("ServerError"), answer("resolved")], agent_step(retry=retry | {"deadlineSeconds": 900}))

    async def let_go() -> None:
        await run.clock.sleep(0.5)
        run.stop.release()

    letting_go = asyncio.ensure_future(let_go())
    await released(run)
    await letting_go
    assert run.clock.monotonic() == 0.5
    assert (await run.finish()).exit.signal == "resolved"


async def test_a_release_during_a_pause() -> None:
    run = scenario([answer("resolved")])
    run.store.set_control(mode="Pause")
    run.store.on_publish = lambda snapshot: run.stop.release() if snapshot.parked else None
    assert (await released(run)).parked.reason == "Paused"
    run.store.set_control(mode="Run")
    assert (await run.finish()).exit.signal == "resolved"


async def test_a_release_before_anything_began() -> None:
    run = scenario([answer("resolved")])

    def stop(read: int) -> None:
        run.stop.release()

    run.store.on_read = stop
    assert (await released(run)).parked.reason == "Stopped"
    run.store.on_read = lambda read: None
    assert (await run.finish()).exit.signal == "resolved"


@pytest.mark.parametrize("failures", [0, 2])
async def test_a_release_before_the_object_was_read_is_published(failures: int) -> None:
    """Else the pod has ended with neither exit nor park, and counts as a crash."""
    run = scenario([answer("resolved")])
    read = run.journal.read

    async def stop_and_read() -> Any:
        run.stop.release()
        return await read()

    run.journal.read = stop_and_read  # type: ignore[method-assign]
    run.store.failures = [StoreFailure("Unavailable", "503")] * failures
    await run.release()
    assert run.snapshot.parked is not None
    assert (run.snapshot.attempt, run.snapshot.parked.reason, run.snapshot.parked.released) == (1, "Stopped", True)
    run.journal.read = read  # type: ignore[method-assign]
    assert run.snapshot.journal_length == len(await run.facts())
    assert (await run.finish()).exit.signal == "resolved"


async def test_a_release_while_the_store_is_away_ends_all_the_same() -> None:
    async def cut(request: Any) -> Any:
        run.store.outage = StoreFailure("Unavailable", "503")
        run.stop.release()
        await hang()

    run = scenario([cut])
    end = await run.release()
    assert end.parked.reason == "Stopped"
    assert [park.reason for park in await run.facts_of(ParkBegan)] == ["Stopped"]


async def test_the_host_may_cancel_the_attempt_itself() -> None:
    run = scenario([hang])
    from pilothouse_engine.run import Attempt, Stop, run_attempt

    task = asyncio.ensure_future(run_attempt(run.plan, run.ports(), Attempt(1), Stop()))
    await run.clock.settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# ---------------------------------------------------------------- deadlines


async def test_a_run_that_is_active_for_too_long_fails_with_the_call_in_flight_listed() -> None:
    step = agent_step(tools=[function_tool("note", effect="Once")])
    plan = {"active_deadline_seconds": 60}
    run = scenario([calls(call("note"))], step, plan=plan, functions={"tools:note": hang})
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason) == ("error", "DeadlineExceeded")
    assert run.clock.monotonic() == 60
    assert [effect.tool for effect in run.snapshot.effects.unknown] == ["note"]
    assert "activeDeadlineSeconds" in end.exit.message


async def test_the_deadline_ends_a_model_call_that_hangs() -> None:
    run = scenario([hang], plan={"active_deadline_seconds": 30})
    assert (await run.finish()).exit.reason == "DeadlineExceeded"
    assert run.clock.monotonic() == 30


async def test_active_time_is_counted_over_attempts_and_not_between_them() -> None:
    async def slow(request: Any) -> Any:
        await run.clock.sleep(40)
        run.stop.release()
        await hang()

    run = scenario([slow, slow], plan={"active_deadline_seconds": 60})
    await run.release()
    run.clock.advance(5000)
    end = await run.finish()
    assert end.exit.reason == "DeadlineExceeded"
    assert run.clock.monotonic() == 40 + 5000 + 20
