"""Fetching what an object refers to."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pilothouse_api.v1alpha1 import Workflow
from pilothouse_control.world import Platform
from pilothouse_kubernetes.client import KubernetesClient, NotFound, Resource
from pilothouse_operator.watching.cache import Cache, Key
from pilothouse_operator.watching.references import Unreadable, gather_references

pytestmark = pytest.mark.anyio

MODEL = {"name": "scripted", "script": {"inline": "turns: []"}}


def obj(kind: str, name: str, spec: dict[str, Any], version: int = 1) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "uid": f"{kind}-{name}", "resourceVersion": str(version)}
    return {"apiVersion": "pilothouse.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


AGENT = obj(
    "Agent", "worker", {"mode": "Completion", "model": MODEL, "prompt": {"configMapKeyRef": {"name": "t", "key": "k"}}}
)
FLOW = obj("Workflow", "flow", {"steps": [{"id": "a", "kind": "Agent", "agentRef": {"name": "worker"}}]})
TEXTS = {"kind": "ConfigMap", "metadata": {"name": "t", "namespace": "ns"}, "data": {"k": "Say it."}}


class Server:
    """Serves objects by name, and notes who was asked for."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = {raw["metadata"]["name"]: raw for raw in objects}
        self.asked: list[str] = []

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        self.asked.append(name)
        if name not in self.objects:
            raise NotFound(404, f"{resource.kind} {name} not found")
        return self.objects[name]


async def gather(server: Server, cache: Cache) -> Any:
    client = cast(KubernetesClient, server)
    return await gather_references(Workflow.model_validate(FLOW), "ns", cache, client, Platform())


async def test_what_is_watched_is_not_asked_for_again_and_what_is_not_is() -> None:
    server, cache = Server(TEXTS), Cache()
    cache.apply(AGENT)

    known = await gather(server, cache)

    assert set(known.agents) == {"worker"}
    assert known.config_maps["t"].data == {"k": "Say it."}
    assert server.asked == ["t"]


async def test_an_object_that_the_watch_has_not_shown_yet_is_left_for_the_watch_to_show() -> None:
    """Else the watch would find nothing new, and nobody would ever look at the object itself."""
    server, cache = Server(AGENT, TEXTS), Cache()

    known = await gather(server, cache)

    assert set(known.agents) == {"worker"}
    assert cache.get(Key("Agent", "ns", "worker")) is None


async def test_what_is_missing_is_asked_for_once() -> None:
    server = Server()

    known = await gather(server, Cache())

    assert known.agents == {}
    assert server.asked == ["worker"]


async def test_an_object_of_another_version_is_named_with_its_field() -> None:
    strange = obj("Agent", "worker", {"mode": "Planner", "model": MODEL}, version=2)

    with pytest.raises(Unreadable, match=r"Agent worker: spec\.mode"):
        await gather(Server(strange), Cache())
