"""`replay`: a changed supervisor over what was observed of runs, beside the one that watched them. No tokens."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.table import Table

from pilothouse_api.observation import Observation
from pilothouse_api.v1alpha1 import Supervisor
from pilothouse_api.v1alpha1.agentrun import SupervisionAction
from pilothouse_api.v1alpha1.supervisor import SupervisorSpec
from pilothouse_cli.authoring.manifests import read_documents
from pilothouse_cli.commands.authoring import count
from pilothouse_cli.commands.places import Place
from pilothouse_cli.exits import EXIT_SUCCEEDED, EXIT_USAGE, CliError, first_problem
from pilothouse_cli.local.recordings import record_local
from pilothouse_cli.local.runs import LocalRuns
from pilothouse_cli.runs.recordings import Recording, line_of, read_recordings
from pilothouse_cli.terminal import clean_line, print_data, say, show
from pilothouse_control.supervision.replay import Deed, Replayed, replay


@dataclass(frozen=True, slots=True)
class Sources:
    """Where observations come from: runs, or a file of them; and the address of the operator API for a cluster's."""

    runs: Sequence[str] = ()
    file: Path | None = None
    api: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One look at a run: what was done about it, what the supervisor in force does, and what the changed one would."""

    run: str
    supervisor: str
    observation: Observation
    done: tuple[SupervisionAction, ...]
    current: Replayed
    changed: Replayed

    @property
    def is_changed(self) -> bool:
        """Whether the changed supervisor does something else."""
        return self.current.differs(self.changed)

    @property
    def is_of_interest(self) -> bool:
        """Whether anything is done, or asked, by either of them."""
        replayed = (self.current, self.changed)
        return self.is_changed or bool(self.done) or any(one.deeds or one.asks_judge for one in replayed)


def replay_supervisor(
    place: Place, sources: Sources, supervisor: Path, against: Path | None, *, is_all: bool, output: str
) -> int:
    """Print what a changed supervisor would do about recorded runs, and which turns that changes."""
    changed = read_supervisors(supervisor)
    before = {one.metadata.name: one.spec for one in read_supervisors(against)} if against is not None else None
    rows = [
        row for recording in recordings(place, sources) for one in changed for row in compare(recording, one, before)
    ]
    shown = [row for row in rows if is_all or row.is_of_interest]
    if output in ("json", "yaml"):
        print_data([row_data(row) for row in shown], output)
    elif shown:
        show(rows_table(shown, is_named=len(changed) > 1))
    for line in sorted(set(_failures(rows))):
        say(line)
    asked = sum(row.changed.asks_judge for row in rows)
    judge = f"; the judge would be asked {count(asked, 'time')}, and what it would say is not known" if asked else ""
    say(f"{sum(row.is_changed for row in rows)} of {count(len(rows), 'look')} change{judge}")
    return EXIT_SUCCEEDED


def print_observations(place: Place, sources: Sources) -> int:
    """Print what was observed of runs, one JSON object a line, to be kept and replayed."""
    for recording in recordings(place, sources):
        for observation in recording.observations:
            sys.stdout.write(line_of(recording.run, observation) + "\n")
    return EXIT_SUCCEEDED


def recordings(place: Place, sources: Sources) -> list[Recording]:
    """Return what was observed of the runs that are meant; raises CliError."""
    if (sources.file is None) == (not sources.runs):
        what = "name the runs to go through" if sources.file is None else "either runs or a file of observations"
        raise CliError(what, "RUN…, or --observations FILE", EXIT_USAGE)
    if sources.file is not None:
        return read_recordings(sources.file)
    return [_record(place, name, sources.api) for name in sources.runs]


def _record(place: Place, name: str, api: str | None) -> Recording:
    runs = place.runs_of(name)
    if isinstance(runs, LocalRuns):
        return record_local(runs, name)
    from pilothouse_cli.cluster.recordings import record_in_cluster
    from pilothouse_cli.cluster.runs import ClusterRuns

    assert isinstance(runs, ClusterRuns)
    return record_in_cluster(runs, name, api)


def read_supervisors(path: Path) -> list[Supervisor]:
    """Return the Supervisors of a file; raises CliError where one is wrong, or there is none."""
    documents = [document for document in read_documents([path]) if document.kind == "Supervisor" or document.problems]
    if not documents:
        raise CliError(f"there is no Supervisor in {path}", "name the file of a Supervisor", EXIT_USAGE)
    supervisors = []
    for document in documents:
        if document.problems:
            problem = document.problems[0]
            raise CliError(f"{path}:{problem.line}: {problem.what}", problem.hint, EXIT_USAGE)
        try:
            supervisors.append(Supervisor.model_validate(document.raw))
        except ValidationError as error:
            what = f"{path}: Supervisor {clean_line(document.name, 63)}: {first_problem(error)}"
            raise CliError(what, f"pilothouse validate {path}", EXIT_USAGE) from None
    return supervisors


# ---------------------------------------------------------------- comparing


def compare(
    recording: Recording, supervisor: Supervisor, before: Mapping[str, SupervisorSpec] | None = None
) -> list[Row]:
    """Return a supervisor beside the one of its name that watched the run, or of `before` where that is given.

    Both are replayed: what really was done came as fast as snapshots did, and is no measure of a change.
    """
    name, seen = supervisor.metadata.name, recording.observations
    old = before.get(name) if before is not None else copy_in_force(recording, name)
    current = replay(old, seen) if old is not None else [Replayed()] * len(seen)
    changed = replay(supervisor.spec, seen)
    done = _actions_by_look(recording, name)
    return [
        Row(recording.run, name, observation, done.get(index, ()), current[index], changed[index])
        for index, observation in enumerate(seen)
    ]


def copy_in_force(recording: Recording, name: str) -> SupervisorSpec | None:
    """Return the copy of a supervisor that watched the run last, None where none of that name did."""
    watching = recording.supervision.supervisors.values() if recording.supervision is not None else ()
    for one in watching:
        if one.name == name:
            try:
                return SupervisorSpec.model_validate(one.spec)
            except ValidationError as error:
                what = f"the copy of {name} that watched run {recording.run} is not of this version"
                raise CliError(f"{what}: {first_problem(error)}", "name the one before by --against FILE") from None
    return None


def _actions_by_look(recording: Recording, name: str) -> dict[int, tuple[SupervisionAction, ...]]:
    """Return what was done at each look: an action was decided on a snapshot of its turn, or of one not kept."""
    found: dict[int, tuple[SupervisionAction, ...]] = {}
    for action in recording.supervision.actions if recording.supervision is not None else ():
        at = [
            index
            for index, seen in enumerate(recording.observations)
            if seen.visit == action.visit and seen.turn <= action.turn
        ]
        if action.supervisor == name and at:
            found[at[-1]] = (*found.get(at[-1], ()), action)
    return found


# ---------------------------------------------------------------- saying


def rows_table(rows: Sequence[Row], *, is_named: bool) -> Table:
    """Return rows as a table; a look that changes is marked."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    named = ("SUPERVISOR",) if is_named else ()
    for column in ("", "RUN", *named, "TURN", "STEP", "ITER", "DID", "DOES", "WOULD DO", "WHY"):
        table.add_column(column, justify="right" if column in ("TURN", "ITER") else "left", no_wrap=column != "WHY")
    for row in rows:
        seen = row.observation
        why = "; ".join(deed.reason for deed in (row.changed.deeds or row.current.deeds))
        table.add_row(
            "*" if row.is_changed else "",
            clean_line(row.run, 127),
            *((clean_line(row.supervisor, 63),) if is_named else ()),
            str(seen.turn),
            clean_line(seen.step, 63),
            str(seen.iteration),
            ", ".join(_action_text(action) for action in row.done) or "-",
            _replayed_text(row.current),
            _replayed_text(row.changed),
            clean_line(why, 200),
            style="yellow" if row.is_changed else None,
        )
    return table


def _action_text(action: SupervisionAction) -> str:
    state = "" if action.state == "Done" else f" ({clean_line(action.state, 63)})"
    return f"{clean_line(action.action, 63)} {clean_line(action.source, 127)}{state}"


def _replayed_text(replayed: Replayed) -> str:
    if replayed.is_over:
        return "(aborted before)"
    done = [_deed_text(deed) for deed in replayed.deeds]
    return ", ".join([*done, *(["judge would be asked"] if replayed.asks_judge else [])]) or "-"


def _deed_text(deed: Deed) -> str:
    return f"{deed.action} {clean_line(deed.source, 127)}"


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for rule, why in row.changed.failed:
            named = f"{clean_line(row.supervisor, 63)}: rule {clean_line(rule, 63)}"
            yield f"{named} could not be evaluated: {clean_line(why)}"


def row_data(row: Row) -> dict[str, Any]:
    """Return a row for a program."""
    seen = row.observation
    return {
        "run": row.run,
        "supervisor": row.supervisor,
        "visit": seen.visit,
        "turn": seen.turn,
        "step": seen.step,
        "iteration": seen.iteration,
        "time": seen.now,
        "did": [action.to_raw() for action in row.done],
        "current": replayed_data(row.current),
        "changed": replayed_data(row.changed),
        "isChanged": row.is_changed,
    }


def replayed_data(replayed: Replayed) -> dict[str, Any]:
    """Return a verdict for a program."""
    return {
        "actions": [{"action": it.action, "source": it.source, "reason": it.reason} for it in replayed.deeds],
        "asksJudge": replayed.asks_judge,
        "isOver": replayed.is_over,
    }
