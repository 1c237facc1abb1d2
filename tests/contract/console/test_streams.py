"""Streams of events over a real Redis: nothing is lost and nothing comes twice, whoever leaves, returns or is away."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pilothouse_api.batches import Batch, encode_batch
from pilothouse_api.digests import compact_json, text_digest
from pilothouse_api.names import redis_run_prefix
from pilothouse_console import bounded_replies
from pilothouse_console.metrics import Metrics
from pilothouse_console.picture import Entry, Picture
from pilothouse_console.redis_store import PAGE_BOUND, RedisAway, RedisStore, connect
from pilothouse_console.streams import Streams, View
from support.redis_server import RedisServer, shared_redis

pytestmark = pytest.mark.anyio
NAMESPACE = "team-a"


@dataclass
class Scene:
    """One run, its stream, and the streams of a process."""

    server: RedisServer
    streams: Streams
    store: RedisStore
    picture: Picture
    uid: str = field(default_factory=lambda: uuid.uuid4().hex)
    told: int = 0
    version: int = 0

    def tell(self, count: int = 1) -> None:
        """Let the runner send frames."""
        for _ in range(count):
            self.told += 1
            frame = json.dumps({"kind": "ToolCall", "turn": self.told})
            key = f"{redis_run_prefix(NAMESPACE, self.uid)}frames"
            self.server.ask("XADD", key, "MAXLEN", "1000", "*", "frame", frame)

    def change(self, phase: str = "Running") -> Entry:
        self.version += 1
        raw_run = {
            "apiVersion": "pilothouse.dev/v1alpha1",
            "kind": "AgentRun",
            "metadata": {
                "namespace": NAMESPACE,
                "name": "r1",
                "uid": self.uid,
                "resourceVersion": str(self.version),
            },
            "spec": {"workflowRef": {"name": "triage"}},
            "status": {"phase": phase},
        }
        entry = self.picture.apply(raw_run)
        assert entry is not None
        return entry


@asynccontextmanager
async def opened(server: RedisServer) -> AsyncIterator[Scene]:
    metrics, picture = Metrics(), Picture()
    store = RedisStore(connect(server.url, None), metrics)
    streams = Streams(picture, store, metrics, most=10, most_per_user=10)
    reading = asyncio.create_task(streams.run())
    try:
        yield Scene(server, streams, store, picture)
    finally:
        reading.cancel()
        await asyncio.wait({reading})
        await store.close()


@dataclass
class Seen:
    """What one viewer has got."""

    events: list[tuple[str, Any, str | None]] = field(default_factory=list)

    def take(self, text: bytes) -> None:
        for block in text.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if line)
            if "event" in fields:
                self.events.append((fields["event"], json.loads(fields["data"]), fields.get("id")))

    @property
    def turns(self) -> list[int]:
        return [data["turn"] for event, data, _ in self.events if event == "frame"]

    @property
    def last_id(self) -> str:
        return [event_id for _, _, event_id in self.events if event_id][-1]

    @property
    def kinds(self) -> list[str]:
        return [event for event, _, _ in self.events]


async def look(
    scene: Scene, until: Callable[[Seen], bool], last_id: str | None = None, then: Awaitable[None] | None = None
) -> Seen:
    """Look at the run until something is seen; `then` happens once the viewer has begun."""
    entry = scene.picture.get(scene.change().key)
    assert entry is not None
    seen = Seen()
    with scene.streams.opened(entry, "ada") as feed, feed.viewed() as changed:
        view = View(scene.streams, feed, last_id)
        seen.take(await view.begin())
        async with asyncio.timeout(60):
            while not until(seen):
                changed.clear()
                async for part in view.news():
                    seen.take(part)
                if then is not None:
                    await then
                    then = None
                if not until(seen):
                    await changed.wait()
    return seen


async def test_a_viewer_sees_what_was_and_what_comes() -> None:
    async with opened(shared_redis()) as scene:
        scene.tell(3)

        async def more() -> None:
            scene.tell(2)

        seen = await look(scene, lambda seen: len(seen.turns) >= 5, then=more())
        assert seen.turns == [1, 2, 3, 4, 5]
        assert "run" in seen.kinds
        assert "gap" not in seen.kinds


async def test_who_comes_back_goes_on_behind_the_last_one_seen() -> None:
    async with opened(shared_redis()) as scene:
        scene.tell(300)  # more than the feed keeps
        first = await look(scene, lambda seen: len(seen.turns) >= 300)
        scene.tell(700)
        second = await look(scene, lambda seen: len(seen.turns) >= 700, first.last_id)
        assert first.turns + second.turns == list(range(1, 1001))
        assert "gap" not in second.kinds


async def test_frames_that_the_stream_has_dropped_are_said_to_be_lost() -> None:
    async with opened(shared_redis()) as scene:
        scene.tell(2)
        first = await look(scene, lambda seen: len(seen.turns) >= 2)
        scene.tell(1005)
        second = await look(scene, lambda seen: len(seen.turns) >= 1000, first.last_id)
        assert second.kinds[0] == "gap"
        assert second.turns == list(range(8, 1008))
        other = await look(scene, lambda seen: len(seen.turns) >= 1000, "t1-0123456789ab-1")  # of another source
        assert other.kinds[0] == "gap"


async def test_two_viewers_share_a_feed_and_each_sees_all() -> None:
    async with opened(shared_redis()) as scene:
        scene.tell(3)
        early = asyncio.create_task(look(scene, lambda seen: len(seen.turns) >= 6))
        late = asyncio.create_task(look(scene, lambda seen: len(seen.turns) >= 6))
        await asyncio.sleep(0.05)
        scene.tell(3)
        assert [seen.turns for seen in await asyncio.gather(early, late)] == [[1, 2, 3, 4, 5, 6]] * 2


async def test_while_redis_is_away_a_stream_stays_and_then_goes_on_without_a_gap(tmp_path: Path) -> None:
    server = RedisServer(tmp_path).start()
    try:
        async with opened(server) as scene:
            scene.tell(2)

            async def restart() -> None:
                server.kill()
                with pytest.raises(RedisAway):
                    await scene.store.newest_frames(NAMESPACE, scene.uid, 1)
                scene.change("Paused")
                server.start()
                scene.tell(2)

            def is_whole(seen: Seen) -> bool:
                phases = [data["phase"] for event, data, _ in seen.events if event == "run"]
                return len(seen.turns) >= 4 and "Paused" in phases

            seen = await look(scene, is_whole, then=restart())
            assert seen.turns == [1, 2, 3, 4]
    finally:
        server.close()


@pytest.mark.parametrize("is_late", [False, True], ids=["before it is looked at", "while it is looked at"])
async def test_a_runner_that_makes_something_else_of_its_stream_silences_no_other_run(is_late: bool) -> None:
    async with opened(shared_redis()) as scene:
        hostile = uuid.uuid4().hex
        key = f"{redis_run_prefix(NAMESPACE, hostile)}frames"
        metadata = {"namespace": NAMESPACE, "name": "hostile", "uid": hostile, "resourceVersion": "1"}
        entry = scene.picture.apply({"metadata": metadata, "spec": {"workflowRef": {"name": "triage"}}})
        assert entry is not None
        if not is_late:
            scene.server.ask("HSET", key, "a", "b")
        scene.change()
        scene.tell(1)
        failures = scene.store._metrics.redis_failures

        async def poison_and_tell() -> None:
            if is_late:
                scene.server.ask("HSET", key, "a", "b")
            async with asyncio.timeout(60):
                while not failures._value.get():
                    assert not seen_again
                    await asyncio.sleep(0.01)
            scene.tell(1)

        seen_again: list[int] = []
        with scene.streams.opened(entry, "ada") as feed, feed.viewed():
            seen_again += (await look(scene, lambda seen: len(seen.turns) >= 2, then=poison_and_tell())).turns
        assert seen_again == [1, 2]


async def test_a_runner_that_floods_its_stream_silences_no_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_replies, "MOST_PASSED_BYTES", 100_000)
    async with opened(shared_redis()) as scene:
        hostile = uuid.uuid4().hex
        metadata = {"namespace": NAMESPACE, "name": "hostile", "uid": hostile, "resourceVersion": "1"}
        entry = scene.picture.apply({"metadata": metadata, "spec": {"workflowRef": {"name": "triage"}}})
        assert entry is not None
        scene.change()
        scene.tell(1)

        with scene.streams.opened(entry, "ada") as feed, feed.viewed() as changed:

            async def flood_and_tell() -> None:
                while feed.ring is None:
                    changed.clear()
                    await changed.wait()
                key = f"{redis_run_prefix(NAMESPACE, hostile)}frames"
                scene.server.ask("XADD", key, "*", "frame", "x" * 200_000)
                scene.tell(1)

            seen = await look(scene, lambda seen: len(seen.turns) >= 2, then=flood_and_tell())
            assert seen.turns == [1, 2]
            async with asyncio.timeout(20):
                while feed.is_stream:
                    changed.clear()
                    await changed.wait()
            told = b"".join([part async for part in View(scene.streams, feed, None).news()]).decode()
        assert "frames of this run cannot be read" in told


async def test_a_large_result_is_found_by_its_digest() -> None:
    async with opened(shared_redis()) as scene:
        result = {"text": "x" * 9000, "half": "\ud800"}
        key = f"{redis_run_prefix(NAMESPACE, scene.uid)}journal"
        for number, entries in enumerate(({"t": "a"}, {"t": "RunEnded", "result": result}, {"t": "b"}), 1):
            batch = encode_batch(Batch(1, number - 1, (entries,)))
            scene.server.ask("XADD", key, f"{number}-1", "batch", batch, "writer", "w")
        digest = text_digest(compact_json(result))
        assert await scene.store.result(NAMESPACE, scene.uid, digest) == result
        assert await scene.store.result(NAMESPACE, scene.uid, "0" * 64) is None
        assert await scene.store.result(NAMESPACE, "gone", digest) is None


async def test_the_user_of_the_chart_is_all_that_is_needed(tmp_path: Path) -> None:
    users = tmp_path / "users.acl"
    users.write_text("user default off resetpass ~* &* +@all\nuser api on >secret resetchannels %R~ns:* -@all ")
    users.write_text(users.read_text() + "+xrange +xrevrange +xread\nuser admin on nopass ~* &* +@all\n")
    login = tmp_path / "login"
    login.mkdir()
    (login / "username").write_text("api\n")
    (login / "password").write_text("secret\n")
    server = RedisServer(tmp_path, "--aclfile", str(users), "--loglevel", "warning").start()
    store = RedisStore(connect(server.url, login), Metrics())
    try:
        assert await store.newest_frames(NAMESPACE, "u", 1) == []
        assert await store.new_frames({(NAMESPACE, "u"): (0, 0)}, 1) == {}
        assert await store.result(NAMESPACE, "u", "d") is None
        with pytest.raises(RedisAway, match="NoPermission"):
            await store._ask(store._client.xadd(f"ns:{NAMESPACE}:run:u:frames", {"frame": "{}"}), PAGE_BOUND)
        with pytest.raises(RedisAway, match="NoPermission"):
            await store._ask(store._client.xrange("other"), PAGE_BOUND)
    finally:
        await store.close()
        server.close()
