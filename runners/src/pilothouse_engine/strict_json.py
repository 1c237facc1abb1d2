"""JSON of strangers: model arguments, bodies of servers, replies of author code.

What passes can be copied, digested, journaled and shown to every other part without a surprise: no NaN, no numbers
that other JSON readers refuse, no halves of surrogate pairs, no key that stands twice, no nesting that exhausts a
stack. Everything else is refused with a sentence that says what and where.
"""

import json
import math
from collections import Counter
from typing import Any

MAX_DEPTH = 64
MAX_INTEGER_BITS = 1023  # past it a reader that uses doubles (the API server is one) sees no number


class JsonError(Exception):
    """A text is not JSON that is safe to pass on; the message says what is wrong and where."""


def parse_json(text: str) -> Any:
    """Return the JSON value of a text; raises JsonError."""
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise JsonError(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise JsonError(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        # The one ValueError left: Python refuses to turn more than 4,300 digits into an integer.
        raise JsonError("a number has too many digits") from None
    check_json(value)
    return value


def check_json(value: Any) -> None:
    """Raise JsonError unless a JSON value is safe to pass on."""
    try:
        _check(value, 0)
    except _Unsafe as unsafe:
        where = path_text(unsafe.path)
        raise JsonError(f"{unsafe.what} at {where}" if where else unsafe.what) from None


def path_text(path: list[str | int]) -> str:
    """Return a path as a person writes it: `items[0].name`, empty for the whole value; cut at 200 characters."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    return printable(text, 200)


def printable(text: str, limit: int) -> str:
    """Return a text of strangers in a form that every log, terminal and encoder takes, cut to `limit` characters."""
    safe = text.encode("utf-8", "replace").decode()
    return safe if len(safe) <= limit else f"{safe[: limit - 1]}…"


class _Unsafe(Exception):
    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str | int] = []


def _check(value: Any, depth: int) -> None:
    if isinstance(value, str):
        if not value.isascii():
            _check_text(value)
    elif isinstance(value, dict):
        _check_depth(depth)
        for key, item in value.items():
            try:
                _check(key, depth)
                _check(item, depth + 1)
            except _Unsafe as unsafe:
                unsafe.path.insert(0, key)
                raise
    elif isinstance(value, list):
        _check_depth(depth)
        for index, item in enumerate(value):
            try:
                _check(item, depth + 1)
            except _Unsafe as unsafe:
                unsafe.path.insert(0, index)
                raise
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _Unsafe("a number is out of range")
    elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise _Unsafe("a number is out of range")


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise _Unsafe(f"nested deeper than {MAX_DEPTH} levels")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Unsafe("half of a surrogate pair stands in a text") from None


def _refuse_constant(name: str) -> None:
    raise JsonError(f"{name} is not JSON")


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise JsonError(f"the key {printable(json.dumps(twice), 80)} stands twice in one object")
    return value


# Made once: json.loads would make a decoder for each call, which takes as long as parsing what is usual here.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_object_of)
