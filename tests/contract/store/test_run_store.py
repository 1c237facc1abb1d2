"""What every run store promises."""

import asyncio
import time
from typing import Any

import pytest
from msgspec.structs import replace

from pilothouse_api.structs import Barrier, Snapshot, SupervisionClock
from pilothouse_engine.ports import Directives

pytestmark = pytest.mark.anyio


async def read(hands: Any) -> Directives:
    directives = await hands.store.read()
    assert isinstance(directives, Directives)
    return directives


async def test_a_new_run_has_no_directives(hands: Any) -> None:
    directives = await read(hands)
    assert (directives.generation, directives.control, directives.limits) == (1, None, None)
    assert directives.snapshot is None


async def test_directives_are_the_newest_and_each_change_counts_a_generation(hands: Any) -> None:
    hands.set_control(mode="Pause", steer={"a1": {"message": "look"}})
    hands.set_limits(tokenBudget=500)

    directives = await read(hands)

    assert directives.generation == 3
    assert directives.control is not None
    assert (directives.control.mode, directives.control.steer["a1"].message) == ("Pause", "look")
    assert directives.limits is not None
    assert directives.limits.token_budget == 500


async def test_a_published_snapshot_is_what_the_next_attempt_reads(hands: Any, snapshot: Snapshot) -> None:
    assert await hands.store.publish(snapshot) is None
    assert await hands.store.publish(replace(snapshot, turn=3)) is None

    directives = await read(hands)

    assert directives.generation == 1
    assert directives.snapshot == replace(snapshot, turn=3).to_raw()
    assert {**directives.snapshot, "attempt": 1, "turn": 3, "step": "s", "journalLength": 7} == directives.snapshot


async def test_waiting_ends_after_its_time_when_nothing_changes(hands: Any, snapshot: Snapshot) -> None:
    await read(hands)
    await hands.store.publish(snapshot)

    began = time.monotonic()
    await hands.store.wait(0.3)

    assert 0.25 < time.monotonic() - began < 50


async def test_waiting_ends_when_a_person_changes_the_run(hands: Any) -> None:
    await read(hands)
    waiting = asyncio.create_task(hands.store.wait(100))
    await asyncio.sleep(0.1)
    assert not waiting.done()

    began = time.monotonic()
    hands.set_control(mode="Run")
    await waiting

    assert time.monotonic() - began < 50


async def test_nothing_supervises_a_new_run(hands: Any) -> None:
    directives = await read(hands)
    assert (directives.is_supervised, directives.barrier, directives.clock) == (False, None, None)


async def test_what_supervision_asks_and_has_seen_is_read_and_counts_no_generation(hands: Any) -> None:
    hands.set_supervision(barrier={"timeoutSeconds": 45, "onTimeout": "Abort"})
    hands.set_supervision(clock={"visit": 1, "turn": 2, "journalLength": 17})

    directives = await read(hands)

    assert (directives.generation, directives.is_supervised) == (1, True)
    assert directives.barrier == Barrier(timeout_seconds=45, on_timeout="Abort")
    assert directives.clock == SupervisionClock(visit=1, turn=2, journal_length=17)


async def test_waiting_ends_when_the_clock_of_supervision_moves(hands: Any) -> None:
    hands.set_supervision(clock={"visit": 1, "turn": 2, "journalLength": 17})
    await read(hands)
    waiting = asyncio.create_task(hands.store.wait(100))
    await asyncio.sleep(0.1)
    assert not waiting.done()

    began = time.monotonic()
    hands.set_supervision(clock={"visit": 1, "turn": 2, "journalLength": 21})
    await waiting

    assert time.monotonic() - began < 50


async def test_a_change_between_the_read_and_the_wait_is_not_missed(hands: Any) -> None:
    await read(hands)
    hands.set_control(mode="Abort")

    began = time.monotonic()
    await hands.store.wait(100)

    assert time.monotonic() - began < 50


async def test_a_cancelled_wait_leaves_the_store_usable(hands: Any) -> None:
    await read(hands)
    waiting = asyncio.create_task(hands.store.wait(100))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert (await read(hands)).generation == 1
