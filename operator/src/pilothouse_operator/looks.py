"""When to look at a run again although nothing happens: time alone may change its situation."""

from datetime import datetime, timedelta
from typing import assert_never

from pilothouse_operator.conditions import find_condition, parse_time
from pilothouse_operator.pods import DELETION_SLACK
from pilothouse_operator.situation import (
    EXIT_GRACE,
    MISSING_GRACE,
    SETTLE_GRACE,
    START_GRACE,
    Blocked,
    Ended,
    Live,
    Lost,
    Parked,
    RunView,
    Settling,
    Situation,
    Starting,
)
from pilothouse_operator.status import DIRECTIVE_PATIENCE, pending_directives

BLOCKED_RECHECK = timedelta(seconds=15)
"""How often a missing reference is looked for, besides when an object of its kind appears."""
STALLED_RECHECK = timedelta(seconds=60)
"""The same, once a person must act."""
TICK = timedelta(milliseconds=50)


def next_look(view: RunView, situation: Situation) -> datetime | None:
    """Return the moment, or None where only events can change something."""
    moments = [moment + TICK for moment in (*_of_situation(view, situation), *_of_view(view, situation))]
    return min((moment for moment in moments if moment > view.now), default=None)


def _of_view(view: RunView, situation: Situation) -> list[datetime]:
    moments = []
    if view.pod is not None and view.pod.deletion is not None:
        moments.append(view.pod.deletion + DELETION_SLACK)
    if isinstance(situation, Ended) or view.seen.directive is None:
        return moments
    if pending_directives(view):
        moments.append(view.seen.directive + DIRECTIVE_PATIENCE)
    if view.seen.abort is not None:
        moments.append(view.seen.abort + view.terms.abort_grace)
    return moments


def _of_situation(view: RunView, situation: Situation) -> list[datetime]:
    match situation:
        case Blocked():
            recheck = STALLED_RECHECK if situation.is_stalled else BLOCKED_RECHECK
            return [situation.obstacle.since + MISSING_GRACE, view.now + recheck]
        case Starting():
            return [view.pod.created + START_GRACE] if view.pod is not None else []
        case Settling(kind="Exit"):
            return [(view.seen.exit or view.now) + EXIT_GRACE]
        case Settling():
            settling = find_condition(view.run.status.conditions, "Settling")
            since = parse_time(settling.last_transition_time) if settling else None
            return [(since or view.now) + SETTLE_GRACE]
        case Parked():
            return [situation.wake] if situation.wake is not None and not situation.is_held else []
        case Live() | Lost() | Ended():
            return []
        case _:
            assert_never(situation)
