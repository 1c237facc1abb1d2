"""The stores of sessions that the contract suite is run against. A new one is one class and one row in `STORES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from pilothouse_engine.ports import Sessions
from pilothouse_engine.testing.sessions import MemorySessions
from pilothouse_runner.adapters.file_sessions import FileSessions


class SessionStore(Protocol):
    """One place that holds conversations."""

    def open(self) -> Sessions:
        """A store of its own, as another run would open it."""
        ...

    def opening_code(self) -> str:
        """Python that defines `sessions`, for another process; empty where no other process can reach it."""
        ...


class MemoryStore:
    def __init__(self, folder: Path) -> None:
        self._sessions = MemorySessions()

    def open(self) -> Sessions:
        return self._sessions

    def opening_code(self) -> str:
        return ""


class FileStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "sessions"

    def open(self) -> Sessions:
        return FileSessions(self.folder)

    def opening_code(self) -> str:
        return (
            "from pathlib import Path\n"
            "from pilothouse_runner.adapters.file_sessions import FileSessions\n"
            f"sessions = FileSessions(Path({str(self.folder)!r}))\n"
        )


STORES: Mapping[str, Callable[[Path], SessionStore]] = {"memory": MemoryStore, "file": FileStore}
STORES_OF_PROCESSES = ("file",)
