"""Two clusters, one picture: two real API servers, an operator API before each, and one Redis between them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import yaml

from integration.console.conftest import found_office, open_desk
from integration.console.office import Desk, Office
from pilothouse_api.names import FLEET_CONTROL, FLEET_RUNS
from pilothouse_console.letters import DirectiveLetter, FleetKey, Letter, Person, seal_letter
from support.cluster import LocalCluster, enter_for_good, fresh_cluster
from support.redis_server import RedisServer

pytestmark = pytest.mark.anyio
KEY = "f" * 64
T = TypeVar("T")


class Shore:
    """A thread in the network of one cluster, with an event loop: what runs there reaches that cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"shore-{cluster.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        enter_for_good(self.cluster)
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call what blocks, in that network."""

        async def work() -> T:
            return function(*arguments)

        return await self.do(work())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class Side:
    """One cluster of the fleet: its people and its operator API."""

    def __init__(self, name: str, shore: Shore, office: Office) -> None:
        self.name, self.shore, self.office = name, shore, office
        self.desk: Desk

    async def run(self, *arguments: Any) -> str:
        return await self.shore.call(lambda: self.office.run(*arguments))

    async def control(self, name: str) -> dict[str, Any]:
        return await self.shore.call(self.office.control, name)

    async def list(self, who: str, **query: str) -> dict[str, Any]:
        answer = await self.shore.do(self.desk.get(who, "/api/agents/runs", params=query))
        assert answer.status_code == 200, answer.text
        listed: dict[str, Any] = answer.json()
        return listed

    async def post(self, who: str, path: str, body: Any = None) -> httpx.Response:
        return await self.shore.do(self.desk.post(who, path, body))

    async def seen(self, who: str, **query: str) -> set[tuple[str, str]]:
        return {(item["cluster"], item["name"]) for item in (await self.list(who, **query))["items"]}

    def user(self, who: str) -> str:
        """How this cluster's person is called in the others."""
        return f"fleet:{self.name}:system:serviceaccount:{self.office.namespace}:{who}"

    async def grant(self, other: Side, *people: str) -> None:
        """Give people of another cluster the rights that their namesakes have here."""
        bindings = [
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": f"fleet-{who}", "namespace": self.office.namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": who},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": other.user(who)}],
            }
            for who in people
        ]
        text = yaml.safe_dump_all(bindings)
        await self.shore.call(lambda: self.shore.cluster.run_tool("kubectl", "apply", "-f", "-", stdin=text))


@pytest.fixture(scope="module")
def shores(control_plane: LocalCluster) -> Iterator[tuple[Shore, Shore]]:
    with fresh_cluster("control-plane", "fleet") as other:
        shores = Shore(control_plane), Shore(other)
        yield shores
        for shore in shores:
            shore.close()


@pytest.fixture(scope="module")
def offices(office: Office, shores: tuple[Shore, Shore]) -> tuple[Office, Office]:
    return office, asyncio.run(shores[1].call(found_office, shores[1].cluster))


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path).start()
    yield server
    server.close()


@pytest.fixture
async def sides(
    shores: tuple[Shore, Shore], offices: tuple[Office, Office], redis: RedisServer, tmp_path: Path, anyio_backend: str
) -> AsyncIterator[tuple[Side, Side]]:
    key = tmp_path / "fleet.key"
    key.write_text(KEY)
    async with AsyncExitStack() as stack:
        both = []
        for name, shore, office in zip("ab", shores, offices, strict=True):
            side = Side(name, shore, office)
            settings = {"fleet_redis_url": redis.url, "fleet_cluster": name, "fleet_key": key}
            side.desk = await stack.enter_async_context(_opened(shore, office, settings))
            both.append(side)
        a, b = both
        await b.grant(a, "reader", "patcher", "decider")
        await eventually(lambda: _is_met(a, b))
        yield a, b


@asynccontextmanager
async def _opened(shore: Shore, office: Office, settings: dict[str, Any]) -> AsyncIterator[Desk]:
    context = open_desk(office, shore.cluster, **settings)
    desk = await shore.do(context.__aenter__())
    try:
        yield desk
    finally:
        await shore.do(context.__aexit__(None, None, None))


async def _is_met(a: Side, b: Side) -> bool:
    views = [await side.list("reader") for side in (a, b)]
    return all({one["name"] for one in view["clusters"] if one["isShown"]} == {"a", "b"} for view in views)


async def eventually(look: Callable[[], Awaitable[Any]], seconds: float = 90.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := await look()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.05)
    return found


async def test_a_run_of_one_cluster_is_seen_and_paused_from_the_other(sides: tuple[Side, Side]) -> None:
    a, b = sides
    own, theirs, hidden = await a.run(), await b.run(), await b.run(b.office.elsewhere)
    await eventually(lambda: _sees(a, "patcher", ("b", theirs)))

    listed = await a.list("patcher", cluster="b")
    row = next(item for item in listed["items"] if item["name"] == theirs)
    assert (row["namespace"], row["turn"], row["asOf"] != "") == (b.office.namespace, 1, True)
    assert listed["degraded"] is False
    assert {("a", own), ("b", theirs)} <= await a.seen("patcher")
    assert all(cluster == "a" for cluster, _ in await a.seen("patcher", cluster="a"))
    assert not any(name == hidden for _, name in await a.seen("decider"))
    # Who has rights in one cluster alone is shown that one alone: nobody of b was let in by a.
    assert not any(cluster == "a" for cluster, _ in await b.seen("patcher"))

    path = b.desk.path(theirs, "/pause?cluster=b&wait=30")
    asked = asyncio.create_task(a.post("patcher", path, {"reason": "lunch"}))

    async def written() -> dict[str, Any]:
        return await b.control(theirs)

    assert await eventually(written) == {"mode": "Pause", "reason": "lunch", "by": a.user("patcher")}
    generation = (await b.shore.call(b.office.read, theirs))["metadata"]["generation"]
    landed = {"observedGeneration": generation, "mode": {"value": "Pause", "turn": 2}}
    await b.shore.call(
        b.office.report, theirs, {"phase": "Paused", "run": {"attempt": 1, "turn": 2, "control": landed}}
    )
    answer = await asked
    assert (answer.status_code, answer.json()["landing"]) == (200, {"state": "Landed", "turn": 2})
    assert (answer.json()["by"], answer.json()["id"]) == (a.user("patcher"), f"pause-{generation}")

    async def paused() -> bool:
        items = (await a.list("patcher", cluster="b"))["items"]
        return any(item["name"] == theirs and item["phase"] == "Paused" for item in items)

    await eventually(paused)


async def _sees(side: Side, who: str, run: tuple[str, str]) -> bool:
    return run in await side.seen(who)


async def test_the_other_cluster_refuses_whom_it_gives_no_right(sides: tuple[Side, Side]) -> None:
    a, b = sides
    theirs, hidden, ended = await b.run(), await b.run(b.office.elsewhere), await b.run()
    await b.shore.call(b.office.end, ended)
    there = b.desk.path(theirs)
    cases: list[tuple[str, str, Any, int, str]] = [
        ("nobody", f"{there}/pause?cluster=b", None, 404, "you may not see it"),
        ("reader", f"{there}/pause?cluster=b", None, 403, f"{a.user('reader')} may not patch"),
        ("runner", f"{there}/pause?cluster=b", None, 403, "account of a runner"),
        ("patcher", f"{there}/limits?cluster=b", {"maxIterations": 4}, 403, "may not limit"),
        ("patcher", f"{there}/steer?cluster=b", {"message": " "}, 400, "blank"),
        ("patcher", f"{b.desk.path(ended)}/abort?cluster=b", None, 409, "has ended"),
        ("patcher", f"{b.desk.path(hidden, namespace=b.office.elsewhere)}/abort?cluster=b", None, 404, "no run"),
        ("patcher", f"{there}/pause?cluster=c", None, 404, "there is no cluster 'c'"),
        ("patcher", f"{there}/pause?cluster=A", None, 422, "cluster"),
        ("patcher", f"{there}/pause", None, 404, "no run"),
    ]
    for who, path, body, status, words in cases:
        answer = await a.post(who, path, body)
        assert (answer.status_code, words in answer.text) == (status, True), (who, path, answer.text)
    assert await b.control(theirs) == {}
    answer = await a.post("patcher", f"{there}/steer?cluster=b", {"message": "Look at invoice 42.", "id": "s1"})
    assert answer.status_code == 202, answer.text
    assert (await b.control(theirs))["steer"] == {"s1": {"message": "Look at invoice 42.", "by": a.user("patcher")}}


async def test_a_forged_directive_moves_nothing_and_a_sealed_one_only_once(
    sides: tuple[Side, Side], redis: RedisServer
) -> None:
    _, b = sides
    name = await b.run()
    content = DirectiveLetter(
        person=Person(user=f"system:serviceaccount:{sides[0].office.namespace}:patcher"),
        namespace=b.office.namespace,
        name=name,
        what="pause",
        new_id="api-1",
    )
    letter = Letter(id="5" * 32, sender="a", receiver="b", sent_at=time.time(), content=content)
    metrics = b.desk.host.services.metrics.registry

    async def counted(metric: str, label: str, value: str, want: float) -> bool:
        return metrics.get_sample_value(f"pilothouse_api_fleet_{metric}_total", {label: value}) == want

    redis.ask("PUBLISH", FLEET_CONTROL, seal_letter(FleetKey([b"x" * 64]), letter))
    await eventually(lambda: counted("letters_refused", "cause", "Unsealed", 1))
    assert await b.control(name) == {}
    sealed = seal_letter(FleetKey([KEY.encode()]), letter)
    redis.ask("PUBLISH", FLEET_CONTROL, sealed)
    await eventually(lambda: counted("directives", "outcome", "Written", 1))
    assert (await b.control(name))["mode"] == "Pause"
    await b.post("patcher", b.desk.path(name, "/resume"))
    redis.ask("PUBLISH", FLEET_CONTROL, sealed)
    await eventually(lambda: counted("letters_refused", "cause", "Repeated", 1))
    assert (await b.control(name))["mode"] == "Run"


async def test_without_redis_each_cluster_is_alone_and_says_so_until_it_is_back(
    sides: tuple[Side, Side], redis: RedisServer
) -> None:
    a, b = sides
    own, theirs = await a.run(), await b.run()
    await eventually(lambda: _sees(a, "patcher", ("b", theirs)))
    redis.kill()

    async def degraded() -> dict[str, Any] | None:
        listed = await a.list("patcher")
        return listed if listed["degraded"] else None

    alone = await eventually(degraded)
    assert {item["cluster"] for item in alone["items"]} == {"a"}
    assert own in {item["name"] for item in alone["items"]}
    refused = await a.post("patcher", b.desk.path(theirs, "/pause?cluster=b"))
    assert (refused.status_code, "Redis is away" in refused.text) == (503, True)
    assert (await a.post("patcher", a.desk.path(own, "/pause"))).status_code == 202

    redis.start()
    redis.ask("DEL", FLEET_RUNS)
    await eventually(lambda: _sees(a, "patcher", ("b", theirs)), 60)
    assert (await a.list("patcher"))["degraded"] is False
    answer = await a.post("patcher", b.desk.path(theirs, "/pause?cluster=b"))
    assert answer.status_code == 202, answer.text
