"""Progress as JSON lines."""

import io
import json
import logging
import threading
from typing import Any

from pilothouse_runner.log_lines import MAX_WAITING_LINES, LogLines, LogLinesHandler


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_each_frame_is_one_json_line_with_the_run_in_it() -> None:
    stream = io.StringIO()
    lines = LogLines(stream, {"run": "r1"})
    frame = {"kind": "Step", "event": "Entered", "turn": 3, "step": "s\nt", "code": None}
    lines.emit(frame)
    lines.close()

    [line] = lines_of(stream)
    assert line.pop("time")
    assert line == {"level": "info", "event": "frame", "run": "r1", "frame": frame}


def test_what_is_no_json_becomes_text_and_long_texts_are_cut() -> None:
    stream = io.StringIO()
    lines = LogLines(stream, {})
    lines.say("odd", kind=object, text="x" * 10_000, lone="\ud800", nothing=None)
    lines.emit({("a",): 1})  # type: ignore[dict-item]
    lines.close()

    odd, refused = lines_of(stream)
    assert (odd["kind"], odd["lone"]) == ("<class 'object'>", "\ud800")
    assert len(odd["text"]) == 2000
    assert "nothing" not in odd
    assert refused["lost"].startswith("TypeError")


class StuckStream(io.StringIO):
    """A reader that does not read until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()

    def write(self, text: str) -> int:
        self.may_go_on.wait(10)
        return super().write(text)


def test_a_reader_that_does_not_read_loses_frames_and_is_told_how_many() -> None:
    stream = StuckStream()
    lines = LogLines(stream, {})
    for number in range(MAX_WAITING_LINES * 2):
        lines.emit({"number": number})
    stream.may_go_on.set()
    while lines._lines._waiting.qsize():  # the writer empties it now
        stream.may_go_on.wait(0.001)
    lines.emit({"number": "last"})
    lines.close()

    written = lines_of(stream)
    assert MAX_WAITING_LINES <= len(written) <= MAX_WAITING_LINES + 3
    assert written[-1]["frame"] == {"number": "last"}
    assert sum(line.get("lostLines", 0) for line in written) == MAX_WAITING_LINES * 2 + 1 - len(written)


class BrokenStream(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_has_gone_does_not_stop_the_run() -> None:
    lines = LogLines(BrokenStream(), {})
    lines.emit({"number": 1})
    lines.emit({"number": 2})
    lines.close()


def test_messages_of_libraries_are_lines_too_and_quote_no_traceback() -> None:
    stream = io.StringIO()
    lines = LogLines(stream, {})
    logger = logging.getLogger("some.library")
    handler = LogLinesHandler(lines)
    logger.addHandler(handler)
    try:
        raise ValueError("secret in here")
    except ValueError:
        logger.exception("it failed with %s", "x")
    logger.info("chatter")
    logger.removeHandler(handler)
    lines.close()

    [line] = lines_of(stream)
    assert (line["level"], line["logger"], line["message"]) == ("error", "some.library", "it failed with x")
    assert "secret" not in stream.getvalue()
