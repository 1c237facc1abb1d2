"""Pages of a list, merged traces, and where a result stands."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse_console.listing import Filter, WrongToken, build_page
from pilothouse_console.problems import AnyJson
from pilothouse_console.results import Reference, stored_result
from pilothouse_console.summaries import RunSummary
from pilothouse_console.traces import merge


def line(name: str, created: str = "2026-01-01T00:00:00Z", namespace: str = "a", **more: Any) -> RunSummary:
    return RunSummary(namespace=namespace, name=name, uid=name, created_at=created, **more)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 3)), unique=True, max_size=30),
    st.integers(1, 7),
)
def test_pages_show_each_run_once_and_the_newest_first(runs: list[tuple[str, int, int]], limit: int) -> None:
    lines = [line(f"r{number}", f"2026-01-0{day + 1}T00:00:00Z", namespace) for namespace, number, day in runs]
    lines = list({(one.namespace, one.name): one for one in lines}.values())
    shown: list[RunSummary] = []
    token = None
    while True:
        page = build_page([one for one in lines if one.namespace != "c"], Filter(), limit, token)
        shown += page.items
        token = page.token
        if token is None:
            break
    want = sorted(lines, key=lambda one: (one.namespace, one.name))
    want.sort(key=lambda one: one.created_at, reverse=True)
    assert shown == [one for one in want if one.namespace != "c"]


def test_a_run_that_is_made_between_two_pages_makes_no_double() -> None:
    lines = [line(f"r{number}", f"2026-01-01T00:00:0{number}Z") for number in range(4)]
    first = build_page(lines, Filter(), 2, None)
    lines.append(line("newest", "2026-01-02T00:00:00Z"))
    second = build_page(lines, Filter(), 2, first.token)
    assert [one.name for one in (*first.items, *second.items)] == ["r3", "r2", "r1", "r0"]


@pytest.mark.parametrize("token", ["", "x", "e30", "WzEsMiwzXQ", "é", "W1tbW1tbW1tbW1tb"])
def test_a_token_that_was_not_given_out_is_refused(token: str) -> None:
    with pytest.raises(WrongToken):
        build_page([], Filter(), 1, token)


def test_what_supervision_did_stands_between_the_frames_of_its_time() -> None:
    frames = [
        {"kind": "Step", "turn": 1, "time": "2026-01-01T00:00:01.500Z"},
        {"kind": "ToolCall", "turn": 2, "time": "2026-01-01T00:00:03.000Z"},
    ]
    actions = [{"action": "Pause", "turn": 1, "time": "2026-01-01T00:00:02Z", "id": "x"}]
    items = merge(frames, {"actions": actions})
    assert [(item.source, item.kind, item.turn) for item in items] == [
        ("Runner", "Step", 1),
        ("Supervision", "Pause", 1),
        ("Runner", "ToolCall", 2),
    ]


def test_times_that_are_none_and_records_that_are_none_break_nothing() -> None:
    frames: list[Any] = [{"kind": 3, "turn": "x", "time": []}, {}, {"time": "2026-01-01T00:00:01"}]
    assert len(merge(frames, {"actions": ["x", None]})) == 3
    assert len(merge(frames, {"actions": "x"})) == 3


def test_an_answer_may_hold_what_utf_8_cannot() -> None:
    assert AnyJson({"text": "é\ud800"}).body == b'{"text":"\\u00e9\\ud800"}'


REFERENCE = {"ref": "journal/result", "bytes": 9000, "digest": "d"}


@pytest.mark.parametrize(
    ("status", "want"),
    [
        ({}, None),
        ({"run": {"attempt": 1}}, None),
        ({"result": {"a": 1}, "run": {"result": {"a": 2}}}, {"a": 1}),
        ({"run": {"result": {"a": 2}}}, {"a": 2}),
        ({"result": REFERENCE}, Reference(9000, "d")),
        ({"result": {"ref": "journal/result"}}, {"ref": "journal/result"}),
        ({"result": "text"}, None),
    ],
)
def test_a_result_stands_in_the_status_or_is_referred_to(status: dict[str, Any], want: Any) -> None:
    assert stored_result({"status": status}) == want
