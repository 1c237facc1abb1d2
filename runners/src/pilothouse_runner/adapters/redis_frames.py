"""Progress of a run in streams of Redis, for whoever watches from elsewhere; nobody ever waits for it.

Frames, and the looks that supervision's replay goes through, ride on the journal's connection: those of a moment are
sent together, ahead of or behind an append, and their replies are dropped. What finds no connection waits for the next
moment, the newest 256 of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pilothouse_api.exact_json import json_bytes
from pilothouse_api.names import LONGEST_FRAME_BYTES, LONGEST_LOOK_BYTES
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.facts import Fact, ReplyReceived
from pilothouse_engine.observers import Observer
from pilothouse_engine.ports import Frame
from pilothouse_engine.state import RunState
from pilothouse_engine.values import Value
from pilothouse_runner.adapters.redis_client import RedisClient, Word

if TYPE_CHECKING:
    from pilothouse_engine.looks import Looks

MAX_WAITING_FRAMES = 256
MAX_FRAMES = 1000
"""Frames that their stream keeps, a few more at times."""
MAX_LOOKS = 500
"""Looks that their stream keeps, a few more at times."""
MOMENT_SECONDS = 0.2
RENEW_SECONDS = 3600.0
"""How often the expiry is set while frames are sent."""


class _Stream(Value):
    """One stream: its key, how much of it is kept, and the field of an entry that holds what is kept."""

    key: str
    length: int
    field: str
    longest: int

    def command(self, item: Mapping[str, Any]) -> tuple[Word, ...]:
        """Return the command that adds an item; one that is no JSON, or too long, is told of by its kind."""
        try:
            text = json_bytes(dict(item))
        except (TypeError, ValueError, RecursionError) as error:
            text = json_bytes({"kind": item.get("kind"), "lost": type(error).__name__})
        if len(text) > self.longest:
            said = {key: item[key] for key in ("kind", "turn", "time", "now") if key in item}
            text = json_bytes({**said, "lost": f"it has {len(text)} bytes, more than {self.longest}"})
        return ("XADD", self.key, "MAXLEN", "~", self.length, "*", self.field, text)


class RedisFrames:
    """A frame sink, and the keeper of looks; both streams stay for `keep_seconds` after something was last sent, an
    hour less at most.
    """

    def __init__(self, client: RedisClient, prefix: str, *, keep_seconds: int) -> None:
        self._client = client
        self._frames = _Stream(f"{prefix}frames", MAX_FRAMES, "frame", LONGEST_FRAME_BYTES)
        self._looks = _Stream(f"{prefix}looks", MAX_LOOKS, "look", LONGEST_LOOK_BYTES)
        self._keep_seconds = keep_seconds
        self._waiting: deque[tuple[_Stream, Mapping[str, Any]]] = deque(maxlen=MAX_WAITING_FRAMES)
        self._alarm: asyncio.TimerHandle | None = None
        self._renewed_at: dict[str, float] = {}

    def emit(self, frame: Frame) -> None:
        """Take a frame; never waits."""
        self._put(self._frames, frame)

    def keep_look(self, raw_look: Mapping[str, Any]) -> None:
        """Take a look of supervision; never waits."""
        self._put(self._looks, raw_look)

    def _put(self, stream: _Stream, item: Mapping[str, Any]) -> None:
        self._waiting.append((stream, item))
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(MOMENT_SECONDS, self.flush)

    def flush(self) -> None:
        """Send what waits, where there is a connection."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        commands = [stream.command(item) for stream, item in self._waiting]
        now = asyncio.get_running_loop().time()
        keys = dict.fromkeys(stream.key for stream, _ in self._waiting)
        due = [key for key in keys if now - self._renewed_at.get(key, float("-inf")) >= RENEW_SECONDS]
        commands += [("EXPIRE", key, self._keep_seconds) for key in due]
        if commands and self._client.send(commands):
            self._waiting.clear()
            self._renewed_at.update(dict.fromkeys(due, now))


class LookKeeper(Observer):
    """Keeps what supervision sees of an attempt, for a replay with other supervisors.

    Nothing is there to be seen before the first reply, so that what finds it is loaded behind the first model request.
    """

    def __init__(self, catalog: Catalog, keep: Callable[[Mapping[str, Any]], None]) -> None:
        self._catalog = catalog
        self._keep = keep
        self._looks: Looks | None = None

    def observe(self, state: RunState, fact: Fact) -> None:
        """Keep the looks that are due before a fact."""
        if self._looks is None:
            if type(fact) is not ReplyReceived:
                return
            from pilothouse_engine.looks import Looks

            self._looks = Looks(self._catalog)
        for look in self._looks.before(state, fact):
            self._keep(look)
