"""The journals that the contract suite is run against. A new adapter is one class and one row in `BACKENDS`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from pilothouse_api.names import redis_run_prefix
from pilothouse_engine.ports import Journal
from pilothouse_engine.testing.journal import MemoryJournal
from pilothouse_runner.adapters.file_journal import FileJournal
from pilothouse_runner.adapters.redis_client import RedisClient, parse_address
from pilothouse_runner.adapters.redis_journal import RedisJournal
from support.redis_server import shared_redis


class Backend(Protocol):
    """One place that holds one run's journal."""

    def open(self) -> Journal:
        """A journal of its own, as another attempt would open it."""
        ...

    def opening_code(self) -> str:
        """Python that defines `journal`, for another process; empty where no other process can reach it."""
        ...


class MemoryBackend:
    def __init__(self, folder: Path) -> None:
        self._journal = MemoryJournal()

    def open(self) -> Journal:
        return self._journal

    def opening_code(self) -> str:
        return ""


class FileBackend:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.jsonl"

    def open(self) -> Journal:
        return FileJournal(self.path, durable=True)

    def opening_code(self) -> str:
        return (
            "from pathlib import Path\n"
            "from pilothouse_runner.adapters.file_journal import FileJournal\n"
            f"journal = FileJournal(Path({str(self.path)!r}), durable=True)\n"
        )


class RedisBackend:
    def __init__(self, folder: Path) -> None:
        self.prefix = redis_run_prefix("default", uuid.uuid4().hex)

    def open(self) -> Journal:
        return RedisJournal(RedisClient(parse_address(shared_redis().url)), self.prefix)

    def opening_code(self) -> str:
        return (
            "from pilothouse_runner.adapters.redis_client import RedisClient, parse_address\n"
            "from pilothouse_runner.adapters.redis_journal import RedisJournal\n"
            f"journal = RedisJournal(RedisClient(parse_address({shared_redis().url!r})), {self.prefix!r})\n"
        )


BACKENDS: Mapping[str, Callable[[Path], Backend]] = {
    "memory": MemoryBackend,
    "file": FileBackend,
    "redis": RedisBackend,
}
BACKENDS_OF_PROCESSES = ("file", "redis")
