"""Local runs, as the verbs see them."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.common import Condition
from pilothouse_cli.exits import EXIT_FAILED, EXIT_NOT_FOUND, CliError
from pilothouse_cli.local.patches import patched
from pilothouse_cli.local.state import STATE_FOLDER, RunFolder, RunIsGone, all_folders, find_folder
from pilothouse_cli.local.store import POLL_SECONDS
from pilothouse_cli.runs.fleets import RunKey
from pilothouse_cli.runs.pending import matches
from pilothouse_cli.runs.port import not_found, snapshot_of
from pilothouse_cli.runs.turns import TurnRow, turns_of_journal
from pilothouse_control.directives import Directive, is_finished
from pilothouse_engine.ports import JournalCorrupt, RawEntry
from pilothouse_runner.adapters.file_journal import read_entries


class LocalRuns:
    """The runs of one `.pilothouse` folder; `Runs`, and `Fleet`."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.where = str(state)

    @staticmethod
    def here() -> "LocalRuns":
        """Return the local runs of the current folder."""
        return LocalRuns(Path(STATE_FOLDER))

    def has(self, name: str) -> bool:
        """Tell whether there is a run of that name."""
        return find_folder(self._state, name) is not None

    def folder(self, name: str) -> RunFolder:
        """Return the folder of a run; raises CliError."""
        folder = find_folder(self._state, name)
        if folder is None:
            raise not_found(name, self.where)
        return folder

    def all(self) -> Sequence[AgentRun]:
        """Return all runs that can be read, oldest first."""
        return self._look()[0]

    def unreadable(self) -> Mapping[str, str]:
        """Return the names of runs whose files are damaged, and what is wrong with them."""
        return self._look()[1]

    def _look(self) -> tuple[list[AgentRun], dict[str, str]]:
        runs, unreadable = [], {}
        for folder in all_folders(self._state):
            try:
                runs.append(_as_seen(folder))
            except RunIsGone:
                continue
            except CliError as error:
                unreadable[folder.name] = error.message
        runs.sort(key=lambda run: (run.metadata.creation_timestamp or "", run.metadata.name))
        return runs, unreadable

    def select(self, selector: str | None = None) -> Sequence[AgentRun]:
        """Return the runs that have not ended and fit a label selector."""
        return [
            run
            for run in self.all()
            if not is_finished(run) and (selector is None or matches(run.metadata.labels, selector))
        ]

    def get(self, name: str) -> AgentRun:
        """Return a run."""
        try:
            return _as_seen(self.folder(name))
        except RunIsGone:
            raise not_found(name, self.where) from None

    def patch(self, name: str, spec: Mapping[str, Any]) -> AgentRun:
        """Apply a merge-patch to the spec; judged by the rules that the API server has for it."""
        folder = self.folder(name)
        try:
            folder.edit(lambda raw: patched(raw, spec), sync=True)
        except RunIsGone:
            raise not_found(name, self.where) from None
        return self.get(name)

    def turns(self, run: AgentRun) -> Sequence[TurnRow]:
        """Return the turns out of the journal."""
        return turns_of_journal(self.entries(run))

    def entries(self, run: AgentRun) -> Sequence[RawEntry]:
        """Return the entries of the journal's file."""
        path = self.folder(run.metadata.name).journal_path
        try:
            return read_entries(path)
        except JournalCorrupt as error:
            raise CliError(f"the journal {path} is damaged: {error}", "", EXIT_FAILED) from None

    def wait_for_change(self, run: AgentRun, timeout: float) -> AgentRun:
        """Poll the object's file."""
        ends = time.monotonic() + timeout
        while True:
            now = self.get(run.metadata.name)
            if now != run or time.monotonic() >= ends:
                return now
            time.sleep(POLL_SECONDS)

    def is_advancing(self, run: AgentRun) -> bool:
        """Tell whether a process of this machine holds the run."""
        return self.folder(run.metadata.name).is_live()

    # ------------------------------------------------------------ many at once

    def called(self, run: AgentRun) -> str:
        """Return the name."""
        return run.metadata.name

    def addressed(self, run: AgentRun) -> str:
        """Return the name."""
        return run.metadata.name

    def direct(self, run: AgentRun, directive: Directive) -> AgentRun:
        """Patch the spec."""
        return self.patch(run.metadata.name, directive.patch)

    def reread(self, run: AgentRun) -> AgentRun:
        """Return the run as it is now."""
        return self.get(run.metadata.name)

    def looks(self, open_runs: Mapping[RunKey, AgentRun], selector: str | None) -> Iterator[AgentRun | RunKey | None]:
        """Poll the files of those that are of interest."""
        while True:
            for key, run in list(open_runs.items()):
                try:
                    yield self.reread(run)
                except CliError as error:
                    if error.code != EXIT_NOT_FOUND:
                        raise
                    yield key
            yield None
            time.sleep(POLL_SECONDS)

    def land(self, run: AgentRun) -> AgentRun:
        """End a run that no process holds: this one makes the attempt that does."""
        from pilothouse_cli.local.host import advance_silently  # the engine and its adapters: half a second

        advance_silently(self.folder(run.metadata.name))
        return self.get(run.metadata.name)


def _as_seen(folder: RunFolder) -> AgentRun:
    """Return the run; where its process has died, its status says so."""
    run = folder.read()
    if is_finished(run) or folder.is_live():
        return run
    run = folder.read()  # it may have ended between the two looks
    parked = snapshot_of(run).parked
    if is_finished(run) or (parked is not None and parked.released):
        return run
    why = Condition(
        type="Ready",
        status="False",
        reason="ProcessGone",
        message=f"no process advances the run: pilothouse resume {run.metadata.name}",
        last_transition_time=run.metadata.creation_timestamp or "",
    )
    status = run.status.model_copy(update={"phase": "Pending", "conditions": [why]})
    return run.model_copy(update={"status": status})
