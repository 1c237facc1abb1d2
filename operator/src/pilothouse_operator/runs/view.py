"""What is known about a run at one moment: all that is ever decided from. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import Attempts, ChildReport, PlanReport, Snapshot
from pilothouse_operator.conditions import is_true
from pilothouse_operator.supervision.record import Watch
from pilothouse_operator.workloads.pods import PodView


@dataclass(frozen=True, slots=True)
class Terms:
    """What bounds the attempts of a run: from its plan and from the installation."""

    max_attempts: int = 3
    active_deadline: timedelta = timedelta(seconds=3600)
    abort_grace: timedelta = timedelta(seconds=30)
    is_journal_durable: bool = False


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why no plan or no pod can be made. `is_waiting`: it may come right by itself (a reference, a quota)."""

    reason: str
    message: str
    is_waiting: bool
    since: datetime


@dataclass(frozen=True, slots=True)
class Seen:
    """When this process first saw something that carries no time of its own; `exit`: an exit, or a released park."""

    abort: datetime | None = None
    directive: datetime | None = None
    exit: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything that is known about a run at one moment.

    `pod` is the pod of the current attempt, of this very run; `ghost` is that pod as it was last, once it is deleted
    and as far as this process has seen it. `plan` is the plan in status, or the one that was just
    stored and is not in status yet. `children` is `status.children` as it should be now; `open_children` are the names
    of those that have not ended.
    """

    run: AgentRun
    now: datetime
    snapshot: Snapshot | None = None
    pod: PodView | None = None
    ghost: PodView | None = None
    plan: PlanReport | None = None
    obstacle: Obstacle | None = None
    terms: Terms = Terms()
    seen: Seen = Seen()
    children: tuple[ChildReport, ...] = ()
    open_children: tuple[str, ...] = ()
    session_holder: str | None = None
    """The run that this one waits for, because both are of one session."""
    watch: Watch | None = None
    """What is to be done about its supervision; None where nobody watches it, or where that was not looked at."""
    is_suspended: bool = False
    """Whether no run may begin in its namespace; False for the child of a run that has begun."""

    @property
    def attempt(self) -> int:
        """The number of the newest attempt; 0 before the first."""
        return self.run.status.attempt or 0

    @property
    def attempts(self) -> Attempts:
        """How attempts went."""
        return self.run.status.attempts or Attempts()

    @property
    def wants_abort(self) -> bool:
        """Whether somebody asks for Abort."""
        return self.run.spec.control is not None and self.run.spec.control.mode == "Abort"

    @property
    def has_begun(self) -> bool:
        """Whether any attempt of the run has ever run code, as far as anybody can know."""
        if self.snapshot is not None or is_true(self.run.status.conditions, "Started"):
            return True
        return self._has_pod_started

    @property
    def has_attempt_begun(self) -> bool:
        """Whether the current attempt has run code, as far as anybody can know."""
        if self._has_pod_started:
            return True
        if self.snapshot is not None and self.snapshot.attempt == self.attempt:
            return True
        return self.run.status.pod is not None and self.run.status.pod.node is not None

    @property
    def _has_pod_started(self) -> bool:
        pod = self.pod or self.ghost
        return pod is not None and pod.has_started
