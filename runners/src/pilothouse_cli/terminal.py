"""The two streams: data on stdout, messages on stderr; colours only where a person looks."""

import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from typing import IO, Any

from rich.console import Console, RenderableType
from rich.text import Text

PIPE_WIDTH = 200


def stdout() -> Console:
    """Return the console for data."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Return the console for messages."""
    return _console(sys.stderr)


def _console(stream: IO[str]) -> Console:
    width = None if stream.isatty() else int(os.environ.get("COLUMNS") or PIPE_WIDTH)
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=not stream.isatty())


def say(message: str | Text) -> None:
    """Tell the person something that is not data."""
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
