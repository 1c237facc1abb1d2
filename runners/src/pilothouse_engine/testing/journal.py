"""A journal in memory, as strict as the durable ones."""

import json
from collections.abc import Sequence

from pilothouse_api.exact_json import json_bytes
from pilothouse_engine.ports import Fenced, JournalUnavailable, RawEntry


class MemoryJournal:
    """Keeps a run's facts for as long as the process lives; two attempts in one process may share it.

    Entries are kept encoded, so that what cannot be journaled fails here as it does elsewhere, and nobody can change
    a fact afterwards. `fail_next` makes the next appends fail with the given errors, before anything is written;
    `outage`, while it is set, fails reads and appends.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self.durable = durable
        self._lines: list[str] = []
        self._newest_attempt = 0
        self._failures: list[Exception] = []
        self.outage: JournalUnavailable | None = None

    async def read(self) -> Sequence[RawEntry]:
        """Return all entries, oldest first; raises `outage`."""
        if self.outage is not None:
            raise self.outage
        return [json.loads(line) for line in self._lines]

    async def append(self, attempt: int, expected_seq: int, entries: Sequence[RawEntry]) -> None:
        """Add entries; raises Fenced, or what `fail_next` or `outage` asked for."""
        if self.outage is not None:
            raise self.outage
        if self._failures:
            raise self._failures.pop(0)
        if attempt < self._newest_attempt:
            raise Fenced(f"attempt {self._newest_attempt} has written, this is attempt {attempt}")
        if expected_seq != len(self._lines):
            raise Fenced(f"the journal holds {len(self._lines)} entries, attempt {attempt} expects {expected_seq}")
        self._lines += [_encode(entry) for entry in entries]
        self._newest_attempt = attempt

    def fail_next(self, *errors: Exception) -> None:
        """Fail the next appends, one by one; without arguments, one of them with JournalUnavailable."""
        self._failures += errors or (JournalUnavailable("the journal was made to fail"),)


def _encode(entry: RawEntry) -> str:
    try:
        return json_bytes(dict(entry)).decode()
    except (TypeError, ValueError):  # half of a surrogate pair, or no JSON at all: json tells them apart
        return json.dumps(dict(entry))
