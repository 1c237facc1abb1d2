"""Deadlines on a clock that a test moves, and work that is cut short."""

import asyncio
from typing import Any

import pytest

from pilothouse_engine.alarms import PURGE_AT, Alarms, Cut
from pilothouse_engine.testing.clock import ManualClock

pytestmark = pytest.mark.anyio


async def hang() -> Any:
    await asyncio.Event().wait()


async def value(number: int) -> int:
    await asyncio.sleep(0)
    return number


async def test_work_that_ends_in_time_gives_its_value() -> None:
    alarms = Alarms(ManualClock())
    assert await alarms.bound(value(3), 5) == 3
    await alarms.aclose()


async def test_work_that_does_not_end_is_cut_at_its_deadline() -> None:
    clock = ManualClock()
    alarms = Alarms(clock)
    assert await clock.run(alarms.bound(hang(), 7)) is Cut.TIMEOUT
    assert clock.monotonic() == 7
    await alarms.aclose()


async def test_an_earlier_deadline_that_is_set_later_rings_first() -> None:
    clock = ManualClock()
    alarms = Alarms(clock)
    rung: list[str] = []
    alarms.set(10, lambda: rung.append("late"))
    await clock.settle()
    alarms.set(3, lambda: rung.append("early"))
    cancelled = alarms.set(5, lambda: rung.append("never"))
    cancelled.cancel()
    await clock.settle()
    clock.advance(4)
    await clock.settle()
    assert rung == ["early"]
    clock.advance(6)
    await clock.settle()
    assert rung == ["early", "late"]
    await alarms.aclose()


async def test_an_interruption_cuts_what_runs_and_all_that_comes_later() -> None:
    clock = ManualClock()
    alarms = Alarms(clock)
    task = asyncio.ensure_future(alarms.bound(hang(), None))
    await clock.settle()
    alarms.interrupt()
    assert await task is Cut.INTERRUPTED
    assert await alarms.bound(hang(), 5) is Cut.INTERRUPTED
    await alarms.aclose()


async def test_a_cancellation_from_outside_is_never_swallowed() -> None:
    clock = ManualClock()
    alarms = Alarms(clock)
    task = asyncio.ensure_future(alarms.bound(hang(), 5))
    await clock.settle()
    alarms.interrupt()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await alarms.aclose()


async def test_work_that_ends_although_it_was_cut_leaves_no_cancellation_behind() -> None:
    clock = ManualClock()
    alarms = Alarms(clock)

    async def stubborn() -> str:
        try:
            await hang()
        except asyncio.CancelledError:
            return "done all the same"
        raise AssertionError

    async def whole() -> tuple[Any, int]:
        got = await alarms.bound(stubborn(), 2)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return got, task.cancelling()

    assert await clock.run(whole()) == ("done all the same", 0)
    await alarms.aclose()


async def test_deadlines_that_are_over_do_not_pile_up() -> None:
    alarms = Alarms(ManualClock())
    for _ in range(5 * PURGE_AT):
        await alarms.bound(value(1), 300)
    assert len(alarms._heap) <= PURGE_AT
    await alarms.aclose()


async def test_a_clock_that_would_hang_says_so() -> None:
    with pytest.raises(AssertionError, match="would hang"):
        await ManualClock().run(hang())
