"""The sweep: what is, compared with what we think is, in case a watch has missed something.

A version that was listed and is not known some seconds later counts as missed: a listing can be ahead of a watch, and
of an object that changes all the time it always is.
"""

import asyncio
from collections.abc import Iterable

import structlog

from pilothouse_api import names
from pilothouse_kubernetes.client import AGENTRUNS, KubernetesClient, NotFound, Raw, Resource
from pilothouse_operator.reconcile.desk import Desk
from pilothouse_operator.watching.cache import Cache, Key, key_of, version_of
from pilothouse_operator.watching.finished import FINISHED, read_finished
from pilothouse_operator.watching.informer import SELECTORS, Notice

FIRST_SWEEP_SECONDS = 30.0
SETTLE_SECONDS = 5.0
GONE = -1
"""In place of the version of an object that is listed no more."""

log = structlog.get_logger()


async def load(desk: Desk, namespaces: Iterable[str | None], notice: Notice) -> None:
    """Fill the picture before the first reconcile: nothing may be taken for missing that is merely not listed yet."""
    for namespace in namespaces:
        for resource, selector in SELECTORS.items():
            async for page in desk.client.list_pages(resource, namespace, selector):
                for raw in page:
                    notice(raw, False)
        async for page in desk.client.list_pages(AGENTRUNS, namespace, names.LABEL_FINISHED):
            for raw in page:
                _remember_finished(desk, raw)


def _remember_finished(desk: Desk, raw: Raw) -> None:
    """An end that is newer than the newest one its workflow has counted was not counted."""
    record = read_finished(raw)
    workflow = desk.cache.get(Key("Workflow", record.namespace, record.workflow))
    counted = ((workflow or {}).get("status", {}).get("lastRun") or {}).get("finishedAt", "")
    completed = raw.get("status", {}).get("completionTime", "")
    desk.finished.add(record, is_fresh=workflow is not None and completed > counted)
    desk.queue.add(record.key)


class Sweeper:
    """Compares, repairs, counts."""

    def __init__(self, desk: Desk, namespaces: Iterable[str | None], notice: Notice) -> None:
        self._desk = desk
        self._namespaces = list(namespaces)
        self._notice = notice

    async def run(self) -> None:
        """Sweep for ever."""
        pause = min(FIRST_SWEEP_SECONDS, self._desk.settings.sweep_seconds)
        while True:
            await asyncio.sleep(pause)
            pause = self._desk.settings.sweep_seconds
            await self.sweep()

    async def sweep(self) -> int:
        """Sweep once; return how many differences there were."""
        drift = 0
        for resource, selector in SELECTORS.items():
            drift += await self._sweep_kind(resource, selector)
        await self._sweep_finished()
        for key in self._desk.cache.keys("AgentRun"):
            self._desk.queue.add(key)  # runs without progress: only time tells, and only a look finds out
        return drift

    async def _sweep_kind(self, resource: Resource, selector: str) -> int:
        suspects = await self._compare(resource, selector)
        if not suspects:
            return 0
        await asyncio.sleep(SETTLE_SECONDS)
        again = await self._compare(resource, selector)
        differences = [key for key in suspects if key in again and self._is_missed(key, suspects[key])]
        for key in differences:
            log.warning("sweep.drift", kind=key.kind, namespace=key.namespace, name=key.name)
            self._desk.metrics.sweep_drift.labels(key.kind).inc()
            await self._repair(resource, key)
        return len(differences)

    def _is_missed(self, key: Key, version: int) -> bool:
        known = self._desk.cache.get(key)
        return known is None or version == GONE or version_of(known) < version

    async def _compare(self, resource: Resource, selector: str) -> dict[Key, int]:
        """Return the keys whose version is not the one that we know, with the one that a listing tells."""
        cache: Cache = self._desk.cache
        listed: set[Key] = set()
        differing: dict[Key, int] = {}
        before = set(cache.keys(resource.kind))
        for namespace in self._namespaces:
            async for page in self._desk.client.list_pages(resource, namespace, selector, metadata_only=True):
                for raw in page:
                    key = key_of(raw)
                    listed.add(key)
                    known = cache.get(key)
                    if known is None or version_of(known) < version_of(raw):
                        differing[key] = version_of(raw)
        return differing | {key: GONE for key in before - listed if cache.get(key) is not None}

    async def _repair(self, resource: Resource, key: Key) -> None:
        try:
            self._notice(await self._desk.client.get(resource, key.namespace, key.name), False)
        except NotFound:
            known = self._desk.cache.get(key)
            if known is not None:
                self._notice(known, True)

    async def _sweep_finished(self) -> None:
        finished = self._desk.finished
        before, listed = set(finished.keys()), set()
        for namespace in self._namespaces:
            pages = self._desk.client.list_pages(AGENTRUNS, namespace, names.LABEL_FINISHED, metadata_only=True)
            async for page in pages:
                for raw in page:
                    key = Key(FINISHED, raw["metadata"]["namespace"], raw["metadata"]["name"])
                    listed.add(key)
                    known = finished.get(key)
                    if known is None or known.uid != raw["metadata"]["uid"]:
                        await self._learn(self._desk.client, key)
                    self._desk.queue.add(key)
        for key in before - listed:
            finished.drop(key)

    async def _learn(self, client: KubernetesClient, key: Key) -> None:
        try:
            _remember_finished(self._desk, await client.get(AGENTRUNS, key.namespace, key.name))
        except NotFound:
            return
