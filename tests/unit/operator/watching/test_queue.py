"""The work queue: once, one hand, again when dirty, later by one heap."""

from __future__ import annotations

import asyncio

import pytest

from pilothouse_operator.watching.queue import WorkQueue

pytestmark = pytest.mark.anyio


async def take(queue: WorkQueue[str], within: float = 30.0) -> str | None:
    return await asyncio.wait_for(queue.get(), within)


async def test_a_key_waits_only_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a", "a"):
        queue.add(key)

    assert [await take(queue), await take(queue)] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_is_in_one_hand_at_a_time_and_runs_again_when_it_changed() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await take(queue) == "a"
    queue.add("a")
    queue.add("a")

    with pytest.raises(TimeoutError):
        await take(queue, 0.05)
    queue.done("a")
    assert await take(queue) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_a_delayed_key_comes_when_it_is_due_and_the_earliest_wish_counts() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 60)
    queue.add_after("a", 0.05)
    queue.add_after("a", 30)

    assert await take(queue) == "a"
    queue.done("a")
    assert queue.delayed == 0
    with pytest.raises(TimeoutError):
        await take(queue, 0.05)


async def test_a_look_makes_older_appointments_void() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.05)
    queue.add("a")
    assert await take(queue) == "a"
    queue.done("a")

    with pytest.raises(TimeoutError):
        await take(queue, 0.15)


async def test_failures_back_off_ever_longer_until_a_success() -> None:
    queue: WorkQueue[str] = WorkQueue(jitter=lambda: 0.5)

    pauses = [queue.retry("a") for _ in range(9)]
    queue.forget("a")

    assert pauses == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert queue.retry("a") == 0.5


async def test_many_workers_share_keys_without_losing_or_doubling_one() -> None:
    queue: WorkQueue[int] = WorkQueue()
    active: set[int] = set()
    looks: dict[int, int] = {}

    async def work() -> None:
        while (key := await queue.get()) is not None:
            assert key not in active
            active.add(key)
            await asyncio.sleep(0)
            looks[key] = looks.get(key, 0) + 1
            active.discard(key)
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(5)]
    for _ in range(3):
        for key in range(50):
            queue.add(key)
        await asyncio.sleep(0.01)
    queue.add_after(99, 0.02)
    async with asyncio.timeout(30):
        while 99 not in looks:  # noqa: ASYNC110 - the workers are as they are
            await asyncio.sleep(0.01)
        queue.close()
        await asyncio.gather(*workers)

    assert looks.keys() == {*range(50), 99}
    assert all(1 <= count <= 3 for count in looks.values())


async def test_a_closed_queue_lets_everybody_go() -> None:
    queue: WorkQueue[str] = WorkQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.close()

    assert await asyncio.wait_for(waiting, 30) is None
