"""Kopf as the informer: it lists and watches; all that its events say is "look".

Finished runs leave the watch by their label, pods and ConfigMaps come only where a label says that they concern us.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import aiohttp
import kopf

from pilothouse_api import names
from pilothouse_kubernetes.client import (
    AGENTRUNS,
    AGENTS,
    CONFIGMAPS,
    PODS,
    SUPERVISORS,
    WORKFLOWS,
    Resource,
)
from pilothouse_kubernetes.connection import Connection

Notice = Callable[[Mapping[str, Any], bool], None]
"""Takes an object and whether it is gone; never awaits, never raises."""

SELECTORS: Mapping[Resource, str] = {
    AGENTRUNS: f"!{names.LABEL_FINISHED}",
    WORKFLOWS: "",
    AGENTS: "",
    SUPERVISORS: "",
    PODS: f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}",
    CONFIGMAPS: names.LABEL_ARTIFACT,
}
"""Everything that is watched, with the selector that the API server applies."""


class EndlessBackoff:
    """Pauses between two tries, growing to a limit, for ever: an operator outlives an API server that is away."""

    def __init__(self, limit: float = 30.0) -> None:
        self._limit = limit

    def __iter__(self) -> Iterator[float]:
        pause = 0.5
        while True:
            yield pause * (0.75 + random.random() / 2)
            pause = min(pause * 2, self._limit)


class NoDiffBase(kopf.DiffBaseStorage):
    """Keeps nothing to compare with: Kopf else copies each object deeply on each event, half of its time."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        """Return an essence without content."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Return that nothing was kept."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Keep nothing."""


def build_settings() -> kopf.OperatorSettings:
    """Return Kopf's settings: no peering, no scanning, no state on objects, no posting of its own."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.queueing.idle_timeout = 1.0
    settings.queueing.exit_timeout = 5.0
    settings.watching.chunk_size = 500
    settings.watching.server_timeout = 290
    settings.watching.connect_timeout = 10
    settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = EndlessBackoff()
    settings.networking.enforce_retry_after = True
    settings.process.ultimate_exiting_timeout = 25
    settings.persistence.diffbase_storage = NoDiffBase()
    for resource, selector in SELECTORS.items():
        if selector:
            settings.watching.label_selectors[_kopf_selector(resource)] = selector
    return settings


def build_registry(connection: Connection, notice: Notice) -> kopf.OperatorRegistry:
    """Return the handlers: one a kind, which hands each object on."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        session: aiohttp.ClientSession = connection.session()
        return kopf.AiohttpSession(
            server=connection.credentials.server,
            aiohttp_session=session,
            default_namespace=connection.credentials.namespace,
        )

    async def pass_on(event: Mapping[str, Any], **_: Any) -> None:
        notice(event["object"], event["type"] == "DELETED")

    for resource in SELECTORS:
        group, _, version = resource.api_version.rpartition("/")
        kopf.on.event(group, version, resource.plural, registry=registry, id=resource.plural)(pass_on)
    return registry


def _kopf_selector(resource: Resource) -> Any:
    group, _, version = resource.api_version.rpartition("/")
    return (group, version, resource.plural) if group else resource.plural
