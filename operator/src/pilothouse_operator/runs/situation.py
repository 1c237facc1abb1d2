"""What may be the matter with a run: seven situations, each with what follows from it, and the reasons of ends. Pure.

Whoever reads a situation needs nothing else to decide about attempts (`attempts.plan_attempt`) and about what
people see (`rendering.render_status`).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pilothouse_operator.runs.view import Obstacle
from pilothouse_operator.workloads.failures import Failure

ABORTED_REASONS = frozenset({"Aborted", "PauseDeadline", "BarrierTimeout", "FinishedWithoutAnswer"})
SUCCESS_REASONS = frozenset({"Complete", "FinishedEarly"})
JOURNAL_LOST = "JournalLost"
MAX_ATTEMPTS = "MaxAttempts"
DEADLINE_EXCEEDED = "DeadlineExceeded"


@dataclass(frozen=True, slots=True)
class Blocked:
    """No plan: something is missing or wrong."""

    obstacle: Obstacle
    is_stalled: bool


@dataclass(frozen=True, slots=True)
class Starting:
    """An attempt is due, or its pod does not run yet. `attempt` 0: the first one has not been numbered.

    `is_queued`: it waits for its turn, which comes. `is_suspended`: it waits until a person lets runs begin again.
    """

    attempt: int
    is_pod_made: bool
    reason: str
    message: str
    not_before: datetime | None = None
    is_queued: bool = False
    is_stalled: bool = False
    is_suspended: bool = False


@dataclass(frozen=True, slots=True)
class Live:
    """A runner advances the run. `removal`: why its pod must be ended now."""

    removal: str | None = None


@dataclass(frozen=True, slots=True)
class Parked:
    """It waits without advancing, with a pod (held) or without (released).

    `settle`: the attempt that is due only closes the run, with that reason.
    """

    reason: str
    turn: int
    is_held: bool
    is_due: bool = False
    wake: datetime | None = None
    removal: str | None = None
    settle: str | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """The attempt ended and another one is due: to go on, or only to settle with that reason."""

    failure: Failure
    settle: str | None = None


@dataclass(frozen=True, slots=True)
class Settling:
    """It closes: the exit is published and the pod ends (Exit), or a settling attempt runs (Attempt)."""

    kind: Literal["Exit", "Attempt", "Removal"]
    reason: str
    is_pod_made: bool = True
    removal: str | None = None
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """It is over. `unknown_effects`: what nobody knows to be done or not, None where everything is settled."""

    signal: str
    reason: str
    message: str
    unknown_effects: str | None = None


Situation = Blocked | Starting | Live | Parked | Lost | Settling | Ended
