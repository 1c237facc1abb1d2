"""When a parked run goes on: one pure function for the waiting runner, the operator and local mode (engine.md §8)."""

from datetime import datetime

from pilothouse_api.v1alpha1.agentrun import Control, ControlAnswer, Parked, Snapshot


def unanswered_mode(control: Control | None, answer: ControlAnswer) -> str | None:
    """Return the mode that was asked for and is not in force, or None."""
    want = (control.mode if control else None) or "Run"
    return None if want == answer.mode.value else want


def wake_due(snapshot: Snapshot, control: Control | None, now: datetime) -> bool:
    """Tell whether the park of a snapshot is over, so that an attempt must advance the run.

    Paused wakes on Run, Finish and Abort, and at its deadline when the deadline aborts; AwaitingApproval and
    AwaitingChild on Finish, Abort, a decision and expiry. Parks for a lost service are never released: a run that
    is parked so and has no pod has lost it, and needs one.
    """
    parked = snapshot.parked
    if parked is None:
        return True
    want = (control.mode if control else None) or "Run"
    if want in ("Finish", "Abort"):
        return True
    if parked.reason == "Paused":
        return want != "Pause" or (parked.on_timeout == "Abort" and _is_past(parked, now))
    if parked.reason == "AwaitingApproval":
        pending = {approval.call_id for approval in snapshot.pending_approvals}
        decided = pending & set(control.approvals if control else ())
        return bool(decided) or _is_past(parked, now)
    return parked.reason != "AwaitingChild"


def _is_past(parked: Parked, now: datetime) -> bool:
    return parked.wake is not None and datetime.fromisoformat(parked.wake) <= now
