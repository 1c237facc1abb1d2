"""Lines for a reader that may be slow or gone; progress and messages as JSON, with the run in each line."""

import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from pilothouse_engine.ports import Frame

MAX_FIELD_CHARS = 2000
MAX_WAITING_LINES = 256


class BoundedLines:
    """Hands lines to `write` in order, from a thread of its own; what finds the queue full is dropped and counted.

    `write` may block and may raise OSError or ValueError: nobody reads any more then, and the next line is tried.
    """

    def __init__(self, write: Callable[[str], None], name: str) -> None:
        self._write = write
        self._waiting: queue.Queue[str | None] = queue.Queue(MAX_WAITING_LINES)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self.lost = 0
        """Lines that were dropped since the last one that got through."""

    def put(self, line: str) -> bool:
        """Take a line; never waits. Returns whether it got through."""
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self.lost += 1
            return False
        self.lost = 0
        return True

    def close(self, timeout: float = 1.0) -> None:
        """Write what waits, for `timeout` seconds at most."""
        try:
            self._waiting.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _run(self) -> None:
        while (line := self._waiting.get()) is not None:
            try:
                self._write(line)
            except (OSError, ValueError):
                # Nobody reads any more; the run goes on.
                continue


class LogLines:
    """A frame sink that writes JSON lines; the next line that gets through says how many were lost before it."""

    def __init__(self, stream: TextIO, common: Mapping[str, Any]) -> None:
        self._stream = stream
        self._common = dict(common)
        self._lines = BoundedLines(self._write, "log-lines")

    def emit(self, frame: Frame) -> None:
        """Take a frame; never waits and never raises."""
        self.say("frame", frame=dict(frame))

    def say(self, event: str, level: str = "info", **fields: Any) -> None:
        """Write one line about `event`; fields that are None are left out."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": level, "event": event}
        lost = {"lostLines": self._lines.lost} if self._lines.lost else {}
        try:
            text = json.dumps({**line, **self._common, **_bounded(fields), **lost}, default=str)
        except (TypeError, ValueError) as error:
            text = json.dumps({**line, **self._common, "lost": f"{type(error).__name__}: {error}", **lost})
        self._lines.put(text)

    def close(self, timeout: float = 1.0) -> None:
        """Write what waits, for `timeout` seconds at most."""
        self._lines.close(timeout)

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class LogLinesHandler(logging.Handler):
    """Hands the messages of libraries to the same lines."""

    def __init__(self, lines: LogLines) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; without its traceback, which may quote what must not be in a log."""
        self._lines.say("log", record.levelname.lower(), logger=record.name, message=record.getMessage())


def place_of(error: BaseException) -> str:
    """Return where an exception was raised, without the values that a traceback would quote."""
    place, trace = "", error.__traceback__
    while trace is not None:
        place = f"{trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _bounded(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value[:MAX_FIELD_CHARS] if isinstance(value, str) else value
        for name, value in fields.items()
        if value is not None
    }
