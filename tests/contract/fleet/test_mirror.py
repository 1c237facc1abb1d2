"""The mirror of a fleet on a real Redis: what is written, read, pruned and answered, and what is not believed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from contract.fleet.seas import eventually
from pilothouse_api.names import FLEET_CLUSTERS, FLEET_CONTROL, FLEET_RUNS
from pilothouse_console import channel, mirror
from pilothouse_console.channel import Channel
from pilothouse_console.letters import (
    Content,
    DirectiveLetter,
    FleetKey,
    Letter,
    Person,
    SeenLetter,
    SightLetter,
    seal_letter,
)
from pilothouse_console.metrics import Metrics
from pilothouse_console.mirror import HEARTBEAT_SECONDS, SILENT_SECONDS, FleetAway, Mirror
from pilothouse_console.picture import Picture
from pilothouse_console.redis_store import connect
from support.redis_server import RedisServer

pytestmark = pytest.mark.anyio
KEY = FleetKey([b"k" * 32])
ASK = SightLetter(person=Person(user="jo"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path).start()
    yield server
    server.close()


class Watching:
    """Says whether it follows its API server, and how often it was asked."""

    def __init__(self) -> None:
        self.is_following, self.asked = True, 0

    @property
    def is_live(self) -> bool:
        self.asked += 1
        return self.is_following


class Cluster:
    """One cluster of a fleet: its picture, its mirror and its channel."""

    def __init__(self, name: str, server: RedisServer, key: FleetKey = KEY) -> None:
        self.name, self.key = name, key
        self.redis = connect(server.url, None)
        self.picture = Picture()
        self.watching = Watching()
        self.skew = 0.0
        self.versions = 0
        self.mirror = Mirror(name, key, self.redis, self.picture, self.watching, self.now)  # type: ignore[arg-type]
        self.metrics = Metrics()
        self.asked: list[Letter] = []
        self.channel = Channel(self.mirror, key, self.redis, self.answer, self.metrics, self.now)

    def now(self) -> float:
        return time.time() + self.skew

    def show(self, name: str, phase: str = "Running", **status: Any) -> None:
        """Have its API server tell of a run."""
        self.versions += 1
        metadata = {"name": name, "namespace": "ns", "uid": f"{self.name}-{name}", "creationTimestamp": "2026-01-01"}
        spec = {"workflowRef": {"name": "triage"}}
        self.picture.apply(
            {
                "metadata": {**metadata, "resourceVersion": str(self.versions)},
                "spec": spec,
                "status": {"phase": phase, **status},
            }
        )

    async def answer(self, letter: Letter) -> Content:
        self.asked.append(letter)
        return SeenLetter(of=letter.id, namespaces=(self.name,))

    async def sees(self) -> dict[str, Any]:
        """What it knows of the others, read now."""
        self.mirror._read_at = 0.0
        return {f"{row.cluster}/{row.summary.name}": row.summary for row in await self.mirror.rows()}

    def refused(self, cause: str) -> float:
        return (
            self.metrics.registry.get_sample_value("pilothouse_api_fleet_letters_refused_total", {"cause": cause})
            or 0.0
        )


@asynccontextmanager
async def at_sea(*clusters: Cluster) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(task) for one in clusters for task in (one.mirror.run(), one.channel.run())]
    for one in clusters:
        await asyncio.wait_for(one.channel.listening.wait(), 60)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in clusters:
            await one.redis.aclose()


async def test_each_cluster_sees_the_runs_of_the_other_as_they_go_on_and_end(server: RedisServer) -> None:
    a, b = Cluster("a", server), Cluster("b", server)
    b.show("r1", run={"attempt": 1, "turn": 3, "step": "look"})
    async with at_sea(a, b):
        (seen,) = (await eventually(a.sees)).values()
        assert (seen.cluster, seen.name, seen.turn, seen.step) == ("b", "r1", 3, "look")
        assert seen.as_of is not None
        assert await b.sees() == {}
        assert set(await a.mirror.clusters()) == {"a", "b"}
        b.show("r1", "Paused", run={"attempt": 1, "turn": 4})

        async def parked() -> bool:
            return {one.phase for one in (await a.sees()).values()} == {"Paused"}

        async def gone() -> bool:
            return await a.sees() == {}

        await eventually(parked)
        b.show("r1", "Succeeded")
        await eventually(gone)
        assert server.ask("HLEN", FLEET_RUNS) == 0


async def test_what_is_silent_is_not_shown_and_is_pruned_by_whoever_is_there(server: RedisServer) -> None:
    a, b = Cluster("a", server), Cluster("b", server)
    b.show("r1")
    async with at_sea(b):
        assert server.ask("HLEN", FLEET_RUNS) == 1
    a.skew = SILENT_SECONDS + 1
    async with at_sea(a):
        assert await a.sees() == {}
        assert server.ask("HLEN", FLEET_RUNS) == 0
        assert server.ask("HKEYS", FLEET_CLUSTERS) == [b"a"]


async def test_what_goes_on_without_a_change_is_written_at_each_heartbeat_and_an_old_picture_is_not(
    server: RedisServer,
) -> None:
    b = Cluster("b", server)
    b.show("r1")

    def row() -> bytes:
        return bytes(server.ask("HGET", FLEET_RUNS, "b/ns/r1"))

    async def renewed() -> bool:
        return row() != before

    async with at_sea(b):
        before = row()
        b.skew += HEARTBEAT_SECONDS
        await eventually(renewed)
        b.watching.is_following = False
        before, b.skew = row(), b.skew + HEARTBEAT_SECONDS
        b.show("r1", "Paused")
        asked = b.watching.asked

        async def looked_twice() -> bool:
            return b.watching.asked >= asked + 2

        await eventually(looked_twice)
        assert row() == before


async def test_a_row_that_the_key_did_not_seal_is_not_shown_and_is_pruned(server: RedisServer) -> None:
    a, b = Cluster("a", server), Cluster("b", server)
    b.show("r1")
    async with at_sea(b):
        good = server.ask("HGET", FLEET_RUNS, "b/ns/r1")
    forged = [b"{}", good[:-1], good.replace(b"Running", b"Aborted"), KEY.seal("row:b/ns/r9", b"[]")]
    for number, value in enumerate(forged):
        server.ask("HSET", FLEET_RUNS, f"b/ns/f{number}", value)
    server.ask("HSET", FLEET_RUNS, "b/other/r1", good)
    server.ask("HSET", FLEET_RUNS, b"\xff", b"\xff")
    server.ask("HSET", FLEET_CLUSTERS, "z", b"1900000000")
    async with at_sea(a):
        assert set(await a.sees()) == {"b/r1"}
        assert set(await a.mirror.clusters()) == {"a", "b"}
        assert server.ask("HLEN", FLEET_RUNS) == 1


async def test_what_somebody_fills_the_hash_with_is_read_up_to_a_bound(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = Cluster("a", server), Cluster("b", server)
    b.show("r1")
    async with at_sea(b):
        pass
    server.ask("HSET", FLEET_RUNS, "b/ns/long", b"x" * (mirror.LONGEST_ROW_BYTES + 1))
    server.ask("HSET", FLEET_RUNS, b"x" * (mirror.LONGEST_ROW_BYTES + 1), b"long")
    assert set(await a.mirror._read_all()) == {b"b/ns/r1"}
    assert server.ask("HLEN", FLEET_RUNS) == 1
    monkeypatch.setattr(mirror, "MOST_ROWS", 700)
    server.ask("HSET", FLEET_RUNS, *(word for number in range(3000) for word in (f"b/ns/f{number}", b"{}")))
    server.ask("HSET", FLEET_CLUSTERS, *(word for number in range(3000) for word in (f"c{number}", b"1900000000")))
    assert len(await a.mirror._read_all()) == 700
    assert len(await a.mirror._read_beats()) == 700
    await a.redis.aclose()
    await b.redis.aclose()


async def test_own_rows_of_before_a_restart_whose_runs_have_ended_are_deleted(server: RedisServer) -> None:
    before, after = Cluster("b", server), Cluster("b", server)
    before.show("r1")
    before.show("r2")
    async with at_sea(before):
        assert server.ask("HLEN", FLEET_RUNS) == 2
    after.show("r2")
    async with at_sea(after):
        assert server.ask("HKEYS", FLEET_RUNS) == [b"b/ns/r2"]


async def test_a_letter_is_answered_by_its_receiver_alone(server: RedisServer) -> None:
    a, b, c = (Cluster(name, server) for name in "abc")
    async with at_sea(a, b, c):
        assert await a.channel.ask("b", ASK, 10) == SeenLetter(of=b.asked[0].id, namespaces=("b",))
        assert (len(b.asked), len(c.asked), b.asked[0].sender) == (1, 0, "a")
        assert await a.channel.ask("d", ASK, 0.2) is None


async def test_who_waits_for_many_landings_keeps_nobody_from_seeing(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = Cluster("a", server), Cluster("b", server)
    monkeypatch.setattr(channel, "MOST_AT_ONCE", 3)
    order = DirectiveLetter(person=Person(user="jo"), namespace="ns", name="r1", what="pause", new_id="x", wait=60)
    released = asyncio.Event()

    async def answer(letter: Letter) -> Content:
        if isinstance(letter.content, DirectiveLetter):
            b.asked.append(letter)
            await released.wait()
        return SeenLetter(of=letter.id, namespaces=("b",))

    b.channel._handle = answer
    async with at_sea(a, b):
        waiting = [asyncio.create_task(a.channel.ask("b", order, 60)) for _ in range(4)]

        async def busy() -> bool:
            return len(b.asked) == 3 and b.refused("Busy") == 1

        await eventually(busy)
        assert await a.channel.ask("b", ASK, 30) is not None
        released.set()
        for task in waiting:
            task.cancel()


async def test_forged_repeated_and_old_letters_are_not_taken(server: RedisServer) -> None:
    a, b = Cluster("a", server), Cluster("b", server)
    seen: list[bytes] = []
    async with at_sea(a, b):
        spy = a.redis.pubsub()
        await spy.subscribe(FLEET_CONTROL)
        await spy.get_message(timeout=30)
        await a.channel.ask("b", ASK, 10)
        message = await spy.get_message(ignore_subscribe_messages=True, timeout=30)
        assert message is not None
        seen.append(bytes(message["data"]))
        await spy.aclose()  # type: ignore[no-untyped-call]

        old = Letter(id="1" * 32, sender="a", receiver="b", sent_at=time.time() - 60, content=ASK)
        forged = [
            (seen[0], "Repeated"),
            (seen[0].replace(b'"jo"', b'"al"'), "Unsealed"),
            (seal_letter(FleetKey([b"x" * 32]), old), "Unsealed"),
            (seal_letter(KEY, old), "Expired"),
            (b"\x00" * 100, "Unsealed"),
        ]
        for value, cause in forged:
            before = b.refused(cause)
            server.ask("PUBLISH", FLEET_CONTROL, value)

            async def counted(cause: str = cause, before: float = before) -> bool:
                return b.refused(cause) == before + 1

            await eventually(counted)
        assert len(b.asked) == 1


async def test_an_answer_of_another_cluster_than_the_asked_one_is_not_taken(server: RedisServer) -> None:
    a, b = Cluster("a", server), Cluster("b", server)

    async def silent(letter: Letter) -> None:
        content = SeenLetter(of=letter.id, namespaces=None)
        lie = Letter(id="2" * 32, sender="c", receiver="a", sent_at=time.time(), content=content)
        server.ask("PUBLISH", FLEET_CONTROL, seal_letter(KEY, lie))

    b.channel._handle = silent
    async with at_sea(a, b):
        assert await a.channel.ask("b", ASK, 0.5) is None


async def test_redis_away_is_said_at_once_and_everything_is_there_again_afterwards(server: RedisServer) -> None:
    a, b = Cluster("a", server), Cluster("b", server)
    b.show("r1")
    async with at_sea(a, b):
        await eventually(a.sees)
        server.kill()
        with pytest.raises(FleetAway):
            await eventually(a.sees, 0.1)
        started = time.monotonic()
        with pytest.raises(FleetAway):
            await a.sees()
        assert time.monotonic() - started < 0.5
        with pytest.raises(FleetAway):
            for _ in range(100):
                await a.channel.ask("b", ASK, 0.1)
        server.start()
        server.ask("FLUSHALL")

        async def there() -> bool:
            try:
                is_answered = await a.channel.ask("b", ASK, 1) is not None
                return is_answered and set(await a.sees()) == {"b/r1"}
            except FleetAway:
                return False

        await eventually(there, 40)


@pytest.mark.slow
async def test_a_redis_that_hangs_counts_as_away(server: RedisServer) -> None:
    a = Cluster("a", server)

    async def lost() -> bool:
        return not a.mirror.is_up and not a.channel.listening.is_set()

    async with at_sea(a):
        server.freeze()
        try:
            await eventually(lost)
        finally:
            server.thaw()


def test_a_row_is_small(server: RedisServer) -> None:
    b = Cluster("b", server)
    exit_report = {"signal": "error", "reason": "Error", "message": "x" * 4096}
    b.show("r1", "Failed", exit=exit_report, run={"attempt": 1, "turn": 3, "trace": [{"kind": "Step"}] * 20})
    (entry,) = b.picture.entries()
    sealed = b.mirror._seal("b/ns/r1", entry.summary)
    assert len(sealed) < 1200
    assert "trace" not in json.loads(sealed[44:])["run"]
