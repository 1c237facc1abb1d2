"""What every reconciler works with."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pilothouse_kubernetes.client import KubernetesClient
from pilothouse_operator.metrics import Metrics
from pilothouse_operator.settings import OperatorSettings
from pilothouse_operator.status.event_poster import EventPoster
from pilothouse_operator.supervision.departed import Departed
from pilothouse_operator.supervision.judges import Judges
from pilothouse_operator.watching.cache import Cache, Key, key_of
from pilothouse_operator.watching.finished import FinishedRuns
from pilothouse_operator.watching.queue import WorkQueue
from pilothouse_operator.watching.routing import COUNTED, route
from pilothouse_operator.workloads.plans import PlanStore


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
    judges: Judges
    finished: FinishedRuns = field(default_factory=FinishedRuns)
    departed: Departed = field(default_factory=Departed)
    now: Callable[[], datetime] = utc_now

    def notice(self, raw_object: Mapping[str, Any], is_deleted: bool) -> None:
        """Take an object that a watch or a request shows, and have everybody look whom it concerns."""
        known = self.cache.get(key_of(raw_object)) if is_deleted else None
        if not self.cache.apply(raw_object, is_deleted):
            return
        if known is not None and known["kind"] == "AgentRun":
            # In the same moment in which it leaves the picture: a sum over the picture must miss nothing.
            for supervisor in self.departed.add(known):
                self.queue.add_after(Key("Supervisor", known["metadata"].get("namespace", ""), supervisor), COUNTED)
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
