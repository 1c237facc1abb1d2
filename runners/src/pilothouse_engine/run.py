"""The one call that advances a run: fresh, resumed or parked, locally or in a pod."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1.agentrun import Parked, RunExit, Snapshot
from pilothouse_engine.ports import Ports


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds that the platform sets; seconds and bytes."""

    control_grace_seconds: float = 60.0
    abort_grace_seconds: float = 30.0
    approval_hold_seconds: float = 30.0
    publish_interval_seconds: float = 1.0
    max_response_bytes: int = 1_048_576
    max_context_bytes: int = 262_144
    max_snapshot_bytes: int = 32_768
    max_result_bytes: int = 8_192


class Stop:
    """How the host asks a running attempt to let go (SIGTERM, Ctrl-C): a release, never an abort."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def release(self) -> None:
        """Ask the attempt to journal, publish and end as Released."""
        self._event.set()

    @property
    def is_asked(self) -> bool:
        """Whether it was asked."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Return when it is asked."""
        await self._event.wait()


@dataclass(frozen=True, slots=True)
class Finished:
    """The run has ended; the snapshot that says so was published."""

    exit: RunExit
    result: dict[str, Any] | None
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Released:
    """The run goes on later in another attempt; the process may exit 0."""

    parked: Parked
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Lost:
    """This attempt is not the run's any more; nothing more was written."""

    reason: Literal["Fenced", "Gone"]
    message: str


AttemptEnd = Finished | Released | Lost


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which attempt runs. `settle`: only fence, mark open calls unknown, journal and publish this exit reason."""

    number: int
    settle: str | None = None
    settings: Settings = field(default_factory=Settings)


async def run_attempt(plan: Plan, ports: Ports, attempt: Attempt, stop: Stop) -> AttemptEnd:
    """Advance the run from its journal until it ends, is released, or is lost.

    Raises only for faults (a bug, a journal that is corrupt): the attempt then counts as crashed.
    """
    raise NotImplementedError
