"""Frames in Redis: they arrive, they are bounded, and they hold up nothing."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilothouse_api.names import redis_run_prefix
from pilothouse_runner.adapters import redis_client, redis_frames
from pilothouse_runner.adapters.redis_client import RedisClient, parse_address
from pilothouse_runner.adapters.redis_frames import RedisFrames
from pilothouse_runner.adapters.redis_journal import RedisJournal
from support.redis_server import RedisServer

pytestmark = pytest.mark.anyio

PREFIX = redis_run_prefix("team-a", "u-1")
KEY = f"{PREFIX}frames"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path).start()
    yield server
    server.close()


def stored(server: RedisServer) -> list[dict[str, object]]:
    return [json.loads(fields[1]) for _, fields in server.ask("XRANGE", KEY, "-", "+")]


async def test_frames_arrive_in_order_beside_the_journal_and_go_in_the_end(server: RedisServer) -> None:
    client = RedisClient(parse_address(server.url))
    frames, journal = RedisFrames(client, PREFIX, keep_seconds=5000), RedisJournal(client, PREFIX)
    for number in range(5):
        frames.emit({"kind": "Iteration", "turn": number})
        await journal.append(1, number, [{"fact": "noted", "number": number}])
    frames.flush()
    await journal.read()  # replies come in order: what was sent before is there

    assert [frame["turn"] for frame in stored(server)] == [0, 1, 2, 3, 4]
    assert len(await journal.read()) == 5
    assert 4990 < server.ask("TTL", KEY) <= 5000


async def test_looks_of_supervision_ride_along_in_a_stream_of_their_own(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_frames, "MAX_LOOKS", 200)
    client = RedisClient(parse_address(server.url))
    await client.call("PING")
    frames = RedisFrames(client, PREFIX, keep_seconds=5000)
    for number in range(500):
        frames.keep_look({"now": "2026-01-01T00:00:00Z", "run": {"turn": number}})
        if number % 100 == 0:
            frames.emit({"kind": "Iteration", "turn": number})
            frames.flush()
            await client.call("PING")
    frames.flush()
    await client.call("PING")

    looks = [json.loads(fields[1]) for _, fields in server.ask("XRANGE", f"{PREFIX}looks", "-", "+")]
    newest = [look["run"]["turn"] for look in looks]
    assert newest == list(range(500 - len(newest), 500))
    assert 200 <= len(newest) <= 300
    assert [frame["turn"] for frame in stored(server)] == [0, 100, 200, 300, 400]
    assert 4990 < server.ask("TTL", f"{PREFIX}looks") <= 5000


async def test_frames_are_sent_a_moment_after_they_came(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_frames, "MOMENT_SECONDS", 0.0)
    client = RedisClient(parse_address(server.url))
    await client.call("PING")
    frames = RedisFrames(client, PREFIX, keep_seconds=5000)
    frames.emit({"kind": "Step"})
    await asyncio.sleep(0.001)
    await client.call("PING")

    assert stored(server) == [{"kind": "Step"}]


async def test_the_newest_frames_are_kept_where_there_is_no_connection(server: RedisServer) -> None:
    client = RedisClient(parse_address(server.url))
    frames = RedisFrames(client, PREFIX, keep_seconds=5000)
    for number in range(1000):
        frames.emit({"kind": "Iteration", "turn": number})
        if number % 100 == 0:
            frames.flush()
    await client.call("PING")
    frames.flush()
    await client.call("PING")

    assert [frame["turn"] for frame in stored(server)] == list(range(744, 1000))


async def test_a_server_that_hangs_takes_a_bounded_number_of_frames_and_the_journal_says_so(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = RedisClient(parse_address(server.url))
    await client.call("PING")
    frames = RedisFrames(client, PREFIX, keep_seconds=5000)
    server.freeze()
    for number in range(2000):
        frames.emit({"kind": "Iteration", "turn": number})
        frames.flush()
    with monkeypatch.context() as impatience, pytest.raises(redis_client.RedisUnanswered):
        impatience.setattr(redis_client, "REPLY_SECONDS", 0.2)
        await client.call("PING")
    server.thaw()
    frames.emit({"kind": "Outcome"})
    await client.call("PING")
    frames.flush()
    await client.call("PING")

    assert len(stored(server)) <= 3 * 256
    assert stored(server)[-1] == {"kind": "Outcome"}


async def test_the_stream_keeps_the_newest_thousand_and_a_few(server: RedisServer) -> None:
    client = RedisClient(parse_address(server.url))
    frames = RedisFrames(client, PREFIX, keep_seconds=5000)
    for number in range(3000):
        frames.emit({"kind": "Iteration", "turn": number})
        if number % 100 == 99:
            await client.call("PING")
            frames.flush()
    await client.call("PING")

    assert 1000 <= server.ask("XLEN", KEY) <= 1200
    assert stored(server)[-1]["turn"] == 2999


async def test_what_redis_refuses_and_what_is_no_json_does_no_harm(server: RedisServer) -> None:
    client = RedisClient(parse_address(server.url))
    await client.call("SET", KEY, "no stream")
    frames = RedisFrames(client, PREFIX, keep_seconds=5000)
    frames.emit({"kind": "Step", "what": object()})
    frames.flush()

    assert await client.call("GET", KEY) == b"no stream"
    await client.call("DEL", KEY)
    frames.emit({"kind": "Step", "what": object()})
    frames.flush()
    await client.call("PING")
    assert stored(server) == [{"kind": "Step", "lost": "TypeError"}]


async def test_what_is_too_long_is_told_of_by_its_kind(server: RedisServer) -> None:
    client = RedisClient(parse_address(server.url))
    await client.call("PING")
    frames = RedisFrames(client, PREFIX, keep_seconds=5000)
    frames.emit({"kind": "Tools", "turn": 3, "time": "t", "leftOut": ["x" * 60] * 200})
    frames.keep_look({"now": "t", "run": {"x": "x" * 70_000}})
    frames.emit({"kind": "Step", "turn": 4})
    frames.flush()
    await client.call("PING")
    lost, step = stored(server)
    assert (lost["kind"], lost["turn"], lost["time"], step) == ("Tools", 3, "t", {"kind": "Step", "turn": 4})
    assert "more than 8192" in str(lost["lost"])
    (look,) = [json.loads(fields[1]) for _, fields in server.ask("XRANGE", f"{PREFIX}looks", "-", "+")]
    assert "run" not in look
    assert "more than 65536" in look["lost"]
    await client.aclose()
