"""Which frames of a status are new, and what a feed keeps of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse_console.frames import (
    MOST_KEPT,
    MOST_KEPT_LENGTH,
    START,
    Frame,
    Ring,
    TraceFrames,
    frame_text,
    parse_stream_id,
)


def frame(number: int) -> dict[str, Any]:
    return {"kind": "ToolCall", "turn": number, "time": f"2026-01-01T00:00:{number:02}.000Z"}


def turns(frames: list[Frame]) -> list[str]:
    return [one.id.split("-")[0] for one in frames]


def test_only_what_was_not_told_before_is_new() -> None:
    follower = TraceFrames()
    assert turns(follower.take([frame(1), frame(2)])) == ["t1", "t2"]
    assert turns(follower.take([frame(1), frame(2)])) == []
    assert turns(follower.take([frame(2), frame(3)])) == ["t3"]
    assert turns(follower.take([frame(3)])) == []  # cut to make room
    assert turns(follower.take([])) == []
    assert turns(follower.take([frame(3), frame(4)])) == ["t4"]


def test_equal_frames_are_told_apart() -> None:
    frames = TraceFrames().take([frame(1), frame(1), frame(1)])
    assert len({one.id for one in frames}) == 3


def test_what_two_processes_see_of_a_run_has_the_same_ids() -> None:
    early, late = TraceFrames(), TraceFrames()
    early.take([frame(1)])
    want = [one.id for one in early.take([frame(1), frame(2), frame(3)])]
    assert [one.id for one in late.take([frame(1), frame(2), frame(3)])][1:] == want


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_a_run_is_told_whole_and_once_however_often_its_status_is_seen(sizes: list[int]) -> None:
    follower, told, count = TraceFrames(), [], 0
    for size in sizes:
        count += size
        told += follower.take([frame(number) for number in range(max(1, count - 19), count + 1)])
    assert turns(told) == [f"t{number}" for number in range(1, count + 1)]
    assert [one.order for one in told] == sorted({one.order for one in told})


def test_a_ring_knows_what_came_behind_its_floor() -> None:
    ring = Ring((7, 0))
    frames = [Frame(f"8-{number}", (8, number), "{}") for number in range(MOST_KEPT + 3)]
    assert ring.newest == (7, 0)
    ring.extend(frames[:2])
    assert (ring.floor, ring.newest) == ((7, 0), (8, 1))
    ring.extend(frames[2:])
    assert ring.floor == (8, 2)
    assert [one.order for one in ring.after((8, MOST_KEPT))] == [(8, MOST_KEPT + 1), (8, MOST_KEPT + 2)]
    assert (ring.place_of("8-5"), ring.place_of("8-1")) == ((8, 5), None)


def test_a_ring_holds_no_more_than_its_length_allows() -> None:
    ring = Ring()
    ring.extend([Frame(f"8-{number}", (8, number), "x" * 9000) for number in range(1, 101)])
    kept = ring.after(ring.floor)
    assert sum(len(one.text) for one in kept) <= MOST_KEPT_LENGTH < sum(len(one.text) for one in kept) + 9000
    assert (ring.newest, kept[0].order[1]) == ((8, 100), ring.floor[1] + 1)


@pytest.mark.parametrize(
    ("text", "want"),
    [("12-3", (12, 3)), ("0-0", START), ("12", None), ("-1-2", None), ("end-x", None), ("1-2\n", None)],
)
def test_an_id_of_a_stream_is_two_numbers(text: str, want: Any) -> None:
    assert parse_stream_id(text) == want


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b'{"a":' * 20_000 + b"1" + b"}" * 20_000])
def test_what_is_no_frame_is_said_to_be_lost(text: bytes) -> None:
    assert json.loads(frame_text(text))["kind"] == "Lost"
