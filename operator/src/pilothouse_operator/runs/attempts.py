"""What to do about the pods of a run: a pure, total function of its situation.

The number of an attempt is the fence: it is raised in status, with the pod's name, before the pod is made, and only
when the old pod runs nothing any more. `maxAttempts` counts crashes alone.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from pilothouse_api.v1alpha1.agentrun import Attempts
from pilothouse_operator.conditions import format_time
from pilothouse_operator.runs.situation import Blocked, Ended, Live, Lost, Parked, Settling, Situation, Starting
from pilothouse_operator.runs.view import RunView
from pilothouse_operator.workloads.failures import Failure

FIRST_BACKOFF = timedelta(seconds=10)
LONGEST_BACKOFF = timedelta(minutes=5)
DISRUPTION_BACKOFF = timedelta(seconds=5)
LONGEST_DISRUPTION_BACKOFF = timedelta(minutes=1)
SHORT_LIFE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Stay:
    """Leave the pods alone; look again at `until`."""

    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class BeginAttempt:
    """Raise the attempt number in status, then make its pod, not before `attempts.next_retry_time`."""

    number: int
    attempts: Attempts
    settle: str | None = None
    is_old_pod_removed: bool = False
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class MakePod:
    """Make the pod of the attempt that is in status already."""

    number: int
    settle: str | None = None


@dataclass(frozen=True, slots=True)
class RemovePod:
    """Ask the pod to end (SIGTERM)."""

    why: str


AttemptPlan = Stay | BeginAttempt | MakePod | RemovePod


def plan_attempt(view: RunView, situation: Situation) -> AttemptPlan:
    """Return what to do about pods."""
    match situation:
        case Blocked() | Ended():
            return Stay()
        case Starting():
            return _plan_start(view, situation)
        case Live():
            return RemovePod(situation.removal) if situation.removal else Stay()
        case Parked():
            return _plan_parked(view, situation)
        case Lost():
            return _plan_next(view, situation)
        case Settling():
            return _plan_settling(view, situation)
        case _:
            assert_never(situation)


def _plan_start(view: RunView, situation: Starting) -> AttemptPlan:
    if situation.is_queued and not situation.is_pod_made:
        return Stay()  # its session is busy: the end of the run that holds it wakes this one
    if situation.is_suspended:
        return Stay()
    if situation.attempt == 0:
        return BeginAttempt(1, Attempts(crashes=0))
    if situation.is_pod_made:
        return Stay()
    if situation.not_before is not None:
        return Stay(until=situation.not_before)
    return MakePod(situation.attempt)


def _plan_settling(view: RunView, situation: Settling) -> AttemptPlan:
    if situation.removal:
        return RemovePod(situation.removal)
    if situation.is_pod_made:
        return Stay()
    if situation.not_before is not None:
        return Stay(until=situation.not_before)
    return MakePod(view.attempt, situation.reason)


def _plan_parked(view: RunView, situation: Parked) -> AttemptPlan:
    if situation.removal:
        return RemovePod(situation.removal)
    if situation.is_held:
        return Stay()
    if situation.is_due:
        attempts = _without_retry(view.attempts)
        return BeginAttempt(view.attempt + 1, attempts, situation.settle, is_old_pod_removed=True)
    if view.pod is not None and view.pod.deletion is None:
        return RemovePod("the run waits without a pod")
    return Stay(until=situation.wake)


def _plan_next(view: RunView, situation: Lost) -> BeginAttempt:
    failure = situation.failure
    crashes = view.attempts.crashes + failure.is_counted
    # The attempt that closes a run does not wait for a crash, but it races nobody who takes its pods away.
    is_free = situation.settle is not None and failure.is_counted
    delay = timedelta(0) if is_free else backoff(view, failure, crashes)
    not_before = view.now + delay if delay else None
    raw_attempts = {"crashes": crashes, "lastFailure": f"{failure.kind}: {failure.message}"}
    if not_before is not None:
        raw_attempts["nextRetryTime"] = format_time(not_before)
    return BeginAttempt(
        view.attempt + 1,
        Attempts.model_validate(raw_attempts),
        situation.settle,
        # Containers that others put beside the runner may go on without it.
        is_old_pod_removed=view.pod is not None and not view.pod.is_terminal and view.pod.deletion is None,
        not_before=not_before,
    )


def _without_retry(attempts: Attempts) -> Attempts:
    return Attempts.model_validate({k: v for k, v in attempts.to_raw().items() if k != "nextRetryTime"})


def backoff(view: RunView, failure: Failure, crashes: int) -> timedelta:
    """Return how long the next attempt waits: the first one not at all, crashes ever longer.

    What the cluster did to a pod is repeated at once, unless the pod was short-lived and not the first such one: else
    somebody who deletes every pod would be raced.
    """
    if failure.is_counted:
        return timedelta(0) if crashes <= 1 else min(FIRST_BACKOFF * 2.0 ** min(crashes - 2, 8), LONGEST_BACKOFF)
    others = view.attempt - view.attempts.crashes
    is_short = view.pod is None or view.now - view.pod.created < SHORT_LIFE
    if others <= 1 or not is_short:
        return timedelta(0)
    return min(DISRUPTION_BACKOFF * 2.0 ** min(others - 2, 8), LONGEST_DISRUPTION_BACKOFF)
