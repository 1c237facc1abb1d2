"""What supervision saw of a run, from the runner that keeps it to whoever asks the operator API, over a real Redis."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pilothouse_api.names import redis_run_prefix
from pilothouse_console.looks import read_looks
from pilothouse_console.metrics import Metrics
from pilothouse_console.picture import Entry, Picture
from pilothouse_console.problems import Problem
from pilothouse_console.redis_store import RedisStore, connect
from pilothouse_runner.adapters.redis_client import RedisClient, parse_address
from pilothouse_runner.adapters.redis_frames import RedisFrames
from support.redis_server import RedisServer, shared_redis

pytestmark = pytest.mark.anyio


@pytest.fixture
def entry() -> Entry:
    """A run that nobody has looked at yet."""
    metadata = {"namespace": "team-a", "name": "r1", "uid": uuid.uuid4().hex, "resourceVersion": "1"}
    raw_run = {"apiVersion": "pilothouse.dev/v1alpha1", "kind": "AgentRun", "metadata": metadata, "spec": {}}
    found = Picture().apply({**raw_run, "spec": {"workflowRef": {"name": "triage"}}})
    assert found is not None
    return found


@asynccontextmanager
async def opened(server: RedisServer) -> AsyncIterator[RedisStore]:
    store = RedisStore(connect(server.url, None), Metrics())
    try:
        yield store
    finally:
        await store.close()


def a_look(turn: int) -> dict[str, Any]:
    run = {"attempt": 1, "journalLength": 10 * turn, "step": "talk", "visit": 1, "turn": turn, "visitCounts": {}}
    return {"now": f"2026-01-01T00:00:{turn:02}.000Z", "run": run}


async def test_what_a_runner_keeps_is_handed_on_in_its_order(entry: Entry) -> None:
    server = shared_redis()
    client = RedisClient(parse_address(server.url))
    await client.call("PING")
    frames = RedisFrames(client, redis_run_prefix("team-a", entry.uid), keep_seconds=100)
    for turn in (1, 2, 3):
        frames.emit({"kind": "Iteration", "turn": turn})
        frames.keep_look(a_look(turn))
    frames.flush()
    await client.call("PING")
    await client.aclose()
    async with opened(server) as store:
        looks = await read_looks(entry, store)
    assert [look.model_dump(by_alias=True) for look in looks.items] == [a_look(turn) for turn in (1, 2, 3)]


async def test_what_a_runner_wrote_in_its_place_is_left_out(entry: Entry) -> None:
    server = shared_redis()
    key = f"{redis_run_prefix('team-a', entry.uid)}looks"
    for text in ("{", "[" * 100_000, "7", '{"now": 7, "run": {}}', '{"now": "x"}', '{"now": "x", "run": {"turn": 1}}'):
        server.ask("XADD", key, "*", "look", text)
    server.ask("XADD", key, "*", "other", "{}")
    async with opened(server) as store:
        looks = await read_looks(entry, store)
    assert [look.run for look in looks.items] == [{"turn": 1}]


async def test_a_run_of_which_nothing_is_kept_has_no_looks(entry: Entry) -> None:
    async with opened(shared_redis()) as store:
        assert (await read_looks(entry, store)).items == ()


async def test_without_a_redis_nothing_is_kept_and_that_is_said(entry: Entry) -> None:
    with pytest.raises(Problem, match="journals are not in a Redis") as refused:
        await read_looks(entry, None)
    assert refused.value.status == 404


async def test_a_redis_that_is_away_is_said_to_be_so(entry: Entry, tmp_path: Path) -> None:
    server = RedisServer(tmp_path).start()
    server.close()
    async with opened(server) as store:
        with pytest.raises(Problem, match="Redis does not hand out") as refused:
            await read_looks(entry, store)
    assert refused.value.status == 503
