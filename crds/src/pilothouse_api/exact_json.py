"""JSON as it is sent and kept: compact, and never another value than the one that was given."""

import json
import re
from typing import Any

import msgspec

_encode_json = msgspec.json.Encoder().encode
_encode_msgpack = msgspec.msgpack.Encoder().encode
# json.dumps would make an encoder for each call, which takes as long as encoding what is usual here.
_with_constants = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

_without_constants = json.JSONEncoder(allow_nan=False).encode

_NO_NUMBER = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""NaN or an infinity among the numbers of a value in MessagePack, which keeps them bit by bit."""


def json_bytes(value: Any) -> bytes:
    """Return a value as compact JSON in UTF-8, its keys as they come; NaN and infinities as Python's json writes them.

    Raises UnicodeEncodeError for half of a surrogate pair, which is no UTF-8; TypeError for what msgspec cannot write;
    RecursionError for what is nested too deeply, or in itself.
    """
    line = _encode_json(value)
    # msgspec writes null for NaN. Python takes five times as long to look for one as this takes to write it again.
    if b"null" in line and _has_no_number(value):
        return _with_constants(value).encode()
    return line


def _has_no_number(value: Any) -> bool:
    try:
        return _NO_NUMBER.search(_encode_msgpack(value)) is not None
    except OverflowError:  # an integer past 64 bits, which MessagePack has no form for
        pass
    try:
        _without_constants(value)
    except ValueError:
        return True
    return False
