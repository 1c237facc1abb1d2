"""What the file store of sessions does about damage, and a disk or a folder that fails."""

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from pilothouse_engine.ports import SessionCorrupt, SessionKey, SessionsUnavailable, StoredSession
from pilothouse_runner.adapters import file_sessions
from pilothouse_runner.adapters.file_sessions import FileSessions

pytestmark = pytest.mark.anyio

KEY = SessionKey("ns", "c-17", "work")


@pytest.fixture
async def sessions(tmp_path: Path) -> FileSessions:
    sessions = FileSessions(tmp_path / "sessions")
    assert await sessions.replace(KEY, 0, b"what was said")
    return sessions


async def test_a_file_that_was_cut_at_any_byte_is_damaged_and_never_empty(sessions: FileSessions) -> None:
    path = sessions.path(KEY)
    data = path.read_bytes()
    for end in range(len(data)):
        path.write_bytes(data[:end])
        with pytest.raises(SessionCorrupt, match="is damaged: restore it, or remove it"):
            await sessions.load(KEY)
        with pytest.raises(SessionCorrupt):
            await sessions.replace(KEY, 0, b"overwritten")


async def test_a_file_with_a_changed_byte_is_damaged(sessions: FileSessions) -> None:
    path = sessions.path(KEY)
    path.write_bytes(path.read_bytes().replace(b"said", b"paid"))

    with pytest.raises(SessionCorrupt, match="is damaged"):
        await sessions.load(KEY)


async def test_the_file_of_another_conversation_is_not_taken_for_this_one(sessions: FileSessions) -> None:
    other = SessionKey("ns", "c-18", "work")
    sessions.path(other).write_bytes(sessions.path(KEY).read_bytes())

    with pytest.raises(SessionCorrupt, match="is of another conversation"):
        await sessions.load(other)


async def test_a_removed_file_lets_the_conversation_begin_anew(sessions: FileSessions) -> None:
    sessions.path(KEY).unlink()

    assert await sessions.load(KEY) == StoredSession()
    assert await sessions.replace(KEY, 0, b"anew")


async def test_only_the_owner_can_read_what_was_said(sessions: FileSessions) -> None:
    assert stat.S_IMODE(sessions.path(KEY).stat().st_mode) == 0o600


async def test_a_full_disk_leaves_what_was_stored(sessions: FileSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SessionsUnavailable, match="No space left on device"):
        await sessions.replace(KEY, 1, b"more")
    monkeypatch.undo()

    assert await sessions.load(KEY) == StoredSession(1, b"what was said")
    left = [path.name for path in sessions.path(KEY).parent.iterdir() if path.suffix != ".lock"]
    assert left == [sessions.path(KEY).name]


async def test_a_folder_that_cannot_be_made_is_a_store_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sessions = FileSessions(tmp_path / "file" / "sessions")

    with pytest.raises(SessionsUnavailable, match="Not a directory"):
        await sessions.load(KEY)
    with pytest.raises(SessionsUnavailable, match="cannot use"):
        await sessions.replace(KEY, 0, b"said")


async def test_a_lock_that_is_held_for_long_is_a_store_that_is_away(
    sessions: FileSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sessions, "LOCK_WAIT_SECONDS", 0.02)
    with sessions.path(KEY).with_suffix(".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SessionsUnavailable, match=r"another process holds .* for 0.02 s"):
            await sessions.replace(KEY, 1, b"more")

    assert await sessions.replace(KEY, 1, b"more")
