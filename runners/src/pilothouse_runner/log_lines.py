"""Progress and messages as JSON lines: one object a line, with the run in each."""

import json
import logging
import queue
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from pilothouse_engine.ports import Frame

MAX_WAITING_FRAMES = 256
MAX_FIELD_CHARS = 2000


class LogLines:
    """A frame sink that writes JSON lines from a thread of its own.

    A reader that does not read loses frames, never the run's time: what finds the queue full is dropped and counted,
    and the next line that gets through says how many were lost.
    """

    def __init__(self, stream: TextIO, common: Mapping[str, Any]) -> None:
        self._stream = stream
        self._common = dict(common)
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_WAITING_FRAMES)
        self._lost = 0
        self._thread = threading.Thread(target=self._write, name="log-lines", daemon=True)
        self._thread.start()

    def emit(self, frame: Frame) -> None:
        """Take a frame; never waits and never raises."""
        self.say("frame", frame=dict(frame))

    def say(self, event: str, level: str = "info", **fields: Any) -> None:
        """Write one line about `event`."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": level, "event": event}
        try:
            text = json.dumps({**line, **self._common, **_bounded(fields)}, default=str)
        except (TypeError, ValueError) as error:
            text = json.dumps({**line, **self._common, "lost": f"{type(error).__name__}: {error}"})
        self._put(text)

    def close(self, timeout: float = 1.0) -> None:
        """Write what waits, for `timeout` seconds at most."""
        try:
            self._lines.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _put(self, text: str) -> None:
        if self._lost:
            text = f'{text[:-1]}, "lostLines": {self._lost}}}'
        try:
            self._lines.put_nowait(text)
            self._lost = 0
        except queue.Full:
            self._lost += 1

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                # Nobody reads any more; the run goes on.
                continue


class LogLinesHandler(logging.Handler):
    """Hands the messages of libraries to the same lines."""

    def __init__(self, lines: LogLines) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; without its traceback, which may quote what must not be in a log."""
        self._lines.say("log", record.levelname.lower(), logger=record.name, message=record.getMessage())


def _bounded(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value[:MAX_FIELD_CHARS] if isinstance(value, str) else value
        for name, value in fields.items()
        if value is not None
    }
