"""When a parked run goes on: one pure function for the waiting runner, the operator and local mode (engine.md §8)."""

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING

from pilothouse_api.digests import digest

if TYPE_CHECKING:
    from pilothouse_api import structs
    from pilothouse_api.v1alpha1 import agentrun

    # The operator has models, the runner has Structs: what is asked here is the same of both.
    ApprovalDecision = agentrun.ApprovalDecision | structs.ApprovalDecision
    Control = agentrun.Control | structs.Control
    ControlAnswer = agentrun.ControlAnswer | structs.ControlAnswer
    Landing = agentrun.Landing | structs.Landing
    Parked = agentrun.Parked | structs.Parked
    Snapshot = agentrun.Snapshot | structs.Snapshot


def unanswered_mode(control: "Control | None", answer: "ControlAnswer") -> str | None:
    """Return the mode that was asked for and is not in force, or None."""
    want = (control.mode if control else None) or "Run"
    return None if want == answer.mode.value else want


def decision_digest(decision: "ApprovalDecision") -> str:
    """Return what tells one decision from another under the same call id: the same of its model and of its Struct."""
    return digest({field: value for field, value in decision.to_raw().items() if value not in (None, [])})[:16]


def is_answered(decision: "ApprovalDecision", answer: "Landing | None") -> bool:
    """Tell whether a decision was answered: one that was taken back and given anew, with other content, was not."""
    return answer is not None and answer.digest in (None, decision_digest(decision))


CHILD_AWAITED = "Awaited"
"""State of a child that its parent waits for."""


def wake_due(snapshot: "Snapshot", control: "Control | None", now: datetime, ended: Collection[str] = ()) -> bool:
    """Tell whether the park of a snapshot is over, so that an attempt must advance the run.

    Paused wakes on Run, Finish and Abort, and at its deadline when the deadline aborts; AwaitingApproval on Finish,
    Abort, a decision that is not answered yet, and expiry; AwaitingChild on Finish, Abort and the child's end: `ended`
    are the call ids of children that have ended. Parks for a lost service are never released: a run that is parked so
    and has no pod has lost it, and needs one.
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
        given, answers = control.approvals if control else {}, snapshot.control.approvals
        is_decided = any(key in pending and not is_answered(given[key], answers.get(key)) for key in given)
        return is_decided or _is_past(parked, now)
    if parked.reason == "AwaitingChild":
        return any(child.state == CHILD_AWAITED and child.call_id in ended for child in snapshot.children)
    return True


def _is_past(parked: "Parked", now: datetime) -> bool:
    return parked.wake is not None and datetime.fromisoformat(parked.wake) <= now
