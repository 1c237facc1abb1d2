"""The two streams: data on stdout, messages on stderr; colours only where a person looks."""

import errno
import io
import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Never

from rich.console import Console, RenderableType

PIPE_WIDTH = 200


def prepare_streams() -> None:
    """Make both streams fit for anything: a closed one swallows, a letter that an encoding lacks is escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for as long as the process lives
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def stdout() -> Console:
    """Return the console for data."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Return the console for messages."""
    return _console(sys.stderr)


def _console(stream: IO[str]) -> Console:
    width = None if stream.isatty() else _pipe_width(os.environ.get("COLUMNS", ""))
    return _Console(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=not stream.isatty())


class _Console(Console):
    def on_broken_pipe(self) -> Never:
        """Leave the end of the process to whoever printed: a run goes on when nobody reads its progress."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _pipe_width(columns: str) -> int:
    usable = columns.isascii() and columns.isdigit() and len(columns) <= 5
    return (int(columns) if usable else 0) or PIPE_WIDTH


def say(message: RenderableType) -> None:
    """Tell the person something that is not data; nobody may be there."""
    with suppress(OSError):
        stderr().print(message)


def show(renderable: RenderableType) -> None:
    """Print data for a person; a pipe gets no blanks at the ends of lines."""
    console = stdout()
    if console.is_terminal:
        console.print(renderable)
        return
    with console.capture() as captured:
        console.print(renderable)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_data(value: Any, form: str) -> None:
    """Print data for a program, as `json` or `yaml`."""
    if form == "yaml":
        import yaml

        sys.stdout.write(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
    else:
        sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_names(names: Iterable[str]) -> None:
    """Print names of runs for a program, one a line."""
    for name in names:
        sys.stdout.write(f"agentrun.pilothouse.dev/{name}\n")


def clean(text: str, limit: int = 2000) -> str:
    """Return a text that came from outside without what a terminal would obey, shortened to `limit` characters."""
    kept = "".join(c if c == "\n" or unicodedata.category(c)[0] != "C" else "�" for c in text[: limit + 1])
    return kept if len(text) <= limit else f"{kept[:limit]}…"


def clean_line(text: str, limit: int = 200) -> str:
    """Return the same as one line."""
    return clean(" ".join(text.split()), limit)


def clean_json(value: Mapping[str, Any] | list[Any] | None, limit: int = 2000) -> str:
    """Return a JSON value for a person."""
    return clean(json.dumps(value, indent=2, ensure_ascii=False), limit)
