"""The journals of runs as somebody beside the runner sees them."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import hiredis

from pilothouse_api.batches import decode_batch
from pilothouse_api.names import redis_run_prefix
from pilothouse_engine.ports import RawEntry
from pilothouse_runner.adapters.file_journal import read_entries

REPLY_SECONDS = 0.5
AWAY_SECONDS = 0.3


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


class ShelfAway(Exception):
    """Journals cannot be read now; they can again when their Redis is back."""


@dataclass
class RedisShelf:
    """Journals in a Redis, read over a connection of its own that never waits for long."""

    host: str
    port: int
    namespace: str
    login: tuple[str, str] | None = None
    _socket: socket.socket | None = None
    _known: dict[str, int] = field(default_factory=dict)
    _away_until: float = 0.0

    def count(self, uid: str) -> int:
        try:
            self._known[uid] = self.ask("XLEN", self._key(uid))
        except ShelfAway:
            pass  # what was known last is as good
        return self._known.get(uid, 0)

    def read(self, uid: str) -> Sequence[RawEntry]:
        entries: list[RawEntry] = []
        for _, (_, line, *_) in self.ask("XRANGE", self._key(uid), "-", "+"):
            batch = decode_batch(line)
            assert batch is not None, f"a batch of {uid} is damaged: {line[:100]!r}"
            entries += batch.entries
        return entries

    def ask(self, *command: str) -> Any:
        """Return the reply; raises ShelfAway."""
        if time.monotonic() < self._away_until:
            raise ShelfAway
        try:
            reply = self._exchange(command)
        except OSError as error:
            self._socket, self._away_until = None, time.monotonic() + AWAY_SECONDS
            raise ShelfAway(str(error)) from None
        if isinstance(reply, hiredis.ReplyError):
            if str(reply).startswith("LOADING"):
                raise ShelfAway(str(reply))
            raise AssertionError(f"{command[0]}: {reply}")
        return reply

    def _exchange(self, command: Sequence[str]) -> Any:
        if self._socket is None:
            self._socket = socket.create_connection((self.host, self.port), REPLY_SECONDS)
            if self.login is not None:
                self._send(("AUTH", *self.login))
        return self._send(command)

    def _send(self, command: Sequence[str]) -> Any:
        assert self._socket is not None
        self._socket.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]  # its stub wants one word
        reader = hiredis.Reader()
        while (reply := reader.gets()) is False:
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionResetError("it hung up")
            reader.feed(data)
        return reply

    def _key(self, uid: str) -> str:
        return f"{redis_run_prefix(self.namespace, uid)}journal"
