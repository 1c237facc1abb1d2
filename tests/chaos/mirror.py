"""Every change of a kind's objects in a namespace, as a watch tells it, through restarts of the API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from pilothouse_kubernetes.client import ApiError, KubernetesClient, Raw, Resource
from pilothouse_kubernetes.connection import Connection

WATCH_SECONDS = 300
RETRY_SECONDS = 0.2

Notice = Callable[[str, Raw], None]
"""Is told ADDED, MODIFIED or DELETED, and the object."""


@dataclass
class Mirror:
    """The newest state of the objects, by name."""

    connection: Connection
    resource: Resource
    namespace: str
    notice: Notice
    objects: dict[str, Raw] = field(default_factory=dict)

    async def follow(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                version = await self._list()
                await self._watch(version)
            except (ApiError, aiohttp.ClientError, TimeoutError, OSError, ValueError):
                await asyncio.sleep(RETRY_SECONDS)

    async def _list(self) -> str:
        path = f"{self.resource.prefix}/namespaces/{self.namespace}/{self.resource.plural}"
        page = await KubernetesClient(self.connection).get_path(path)
        seen = {raw["metadata"]["name"]: raw for raw in page["items"]}
        for name, raw in list(self.objects.items()):
            if name not in seen or seen[name]["metadata"]["uid"] != raw["metadata"]["uid"]:
                self._tell("DELETED", raw)
        for raw in seen.values():
            self._tell("MODIFIED", raw)
        return str(page["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> None:
        path = f"{self.resource.prefix}/namespaces/{self.namespace}/{self.resource.plural}"
        url = f"{self.connection.credentials.server}/{path}"
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        async with self.connection.session().get(url, params=query, timeout=timeout) as response:
            response.raise_for_status()
            pending = b""
            async for chunk in response.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return
                    self._tell(event["type"], event["object"])

    def _tell(self, kind: str, raw: Raw) -> None:
        name = raw["metadata"]["name"]
        before = self.objects.get(name)
        if kind == "DELETED":
            self.objects.pop(name, None)
        else:
            if before is not None and before["metadata"]["resourceVersion"] == raw["metadata"]["resourceVersion"]:
                return
            self.objects[name] = raw
        self.notice(kind, raw)
