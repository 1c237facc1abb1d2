"""What supervision decides from, and what it decides: one view in, one plan out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pilothouse_api.judging import JudgeAnswer, JudgeFailureType
from pilothouse_api.observation import Observation
from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import Snapshot, Supervision, SupervisionAction
from pilothouse_control.supervision.bindings import Binding


@dataclass(frozen=True, slots=True)
class JudgeAvailable:
    """The platform knows the model, and the criteria can be read."""

    criteria: str


@dataclass(frozen=True, slots=True)
class JudgeUnavailable:
    """Why a judge cannot be asked; with `onError: Ignore` it is off, else each slot counts as a judge error."""

    type: JudgeFailureType
    message: str


JudgeAvailability = JudgeAvailable | JudgeUnavailable


@dataclass(frozen=True, slots=True)
class NewVerdict:
    """An answer that has come and is in no record yet; `ask` is what it answers."""

    ask: "JudgeAsk"
    answer: JudgeAnswer


@dataclass(frozen=True, slots=True)
class SupervisionView:
    """All that is known about the supervision of one run at one moment.

    `run` brings `spec.control`, `metadata.generation` and `status` (with the record) as they were read together: what
    is written because of this view is written with their resourceVersion as precondition. `plan` None: it is not at
    hand, nothing is judged. `bound` is what `find_bound` found, by uid. `judges` tells of each bound one with a judge
    whether it can be asked; one that is not told of yet is waited for, like one that is still being asked.
    `verdicts` came since the last record was written; `underway` are the uids whose verdict this process waits for.
    `unapplied` are ids of actions whose patch is known not to have been made: this host has recorded the intent and
    patched nothing yet, or something else was written first (409); `refused` are those whose patch the API server
    refuses for good (422).
    """

    run: AgentRun
    now: datetime
    bound: Mapping[str, Binding]
    plan: Plan | None = None
    snapshot: Snapshot | None = None
    judges: Mapping[str, JudgeAvailability] = field(default_factory=dict)
    verdicts: Mapping[str, NewVerdict] = field(default_factory=dict)
    underway: frozenset[str] = frozenset()
    unapplied: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Directive:
    """A merge-patch of the run's spec that carries out the intents of these ids, all at once."""

    patch: Mapping[str, Any]
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JudgeAsk:
    """A verdict to ask for, once the record that says so is written. `journal_length`: of the snapshot that is shown.

    `is_repeated`: the host that asked first died before the answer came.
    """

    uid: str
    supervisor: str
    visit: int
    journal_length: int
    model: str
    criteria: str
    observation: Observation
    timeout_seconds: int
    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class JudgeFailed:
    """A verdict that was not given: for log (`supervisor.judge_failed`) and metric."""

    uid: str
    supervisor: str
    type: JudgeFailureType
    message: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """Something for the log that is no action: an expression that failed, a supervisor that is not bound."""

    event: str
    supervisor: str
    message: str


@dataclass(frozen=True, slots=True)
class SupervisionPlan:
    """What is to be done, in this order.

    1. Write `record` to `status.supervision` if `is_changed`; it and what follows is good only for the view's
       resourceVersion. Once it stands, tell `acted` (one Event each; by its `state`), `failures` and `log`, which
       are new with it, and start `asks`, which may also be there where nothing was to be written. `intended` are the
       ids of intents that are new with it: nobody has patched them before this host does.
    2. Where nothing was to be written, patch `directive`.
    3. Look again after each write, at each change of the run, with each verdict, and at `next_look`.
    """

    record: Supervision | None
    is_changed: bool = False
    intended: tuple[str, ...] = ()
    directive: Directive | None = None
    asks: tuple[JudgeAsk, ...] = ()
    acted: tuple[SupervisionAction, ...] = ()
    failures: tuple[JudgeFailed, ...] = ()
    log: tuple[LogLine, ...] = ()
    next_look: datetime | None = None
