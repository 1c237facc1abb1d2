"""Time that a test moves."""

import asyncio
import heapq
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")

START = datetime(2030, 1, 1, tzinfo=UTC)

IDLE_ROUNDS = 50
"""Rounds of the event loop without an end after which everything is taken to wait for time to pass."""


class ManualClock:
    """A clock that stands still until it is advanced; `run` advances it whenever everything waits."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now(self) -> datetime:
        """Return the wall time, UTC."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Return the seconds that were advanced."""
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        """Return when the clock was advanced by so many seconds."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), future))
        await future

    def advance(self, seconds: float) -> None:
        """Move time on; whoever sleeps until then wakes, in order."""
        until = self._elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= until:
            when, _, future = heapq.heappop(self._sleepers)
            self._elapsed = max(self._elapsed, when)
            if not future.done():
                future.set_result(None)
        self._elapsed = until

    def advance_to_next(self) -> bool:
        """Move time to the next moment that somebody sleeps until; False when nobody sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        if not self._sleepers:
            return False
        self.advance(max(0.0, self._sleepers[0][0] - self._elapsed))
        return True

    async def settle(self) -> None:
        """Let everything run that does not wait for time."""
        for _ in range(IDLE_ROUNDS):
            await asyncio.sleep(0)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns, moving time on whenever everything waits for it."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await self.settle()
                if not task.done() and not self.advance_to_next():
                    raise AssertionError("the work waits, and not for time: it would hang")
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
