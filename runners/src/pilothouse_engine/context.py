"""The run's context: what may be written, and how large it may grow."""

import json
import logging
from collections.abc import Mapping
from typing import Any

from pilothouse_api.digests import text_digest
from pilothouse_engine.results import compact
from pilothouse_engine.state import text_bytes

_log = logging.getLogger("pilothouse.engine")


def fit_writes(
    context: Mapping[str, Any], context_bytes: int, writes: Mapping[str, Any], cap: int, where: str
) -> dict[str, Any]:
    """Return writes as values of their own, those that would grow the context past `cap` bytes as pointers.

    Keys that begin with `_` are the engine's own and are dropped. A pointer names the fact that holds the value; a
    key for which not even a pointer has room is left out, since a tool may return any number of keys.
    """
    fitted: dict[str, Any] = {}
    size, left_out = context_bytes, 0
    for key, value in writes.items():
        if key.startswith("_"):
            continue
        text = compact(value)
        length, around = text_bytes(text), text_bytes(compact(key)) + len(":,")
        # A value that is replaced makes room for the new one.
        others = size - (text_bytes(compact(context[key])) + around if key in context else 0)
        if others + length + around > cap:
            text = compact({"ref": f"{where}/{key}", "bytes": length, "digest": text_digest(text)})
            length = text_bytes(text)
            if others + length + around > cap:
                left_out += 1
                continue
        fitted[key] = json.loads(text)
        size = others + length + around
    if left_out:
        _log.warning("agent.context_full where=%s keys_left_out=%d cap=%d", where, left_out, cap)
    return fitted


def delta_for_model(writes: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a tool changed, without the arguments that it was merely given."""
    return {
        key: value
        for key, value in writes.items()
        if not key.startswith("_") and not (key in arguments and arguments[key] == value)
    }
