"""Deadlines on the engine's clock: one sleeping task for all of them, and work that can be cut short.

A task and a timer for each call would cost more than the rest of a turn. Deadlines are kept in a heap instead; most
are cancelled long before they are due and are dropped when they come to the top.
"""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from enum import Enum
from itertools import count
from typing import Any, TypeVar

from pilothouse_engine.ports import Clock

T = TypeVar("T")

PURGE_AT = 64


class Cut(Enum):
    """Why work was cut short."""

    TIMEOUT = "Timeout"
    INTERRUPTED = "Interrupted"


class Alarm:
    """One deadline; `cancel` makes it harmless."""

    __slots__ = ("_ring", "is_cancelled", "when")

    def __init__(self, when: float, ring: Callable[[], None]) -> None:
        self.when = when
        self.is_cancelled = False
        """Whether it will not ring any more."""
        self._ring = ring

    def cancel(self) -> None:
        """Never ring."""
        self.is_cancelled = True

    def ring(self) -> None:
        """Ring once."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self._ring()


class Alarms:
    """All deadlines of one attempt."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Alarm]] = []
        self._order = count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._sleeps_until = float("inf")
        self._sections: set[_Section] = set()
        self._is_interrupted = False

    def set(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Ring after so many seconds, in the event loop."""
        alarm = Alarm(self._clock.monotonic() + seconds, ring)
        if len(self._heap) >= PURGE_AT:
            self._heap = [item for item in self._heap if not item[2].is_cancelled]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (alarm.when, next(self._order), alarm))
        if self._watcher is None or self._watcher.done() or alarm.when < self._sleeps_until:
            self._restart()
        return alarm

    async def bound(self, work: Coroutine[Any, Any, T], seconds: float | None) -> T | Cut:
        """Return what the work returns, or why it was cancelled: after so many seconds, or by `interrupt`."""
        if self._is_interrupted:
            work.close()
            return Cut.INTERRUPTED
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # each time it is asked for is a system call
        task = asyncio.current_task(self._loop)
        assert task is not None
        section = _Section(task)
        alarm = None
        if seconds is not None and seconds != float("inf"):
            alarm = self.set(seconds, section.time_out)
        self._sections.add(section)
        try:
            result = await work
        except asyncio.CancelledError:
            # Cancelled from outside as well: that one must not be swallowed.
            if section.cut is None or task.uncancel() > section.depth:
                raise
            return section.cut
        else:
            if section.cut is not None:  # it ended although it was cancelled
                task.uncancel()
            return result
        finally:
            self._sections.discard(section)
            if alarm is not None:
                alarm.cancel()

    def interrupt(self) -> None:
        """Cut all bounded work short, from now on."""
        self._is_interrupted = True
        for section in list(self._sections):
            section.interrupt()

    async def aclose(self) -> None:
        """Stop watching."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    def _restart(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        self._sleeps_until = self._heap[0][0]
        self._watcher = asyncio.get_running_loop().create_task(self._watch(), name="pilothouse-alarms")

    async def _watch(self) -> None:
        while self._heap:
            when, _, alarm = self._heap[0]
            if alarm.is_cancelled:
                heapq.heappop(self._heap)
                continue
            left = when - self._clock.monotonic()
            if left <= 0:
                heapq.heappop(self._heap)
                alarm.ring()
                continue
            self._sleeps_until = when
            await self._clock.sleep(left)
        self._sleeps_until = float("inf")


class _Section:
    """One piece of bounded work."""

    __slots__ = ("_task", "cut", "depth")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.cut: Cut | None = None
        self.depth = task.cancelling()

    def time_out(self) -> None:
        self._cut(Cut.TIMEOUT)

    def interrupt(self) -> None:
        self._cut(Cut.INTERRUPTED)

    def _cut(self, cut: Cut) -> None:
        if self.cut is None:
            self.cut = cut
            self._task.cancel()
