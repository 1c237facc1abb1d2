"""What the verbs ask of a place that holds runs: a folder on this machine, or a namespace of a cluster."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pydantic import ValidationError

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import Snapshot
from pilothouse_cli.exits import EXIT_FAILED, EXIT_NOT_FOUND, CliError, first_problem
from pilothouse_cli.runs.turns import TurnRow
from pilothouse_control import directives
from pilothouse_control.directives import Answer, Directive, answer_of
from pilothouse_engine.ports import RawEntry


class Runs(Protocol):
    """A place that holds runs. Every method raises CliError for what a person can do something about."""

    where: str
    """The place, for messages: "namespace default", ".pilothouse"."""

    def all(self) -> Sequence[AgentRun]:
        """Return all runs, oldest first, but for those that `unreadable` tells of."""
        ...

    def unreadable(self) -> Mapping[str, str]:
        """Return the names of runs that are there and cannot be read, and why."""
        ...

    def select(self, selector: str | None = None) -> Sequence[AgentRun]:
        """Return the runs that have not ended and fit a label selector, in no order."""
        ...

    def get(self, name: str) -> AgentRun:
        """Return a run."""
        ...

    def patch(self, name: str, spec: Mapping[str, Any]) -> AgentRun:
        """Apply a merge-patch to the spec of a run and return the run."""
        ...

    def turns(self, run: AgentRun) -> Sequence[TurnRow]:
        """Return the turns of a run, as far back as they are kept."""
        ...

    def entries(self, run: AgentRun) -> Sequence[RawEntry]:
        """Return the entries of a run's journal; raises CliError, which says where it is, where it is out of reach."""
        ...

    def wait_for_change(self, run: AgentRun, timeout: float) -> AgentRun:
        """Return the run as soon as it differs from `run`, or as it is after `timeout` seconds."""
        ...

    def is_advancing(self, run: AgentRun) -> bool:
        """Tell whether something advances the run, or will by itself: else a directive lands only after a resume."""
        ...


def snapshot_of(run: AgentRun) -> Snapshot:
    """Return what the run says about itself; one that has not begun has attempt 0. Raises CliError."""
    try:
        return directives.snapshot_of(run)
    except ValidationError as error:
        what = f"run {run.metadata.name} has a status that this version cannot read: {first_problem(error)}"
        raise CliError(what, "upgrade the command line", EXIT_FAILED) from None


def target_of(run: AgentRun) -> str:
    """Return the name of the workflow, or of the agent, that a run executes."""
    ref = run.spec.workflow_ref or run.spec.agent_ref
    return ref.name if ref else "-"


def wait_for_answer(runs: Runs, run: AgentRun, directive: Directive, timeout: float) -> tuple[AgentRun, Answer]:
    """Wait until a directive is answered; `Waiting` after `timeout` seconds, `Kept` where nothing advances the run."""
    generation = run.metadata.generation or 0
    ends = time.monotonic() + timeout
    while True:
        answer = answer_of(run, snapshot_of(run), directive, generation)
        if answer is not None:
            return run, answer
        if not runs.is_advancing(run):
            return run, Answer("Kept")
        left = ends - time.monotonic()
        if left <= 0:
            return run, Answer("Waiting")
        run = runs.wait_for_change(run, left)


def not_found(name: str, where: str) -> CliError:
    """Return the error for a run that is not there."""
    return CliError(f"there is no run {name} in {where}", "pilothouse list", EXIT_NOT_FOUND)
