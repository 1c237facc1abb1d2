"""From what is known about a run to what is the matter with it: `classify`, pure and total."""

from datetime import datetime, timedelta

from pilothouse_api import names, signals
from pilothouse_api.v1alpha1.agentrun import Attempts, RunExit, Snapshot
from pilothouse_api.wake import wake_due
from pilothouse_control.children import ended_calls
from pilothouse_operator.conditions import find_condition, is_true, parse_time
from pilothouse_operator.runs.situation import (
    ABORTED_REASONS,
    DEADLINE_EXCEEDED,
    JOURNAL_LOST,
    MAX_ATTEMPTS,
    Blocked,
    Ended,
    Live,
    Lost,
    Parked,
    Settling,
    Situation,
    Starting,
)
from pilothouse_operator.runs.view import Obstacle, RunView
from pilothouse_operator.supervision.record import BARRIER
from pilothouse_operator.workloads.failures import Failure
from pilothouse_operator.workloads.pods import PodView

MISSING_GRACE = timedelta(seconds=60)
"""How long something may be missing (apply order) before a person must act."""
SILENT_START = timedelta(seconds=10)
"""How long a pod may give no reason for not starting before its events are asked."""
START_GRACE = timedelta(seconds=60)
"""How long a pod may fail to start, for a reason that it gives, before a person must act."""
SLOW_START = timedelta(seconds=600)
"""The same for a pod that gives none: a large image is pulled in silence."""
EXIT_GRACE = timedelta(seconds=30)
"""How long a runner that has published its exit, or let go of the run, may take to end."""
SETTLE_GRACE = timedelta(seconds=300)
"""How long a settling attempt may take, its start included."""
DEADLINE_GRACE = timedelta(seconds=60)
"""How long after activeDeadlineSeconds the operator ends a runner that did not end itself."""
STARTING = "a pod is made and starts"
"""One text from the attempt's number to the pod's start: another one in between would cost a write."""


def classify(view: RunView) -> Situation:
    """Return the situation of a run."""
    status = view.run.status
    if is_true(status.conditions, "Finished"):
        return _ended_as_reported(view)
    if view.snapshot is not None and view.snapshot.exit is not None:
        return _classify_exit(view, view.snapshot, view.snapshot.exit)
    settling = find_condition(status.conditions, "Settling")
    if settling is not None and settling.status == "True":
        return _classify_settling(view, settling.reason, parse_time(settling.last_transition_time) or view.now)
    if view.wants_abort and not view.has_begun:
        return _classify_abort_before_begin(view)
    if view.is_suspended and not view.has_begun and (view.pod is None or view.pod.is_over(view.now)):
        return _classify_suspended(view)
    if view.session_holder is not None:
        return _classify_session_busy(view, view.session_holder)
    if view.plan is None:
        return _classify_blocked(view)
    return _classify_attempt(view)


def _ended_as_reported(view: RunView) -> Ended:
    status = view.run.status
    effects = find_condition(status.conditions, "EffectsSettled")
    unknown = effects.message if effects is not None and effects.status != "True" else None
    if status.exit is None:
        return Ended(signals.ERROR, "Unknown", "the run has ended", unknown)
    return Ended(status.exit.signal, status.exit.reason, status.exit.message, unknown)


def is_told_by_runner(view: RunView) -> bool:
    """Tell whether the run is over because its runner says so, whether or not its pod has ended.

    The exit is the last thing that a runner publishes, and only the newest attempt can. An end that proves something
    about the outside waits for the pod: an abort, and an end that left calls of which nobody knows whether they were
    done.
    """
    snapshot = view.snapshot
    if snapshot is None or snapshot.exit is None or snapshot.effects.unknown:
        return False
    return snapshot.exit.signal != signals.ABORTED and snapshot.exit.reason not in ABORTED_REASONS


def _classify_exit(view: RunView, snapshot: Snapshot, run_exit: RunExit) -> Settling | Ended:
    if view.pod is not None and not view.pod.is_over(view.now) and not is_told_by_runner(view):
        since = view.seen.exit or view.now
        removal = None
        if view.now - since > EXIT_GRACE and view.pod.deletion is None:
            removal = f"the runner has published its exit and did not end within {EXIT_GRACE.seconds} s"
        return Settling("Exit", run_exit.reason, removal=removal)
    message = run_exit.message or (run_exit.error.message if run_exit.error else "")
    return Ended(run_exit.signal, run_exit.reason, message, _unknown_effects(snapshot))


def _unknown_effects(snapshot: Snapshot | None) -> str | None:
    unknown = snapshot.effects.unknown if snapshot else []
    if not unknown:
        return None
    calls = ", ".join(f"{effect.tool} ({effect.call_id})" for effect in unknown[:10])
    return f"nobody knows whether these calls were done: {calls}; look at what they change before you repeat them"


def _classify_settling(view: RunView, reason: str, since: datetime) -> Settling | Lost | Ended:
    """Watch the settling attempt; one that the cluster took away is made again, one that crashed has failed."""
    pod = view.pod
    is_overdue = view.now - since > SETTLE_GRACE
    if pod is not None and not pod.is_over(view.now):
        removal = None
        if is_overdue and pod.deletion is None:
            removal = f"the settling attempt did not end within {SETTLE_GRACE.seconds} s"
        return Settling("Attempt", reason, removal=removal)
    if is_overdue:
        return _close(view, reason, f"the settling attempt did not end within {SETTLE_GRACE.seconds} s")
    if pod is None and not view.has_attempt_begun:
        retry = _retry(view)
        return Settling("Attempt", reason, is_pod_made=False, not_before=retry)
    failure = _failure(view)
    if is_let_go(view):
        failure = Failure("Released", "the settling attempt was told to end before it could close the run", True)
    if failure.is_counted:
        return _close(view, reason, f"the settling attempt failed: {failure.message}")
    return Lost(failure, reason)


def _classify_abort_before_begin(view: RunView) -> Settling | Ended:
    if view.pod is not None and not view.pod.is_terminal:
        removal = "the run is aborted before it began" if view.pod.deletion is None else None
        return Settling("Removal", "Aborted", removal=removal)
    control = view.run.spec.control
    why = f": {control.reason}" if control and control.reason else ""
    return Ended(signals.ABORTED, "Aborted", f"aborted before any attempt began{why}")


def _classify_suspended(view: RunView) -> Starting:
    """Nothing is made in a namespace where no run may begin."""
    namespace = view.run.metadata.namespace
    message = (
        f"no run begins in namespace {namespace}: it has the annotation {names.ANNOTATION_SUSPEND}=true; "
        f"kubectl annotate namespace {namespace} {names.ANNOTATION_SUSPEND}- lets it begin"
    )
    return Starting(view.attempt, False, "NamespaceSuspended", message, is_suspended=True)


def _classify_session_busy(view: RunView, holder: str) -> Starting:
    """One run of a session at a time: nothing is made before it is this one's turn."""
    message = f"session {view.run.spec.session}: waits until run {holder} is finished"
    return Starting(0, False, "SessionBusy", message, is_queued=True)


def _classify_blocked(view: RunView) -> Blocked:
    obstacle = view.obstacle or Obstacle("Starting", "the plan is being made", True, view.now)
    is_patient = obstacle.is_waiting and view.now - obstacle.since < MISSING_GRACE
    return Blocked(obstacle, is_stalled=not is_patient)


def _classify_attempt(view: RunView) -> Situation:
    pod = view.pod
    if pod is not None and not pod.is_over(view.now):
        return _classify_running(view, pod) if view.has_attempt_begun else _classify_starting(view, pod)
    if pod is None and not view.has_attempt_begun:
        return _classify_unmade(view)
    if is_let_go(view):
        assert view.snapshot is not None
        return _classify_released(view, view.snapshot)
    return _classify_lost(view, _failure(view))


def is_let_go(view: RunView) -> bool:
    """Tell whether the current attempt let go of the run in good order: it said so, or it was parked and ended well."""
    snapshot = view.snapshot
    if snapshot is None or snapshot.attempt != view.attempt or snapshot.parked is None:
        return False
    pod = view.pod or view.ghost
    return snapshot.parked.released or (pod is not None and pod.exit_code == 0)


def _failure(view: RunView) -> Failure:
    """Return why the current attempt ended, from its pod, or from that pod as it was last."""
    pod, ghost = view.pod, view.ghost
    known = pod or ghost
    if known is not None and known.failure is not None:
        return known.failure
    if pod is not None:
        why = f": {pod.disruption.message}" if pod.disruption is not None else ""
        return Failure("NodeLost", f"pod {pod.name} did not end within its deletion grace{why}", pod.has_started)
    if ghost is not None and ghost.disruption is not None:
        return ghost.disruption
    name = view.run.status.pod.name if view.run.status.pod else "of the attempt"
    return Failure("PodDeleted", f"pod {name} was deleted", view.has_attempt_begun)


def _classify_starting(view: RunView, pod: PodView) -> Starting | Settling:
    if _is_abort_overdue(view, pod.created):
        # It cannot land in a pod that does not start; what earlier attempts did is settled by another one.
        removal = None if pod.deletion is not None else "the run is aborted, and its pod does not start"
        return Settling("Removal", "Aborted", removal=removal)
    age = view.now - pod.created
    if pod.problem is None:
        is_slow = age >= SLOW_START
        message = f"pod {pod.name} gives no reason for not starting: kubectl describe pod {pod.name}"
        return Starting(view.attempt, True, "Starting", message if is_slow else STARTING, is_stalled=is_slow)
    return Starting(
        view.attempt,
        True,
        pod.problem.reason,
        f"pod {pod.name}: {pod.problem.message}",
        is_queued=pod.problem.is_queued,
        is_stalled=not pod.problem.is_queued and age >= START_GRACE,
    )


def _classify_unmade(view: RunView) -> Starting | Lost:
    """No pod of the current attempt has ever begun: it may still be made, under the same number."""
    if _is_abort_overdue(view, None):
        why = f": {view.obstacle.reason}" if view.obstacle is not None else ""
        return Lost(Failure("NotStarted", f"attempt {view.attempt} did not start{why}", False), "Aborted")
    if view.obstacle is not None:
        is_patient = view.obstacle.is_waiting and view.now - view.obstacle.since < MISSING_GRACE
        return Starting(view.attempt, False, view.obstacle.reason, view.obstacle.message, is_stalled=not is_patient)
    return start_unmade(view.attempt, view.attempts, _retry(view))


def start_unmade(number: int, attempts: Attempts, not_before: datetime | None) -> Starting:
    """Return the situation of an attempt that has its number and no pod yet, which is not made before that moment."""
    if not_before is None:
        return Starting(number, False, "Starting", STARTING)
    failure = attempts.last_failure or "the last attempt failed"
    message = f"attempt {number} starts at {attempts.next_retry_time}: {failure}"
    return Starting(number, False, "AttemptBackoff", message, not_before=not_before)


def _retry(view: RunView) -> datetime | None:
    """Return when the pod of the current attempt may be made, None for now."""
    retry = parse_time(view.attempts.next_retry_time)
    return retry if retry is not None and retry > view.now else None


def abort_deadline(view: RunView, since: datetime | None) -> datetime | None:
    """Return until when an Abort that is asked for may land; an attempt that began at `since` has all of the grace."""
    if not view.wants_abort or view.seen.abort is None:
        return None
    return max(view.seen.abort, since or view.seen.abort) + view.terms.abort_grace


def _is_abort_overdue(view: RunView, since: datetime | None) -> bool:
    deadline = abort_deadline(view, since)
    return deadline is not None and view.now > deadline


def _classify_running(view: RunView, pod: PodView) -> Live | Parked:
    removal = None if pod.deletion is not None else _removal(view, pod)
    snapshot = view.snapshot
    if snapshot is None or snapshot.parked is None or snapshot.attempt != view.attempt:
        return Live(removal)
    parked = snapshot.parked
    if parked.reason == BARRIER and not (view.watch is not None and view.watch.holds(snapshot, parked, view.now)):
        return Live(removal)
    if parked.released and pod.deletion is None and view.seen.exit and view.now - view.seen.exit > EXIT_GRACE:
        removal = f"the runner has let go of the run and did not end within {EXIT_GRACE.seconds} s"
    reason = "Paused" if parked.is_barrier_pause else parked.reason
    return Parked(reason, parked.turn, is_held=True, wake=parse_time(parked.wake), removal=removal)


def _removal(view: RunView, pod: PodView) -> str | None:
    if _is_abort_overdue(view, pod.started or pod.created):
        return f"Abort did not land within {view.terms.abort_grace.total_seconds():.0f} s"
    if _is_overdue(view, pod, view.now):
        limit = view.terms.active_deadline.total_seconds()
        return f"no sign of life for longer than activeDeadlineSeconds ({limit:.0f})"
    return None


def _is_overdue(view: RunView, pod: PodView, at: datetime) -> bool:
    """Whether nothing had moved for a whole deadline and a grace, unparked: the engine keeps the deadline itself."""
    snapshot = view.snapshot
    if snapshot is not None and snapshot.parked is not None:
        return False
    signs: list[datetime | None] = [pod.started or pod.created]
    if snapshot is not None:
        answer = snapshot.control
        landed = [answer.mode.time, *(landing.time for landing in (*answer.steer.values(), *answer.approvals.values()))]
        signs += [parse_time(text) for text in (snapshot.last_progress_time, *landed)]
    known = [sign for sign in signs if sign is not None]
    return at - max(known) > view.terms.active_deadline + DEADLINE_GRACE


def _classify_released(view: RunView, snapshot: Snapshot) -> Parked | Ended:
    parked = snapshot.parked
    assert parked is not None
    if not view.terms.is_journal_durable:
        if view.wants_abort:
            return _close(view, "Aborted", "the runner was ended before it could say so")
        return _close(view, JOURNAL_LOST, f"the runner was released ({parked.reason}) at turn {parked.turn}")
    is_due = wake_due(snapshot, view.run.spec.control, view.now, ended_calls(view.children))
    # A journal that is away lets no Abort land, however often its runner is ended: the next one may only settle.
    settle = "Aborted" if parked.reason == JOURNAL_LOST and _is_abort_overdue(view, None) else None
    wake = parse_time(parked.wake)
    return Parked(parked.reason, parked.turn, is_held=False, is_due=is_due, wake=wake, settle=settle)


def _classify_lost(view: RunView, failure: Failure) -> Lost | Ended:
    has_begun = view.has_begun or failure.has_started
    crashes = view.attempts.crashes + failure.is_counted
    settle = None
    if view.wants_abort:
        settle = "Aborted"
    elif has_begun and _was_overdue(view):
        settle = DEADLINE_EXCEEDED
    elif crashes >= view.terms.max_attempts:
        settle = MAX_ATTEMPTS
    if not has_begun and settle is not None:
        return Ended(_signal_of(settle), settle, _explain(view, settle, failure.message))
    if has_begun and not view.terms.is_journal_durable:
        return _close(view, settle if settle in ("Aborted", DEADLINE_EXCEEDED) else JOURNAL_LOST, failure.message)
    return Lost(failure, settle)


def _was_overdue(view: RunView) -> bool:
    """Whether the pod had given no sign of life for too long when it ended or was told to: time without one is free."""
    pod = view.pod or view.ghost
    return pod is not None and _is_overdue(view, pod, pod.ended or pod.deletion or view.now)


# ---------------------------------------------------------------- ends that the operator writes


def _close(view: RunView, reason: str, cause: str) -> Ended:
    """Return the end of a run whose runner cannot say any more what its last calls did."""
    turn = view.snapshot.turn if view.snapshot else 0
    known = _unknown_effects(view.snapshot)
    doubt = f"calls that began after turn {turn} may have been done or not: no journal tells"
    return Ended(_signal_of(reason), reason, _explain(view, reason, cause), f"{known}; {doubt}" if known else doubt)


def _signal_of(reason: str) -> str:
    return signals.ABORTED if reason == "Aborted" else signals.ERROR


def _explain(view: RunView, reason: str, cause: str) -> str:
    turn = view.snapshot.turn if view.snapshot else 0
    if reason == JOURNAL_LOST:
        return (
            f"{cause}; the run stops after turn {turn}, because its File journal lies on an emptyDir, which does not "
            "survive the pod: keep journals in Redis (chart value redis.enabled), or on a PersistentVolumeClaim "
            "(runner.journalClaim)"
        )
    if reason == MAX_ATTEMPTS:
        return f"{view.terms.max_attempts} attempts crashed (limit: runTemplate.maxAttempts); the last one: {cause}"
    if reason == DEADLINE_EXCEEDED:
        limit = view.terms.active_deadline.total_seconds()
        return f"no progress for longer than activeDeadlineSeconds ({limit:.0f}); {cause}"
    return f"aborted after turn {turn}: {cause}"
