"""The run's context: what may be written, and how large it may grow."""

import json
from collections.abc import Mapping
from typing import Any

from pilothouse_api.digests import text_digest
from pilothouse_engine.results import compact


def fit_writes(
    context: Mapping[str, Any], context_bytes: int, writes: Mapping[str, Any], cap: int, where: str
) -> dict[str, Any]:
    """Return writes as values of their own, those that would grow the context past `cap` bytes as pointers.

    Keys that begin with `_` are the engine's own and are dropped. A pointer names the fact that holds the value.
    """
    fitted: dict[str, Any] = {}
    size = context_bytes
    for key, value in writes.items():
        if key.startswith("_"):
            continue
        text = compact(value)
        length = len(text.encode("utf-8", "surrogatepass"))
        if size + length > cap:
            text = compact({"ref": f"{where}/{key}", "bytes": length, "digest": text_digest(text)})
            length = len(text)
        fitted[key] = json.loads(text)
        size += length + len(key) + len('"":,')
    return fitted


def delta_for_model(writes: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a tool changed, without the arguments that it was merely given."""
    return {
        key: value
        for key, value in writes.items()
        if not key.startswith("_") and not (key in arguments and arguments[key] == value)
    }
