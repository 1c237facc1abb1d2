"""Conversations as files: one a session and agent step, replaced whole, durable before `replace` returns.

A file is one line of JSON, `{"crc": <8 hex of CRC-32 of what follows the line>, "version": n, "namespace": …,
"session": …, "step": …}`, and the content behind it. Its name is a hash, since a session may be named by any text; a
lock beside it lets two processes replace it one after the other. Whoever reads needs no lock: a file is renamed into
its place.
"""

import asyncio
import fcntl
import json
import os
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pilothouse_api.digests import digest
from pilothouse_engine.ports import SessionCorrupt, SessionKey, SessionsUnavailable, StoredSession

LOCK_WAIT_SECONDS = 5.0
"""How long a replace waits for another process's; it holds the lock for one write of a few MiB."""

_LOCK_POLL_SECONDS = 0.005
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class FileSessions:
    """The conversations of one folder, which outlives the runs: a laptop's disk, a PVC."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def load(self, key: SessionKey) -> StoredSession:
        """Return what is stored; raises SessionsUnavailable, SessionCorrupt."""
        return self._read(key)

    async def replace(self, key: SessionKey, version: int, content: bytes) -> bool:
        """Store the next version on disk; raises SessionsUnavailable, SessionCorrupt."""
        async with self._locked(key):
            if self._read(key).version != version:
                return False
            try:
                self._write(key, StoredSession(version + 1, content))
            except OSError as error:
                raise self._unavailable(self.path(key), error) from error
            return True

    def path(self, key: SessionKey) -> Path:
        """Return the file of a conversation."""
        return self._folder / f"{digest([key.namespace, key.session, key.step])[:40]}.session"

    @asynccontextmanager
    async def _locked(self, key: SessionKey) -> AsyncIterator[None]:
        path = self.path(key).with_suffix(".lock")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unavailable(path, error) from error
        try:
            await _take(lock, path)
            yield
        finally:
            os.close(lock)

    def _read(self, key: SessionKey) -> StoredSession:
        path = self.path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return StoredSession()
        except OSError as error:
            raise self._unavailable(path, error) from error
        line, _, content = data.partition(b"\n")
        try:
            head = json.loads(line)
            version, crc = head["version"], head["crc"]
            is_whole = isinstance(version, int) and version > 0 and crc == _crc(content)
            is_own = [head["namespace"], head["session"], head["step"]] == [key.namespace, key.session, key.step]
        except (ValueError, KeyError, TypeError):
            is_whole = is_own = False
        if not is_whole or not is_own:
            what = "is damaged" if not is_whole else "is of another conversation"
            raise SessionCorrupt(f"{path} {what}: restore it, or remove it to let the conversation begin anew")
        return StoredSession(version, content)

    def _write(self, key: SessionKey, stored: StoredSession) -> None:
        path = self.path(key)
        names = {"namespace": key.namespace, "session": key.session, "step": key.step}
        head = {"crc": _crc(stored.content), "version": stored.version, **names}
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with os.fdopen(os.open(draft, _CREATE, 0o600), "wb") as file:
                file.write(json.dumps(head).encode() + b"\n" + stored.content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        _sync_folder(self._folder)

    def _unavailable(self, path: Path, error: OSError) -> SessionsUnavailable:
        return SessionsUnavailable(f"cannot use {path}: {error.strerror or error}")


async def _take(lock: int, path: Path) -> None:
    deadline = asyncio.get_running_loop().time() + LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if asyncio.get_running_loop().time() > deadline:
                raise SessionsUnavailable(f"another process holds {path} for {LOCK_WAIT_SECONDS:g} s") from None
        except OSError as error:
            raise SessionsUnavailable(f"cannot lock {path}: {error.strerror or error}") from error
        await asyncio.sleep(_LOCK_POLL_SECONDS)


def _crc(content: bytes) -> str:
    return f"{zlib.crc32(content):08x}"


def _sync_folder(path: Path) -> None:
    """Make a new file's name durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
