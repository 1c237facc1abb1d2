"""Canonical JSON and SHA-256 digests: one spelling for plans, texts, arguments and idempotency keys."""

import hashlib
import json
from typing import Any

from pilothouse_api.exact_json import json_bytes

# json.dumps would make an encoder for each call, which takes as long as encoding what is usual here.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: Any) -> str:
    """Return the canonical JSON of a JSON value: sorted keys, no white space, UTF-8 kept, no NaN."""
    return _CANONICAL.encode(value)


_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def compact_json(value: Any) -> str:
    """Return a JSON value as compact text, its keys as they come: what results are measured and named by."""
    try:
        return json_bytes(value).decode()
    except (TypeError, ValueError):  # half of a surrogate pair is no UTF-8, but may stand in a text
        return _COMPACT.encode(value)


def digest(value: Any) -> str:
    """Return the hex SHA-256 of the canonical JSON of a value."""
    # surrogatepass: a lone surrogate from a model's \\ud800 must not crash what only names it.
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()


def text_digest(text: str) -> str:
    """Return the hex SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
