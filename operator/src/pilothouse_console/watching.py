"""Feeds the picture: one list and one watch for each namespace, or for all, whoever looks at it."""

import asyncio
import random
import time

import structlog

from pilothouse_console.metrics import Metrics
from pilothouse_console.picture import Picture, version_of
from pilothouse_kubernetes.client import AGENTRUNS, ApiError, Gone, KubernetesClient, Throttled

WATCH_SECONDS = 240
"""How long one watch lasts; a bookmark comes about once a minute."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
BETWEEN_SECONDS = 0.1
"""Between two watches: an API server that ends each at once must not be asked without end."""
STALE_SECONDS = 10.0
"""How long a watch may be broken before the picture counts as old."""

log = structlog.get_logger()


class Watching:
    """Keeps the picture of some namespaces (None: of all) up to date until it is cancelled."""

    def __init__(
        self, client: KubernetesClient, picture: Picture, namespaces: tuple[str, ...], metrics: Metrics
    ) -> None:
        self._client = client
        self._picture = picture
        self._metrics = metrics
        self._places: tuple[str | None, ...] = namespaces or (None,)
        self._unlisted = set(self._places)
        self._broken_since: dict[str | None, float] = {}

    @property
    def is_synced(self) -> bool:
        """Whether every namespace was listed."""
        return not self._unlisted

    @property
    def is_live(self) -> bool:
        """Whether the picture follows what happens: no watch has been broken for some seconds."""
        now = time.monotonic()
        return self.is_synced and all(now - since < STALE_SECONDS for since in self._broken_since.values())

    async def run(self) -> None:
        """List and watch for ever."""
        async with asyncio.TaskGroup() as group:
            for place in self._places:
                group.create_task(self._follow(place), name=f"watch-{place or 'all'}")

    async def _follow(self, place: str | None) -> None:
        version: str | None = None
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                if version is None:
                    version = await self._list(place)
                version = await self._watch(place, version)
                pause = FIRST_PAUSE_SECONDS
                await asyncio.sleep(BETWEEN_SECONDS)
            except Gone:
                version = None
                await asyncio.sleep(BETWEEN_SECONDS)
            except ApiError as error:
                self._broken_since.setdefault(place, time.monotonic())
                self._metrics.watch_failures.inc()
                wait = error.retry_after if isinstance(error, Throttled) and error.retry_after else pause
                log.warning("api.watch_broken", namespace=place, error=str(error), retry_seconds=round(wait, 1))
                await asyncio.sleep(wait * (0.75 + random.random() / 2))
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                version = None if error.status == 404 else version

    async def _list(self, place: str | None) -> str:
        uids: set[str] = set()
        version = ""
        async for page in self._client.pages(AGENTRUNS, place):
            version = page.version
            for raw_run in page.items:
                uids.add(raw_run["metadata"]["uid"])
                self._picture.apply(raw_run)
        self._picture.retain(place, frozenset(uids), version_of({"metadata": {"resourceVersion": version}}))
        self._unlisted.discard(place)
        self._broken_since.pop(place, None)
        return version

    async def _watch(self, place: str | None, version: str) -> str:
        async for event in self._client.watch(AGENTRUNS, place, version, WATCH_SECONDS):
            self._broken_since.pop(place, None)
            version = event.raw["metadata"]["resourceVersion"]
            if event.type in ("ADDED", "MODIFIED"):
                self._picture.apply(event.raw)
            elif event.type == "DELETED":
                self._picture.remove(event.raw)
        return version
