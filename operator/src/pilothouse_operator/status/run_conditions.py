"""The conditions of a run, each from what is known of it and its situation: one function a condition, each total. Pure.

A message must not change with every turn or look (such things stand in `status.run`), else each would cost a write.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import assert_never

from pilothouse_operator.conditions import Draft, find_condition, is_true
from pilothouse_operator.runs.children import draft_question
from pilothouse_operator.runs.directives import pending_directives, reports_pending_at
from pilothouse_operator.runs.situation import SUCCESS_REASONS, Blocked, Ended, Live, Parked, Settling, Starting
from pilothouse_operator.runs.view import RunView
from pilothouse_operator.supervision.record import BARRIER, describe_wait, draft_judge_ready, draft_supervised

LOST_SERVICES = {
    "ControlLost": "its directives cannot be read",
    "JournalLost": "its journal cannot be written",
    "StoreLost": "what it keeps elsewhere cannot be reached",
}
"""What a run waits for that is parked because a service is away, in words."""
Shown = Blocked | Starting | Live | Parked | Settling | Ended
"""Situations that last long enough to be shown: one that an attempt ends is written as that attempt's start."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What every condition is decided from."""

    view: RunView
    situation: Shown


def draft_conditions(scene: Scene) -> Iterator[Draft]:
    """Yield the conditions; one that was never True and is not, is left out."""
    for draft_condition in CONDITIONS:
        draft = draft_condition(scene)
        if draft is not None:
            yield draft


def draft_ready(scene: Scene) -> Draft:
    """Ready: it does what it should, for a run that has ended: it ended well."""
    match scene.situation:
        case Blocked(obstacle=obstacle):
            return Draft("Ready", "False", obstacle.reason, obstacle.message)
        case Starting() as starting:
            return Draft("Ready", "True" if starting.is_queued else "False", starting.reason, starting.message)
        case Live():
            return Draft("Ready", "True", "Running", "the runner advances the run")
        case Parked() as parked:
            return _draft_ready_parked(scene, parked)
        case Settling() as settling:
            return Draft("Ready", "False", "Settling", f"the run is being closed ({settling.reason})")
        case Ended() as ended:
            is_good = ended.reason in SUCCESS_REASONS
            return Draft("Ready", "True" if is_good else "False", ended.reason, _end_message(ended))
        case _:
            assert_never(scene.situation)


def _draft_ready_parked(scene: Scene, parked: Parked) -> Draft:
    if parked.reason in LOST_SERVICES:
        return Draft("Ready", "False", parked.reason, _outage(scene, parked))
    return Draft("Ready", "True", parked.reason, f"{_park_message(parked)}{_wait(scene)}")


def _wait(scene: Scene) -> str:
    """Return for whom a run waits at the barrier, or what it said when that had lasted too long."""
    watch, snapshot = scene.view.watch, scene.view.snapshot
    report = snapshot.parked if snapshot is not None else None
    if watch is None or report is None or report.reason != BARRIER:
        return ""
    return f": {report.message}" if report.message else f" {describe_wait(watch.record)}"


def _park_message(parked: Parked) -> str:
    # Not whether it holds a pod: `status.run.parked.released` says so, and here it would cost a write.
    return f"waits since turn {parked.turn}"


def _end_message(ended: Ended) -> str:
    return ended.message or f"the run ended with {ended.signal}"


def draft_reconciling(scene: Scene) -> Draft:
    """Reconciling: something is under way that needs nobody."""
    match scene.situation:
        case Blocked() as blocked:
            is_active, reason, message = not blocked.is_stalled, blocked.obstacle.reason, blocked.obstacle.message
        case Starting() as starting:
            is_active = not starting.is_stalled and not starting.is_queued and not starting.is_suspended
            reason, message = starting.reason, starting.message
        case Settling() as settling:
            is_active, reason, message = True, "Settling", f"the run is being closed ({settling.reason})"
        case Parked() as parked:
            is_active, reason, message = parked.reason in LOST_SERVICES, parked.reason, _park_message(parked)
        case Live():
            is_active, reason, message = False, "Running", "nothing is to be done"
        case Ended() as ended:
            is_active, reason, message = False, ended.reason, "the run has ended"
        case _:
            assert_never(scene.situation)
    return Draft("Reconciling", "True" if is_active else "False", reason, message)


def draft_stalled(scene: Scene) -> Draft:
    """Stalled: a person must change something."""
    match scene.situation:
        case Blocked() as blocked:
            is_stalled, reason, message = blocked.is_stalled, blocked.obstacle.reason, blocked.obstacle.message
        case Starting() as starting:
            is_stalled, reason, message = starting.is_stalled, starting.reason, starting.message
        case Ended() as ended:
            is_stalled, reason, message = ended.reason not in SUCCESS_REASONS, ended.reason, _end_message(ended)
        case Live() | Parked() | Settling():
            is_stalled, reason, message = False, "Progressing", "nothing waits for a change"
        case _:
            assert_never(scene.situation)
    return Draft("Stalled", "True" if is_stalled else "False", reason, message)


def draft_accepted(scene: Scene) -> Draft | None:
    """Accepted: there is a plan, which nothing changes any more."""
    if scene.view.plan is not None:
        return Draft("Accepted", "True", "Planned", f"runs the plan in ConfigMap {scene.view.plan.name}")
    if isinstance(scene.situation, Blocked):
        return Draft("Accepted", "False", scene.situation.obstacle.reason, scene.situation.obstacle.message)
    return None


def draft_started(scene: Scene) -> Draft | None:
    """Started: a runner has run; never taken back."""
    return Draft("Started", "True", "Started", "a runner has run") if scene.view.has_begun else None


def _draft_park(scene: Scene, kind: str, what: str = "") -> Draft | None:
    situation = scene.situation
    if isinstance(situation, Parked) and situation.reason == kind:
        return Draft(kind, "True", kind, f"waits since turn {situation.turn}{what}")
    if find_condition(scene.view.run.status.conditions, kind) is None:
        return None
    return Draft(kind, "False", f"Not{kind}", "goes on")


def _outage(scene: Scene, parked: Parked) -> str:
    """Return what is away, since when, and what was last said; nothing of it changes while it lasts."""
    snapshot = scene.view.snapshot
    report = snapshot.parked if snapshot is not None else None
    since = f" ({report.since})" if report is not None else ""
    said = f": {report.message}" if report is not None and report.message else ""
    what = LOST_SERVICES[parked.reason]
    return f"waits since turn {parked.turn}{since}, because {what}; it goes on by itself{said}"


def _draft_outage(scene: Scene, kind: str) -> Draft | None:
    situation = scene.situation
    if isinstance(situation, Parked) and situation.reason == kind:
        return Draft(kind, "True", kind, _outage(scene, situation))
    return _draft_park(scene, kind)


def draft_control_lost(scene: Scene) -> Draft | None:
    """ControlLost: the runner cannot read what people ask of it."""
    return _draft_outage(scene, "ControlLost")


def draft_journal_lost(scene: Scene) -> Draft | None:
    """JournalLost: the runner cannot write its journal."""
    return _draft_outage(scene, "JournalLost")


def draft_store_lost(scene: Scene) -> Draft | None:
    """StoreLost: the runner cannot reach what it keeps elsewhere, such as sessions."""
    return _draft_outage(scene, "StoreLost")


def draft_run_supervised(scene: Scene) -> Draft | None:
    """Supervised: who watches the run, and what was done last."""
    return draft_supervised(scene.view.watch, scene.view.run.status.conditions)


def draft_run_judge_ready(scene: Scene) -> Draft | None:
    """JudgeReady: the judges that watch the run answer."""
    return draft_judge_ready(scene.view.watch, scene.view.run.status.conditions)


def draft_paused(scene: Scene) -> Draft | None:
    """Paused: a person or a supervisor holds it."""
    return _draft_park(scene, "Paused")


def draft_awaiting_approval(scene: Scene) -> Draft | None:
    """AwaitingApproval: a call waits for a person."""
    asked = draft_question(scene.view, scene.situation)
    if asked is not None:
        return asked
    snapshot = scene.view.snapshot
    pending = snapshot.pending_approvals[0] if snapshot is not None and snapshot.pending_approvals else None
    if pending is None:
        return _draft_park(scene, "AwaitingApproval")
    until = f" until {pending.expires_at}" if pending.expires_at else ""
    return _draft_park(scene, "AwaitingApproval", f" for a decision on {pending.tool} ({pending.call_id}){until}")


def draft_settling(scene: Scene) -> Draft | None:
    """Settling: the current attempt only closes the run, with the exit reason that stands here."""
    situation = scene.situation
    if isinstance(situation, Settling) and situation.kind == "Attempt":
        message = "an attempt closes the run and lists what may have been done"
        return Draft("Settling", "True", situation.reason, message)
    if is_true(scene.view.run.status.conditions, "Settling"):
        return Draft("Settling", "False", "Settled", "the run is closed")
    return None


def draft_control_pending(scene: Scene) -> Draft | None:
    """ControlPending: a directive is not answered yet, and has been so for a while."""
    view = scene.view
    pending = [] if isinstance(scene.situation, Ended) else pending_directives(view)
    due = reports_pending_at(view)
    is_patient = due is None or view.now < due
    known = find_condition(view.run.status.conditions, "ControlPending")
    if pending and (not is_patient or (known is not None and known.status == "True")):
        return Draft("ControlPending", "True", "AwaitingTurnBoundary", _pending_message(scene, pending))
    if known is None:
        return None
    if isinstance(scene.situation, Ended):
        return Draft("ControlPending", "False", "Finished", "the run has ended")
    return Draft("ControlPending", "False", "Answered", "every directive is answered in status.run.control")


def _pending_message(scene: Scene, pending: list[str]) -> str:
    what = ", ".join(pending[:8]) + (f" and {len(pending) - 8} more" if len(pending) > 8 else "")
    match scene.situation:
        case Blocked() | Starting():
            return f"{what}: lands when the run starts"
        case Live() if scene.view.snapshot is not None and scene.view.snapshot.running is not None:
            call = scene.view.snapshot.running
            # Not for how long: a message that changes at each look would cost a write each time.
            return f"{what}: lands when {call.tool} returns, which runs since {call.since}"
        case Live() | Parked() | Settling() | Ended():
            return f"{what}: lands at the next turn boundary"
        case _:
            assert_never(scene.situation)


def draft_complete(scene: Scene) -> Draft | None:
    """Complete: it ended well (the word by which kstatus and `kubectl wait` know it)."""
    situation = scene.situation
    if isinstance(situation, Ended) and situation.reason in SUCCESS_REASONS:
        return Draft("Complete", "True", situation.reason, _end_message(situation))
    return None


def draft_failed(scene: Scene) -> Draft | None:
    """Failed: it ended otherwise."""
    situation = scene.situation
    if isinstance(situation, Ended) and situation.reason not in SUCCESS_REASONS:
        return Draft("Failed", "True", situation.reason, _end_message(situation))
    return None


def draft_finished(scene: Scene) -> Draft | None:
    """Finished: it ended, whatever way."""
    situation = scene.situation
    if isinstance(situation, Ended):
        return Draft("Finished", "True", situation.reason, _end_message(situation))
    return None


def draft_effects_settled(scene: Scene) -> Draft | None:
    """EffectsSettled: of every call it is known whether it was done."""
    situation = scene.situation
    if not isinstance(situation, Ended):
        return None
    if situation.unknown_effects is not None:
        return Draft("EffectsSettled", "Unknown", "EffectsUnknown", situation.unknown_effects)
    return Draft("EffectsSettled", "True", "Settled", "of every call it is known whether it was done")


CONDITIONS: tuple[Callable[[Scene], Draft | None], ...] = (
    draft_accepted,
    draft_ready,
    draft_reconciling,
    draft_stalled,
    draft_started,
    draft_run_supervised,
    draft_run_judge_ready,
    draft_paused,
    draft_awaiting_approval,
    draft_control_lost,
    draft_journal_lost,
    draft_store_lost,
    draft_settling,
    draft_control_pending,
    draft_complete,
    draft_failed,
    draft_finished,
    draft_effects_settled,
)
