"""What conversations in Redis do about damage, refusals, and time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pilothouse_engine.ports import SessionCorrupt, SessionKey, SessionsUnavailable, StoredSession
from pilothouse_runner.adapters.redis_client import RedisClient, parse_address
from pilothouse_runner.adapters.redis_sessions import RedisSessions, session_key
from support.redis_server import RedisServer

pytestmark = pytest.mark.anyio

KEY = SessionKey("team-a", "customer-c-17", "investigate")
NAME = session_key(KEY)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path).start()
    yield server
    server.close()


@pytest.fixture
def sessions(server: RedisServer) -> RedisSessions:
    return RedisSessions(RedisClient(parse_address(server.url)), keep_seconds=1000)


async def test_a_conversation_lies_among_the_keys_of_its_namespace_and_stays_from_its_last_run_on(
    server: RedisServer, sessions: RedisSessions
) -> None:
    await sessions.replace(KEY, 0, b"one")
    server.ask("EXPIRE", NAME, 5)
    await sessions.replace(KEY, 1, b"two")
    await sessions.load(KEY)  # replies come in order: what was sent before is done

    assert NAME.startswith("ns:team-a:session:")
    assert 990 < server.ask("TTL", NAME) <= 1000


@pytest.mark.parametrize(
    "damage",
    [
        ("HSET", NAME, "content", "onf"),
        ("HDEL", NAME, "content"),
        ("HDEL", NAME, "version"),
        ("HSET", NAME, "version", "many"),
        ("HSET", NAME, "version", "0"),
        ("SET", NAME, "x"),
    ],
    ids=" ".join,
)
async def test_damage_is_corrupt_and_never_taken_for_an_empty_conversation(
    server: RedisServer, sessions: RedisSessions, damage: tuple[str, ...]
) -> None:
    await sessions.replace(KEY, 0, b"one")
    server.ask(*damage)

    with pytest.raises(SessionCorrupt, match=f"the key {NAME} in Redis holds no whole conversation"):
        await sessions.load(KEY)


async def test_what_is_no_conversation_is_not_replaced(server: RedisServer, sessions: RedisSessions) -> None:
    server.ask("SET", NAME, "x")
    with pytest.raises(SessionCorrupt):
        await sessions.replace(KEY, 0, b"one")
    for field in ("version", "crc"):
        server.ask("DEL", NAME)
        server.ask("HSET", NAME, field, "many")
        with pytest.raises(SessionCorrupt):
            await sessions.replace(KEY, 0, b"one")


async def test_a_redis_that_is_away_or_full_is_unavailable_and_heals(
    server: RedisServer, sessions: RedisSessions
) -> None:
    await sessions.replace(KEY, 0, b"one")
    server.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(SessionsUnavailable, match=r"its memory is full \(maxmemory\)"):
        await sessions.replace(KEY, 1, b"two")
    server.kill()
    with pytest.raises(SessionsUnavailable, match=r"cannot be reached|closed the connection"):
        await sessions.load(KEY)
    server.start()

    assert await sessions.load(KEY) == StoredSession(1, b"one")
