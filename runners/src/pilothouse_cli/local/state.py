"""Where local runs are kept: `.pilothouse/runs/<name>/` with the run's object, its plan, its journal and two locks.

`run.json` is an AgentRun, the same as in a cluster. It is replaced whole under `edit.lock`; `lock` is held by the one
process that advances the run, for as long as it does.
"""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pilothouse_api import names
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.exits import EXIT_FAILED, EXIT_USAGE, CliError, first_problem
from pilothouse_cli.runs.port import snapshot_of

STATE_FOLDER = ".pilothouse"
SUPERVISORS = "supervisors.json"
"""Beside a run that somebody watches, or whose children somebody may: the supervisors that it was begun with."""

RawRun = dict[str, Any]


class RunIsLive(Exception):
    """Another process advances the run; `pid` is its number, or 0."""

    def __init__(self, name: str, pid: int) -> None:
        super().__init__(f"run {name} is live in process {pid}")
        self.pid = pid


class RunIsGone(Exception):
    """The run's folder was removed."""


class RunFolder:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_path = path / "run.json"
        self.plan_path = path / names.PLAN_KEY
        self.journal_path = path / "journal.jsonl"

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    def read_raw(self) -> RawRun:
        """Return the run's object; raises RunIsGone, or CliError where it is damaged."""
        try:
            raw = json.loads(self.run_path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise RunIsGone(self.name) from None
        except (OSError, ValueError) as error:
            raise CliError(f"{self.run_path} cannot be read: {error}", "remove the folder", EXIT_FAILED) from None
        metadata = raw.get("metadata") if isinstance(raw, dict) else None
        if not isinstance(metadata, dict) or not isinstance(metadata.get("generation"), int):
            raise CliError(f"{self.run_path} is no run", "remove the folder", EXIT_FAILED)
        return dict(raw)

    def read(self) -> AgentRun:
        """Return the run; raises RunIsGone, or CliError where it is damaged."""
        try:
            run = AgentRun.model_validate(self.read_raw())
        except ValidationError as error:
            what = f"{self.run_path} is no run of this version: {first_problem(error)}"
            raise CliError(what, "", EXIT_FAILED) from None
        snapshot_of(run)  # whoever is given the run reads it
        return run

    def edit(self, change: Callable[[RawRun], RawRun], *, sync: bool = False) -> RawRun:
        """Replace the run by what `change` makes of it, one editor at a time; return it.

        Raises RunIsGone, and CliError where it cannot be read or written.
        """
        lock = self._open_lock("edit.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            raw = change(self.read_raw())
            raw["metadata"]["resourceVersion"] = str(int(raw["metadata"].get("resourceVersion") or 0) + 1)
            try:
                write_atomically(self.run_path, json.dumps(raw, indent=1), sync=sync)
            except OSError as error:
                raise self._not_written(self.run_path, error) from None
            return raw
        finally:
            os.close(lock)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Be the one process that advances the run; a killed process lets go by itself.

        Raises RunIsLive, RunIsGone, and CliError where the folder cannot be written.
        """
        lock = self._open_lock("lock")
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(lock, 0)
                os.pwrite(lock, str(os.getpid()).encode(), 0)
            except BlockingIOError:
                raise RunIsLive(self.name, self.holder()) from None
            except OSError as error:
                raise self._not_written(self.path / "lock", error) from None
            yield
        finally:
            os.close(lock)

    def _open_lock(self, name: str) -> int:
        try:
            return os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise RunIsGone(self.name) from None
        except OSError as error:
            raise self._not_written(self.path / name, error) from None

    def _not_written(self, path: Path, error: OSError) -> CliError:
        next_step = f"make room, or make {path.parent} writable"
        return CliError(f"cannot write {path}: {error.strerror}", next_step, EXIT_FAILED)

    def is_live(self) -> bool:
        """Tell whether a process advances the run now."""
        try:
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def holder(self) -> int:
        """Return the number of the process that holds the run, 0 where it is not known."""
        try:
            return int((self.path / "lock").read_text() or 0)
        except (OSError, ValueError):
            return 0


def runs_folder(state: Path) -> Path:
    """Return the folder of all runs."""
    return state / "runs"


def find_folder(state: Path, name: str) -> RunFolder | None:
    """Return the folder of a run, or None where there is none of that name."""
    if not names.is_dns_label(name):
        return None
    folder = RunFolder(runs_folder(state) / name)
    return folder if folder.run_path.exists() else None


def all_folders(state: Path) -> list[RunFolder]:
    """Return the folders of all runs."""
    folder = runs_folder(state)
    if not folder.is_dir():
        return []
    return [RunFolder(path) for path in sorted(folder.iterdir()) if (path / "run.json").exists()]


def make_folder(state: Path, raw_run: RawRun, texts: Mapping[str, str]) -> RunFolder:
    """Make the folder of a new run with these files, whole or not at all; raises CliError where the name is taken."""
    name = raw_run["metadata"]["name"]
    target = runs_folder(state) / name
    try:
        runs_folder(state).mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".new-", dir=runs_folder(state)))
        try:
            for file_name, text in texts.items():
                write_atomically(draft / file_name, text, sync=True)
            write_atomically(draft / "run.json", json.dumps(raw_run, indent=1), sync=True)
            draft.rename(target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as error:
        if target.exists():
            raise CliError(
                f"there is a local run {name} already", f"choose another --name, or: pilothouse show {name}", EXIT_USAGE
            ) from None
        raise CliError(f"cannot keep a run in {state}: {error.strerror}", "", EXIT_FAILED) from None
    return RunFolder(target)


def write_atomically(path: Path, text: str, *, sync: bool) -> None:
    """Replace a file, so that whoever reads it sees the old or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w") as file:
            file.write(text)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
