"""Posting Events: never waited for; one that finds the queue full is dropped and counted."""

import asyncio
from typing import Any

import structlog

from pilothouse_kubernetes.client import EVENTS, AlreadyExists, ApiError, KubernetesClient
from pilothouse_operator.metrics import Metrics

MAX_WAITING = 1000

log = structlog.get_logger()


class EventPoster:
    """Posts events in the background."""

    def __init__(self, client: KubernetesClient, metrics: Metrics) -> None:
        self._client = client
        self._metrics = metrics
        self._waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MAX_WAITING)

    def post(self, event: dict[str, Any]) -> None:
        """Take an event; returns at once."""
        try:
            self._waiting.put_nowait(event)
        except asyncio.QueueFull:
            self._metrics.events_dropped.inc()

    async def run(self) -> None:
        """Post what comes, for ever; an event that is refused is lost, since nothing depends on it."""
        while True:
            event = await self._waiting.get()
            try:
                await self._client.create(EVENTS, event["metadata"]["namespace"], event)
            except AlreadyExists:
                continue
            except ApiError as error:
                log.warning("event.lost", name=event["metadata"]["name"], reason=event["reason"], error=str(error))
