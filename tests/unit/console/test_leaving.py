"""Who asks with `?wait=` and leaves is not waited for."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from pilothouse_console.access import Caller
from pilothouse_console.api import Services, build_app
from pilothouse_console.metrics import Metrics
from pilothouse_console.orders import Planned
from pilothouse_console.picture import Picture, RunKey
from pilothouse_console.steering import Given
from pilothouse_control.directives import Answer, mode_directive

pytestmark = pytest.mark.anyio
CALLER = Caller("ada")


class Steering:
    """Gives at once and waits until it is told what to answer; knows what became of the waiting."""

    def __init__(self) -> None:
        self.waits, self.ended = asyncio.Event(), asyncio.Event()
        self.landed = asyncio.Event()

    async def give(self, key: RunKey, plan: Any) -> Given:
        return Given(key, "pause-2", Planned("pause", mode_directive("Pause")), 2, "u1")

    async def wait(self, given: Given, seconds: float) -> Answer:
        self.waits.set()
        try:
            await self.landed.wait()
            return Answer("Landed", 3)
        finally:
            self.ended.set()


class Guard:
    async def steerable(self, caller: Caller, namespace: str, name: str, what: str) -> RunKey:
        return RunKey(namespace, name)


class Fleet:
    """One whose other cluster takes its time."""

    cluster = "a"

    def __init__(self, steering: Steering) -> None:
        self.steering = steering

    async def give(self, *order: Any) -> Any:
        return await self.steering.wait(cast(Given, None), 60)


class Post:
    """One request whose caller stays until told to leave."""

    def __init__(self, query: bytes) -> None:
        self.steering = Steering()
        self.leave = asyncio.Event()
        self.sent: list[Any] = []
        self._messages = [{"type": "http.request", "body": b"{}", "more_body": False}]
        self._query = query

    async def receive(self) -> Any:
        if self._messages:
            return self._messages.pop(0)
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def run(self) -> None:
        services: Any = type("Services", (), {})()
        services.guard, services.steering, services.metrics = Guard(), self.steering, Metrics()
        services.picture, services.fleet = Picture(), Fleet(self.steering)
        headers = [(b"content-type", b"application/json")]
        path = "/api/agents/runs/ns/r1/pause"
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}
        scope |= {"query_string": self._query, "http_version": "1.1", "scheme": "http", "root_path": ""}
        scope |= {"state": {"caller": CALLER}, "server": ("x", 1), "client": ("y", 2)}
        await build_app(cast(Services, services))(scope, self.receive, self.send)


@pytest.mark.parametrize("query", [b"wait=60", b"wait=60&cluster=b"])
async def test_who_leaves_is_not_waited_for(query: bytes) -> None:
    post = Post(query)
    async with asyncio.timeout(30):
        running = asyncio.create_task(post.run())
        await post.steering.waits.wait()
        post.leave.set()
        await post.steering.ended.wait()
        await running


async def test_who_stays_is_told_what_became_of_it() -> None:
    post = Post(b"wait=60")
    async with asyncio.timeout(30):
        running = asyncio.create_task(post.run())
        await post.steering.waits.wait()
        post.steering.landed.set()
        await running
    assert post.sent[0]["status"] == 200
    assert json.loads(post.sent[1]["body"])["landing"] == {"state": "Landed", "turn": 3}
