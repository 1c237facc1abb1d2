"""What the model is shown of a tool result: the whole of it, or head, tail and how to read the rest."""

import json
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from pilothouse_engine.facts import CallCode

HEAD_SHARE = 0.75
"""Share of a cut result that is its head; what a tool says first tends to matter most."""


_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def compact(value: Any) -> str:
    """Return a JSON value as compact text."""
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except PydanticSerializationError:  # half of a surrogate pair is no UTF-8, but JSON has a way to write it
        return _COMPACT.encode(value)


def error_content(code: CallCode, message: str) -> str:
    """Return an error result as the model reads it."""
    return compact({"error": {"code": code, "message": message}})


def shown_result(call_id: str, content: str, limit: int) -> str:
    """Return the text that the model is shown, at most `limit` characters (0: all of it)."""
    if not limit or len(content) <= limit:
        return content
    note = (
        f"\n[cut: {call_id} has {len(content)} characters; read the rest with"
        f' read_tool_result {{"call_id": "{call_id}", "offset": …, "limit": …}}]'
    )
    room = max(limit - len(note) - len("\n…\n"), 0)
    head = int(room * HEAD_SHARE)
    tail = room - head
    return f"{content[:head]}\n…\n{content[len(content) - tail :] if tail else ''}{note}"


def slice_of(call_id: str, content: str, offset: int, limit: int) -> str:
    """Return a slice of a result, with one line that says where it stands."""
    end = min(offset + limit, len(content))
    return f"[{call_id}: characters {offset} to {end} of {len(content)}]\n{content[offset:end]}"
