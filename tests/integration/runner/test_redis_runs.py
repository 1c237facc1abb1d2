"""The runner's process with its journal in Redis: killed on either side nothing is lost, and what is over goes."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilothouse_api import names
from pilothouse_api.names import redis_run_prefix
from pilothouse_api.structs import Plan
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.looks import RawLook, looks_of_journal, settle_looks
from pilothouse_runner.adapters.redis_client import RedisClient, parse_address
from pilothouse_runner.adapters.redis_journal import RedisJournal
from support.agentruns import Administrator
from support.redis_server import RedisServer
from support.runner_process import RunnerPod, finish, napping_plan, read_frames_until, run_status, until

StartPod = Callable[..., RunnerPod]
WEEK = 7 * 86400


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.close()


def where(redis: RedisServer) -> dict[str, str]:
    return {"journal": "Redis", names.ENV_REDIS_URL: redis.url}


def test_a_run_loses_no_turn_where_runner_and_redis_are_killed_by_turns(
    administrator: Administrator, pod_of: StartPod, redis: RedisServer
) -> None:
    pod = pod_of(napping_plan(6, delay=0.4))
    for attempt in (1, 2):
        administrator.set_status(pod.run.name, attempt=attempt)
        process = pod.start(attempt=attempt, **where(redis))
        read_frames_until(process, "Iteration")
        process.kill()
        process.communicate()
    administrator.set_status(pod.run.name, attempt=3)
    process = pod.start(attempt=3, **where(redis))
    read_frames_until(process, "Iteration")
    redis.kill()
    parked = until(administrator, pod, lambda run: (run.get("parked") or {}).get("reason") == "JournalLost")
    redis.start()
    code, lines = finish(process)

    assert code == 0
    assert parked["parked"]["released"] is False
    snapshot = run_status(administrator, pod)
    assert (snapshot["attempt"], snapshot["turn"], snapshot["toolCalls"]) == (3, 7, {"note": 6})
    assert snapshot["effects"].get("unknown", []) == []
    prefix = redis_run_prefix("default", pod.run.uid)
    assert WEEK - 100 < redis.ask("TTL", f"{prefix}journal") <= WEEK
    assert WEEK - 100 < redis.ask("TTL", f"{prefix}frames") <= WEEK
    frames = [json.loads(fields[1]) for _, fields in redis.ask("XRANGE", f"{prefix}frames", "-", "+")]
    assert frames[-1] == next(line["frame"] for line in reversed(lines) if line["event"] == "frame")
    assert WEEK - 100 < redis.ask("TTL", f"{prefix}looks") <= WEEK
    kept = settle_looks([json.loads(fields[1]) for _, fields in redis.ask("XRANGE", f"{prefix}looks", "-", "+")])
    told = asyncio.run(looks_by_journal(pod, redis, prefix))
    assert [look["run"]["turn"] for look in told] == [1, 2, 3, 4, 5, 6]
    assert kept[-1] == told[-1]
    assert all(look in told for look in kept)


async def looks_by_journal(pod: RunnerPod, redis: RedisServer, prefix: str) -> list[RawLook]:
    """What supervision could have seen of a run, by what is durable of it."""
    client = RedisClient(parse_address(redis.url))
    try:
        entries = await RedisJournal(client, prefix).read()
    finally:
        await client.aclose()
    plan = Plan.decode((pod.folder / "plan.json").read_text())
    catalog = Catalog(plan, lambda endpoint: None, lambda endpoint: None, is_durable=True)
    return list(looks_of_journal(catalog, entries))


def test_the_journal_of_a_run_that_is_deleted_does_not_stay(
    administrator: Administrator, pod_of: StartPod, redis: RedisServer
) -> None:
    pod = pod_of(napping_plan(60, delay=0.1))
    process = pod.start(**where(redis))
    read_frames_until(process, "Iteration", iteration=2)
    key = f"{redis_run_prefix('default', pod.run.uid)}journal"
    assert redis.ask("TTL", key) > 300 * 86400
    administrator.delete(pod.run.name)

    assert finish(process)[0] == 3
    assert WEEK - 100 < redis.ask("TTL", key) <= WEEK
