"""The answer that does not end: server-sent events to one viewer, with heartbeats, while the viewer may look."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pilothouse_console.access import Access, Caller
from pilothouse_console.metrics import Metrics
from pilothouse_console.picture import Entry, RunKey
from pilothouse_console.problems import Problem
from pilothouse_console.streams import END_SECONDS, Feed, Streams, View

HEARTBEAT_SECONDS = 15.0
SEND_SECONDS = 20.0
"""How long a viewer may not take what is sent."""
UNCHECKED_SECONDS = 120.0
"""How long a stream goes on while nobody can tell whether its viewer may still look."""
HEARTBEAT = b": still here\n\n"


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks, and what makes sure that they still may."""

    access: Access
    token: str
    caller: Caller
    key: RunKey

    async def may_look(self) -> bool:
        """Tell whether the token is still good and the right still there; raises Problem where nobody can tell."""
        caller = await self.access.identify(self.token)
        if caller is None or caller.user != self.caller.user:
            return False
        return await self.access.may(caller, "get", *self.key)


class EventStream(Response):
    """Sends the events of a run until it ends, the viewer leaves, or is dropped."""

    media_type = "text/event-stream"

    def __init__(
        self, streams: Streams, viewer: Viewer, entry: Entry, last_id: str | None, metrics: Metrics, heartbeat: float
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["X-Accel-Buffering"] = "no"
        self._streams = streams
        self._viewer = viewer
        self._entry = entry
        self._last_id = last_id
        self._metrics = metrics
        self._heartbeat = heartbeat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send; return when the stream is over. Raises Problem where it cannot be opened."""
        with self._streams.opened(self._entry, self._viewer.caller.user) as feed, feed.viewed() as changed:
            pump = _Pump(self._streams, feed, View(self._streams, feed, self._last_id), changed, self._viewer)
            leaving = asyncio.create_task(_wait_for_leave(receive, pump.leave))
            cause = "Dropped"
            try:
                await _in_time(send, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                cause = await pump.run(lambda body: _send_part(send, body), self._heartbeat)
                await _in_time(send, {"type": "http.response.body", "body": b"", "more_body": False})
            except TimeoutError:
                cause = "Dropped"
            finally:
                leaving.cancel()
                self._metrics.streams_ended.labels(cause).inc()


async def _wait_for_leave(receive: Receive, leave: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    leave()


async def _send_part(send: Send, body: bytes) -> None:
    await _in_time(send, {"type": "http.response.body", "body": body, "more_body": True})


async def _in_time(send: Send, message: dict[str, object]) -> None:
    """Send; raises TimeoutError where the viewer does not take it: nobody waits for a slow one."""
    async with asyncio.timeout(SEND_SECONDS):
        await send(message)


class _Pump:
    """The loop of one stream."""

    def __init__(self, streams: Streams, feed: Feed, view: View, changed: asyncio.Event, viewer: Viewer) -> None:
        self._streams = streams
        self._feed = feed
        self._view = view
        self._changed = changed
        self._viewer = viewer
        self._has_left = False
        self._checked_at = self._check_at = time.monotonic()

    def leave(self) -> None:
        """The viewer is gone."""
        self._has_left = True
        self._changed.set()

    async def run(self, send: Callable[[bytes], Awaitable[None]], heartbeat: float) -> str:
        """Send until there is a reason to end; return it."""
        self._check_at = _soon(heartbeat)
        await send(await self._view.begin())
        ends_at: float | None = None
        while True:
            self._changed.clear()
            async for part in self._view.news():
                await send(part)
            if self._has_left:
                return "Left"
            if self._streams.is_closing:
                return "Closing"
            if self._feed.is_over:
                ends_at = ends_at or time.monotonic() + END_SECONDS
                if time.monotonic() >= ends_at:
                    await send(self._view.end())
                    return "Ended"
            if ends_at is not None:
                await _is_still(self._changed, END_SECONDS)
            elif await _is_still(self._changed, self._check_at - time.monotonic()):
                await send(HEARTBEAT)
            if time.monotonic() >= self._check_at and not await self._may_go_on(heartbeat):
                return "Revoked"

    async def _may_go_on(self, heartbeat: float) -> bool:
        self._check_at = _soon(heartbeat)
        try:
            may_look = await self._viewer.may_look()
        except Problem:
            return time.monotonic() - self._checked_at < UNCHECKED_SECONDS
        self._checked_at = time.monotonic()
        return may_look


def _soon(seconds: float) -> float:
    """Return a moment about so many seconds from now: streams that were opened together are not checked together."""
    return time.monotonic() + seconds * (0.8 + random.random() * 0.4)


async def _is_still(changed: asyncio.Event, seconds: float) -> bool:
    """Wait for something new; tell whether there was nothing for so many seconds."""
    try:
        async with asyncio.timeout(max(seconds, 0.001)):
            await changed.wait()
    except TimeoutError:
        return True
    return False
