"""What every reconciler works with."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pilothouse_kubernetes.client import KubernetesClient
from pilothouse_operator.cache import Cache, Key
from pilothouse_operator.events import EventPoster
from pilothouse_operator.finished import FinishedRuns
from pilothouse_operator.metrics import Metrics
from pilothouse_operator.plans import PlanStore
from pilothouse_operator.queue import WorkQueue
from pilothouse_operator.routing import route
from pilothouse_operator.settings import OperatorSettings


def utc_now() -> datetime:
    """Return the wall time."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Desk:
    """The operator's picture, its client, and its queue."""

    client: KubernetesClient
    cache: Cache
    queue: WorkQueue[Key]
    settings: OperatorSettings
    metrics: Metrics
    events: EventPoster
    plans: PlanStore
    finished: FinishedRuns = field(default_factory=FinishedRuns)
    now: Callable[[], datetime] = utc_now

    def notice(self, raw_object: Mapping[str, Any], is_deleted: bool) -> None:
        """Take an object that a watch or a request shows, and have everybody look whom it concerns."""
        if not self.cache.apply(raw_object, is_deleted):
            return
        for key, delay in route(raw_object, self.cache):
            if delay:
                self.queue.add_after(key, delay)
            else:
                self.queue.add(key)


class Pace:
    """Lets so many through a second, evenly: deletions must not come as a storm."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1.0 / per_second
        self._next = 0.0

    async def wait(self) -> None:
        """Return when it is one's turn."""
        now = asyncio.get_running_loop().time()
        turn = max(self._next, now)
        self._next = turn + self._interval
        if turn > now:
            await asyncio.sleep(turn - now)
