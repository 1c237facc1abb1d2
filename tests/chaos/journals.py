"""The journals of runs as somebody beside the runner sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pilothouse_engine.ports import RawEntry
from pilothouse_runner.adapters.file_journal import read_entries


class Shelf(Protocol):
    """All journals of a level."""

    def count(self, uid: str) -> int:
        """Return how many batches have been appended; cheap."""
        ...

    def read(self, uid: str) -> Sequence[RawEntry]:
        """Return the entries, oldest first."""
        ...


@dataclass
class FileShelf:
    """Journals as files in one folder, as a PersistentVolumeClaim gives them."""

    folder: Path
    _known: dict[str, tuple[int, int]] = field(default_factory=dict)

    def count(self, uid: str) -> int:
        path = self.folder / f"{uid}.jsonl"
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return 0
        seen = self._known.get(uid)
        if seen is None or seen[0] != size:
            seen = (size, path.read_bytes().count(b"\n"))
            self._known[uid] = seen
        return seen[1]

    def read(self, uid: str) -> Sequence[RawEntry]:
        return read_entries(self.folder / f"{uid}.jsonl")


def prefix_digest(entries: Sequence[RawEntry], length: int) -> str:
    """Return what tells whether the first entries of a journal are still what they were."""
    return hashlib.sha256(repr(list(entries[:length])).encode()).hexdigest()
