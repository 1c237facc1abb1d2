"""What the verbs ask of a place that holds runs: a folder on this machine, or a namespace of a cluster."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import FINISHED_PHASES, ApprovalDecision, ControlAnswer, Snapshot
from pilothouse_api.wake import is_answered
from pilothouse_cli.exits import EXIT_FAILED, CliError, first_problem
from pilothouse_cli.turns import TurnRow
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
        return Snapshot.model_validate({"attempt": 0, **(run.status.run or {})})
    except ValidationError as error:
        what = f"run {run.metadata.name} has a status that this version cannot read: {first_problem(error)}"
        raise CliError(what, "upgrade the command line", EXIT_FAILED) from None


def is_finished(run: AgentRun) -> bool:
    """Tell whether the run has ended."""
    return run.status.phase in FINISHED_PHASES


def target_of(run: AgentRun) -> str:
    """Return the name of the workflow, or of the agent, that a run executes."""
    ref = run.spec.workflow_ref or run.spec.agent_ref
    return ref.name if ref else "-"


@dataclass(frozen=True, slots=True)
class Directive:
    """Something that is asked of a run: how it is called, the patch of its spec, and how its answer is found."""

    title: str
    patch: Mapping[str, Any]
    answer: Callable[[ControlAnswer, int], "Answer | None"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a directive: `state` is Landed, NotLanded, NotPending, Expired, Superseded, Kept, Waiting or
    Ended."""

    state: str
    turn: int | None = None
    message: str = ""


def mode_directive(mode: str, reason: str | None = None) -> Directive:
    """Return the directive that sets the mode."""

    def answer(control: ControlAnswer, generation: int) -> Answer | None:
        if control.observed_generation < generation:
            return None
        if control.mode.value == mode:
            return Answer("Landed", control.mode.turn)
        return Answer(control.mode.state, control.mode.turn) if control.mode.state else None

    # A reason that is not given again must not stay from the last directive: null removes it.
    return Directive(mode, {"control": {"mode": mode, "reason": reason}}, answer)


def steer_directive(steer_id: str, message: str) -> Directive:
    """Return the directive that hands the model a message."""

    def answer(control: ControlAnswer, generation: int) -> Answer | None:
        landing = control.steer.get(steer_id)
        return Answer(landing.state, landing.turn) if landing else None

    return Directive(f"steer {steer_id}", {"control": {"steer": {steer_id: {"message": message}}}}, answer)


def approval_directive(call_id: str, decision: Mapping[str, Any]) -> Directive:
    """Return the directive that decides on a pending call."""
    asked = ApprovalDecision.model_validate(dict(decision))

    def answer(control: ControlAnswer, generation: int) -> Answer | None:
        landing = control.approvals.get(call_id)
        if landing is None or not is_answered(asked, landing):
            return None
        return Answer(landing.state, landing.turn, landing.message or "")

    title = f"{'approval' if asked.decision == 'Approve' else 'denial'} of {call_id}"
    return Directive(title, {"control": {"approvals": {call_id: dict(decision)}}}, answer)


def limits_directive(limits: Mapping[str, Any]) -> Directive:
    """Return the directive that changes limits."""

    def answer(control: ControlAnswer, generation: int) -> Answer | None:
        landing = control.limits
        return Answer("Landed", landing.turn) if landing and landing.generation >= generation else None

    return Directive("limits", {"limits": dict(limits)}, answer)


def answer_of(run: AgentRun, directive: Directive, generation: int) -> Answer | None:
    """Return what became of a directive that made this generation of the spec, or None while it is open."""
    snapshot = snapshot_of(run)
    answer = directive.answer(snapshot.control, generation)
    if answer is not None:
        return answer
    if is_finished(run):
        return Answer("Ended", snapshot.turn)
    is_parked = snapshot.parked is not None and snapshot.control.mode.value == "Pause"
    if is_parked and snapshot.control.observed_generation >= generation:
        return Answer("Kept", snapshot.turn)
    return None


def wait_for_answer(runs: Runs, run: AgentRun, directive: Directive, timeout: float) -> tuple[AgentRun, Answer]:
    """Wait until a directive is answered; `Waiting` after `timeout` seconds, `Kept` where nothing advances the run."""
    generation = run.metadata.generation or 0
    ends = time.monotonic() + timeout
    while True:
        answer = answer_of(run, directive, generation)
        if answer is not None:
            return run, answer
        if not runs.is_advancing(run):
            return run, Answer("Kept")
        left = ends - time.monotonic()
        if left <= 0:
            return run, Answer("Waiting")
        run = runs.wait_for_change(run, left)
