"""Progress of a run in a stream of Redis, for whoever watches from elsewhere; nobody ever waits for it.

Frames ride on the journal's connection: those of a moment are sent together, ahead of or behind an append, and their
replies are dropped. What finds no connection waits for the next moment, the newest 256 of it.
"""

import asyncio
from collections import deque

from pydantic_core import PydanticSerializationError, to_json

from pilothouse_engine.ports import Frame
from pilothouse_runner.adapters.redis_client import RedisClient, Word

MAX_WAITING_FRAMES = 256
MAX_FRAMES = 1000
"""Frames that the stream keeps, a few more at times."""
MOMENT_SECONDS = 0.2
RENEW_SECONDS = 3600.0
"""How often the expiry is set while frames are sent."""


class RedisFrames:
    """A frame sink; `keep_seconds` is how long the stream stays after frames were last sent, an hour less at most."""

    def __init__(self, client: RedisClient, prefix: str, *, keep_seconds: int) -> None:
        self._client = client
        self._key = f"{prefix}frames"
        self._keep_seconds = keep_seconds
        self._waiting: deque[Frame] = deque(maxlen=MAX_WAITING_FRAMES)
        self._alarm: asyncio.TimerHandle | None = None
        self._renewed_at = float("-inf")

    def emit(self, frame: Frame) -> None:
        """Take a frame; never waits."""
        self._waiting.append(frame)
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(MOMENT_SECONDS, self.flush)

    def flush(self) -> None:
        """Send what waits, where there is a connection."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        commands = [self._command(frame) for frame in self._waiting]
        now = asyncio.get_running_loop().time()
        is_due = now - self._renewed_at >= RENEW_SECONDS
        if is_due:
            commands.append(("EXPIRE", self._key, self._keep_seconds))
        if self._waiting and self._client.send(commands):
            self._waiting.clear()
            self._renewed_at = now if is_due else self._renewed_at

    def _command(self, frame: Frame) -> tuple[Word, ...]:
        try:
            text = to_json(dict(frame))
        except PydanticSerializationError as error:
            text = to_json({"kind": frame.get("kind"), "lost": type(error).__name__})
        return ("XADD", self._key, "MAXLEN", "~", MAX_FRAMES, "*", "frame", text)
