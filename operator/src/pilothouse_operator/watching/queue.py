"""The work queue: each key waits once, is in one hand at a time, and runs again when it changed meanwhile."""

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 60.0


class WorkQueue(Generic[K]):
    """A deduplicating queue with one heap for whatever is due later. Belongs to one event loop."""

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()
        self._active: set[K] = set()
        self._dirty: set[K] = set()
        self._heap: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._order = 0
        self._is_closed = False
        self._wakeup = asyncio.Event()
        self._jitter = jitter

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def active(self) -> int:
        """How many keys are in a hand now."""
        return len(self._active)

    @property
    def delayed(self) -> int:
        """How many keys are due later."""
        return len(self._due)

    def add(self, key: K) -> None:
        """Have the key looked at soon; while it is in a hand, once more after that."""
        if key in self._active:
            self._dirty.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._wakeup.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Have the key looked at after so many seconds; the earliest wish counts."""
        due = asyncio.get_running_loop().time() + max(seconds, 0.0)
        if self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        self._order += 1
        heapq.heappush(self._heap, (due, self._order, key))
        self._wakeup.set()

    def close(self) -> None:
        """Hand out no more keys."""
        self._is_closed = True
        self._wakeup.set()

    async def get(self) -> K | None:
        """Return the next key and put it into the caller's hand, who must call `done`; None once it is closed."""
        loop = asyncio.get_running_loop()
        while not self._is_closed:
            self._promote(loop.time())
            if self._ready:
                key = self._ready.popleft()
                self._waiting.discard(key)
                self._active.add(key)
                self._due.pop(key, None)  # whoever looks now decides anew when to look again
                return key
            self._wakeup.clear()
            pause = self._heap[0][0] - loop.time() if self._heap else None
            try:
                await asyncio.wait_for(self._wakeup.wait(), pause)
            except TimeoutError:
                pass
        return None

    def done(self, key: K) -> None:
        """Take the key out of the hand."""
        self._active.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)
        elif self._ready:
            self._wakeup.set()

    def retry(self, key: K, at_least: float = 0.0) -> float:
        """Have the key looked at after its backoff, which doubles with each failure; return the seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause = min(FIRST_BACKOFF_SECONDS * 2.0 ** min(failures, 16), LONGEST_BACKOFF_SECONDS)
        pause = max(pause * (0.75 + self._jitter() / 2), at_least)
        self.add_after(key, pause)
        return pause

    def forget(self, key: K) -> None:
        """Forget the failures of a key, after a success."""
        self._failures.pop(key, None)

    def _promote(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:  # else it was replaced by an earlier one, or taken meanwhile
                del self._due[key]
                self.add(key)
