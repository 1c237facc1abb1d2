"""Sessions on a laptop: one run of each goes on at a time, a run that was let go too."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pilothouse_cli.exits import EXIT_FAILED, EXIT_USAGE, CliError
from pilothouse_cli.local.state import RunIsGone, all_folders
from pilothouse_control.directives import is_finished


@contextmanager
def hold_sessions(state: Path) -> Iterator[None]:
    """Let no other process make a run of a session meanwhile; raises CliError where the folder cannot be written."""
    path = state / "sessions.lock"
    try:
        state.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}", f"make {state} writable", EXIT_FAILED) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def check_session_free(session: str, state: Path) -> None:
    """Raise CliError where a run that is not finished holds the session; a damaged run holds none."""
    for folder in all_folders(state):
        try:
            other = folder.read()
        except (RunIsGone, CliError):
            continue
        if other.spec.session == session and not is_finished(other):
            raise CliError(
                f"session {session} is held by run {folder.name}, which is not finished",
                f"pilothouse resume {folder.name}, or: pilothouse abort {folder.name}",
                EXIT_USAGE,
            )
