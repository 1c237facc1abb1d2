"""One stream: who does not take what is sent is dropped, who may not look any more is let out, an end is an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from pilothouse_console import event_stream
from pilothouse_console.access import Access, Caller
from pilothouse_console.event_stream import EventStream, Viewer
from pilothouse_console.metrics import Metrics
from pilothouse_console.picture import Entry, Picture, RunKey
from pilothouse_console.problems import Problem, away
from pilothouse_console.streams import Streams, end_id

pytestmark = pytest.mark.anyio
CALLER = Caller("ada")


class Doors:
    """Stands for `Access`."""

    def __init__(self) -> None:
        self.is_open: bool | Problem = True

    async def identify(self, token: str) -> Caller | None:
        if isinstance(self.is_open, Problem):
            raise self.is_open
        return CALLER if self.is_open else None

    async def may(self, caller: Caller, verb: str, namespace: str = "", name: str = "") -> bool:
        return verb == "get"


class Scene:
    """One run without Redis, and one viewer."""

    def __init__(self, heartbeat: float = 30.0) -> None:
        self.picture, self.metrics, self.doors = Picture(), Metrics(), Doors()
        self.streams = Streams(self.picture, None, self.metrics, most=5, most_per_user=2)
        self.sent: list[bytes] = []
        self.heartbeat = heartbeat
        self.is_taken = asyncio.Event()
        self.is_taken.set()
        self.has_left = asyncio.Event()
        self.arrived = asyncio.Event()
        self.version = 0

    def change(self, phase: str = "Running", turns: int = 1, version: int | None = None) -> Entry:
        self.version += 1
        trace = [{"kind": "ToolCall", "turn": turn, "time": f"t{turn}"} for turn in range(1, turns + 1)]
        metadata = {"namespace": "a", "name": "r1", "uid": "u1", "resourceVersion": str(self.version)}
        raw_run = {
            "apiVersion": "pilothouse.dev/v1alpha1",
            "kind": "AgentRun",
            "metadata": metadata,
            "spec": {"workflowRef": {"name": "w"}},
            "status": {"phase": phase, "run": {"attempt": 1, "trace": trace[-20:]}},
        }
        entry = self.picture.apply(raw_run)
        assert entry is not None
        return entry

    async def send(self, message: Any) -> None:
        await self.is_taken.wait()
        self.sent.append(message.get("body", b""))
        self.arrived.set()

    async def receive(self) -> Any:
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    def open(self, last_id: str | None = None, user: str = "ada") -> asyncio.Task[None]:
        viewer = Viewer(cast(Access, self.doors), "token", Caller(user), RunKey("a", "r1"))
        entry = self.picture.get(RunKey("a", "r1"))
        assert entry is not None
        stream = EventStream(self.streams, viewer, entry, last_id, self.metrics, self.heartbeat)
        return asyncio.create_task(stream({"type": "http"}, self.receive, self.send))

    async def until(self, is_seen: Callable[[str], bool]) -> str:
        async with asyncio.timeout(30):
            while not is_seen(text := b"".join(self.sent).decode()):
                self.arrived.clear()
                await self.arrived.wait()
        return text

    def ended(self, cause: str) -> float:
        return self.metrics.streams_ended.labels(cause)._value.get()


async def test_a_viewer_who_leaves_leaves_nothing_behind() -> None:
    scene = Scene()
    scene.change()
    stream = scene.open()
    await scene.until(lambda text: "event: run" in text)
    scene.has_left.set()
    await stream
    assert scene.ended("Left") == 1
    assert (scene.streams._feeds, scene.picture._listeners, scene.streams._open) == ({}, {}, {})


async def test_a_slow_viewer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "SEND_SECONDS", 0.05)
    scene = Scene()
    scene.change()
    stream = scene.open()
    await scene.until(lambda text: "event: run" in text)
    scene.is_taken.clear()
    scene.change(turns=2)
    await stream
    assert scene.ended("Dropped") == 1
    assert scene.streams._open == {}


async def test_frames_come_once_and_a_viewer_who_comes_back_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.change(turns=2)
    first = scene.open()
    text = await scene.until(lambda text: text.count("event: frame") == 2)
    scene.has_left.set()
    await first
    last_id = [line.removeprefix("id: ") for line in text.splitlines() if line.startswith("id: ")][-1]

    scene.sent.clear()
    scene.has_left.clear()
    scene.change(turns=3)
    second = scene.open(last_id)
    text = await scene.until(lambda text: "event: run" in text)
    scene.change(turns=5)
    text = await scene.until(lambda text: '"turn":5' in text)
    assert [f'"turn":{turn}' in text for turn in range(1, 6)] == [False, False, True, True, True]
    assert (text.count("event: frame"), "event: gap" in text) == (3, False)
    scene.has_left.set()
    await second


async def test_who_was_away_for_longer_than_the_status_tells_is_told_so() -> None:
    scene = Scene()
    scene.change(turns=50)
    stream = scene.open("t1-000000000000-1")
    text = await scene.until(lambda text: "event: run" in text)
    assert (text.index("event: gap") < text.index("event: frame"), text.count("event: frame")) == (True, 20)
    scene.has_left.set()
    await stream


async def test_the_end_of_a_run_is_the_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "END_SECONDS", 0.01)
    scene = Scene()
    scene.change()
    stream = scene.open()
    await scene.until(lambda text: "event: run" in text)
    scene.change("Succeeded", turns=2)
    await stream
    text = b"".join(scene.sent).decode()
    assert text.rstrip().endswith('data: {"gone":false,"phase":"Succeeded"}')
    assert f"id: {end_id('u1')}" in text
    assert '"turn":2' in text


async def test_a_token_that_is_revoked_ends_the_stream_however_much_happens() -> None:
    scene = Scene(heartbeat=0.02)
    scene.change()
    stream = scene.open()
    await scene.until(lambda text: ": still here" in text)
    scene.doors.is_open = False
    for turn in range(2, 200):
        scene.change(turns=turn)
        await asyncio.sleep(0.001)
        if stream.done():
            break
    async with asyncio.timeout(30):
        await stream
    assert scene.ended("Revoked") == 1


async def test_while_nobody_can_tell_a_stream_goes_on_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(heartbeat=0.02)
    scene.change()
    stream = scene.open()
    scene.doors.is_open = away("x")
    await scene.until(lambda text: text.count(": still here") > 2)
    monkeypatch.setattr(event_stream, "UNCHECKED_SECONDS", 0.0)
    async with asyncio.timeout(30):
        await stream
    assert scene.ended("Revoked") == 1


async def test_a_process_that_ends_lets_its_viewers_go() -> None:
    scene = Scene()
    scene.change()
    stream = scene.open()
    await scene.until(lambda text: "event: run" in text)
    scene.streams.close()
    async with asyncio.timeout(30):
        await stream
    assert scene.ended("Closing") == 1


async def test_one_user_takes_a_part_of_the_streams_and_all_together_the_whole() -> None:
    scene = Scene()
    scene.change()
    streams = [scene.open(user=user) for user in ("ada", "ada", "bob", "bob", "cyd")]
    await scene.until(lambda text: text.count("event: run") == 5)
    with pytest.raises(Problem, match="ada has 2 event streams open here, as many as one user may") as refused:
        await scene.open(user="ada")
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "30")
    with pytest.raises(Problem, match="as many event streams open as this process serves") as refused:
        await scene.open(user="dan")
    assert refused.value.status == 503
    scene.has_left.set()
    await asyncio.gather(*streams)
    scene.has_left.clear()
    scene.sent.clear()
    again = scene.open(user="ada")
    await scene.until(lambda text: "event: run" in text)
    scene.has_left.set()
    await again
