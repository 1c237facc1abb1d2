"""A journal's batch as one line of bytes, with a checksum: what File and Redis keep, and who reads a journal finds.

A line is `{"crc": <8 hex of CRC-32 of the rest of the line>, "attempt": n, "seq": first, "entries": […]}`.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from pilothouse_api.exact_json import json_bytes

RawEntry = Mapping[str, Any]
"""A fact as it is kept."""

_CRC_PREFIX = b'{"crc":"'
_CRC_END = len(_CRC_PREFIX) + 8


class Batch(Struct, frozen=True):
    """Entries that were appended together; `seq` is the number of the first one."""

    attempt: int
    seq: int
    entries: tuple[RawEntry, ...]


def encode_batch(batch: Batch) -> bytes:
    """Return the line of a batch, without a line break; raises TypeError for what is no JSON."""
    body = {"attempt": batch.attempt, "seq": batch.seq, "entries": [dict(entry) for entry in batch.entries]}
    rest = b'",' + _encode(body)[1:]
    return _CRC_PREFIX + b"%08x" % zlib.crc32(rest) + rest


def decode_batch(line: bytes) -> Batch | None:
    """Return the batch of a line, None where the line is damaged."""
    rest = line[_CRC_END:]
    if not line.startswith(_CRC_PREFIX) or line[len(_CRC_PREFIX) : _CRC_END] != b"%08x" % zlib.crc32(rest):
        return None
    try:
        body = json.loads(line)
        return Batch(int(body["attempt"]), int(body["seq"]), tuple(body["entries"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _encode(body: dict[str, Any]) -> bytes:
    """Return JSON without line breaks."""
    try:
        return json_bytes(body)
    except (TypeError, ValueError):  # half of a surrogate pair out of a model's reply survives as an escape
        return json.dumps(body, separators=(",", ":")).encode("ascii")
