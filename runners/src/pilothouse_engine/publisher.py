"""Snapshots on their way out: coalesced while the run goes on, at once where somebody waits for them."""

import asyncio
from collections.abc import Callable

from pilothouse_api.structs import Snapshot
from pilothouse_engine.alarms import Alarm, Alarms
from pilothouse_engine.ports import Clock, RunStore, StoreFailure

LAZY_INTERVALS = 10
"""What the next turn will publish anyway waits for so many intervals."""

FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0


class Publisher:
    """Publishes the newest snapshot; one write at a time, at most one per interval unless it is urgent.

    `build` returns None while the journal does not hold everything that the state knows: `is_held` tells then that a
    snapshot is due, and whoever has written the journal calls `catch_up`. `lost` is set when the run is not this
    attempt's any more; `on_lost` is called then.
    """

    def __init__(
        self,
        store: RunStore,
        clock: Clock,
        alarms: Alarms,
        interval: float,
        build: Callable[[], Snapshot | None],
        on_lost: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._alarms = alarms
        self._interval = interval
        self._build = build
        self._on_lost = on_lost
        self._alarm: Alarm | None = None
        self._task: asyncio.Task[None] | None = None
        self._next_at = float("-inf")
        self._retry = FIRST_RETRY_SECONDS
        self._is_due_again = False
        """Whether something was due while a write was under way."""
        self.is_held = False
        self.failure: StoreFailure | None = None
        self.lost: StoreFailure | None = None
        self.published: Snapshot | None = None
        self.sent: Snapshot | None = None
        """The newest that was given to the store, whether or not its answer has come: it may stand there."""

    def mark(self, *, is_lazy: bool = False) -> None:
        """Publish soon; lazily where it can wait for the next turn."""
        alarm = self._alarm
        if alarm is not None and not alarm.is_cancelled and (is_lazy or alarm.when <= self._next_at):
            return
        now = self._clock.monotonic()
        due = max(now, self._next_at)
        if is_lazy:
            due += LAZY_INTERVALS * self._interval
        self._set_alarm(due - now)

    def catch_up(self) -> None:
        """Publish what was due while the journal was being written.

        A turn marks and then writes its journal: where turns are short, whoever only looked again later would find the
        journal of the next one being written, each time.
        """
        self.is_held = False
        self._ring()

    def check(self) -> StoreFailure | None:
        """Return `lost`; raises the fault of a write that failed behind the loop's back."""
        task = self._task
        if task is not None and task.done():
            self._task = None
            task.result()
        return self.lost

    async def publish(self) -> StoreFailure | None:
        """Publish now; on a failure the next attempt is made later, on its own."""
        await self.settle()
        snapshot = self._take()
        if snapshot is not None:
            await self._write(snapshot)
        return self.failure

    async def aclose(self) -> None:
        """Stop; what is under way is cancelled."""
        if self._alarm is not None:
            self._alarm.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def settle(self) -> None:
        """Wait for the write that is under way; raises its fault."""
        if self._task is not None:
            await asyncio.wait({self._task})
        self.check()

    def _set_alarm(self, seconds: float) -> None:
        due = self._clock.monotonic() + seconds
        if self._alarm is not None and not self._alarm.is_cancelled:
            if self._alarm.when <= due:
                return
            self._alarm.cancel()
        self._alarm = self._alarms.set(seconds, self._ring)

    def _ring(self) -> None:
        if self._task is not None and not self._task.done():
            self._is_due_again = True
            return
        snapshot = self._take()  # now: when the task begins, the journal of the next facts may be under way
        if snapshot is not None:
            self._task = asyncio.get_running_loop().create_task(self._write(snapshot), name="pilothouse-publish")

    def _take(self) -> Snapshot | None:
        """Return what can be published now; None where there is nothing, and then it is held."""
        if self.lost is not None:
            return None
        snapshot = self._build()
        self.is_held = snapshot is None
        if snapshot is None:
            self._set_alarm(self._interval)
            return None
        if self._alarm is not None:
            self._alarm.cancel()
        self.sent = snapshot
        if self.published is not None:  # the first one says that the attempt has begun: it holds no turn back
            self._next_at = self._clock.monotonic() + self._interval
        return snapshot

    async def _write(self, snapshot: Snapshot) -> None:
        self.failure = await self._store.publish(snapshot)
        if self.failure is None:
            self.published = snapshot
            self._retry = FIRST_RETRY_SECONDS
            if self._is_due_again:
                self._is_due_again = False
                self.mark()
        elif self.failure.kind in ("Fenced", "Gone"):
            self.lost = self.failure
            self._on_lost()
        else:
            self._set_alarm(self._retry)
            self._retry = min(self._retry * 2, LONGEST_RETRY_SECONDS)
