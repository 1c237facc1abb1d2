"""The stores of sessions that the contract suite is run against. A new one is one class and one row in `STORES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from pilothouse_engine.ports import Sessions
from pilothouse_engine.testing.sessions import MemorySessions
from pilothouse_runner.adapters.file_sessions import FileSessions
from pilothouse_runner.adapters.redis_client import RedisClient, parse_address
from pilothouse_runner.adapters.redis_sessions import RedisSessions
from support.redis_server import shared_redis


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


class RedisStore:
    """Its keys are those of all tests of this process: they go before a test begins."""

    def __init__(self, folder: Path) -> None:
        shared_redis().ask("FLUSHALL")

    def open(self) -> Sessions:
        return RedisSessions(RedisClient(parse_address(shared_redis().url)), keep_seconds=1000)

    def opening_code(self) -> str:
        return (
            "from pilothouse_runner.adapters.redis_client import RedisClient, parse_address\n"
            "from pilothouse_runner.adapters.redis_sessions import RedisSessions\n"
            f"sessions = RedisSessions(RedisClient(parse_address({shared_redis().url!r})), keep_seconds=1000)\n"
        )


STORES: Mapping[str, Callable[[Path], SessionStore]] = {"memory": MemoryStore, "file": FileStore, "redis": RedisStore}
STORES_OF_PROCESSES = ("file", "redis")
