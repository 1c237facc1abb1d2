"""Directives that are not answered yet: which they are, and for how long nobody is told of them. Pure."""

from datetime import datetime, timedelta

from pilothouse_api.v1alpha1.agentrun import Snapshot
from pilothouse_api.wake import is_answered, unanswered_mode
from pilothouse_operator.runs.classification import START_GRACE
from pilothouse_operator.runs.view import RunView

DIRECTIVE_PATIENCE = timedelta(seconds=2)
"""How long an unanswered directive is not reported: most land within it, and then one write says all."""
START_PATIENCE = START_GRACE
"""The same for one that an attempt reads when it has started: until then the run is not Ready and says why."""


def reports_pending_at(view: RunView) -> datetime | None:
    """Return from when on a directive that is not answered is a condition; None where none was seen.

    A new attempt reads it first when it has started, and its pod may wait behind a hundred others; an Abort is
    reported as soon as ever, for it has a deadline.
    """
    seen, pod = view.seen.directive, view.pod
    if seen is None:
        return None
    has_read = view.attempt == 0 or (view.snapshot is not None and view.snapshot.attempt >= view.attempt)
    if has_read or view.wants_abort:
        return seen + DIRECTIVE_PATIENCE
    return max(seen, pod.started or pod.created) + START_PATIENCE if pod is not None else seen + START_PATIENCE


def pending_directives(view: RunView) -> list[str]:
    """Return what was asked for in `spec.control` and `spec.limits` and is not answered, in words."""
    control, snapshot = view.run.spec.control, view.snapshot or Snapshot(attempt=0)
    answer = snapshot.control
    pending = []
    mode = unanswered_mode(control, answer)
    if mode is not None and answer.mode.state is None:
        pending.append(mode)
    if control is not None:
        pending += [f"steer {name}" for name in sorted(control.steer) if name not in answer.steer]
        given = sorted(control.approvals.items())
        pending += [f"approval {name}" for name, it in given if not is_answered(it, answer.approvals.get(name))]
    if view.run.spec.limits is not None and answer.limits is None:
        pending.append("limits")
    return pending
