"""The operator APIs of two clusters with a real Redis between them: what a caller of one is shown and may do of both.

Their API servers are played: what real ones add is tested in `tests/integration/console/test_fleet.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from contract.fleet.seas import eventually
from pilothouse_api.patches import merge_patch
from pilothouse_console import fleet
from pilothouse_console.access import Caller
from pilothouse_console.api import Services, build_app
from pilothouse_console.fleet import Fleet, Office
from pilothouse_console.letters import FleetKey
from pilothouse_console.metrics import Metrics
from pilothouse_console.picture import Picture
from pilothouse_console.redis_store import connect
from pilothouse_console.rights import Guard
from pilothouse_console.steering import Steering
from pilothouse_console.streams import Streams
from pilothouse_kubernetes.client import NotFound
from support.redis_server import RedisServer

pytestmark = pytest.mark.anyio
KEY = FleetKey([b"k" * 32])
STEERER = ("get", "list", "patch")
BOT = "system:serviceaccount:team:bot"
Rights = Mapping[str, Mapping[str, tuple[str, ...]]]


class Cluster:
    """One cluster: its API server (played), its rights by user and namespace, and its operator API."""

    def __init__(self, name: str, server: RedisServer | None, rights: Rights) -> None:
        self.name, self.rights, self.runs = name, rights, {}  # type: dict[tuple[str, str], dict[str, Any]]
        self.picture, self.metrics = Picture(), Metrics()
        watching: Any = SimpleNamespace(is_live=True, is_synced=True)
        guard, steering = Guard(self, self.picture, self), Steering(self, self.picture)  # type: ignore[arg-type]
        office = Office(self.picture, watching, guard, steering, self.metrics)
        self.fleet = (
            Fleet(name, KEY, connect(server.url, None, is_bounded=False), office) if server is not None else None
        )
        services = Services(
            picture=self.picture,
            watching=watching,
            guard=guard,
            steering=steering,
            metrics=self.metrics,
            access=self,  # type: ignore[arg-type]
            streams=Streams(self.picture, None, self.metrics, 10, 10),
            store=None,
            heartbeat_seconds=15,
            fleet=self.fleet,
        )
        self._app = build_app(services)
        self.versions = 0

    async def may(self, caller: Caller, verb: str, namespace: str = "", name: str = "") -> bool:
        mine = self.rights.get(caller.user, {})
        return verb in mine.get("*", ()) or (namespace != "" and verb in mine.get(namespace, ()))

    async def may_list_in(self, caller: Caller, namespaces: Iterable[str]) -> frozenset[str]:
        return frozenset([one for one in namespaces if await self.may(caller, "list", one)])

    def make(self, name: str, namespace: str = "ns", phase: str = "Running") -> None:
        self.runs[namespace, name] = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"{self.name}-{name}",
                "generation": 1,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"workflowRef": {"name": "triage"}},
            "status": {"phase": phase, "run": {"attempt": 1, "turn": 3}},
        }
        self.picture.apply(self._numbered(namespace, name))

    def _numbered(self, namespace: str, name: str) -> dict[str, Any]:
        self.versions += 1
        raw = self.runs[namespace, name]
        raw["metadata"]["resourceVersion"] = str(self.versions)
        return raw

    async def get(self, resource: Any, namespace: str, name: str) -> dict[str, Any]:
        if (namespace, name) not in self.runs:
            raise NotFound(404, "not found")
        return self.runs[namespace, name]

    async def merge_patch(self, resource: Any, namespace: str, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        raw = merge_patch(self.runs[namespace, name], patch)
        raw["metadata"]["generation"] += 1
        self.runs[namespace, name] = raw
        return self._numbered(namespace, name)

    def control(self, name: str, namespace: str = "ns") -> Any:
        return self.runs[namespace, name]["spec"].get("control")

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application behind a gate that believes what it is told."""
        user = dict(scope["headers"])[b"x-user"].decode()
        scope.setdefault("state", {})["caller"] = Caller(user, groups=("system:authenticated",))
        await self._app(scope, receive, send)

    async def ask(self, method: str, path: str, user: str = "jo", body: Any = None) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            return await client.request(method, path, headers={"X-User": user}, json=body)

    async def shown(self, user: str = "jo", query: str = "") -> list[tuple[str, str, str]]:
        answer = await self.ask("GET", f"/api/agents/runs{query}", user)
        assert answer.status_code == 200, answer.text
        return [(one.get("cluster"), one["namespace"], one["name"]) for one in answer.json()["items"]]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is slow is not a cluster that does not answer."""
    monkeypatch.setattr(fleet, "SIGHT_SECONDS", 30.0)
    monkeypatch.setattr(fleet, "ANSWER_SECONDS", 30.0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path).start()
    yield server
    server.close()


@asynccontextmanager
async def at_sea(*clusters: Cluster) -> AsyncIterator[None]:
    fleets = [one.fleet for one in clusters if one.fleet is not None]
    tasks = [asyncio.create_task(fleet.run()) for fleet in fleets]

    async def met() -> bool:
        known = [await fleet.mirror.clusters() if fleet.mirror.is_up else {} for fleet in fleets]
        return all(fleet.channel.listening.is_set() for fleet in fleets) and all(
            len(one) == len(fleets) for one in known
        )

    try:
        await eventually(met)
        for fleet in fleets:
            fleet.mirror._read_at = 0.0  # what was read before the others had written
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


A_RIGHTS: Rights = {
    "jo": {"*": STEERER},
    "al": {"ns": STEERER},
    BOT: {"*": STEERER},
    "system:serviceaccount:ns:prun": {"*": STEERER},
}
B_RIGHTS: Rights = {
    "jo": {"ns": STEERER},
    "al": {"other": ("get", "list")},
    BOT: {"*": STEERER},
    f"fleet:a:{BOT}": {"ns": ("get", "list")},
}


async def test_each_caller_is_shown_of_another_cluster_what_that_one_lets_them_see(server: RedisServer) -> None:
    a, b = Cluster("a", server, A_RIGHTS), Cluster("b", server, B_RIGHTS)
    a.make("r1")
    for namespace in ("ns", "other"):
        b.make("r1", namespace)
    async with at_sea(a, b):
        mine, theirs, hidden = ("a", "ns", "r1"), ("b", "ns", "r1"), ("b", "other", "r1")
        assert await a.shown("jo") == [mine, theirs]
        assert await a.shown("al") == [mine, hidden]
        assert await a.shown(BOT) == [mine, theirs], "a bot of cluster a is none of b's bot of that name"
        assert await a.shown("eve") == []
        assert await a.shown("jo", "?cluster=b") == [theirs]
        assert await a.shown("jo", "?cluster=a") == [mine]
        assert await a.shown("al", "?namespace=other") == [hidden], "what is a namespace of b alone"
        assert (await a.ask("GET", "/api/agents/runs?namespace=other", "eve")).status_code == 404
        assert (await a.ask("GET", "/api/agents/runs?cluster=c")).status_code == 404
        listed = (await a.ask("GET", "/api/agents/runs")).json()
        assert listed["degraded"] is False
        assert [(one["name"], one["isShown"]) for one in listed["clusters"]] == [("a", True), ("b", True)]
        assert ["asOf" in one for one in listed["items"]] == [False, True]


async def test_a_cluster_that_does_not_say_what_may_be_seen_is_not_shown(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "SIGHT_SECONDS", 0.2)
    monkeypatch.setattr(fleet, "ANSWER_SECONDS", 0.2)
    a, b = Cluster("a", server, A_RIGHTS), Cluster("b", server, B_RIGHTS)
    b.make("r1")
    async with at_sea(b):
        pass
    async with _alone(a):
        listed = (await a.ask("GET", "/api/agents/runs")).json()
        assert [(one["name"], one["isShown"]) for one in listed["clusters"]] == [("a", True), ("b", False)]
        assert listed["items"] == []
        answer = await a.ask("POST", "/api/agents/runs/ns/r1/pause?cluster=b&wait=0.1")
        assert (answer.status_code, "cluster b does not answer" in answer.text) == (503, True)


@asynccontextmanager
async def _alone(cluster: Cluster) -> AsyncIterator[None]:
    assert cluster.fleet is not None
    task = asyncio.create_task(cluster.fleet.run())
    await cluster.fleet.channel.listening.wait()
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_run_of_another_cluster_takes_every_directive(server: RedisServer) -> None:
    a, b = Cluster("a", server, A_RIGHTS), Cluster("b", server, {"jo": {"ns": (*STEERER, "approve", "limit")}})
    b.make("r1")
    call = {"callId": "t1", "tool": "refund", "requestedAt": "2026-01-01T00:00:00Z"}
    b.runs["ns", "r1"]["status"]["run"]["pendingApprovals"] = [call]
    async with at_sea(a, b):

        async def give(what: str, body: Any = None) -> Any:
            answer = await a.ask("POST", f"/api/agents/runs/ns/r1/{what}?cluster=b", body=body)
            assert answer.status_code == 202, answer.text
            return answer.json()

        assert await give("pause", {"reason": "lunch"}) == {
            "accepted": True,
            "id": "pause-2",
            "generation": 2,
            "by": "jo",
        }
        assert b.control("r1") == {"mode": "Pause", "reason": "lunch", "by": "jo"}
        await give("resume")
        assert b.control("r1") == {"mode": "Run", "by": "jo"}
        assert (await give("steer", {"message": "Faster."}))["id"].startswith("api-")
        await give("approve", {"callId": "t1", "arguments": {"amount": 4, "note": None}})
        approval = {"decision": "Approve", "arguments": {"amount": 4}, "remove": ["note"], "by": "jo"}
        assert b.control("r1")["approvals"] == {"t1": approval}
        await give("limits", {"maxIterations": 4, "tokenBudget": None})
        assert b.runs["ns", "r1"]["spec"]["limits"] == {"maxIterations": 4}
        await give("finish")
        await give("abort")
        assert b.control("r1")["mode"] == "Abort"
    assert a.runs == {}


REFUSED: list[tuple[str, str, Any, int, str]] = [
    ("eve", "ns/r1/pause", None, 404, "you may not see it"),
    ("al", "ns/r1/pause", None, 404, "you may not see it"),
    ("al", "other/r1/pause", None, 403, "al may not patch"),
    (BOT, "ns/r1/pause", None, 403, f"fleet:a:{BOT} may not patch"),
    ("system:serviceaccount:ns:prun", "ns/r1/pause", None, 403, "account of a runner"),
    ("jo", "ns/r1/limits", {"maxIterations": 4}, 403, "jo may not limit"),
    ("jo", "ns/r1/steer", {"message": " "}, 400, "blank"),
    ("jo", "ns/r2/pause", None, 409, "has ended"),
    ("jo", "ns/none/pause", None, 404, "no run"),
    ("jo", "x%2Fy/r1/pause", None, 404, ""),
]


async def test_another_cluster_refuses_as_it_refuses_its_own(server: RedisServer) -> None:
    a, b = Cluster("a", server, A_RIGHTS), Cluster("b", server, B_RIGHTS)
    for namespace in ("ns", "other"):
        b.make("r1", namespace)
    b.make("r2", phase="Succeeded")
    async with at_sea(a, b):
        for user, path, body, status, words in REFUSED:
            answer = await a.ask("POST", f"/api/agents/runs/{path}?cluster=b", user, body)
            assert (answer.status_code, words in answer.text) == (status, True), (user, path, answer.text)
    assert b.control("r1") is b.control("r1", "other") is b.control("r2") is None


async def test_of_two_processes_of_a_cluster_one_does_what_is_asked(server: RedisServer) -> None:
    a, b = Cluster("a", server, A_RIGHTS), Cluster("b", server, {"jo": {"ns": STEERER}})
    twin = Cluster("b", server, b.rights)
    for one in (b, twin):
        one.make("r1")
    assert twin.fleet is not None
    async with at_sea(a, b), _alone(twin):
        for number in range(8):
            answer = await a.ask("POST", "/api/agents/runs/ns/r1/steer?cluster=b", body={"message": f"m{number}"})
            assert answer.status_code == 202, answer.text
    given = [len((one.control("r1") or {}).get("steer", {})) for one in (b, twin)]
    assert sum(given) == 8


async def test_who_is_of_no_fleet_says_so_and_nothing_else_changes() -> None:
    a = Cluster("a", None, A_RIGHTS)
    a.make("r1")
    listed = (await a.ask("GET", "/api/agents/runs")).json()
    assert ("degraded" in listed, "clusters" in listed, "cluster" in listed["items"][0]) == (False, False, False)
    for method, path in (("GET", "/api/agents/runs?cluster=b"), ("POST", "/api/agents/runs/ns/r1/pause?cluster=b")):
        answer = await a.ask(method, path)
        assert (answer.status_code, "of no fleet" in answer.text) == (404, True)
    assert (await a.ask("POST", "/api/agents/runs/ns/r1/pause")).status_code == 202


async def test_without_redis_the_own_runs_are_shown_and_steered(server: RedisServer) -> None:
    a, b = Cluster("a", server, A_RIGHTS), Cluster("b", server, B_RIGHTS)
    a.make("r1")
    b.make("r1")
    async with at_sea(a, b):
        assert len(await a.shown()) == 2
        server.kill()

        async def degraded() -> bool:
            return bool((await a.ask("GET", "/api/agents/runs")).json()["degraded"])

        await eventually(degraded)
        assert await a.shown() == [("a", "ns", "r1")]
        answer = await a.ask("POST", "/api/agents/runs/ns/r1/pause?cluster=b")
        assert (answer.status_code, "Redis is away" in answer.text) == (503, True)
        assert (await a.ask("POST", "/api/agents/runs/ns/r1/pause?cluster=a")).status_code == 202
