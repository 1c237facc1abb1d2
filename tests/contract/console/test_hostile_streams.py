"""What a hostile runner writes to the streams of its run: nothing of it is held that is longer than its bound."""

from __future__ import annotations

import json
import tracemalloc
import uuid
from collections.abc import AsyncIterator

import pytest

from pilothouse_api.batches import Batch, encode_batch
from pilothouse_api.digests import compact_json, text_digest
from pilothouse_api.names import LONGEST_FRAME_BYTES, LONGEST_LOOK_BYTES, redis_run_prefix
from pilothouse_console import bounded_replies, redis_store
from pilothouse_console.metrics import Metrics
from pilothouse_console.redis_store import TRACE_BOUND, Flooded, RedisStore, connect
from support.redis_server import shared_redis

pytestmark = pytest.mark.anyio
NAMESPACE = "team-a"
MEBIBYTE = 1024 * 1024


@pytest.fixture
async def store(anyio_backend: str) -> AsyncIterator[RedisStore]:
    opened = RedisStore(connect(shared_redis().url, None), Metrics())
    yield opened
    await opened.close()


@pytest.fixture
def uid() -> str:
    return uuid.uuid4().hex


def write(uid: str, *fields: str | bytes, stream: str = "frames") -> None:
    shared_redis().ask("XADD", f"{redis_run_prefix(NAMESPACE, uid)}{stream}", "*", *fields)


def frame(turn: int, size: int = 0) -> str:
    return json.dumps({"kind": "ToolCall", "turn": turn, "x": "x" * size})


def shown(frames: list[redis_store.Frame]) -> list[tuple[str, int]]:
    return [(raw["kind"], raw["turn"]) for raw in (json.loads(one.text) for one in frames)]


async def test_a_frame_that_is_too_long_is_said_to_be_left_out_and_the_others_are_shown(
    store: RedisStore, uid: str
) -> None:
    write(uid, "frame", frame(1))
    write(uid, "frame", frame(2, 4 * MEBIBYTE))
    write(uid, "x" * 4 * MEBIBYTE, "", "frame", frame(3))
    write(uid, *["f"] * 4000)
    write(uid, "other", "x")
    write(uid, "frame", frame(6))
    want = [("ToolCall", 1), *[("Lost", 0)] * 4, ("ToolCall", 6)]
    tracemalloc.start()
    newest = await store.newest_frames(NAMESPACE, uid, 100)
    behind = await store.frames_after(NAMESPACE, uid, (0, 0), 100)
    new = await store.new_frames({(NAMESPACE, uid): (0, 0)}, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (shown(newest), shown(behind)) == (want, want)
    assert shown(new[NAMESPACE, uid]) == want
    assert f"more than {LONGEST_FRAME_BYTES} bytes" in newest[1].text
    assert peak < 2 * MEBIBYTE


async def test_of_too_many_frames_the_newest_are_shown_and_the_first_says_that_older_ones_are_not(
    store: RedisStore, uid: str
) -> None:
    for turn in range(400):
        write(uid, "frame", frame(turn, LONGEST_FRAME_BYTES - 100))
    frames = await store.newest_frames(NAMESPACE, uid, 1000)
    kept = TRACE_BOUND.reply_bytes // LONGEST_FRAME_BYTES
    assert kept - 10 < len(frames) < kept + 10
    assert "older frames are left out" in frames[0].text
    assert shown(frames)[1:] == [("ToolCall", turn) for turn in range(401 - len(frames), 400)]


async def test_what_is_too_much_for_one_reply_comes_with_the_next(
    store: RedisStore, uid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "NEWS_BOUND", bounded_replies.Bound(9000, 40_000, depth=3))
    other = uuid.uuid4().hex
    for turn in range(20):
        write(uid, "frame", frame(turn, 5000))
        write(other, "frame", frame(turn))
    places = {(NAMESPACE, uid): (0, 0), (NAMESPACE, other): (0, 0)}
    seen: dict[tuple[str, str], list[tuple[str, int]]] = {run: [] for run in places}
    sizes = []
    while news := await store.new_frames(places, None):
        for run, frames in news.items():
            seen[run] += shown(frames)
            places[run] = frames[-1].order if frames else places[run]
        sizes.append(sum(len(one.text) for frames in news.values() for one in frames))
    assert list(seen.values()) == [[("ToolCall", turn) for turn in range(20)]] * 2
    assert (max(sizes) < 50_000, len(sizes) >= 3) == (True, True)


async def test_nobody_reads_past_without_end(store: RedisStore, uid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_replies, "MOST_PASSED_BYTES", MEBIBYTE)
    write(uid, "frame", frame(1, 2 * MEBIBYTE))
    for reading in (store.newest_frames(NAMESPACE, uid, 9), store.frames_after(NAMESPACE, uid, (0, 0), 9)):
        with pytest.raises(Flooded, match="longer than its bound"):
            await reading
    assert await store.newest_frames(NAMESPACE, "other", 9) == []  # over a new connection


async def test_looks_are_bounded_each_and_together(store: RedisStore, uid: str) -> None:
    for turn in range(100):
        write(uid, "look", json.dumps({"now": "x", "run": {"turn": turn}, "x": "x" * 60_000}), stream="looks")
    write(uid, "look", json.dumps({"x": "x" * (LONGEST_LOOK_BYTES + 100), "run": {"turn": -1}}), stream="looks")
    kept = await store.looks(NAMESPACE, uid)
    turns = [look["run"]["turn"] for look in kept.items]
    assert (turns, kept.is_cut) == (list(range(100 - len(turns), 100)), True)
    assert len(turns) < 75
    assert not (await store.looks(NAMESPACE, "none")).is_cut


@pytest.mark.parametrize(
    ("hostile", "is_found"),
    [({"x": "x" * 13 * MEBIBYTE}, True), ({"x": [[]] * 500_000}, True), ({}, True)],
    ids=["a long batch", "a batch of many values", "no other batch"],
)
async def test_a_result_is_found_beside_batches_that_nobody_reads(
    store: RedisStore, uid: str, hostile: dict[str, object], is_found: bool
) -> None:
    result = {"text": "x" * 9000}
    write(uid, "batch", encode_batch(Batch(1, 0, ({"t": "RunEnded", "result": result},))), stream="journal")
    if hostile:
        write(uid, "batch", encode_batch(Batch(1, 1, (hostile,))), stream="journal")
    write(uid, "batch", b'{"crc":"00000000",' + b"[" * 200_000, stream="journal")
    found = await store.result(NAMESPACE, uid, text_digest(compact_json(result)))
    assert (found == result) is is_found


async def test_a_result_of_too_many_values_is_not_read(store: RedisStore, uid: str) -> None:
    result = {"x": [[]] * 500_000}
    write(uid, "batch", encode_batch(Batch(1, 0, ({"t": "RunEnded", "result": result},))), stream="journal")
    assert await store.result(NAMESPACE, uid, text_digest(compact_json(result))) is None
