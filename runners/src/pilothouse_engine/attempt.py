"""One attempt from outside: which one it is, how its host asks it to let go, and how it ended."""

import asyncio
from typing import Any, Literal

from pilothouse_api.structs import Parked, RunExit, Snapshot
from pilothouse_engine.settings import Settings
from pilothouse_engine.values import Value

SettleCause = Literal["Aborted", "DeadlineExceeded", "MaxAttempts"]
"""What the operator lets a run be closed for when no runner could do so itself."""


class Stop:
    """How the host asks a running attempt to let go (SIGTERM, Ctrl-C): a release, never an abort."""

    def __init__(self) -> None:
        self.is_asked = False
        """Whether it was asked."""
        self._event = asyncio.Event()

    def release(self) -> None:
        """Ask the attempt to journal, publish and end as Released."""
        self.is_asked = True
        self._event.set()

    async def wait(self) -> None:
        """Return when it is asked."""
        await self._event.wait()


class Finished(Value):
    """The run has ended; the snapshot that says so was published."""

    exit: RunExit
    result: dict[str, Any] | None
    snapshot: Snapshot


class Released(Value):
    """The run goes on later in another attempt; the process may exit 0."""

    parked: Parked
    snapshot: Snapshot


class Lost(Value):
    """This attempt is not the run's any more; nothing more was written."""

    reason: Literal["Fenced", "Gone"]
    message: str


AttemptEnd = Finished | Released | Lost


class Attempt(Value):
    """Which attempt runs. `settle`: only fence, mark open calls unknown, journal and publish this exit reason."""

    number: int
    settle: SettleCause | None = None
    settings: Settings = Settings()
