"""When to look at a run again although nothing happens: time alone may change its situation."""

from datetime import datetime, timedelta
from typing import assert_never

from pilothouse_operator.conditions import find_condition, parse_time
from pilothouse_operator.runs.classification import (
    EXIT_GRACE,
    MISSING_GRACE,
    SETTLE_GRACE,
    SILENT_START,
    SLOW_START,
    START_GRACE,
    abort_deadline,
)
from pilothouse_operator.runs.directives import DIRECTIVE_PATIENCE, pending_directives, reports_pending_at
from pilothouse_operator.runs.situation import Blocked, Ended, Live, Lost, Parked, Settling, Situation, Starting
from pilothouse_operator.runs.view import RunView
from pilothouse_operator.workloads.pods import DELETION_SLACK

BLOCKED_RECHECK = timedelta(seconds=15)
"""How often a missing reference is looked for, besides when an object of its kind appears."""
STALLED_RECHECK = timedelta(seconds=60)
"""The same, once a person must act."""
SUSPENDED_RECHECK = timedelta(seconds=5)
"""How often the namespace of a run that may not begin is read again; the first that finds it free wakes all others."""
TICK = timedelta(milliseconds=50)


def next_look(view: RunView, situation: Situation) -> datetime | None:
    """Return the moment, or None where only events can change something."""
    moments = [moment + TICK for moment in (*_of_situation(view, situation), *_of_view(view, situation))]
    return min((moment for moment in moments if moment > view.now), default=None)


def _of_view(view: RunView, situation: Situation) -> list[datetime]:
    moments = []
    if view.pod is not None and view.pod.deletion is not None:
        moments.append(view.pod.deletion + DELETION_SLACK)
    if isinstance(situation, Ended):
        return moments
    reported = reports_pending_at(view)
    if view.seen.directive is not None and reported is not None and pending_directives(view):
        moments += [view.seen.directive + DIRECTIVE_PATIENCE, reported]
    since = (view.pod.started or view.pod.created) if view.pod is not None else None
    if view.watch is not None:
        moments += view.watch.moments(view.snapshot)
    deadline = abort_deadline(view, since)
    if deadline is not None:
        moments.append(deadline)
    return moments


def _of_start(view: RunView) -> list[datetime]:
    pod = view.pod
    if pod is None:
        return []
    age = view.now - pod.created
    if age < SILENT_START:
        return [pod.created + SILENT_START]
    # Its events say more than its status, and no watch brings them.
    if age < START_GRACE:
        return [pod.created + START_GRACE, *([view.now + SILENT_START] if pod.problem is None else [])]
    return [pod.created + SLOW_START, view.now + STALLED_RECHECK]


def _of_situation(view: RunView, situation: Situation) -> list[datetime]:
    match situation:
        case Blocked():
            recheck = STALLED_RECHECK if situation.is_stalled else BLOCKED_RECHECK
            return [situation.obstacle.since + MISSING_GRACE, view.now + recheck]
        case Starting(is_suspended=True):
            return [view.now + SUSPENDED_RECHECK]
        case Starting():
            return _of_start(view)
        case Settling(kind="Exit"):
            return [(view.seen.exit or view.now) + EXIT_GRACE]
        case Settling():
            settling = find_condition(view.run.status.conditions, "Settling")
            since = parse_time(settling.last_transition_time) if settling else None
            return [(since or view.now) + SETTLE_GRACE]
        case Parked(is_held=True):
            return [view.seen.exit + EXIT_GRACE] if view.seen.exit is not None else []
        case Parked():
            return [situation.wake] if situation.wake is not None else []
        case Live() | Lost() | Ended():
            return []
        case _:
            assert_never(situation)
