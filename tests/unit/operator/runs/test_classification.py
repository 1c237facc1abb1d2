"""Every situation that a run can be in, and what is done about its pods."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pilothouse_api.v1alpha1.agentrun import ApprovalDecision, Attempts
from pilothouse_api.wake import decision_digest
from pilothouse_operator.runs.attempts import AttemptPlan, BeginAttempt, MakePod, RemovePod, Stay, plan_attempt
from pilothouse_operator.runs.classification import classify
from pilothouse_operator.runs.situation import Blocked, Ended, Live, Lost, Parked, Settling, Situation, Starting
from pilothouse_operator.runs.view import Obstacle, RunView, Seen, Terms
from pilothouse_operator.workloads.failures import Failure
from pilothouse_operator.workloads.pods import read_pod
from unit.operator.run_views import (
    DURABLE,
    NOW,
    ago,
    an_exit,
    attempt_status,
    condition,
    containers,
    ended_pod,
    parked,
    pending_pod,
    raw_pod,
    running_pod,
    text,
    view,
)

MISSING = Obstacle("WorkflowNotFound", "there is no Workflow flow", True, ago(10))
ABORT: dict[str, Any] = {"control": {"mode": "Abort"}}


def decide(given: RunView) -> tuple[Situation, AttemptPlan]:
    situation = classify(given)
    return situation, plan_attempt(given, situation)


# ---------------------------------------------------------------- before the first attempt


def test_a_missing_reference_is_waited_for_and_then_needs_a_person() -> None:
    late = Obstacle("WorkflowNotFound", "m", True, ago(61))

    assert classify(view(plan=None, obstacle=MISSING)) == Blocked(MISSING, is_stalled=False)
    assert classify(view(plan=None, obstacle=late)) == Blocked(late, is_stalled=True)


def test_what_cannot_heal_needs_a_person_at_once() -> None:
    wrong = Obstacle("InputInvalid", "spec.input: ticket is missing", False, ago(0))

    assert classify(view(plan=None, obstacle=wrong)) == Blocked(wrong, is_stalled=True)


def test_the_first_attempt_is_numbered_before_its_pod_is_made() -> None:
    situation, plan = decide(view())

    assert isinstance(situation, Starting) and situation.attempt == 0
    assert plan == BeginAttempt(1, Attempts(crashes=0))


def test_the_pod_of_a_numbered_attempt_is_made() -> None:
    situation, plan = decide(view(attempt_status()))

    assert isinstance(situation, Starting) and not situation.is_pod_made
    assert plan == MakePod(1)


def test_a_pod_that_was_deleted_before_it_began_is_made_again_under_the_same_number() -> None:
    assert decide(view(attempt_status(2)))[1] == MakePod(2)


def test_a_pod_that_began_and_was_deleted_before_anybody_looked_is_not_made_again() -> None:
    crashed, plan = decide(view(attempt_status(), ghost=ended_pod(1), terms=DURABLE))
    deleted, _ = decide(view(attempt_status(), ghost=running_pod(), terms=DURABLE))
    aborted, _ = decide(view(attempt_status(), ghost=running_pod(), **ABORT))

    assert isinstance(crashed, Lost) and crashed.failure.kind == "Crashed"
    assert isinstance(plan, BeginAttempt) and (plan.number, plan.attempts.crashes) == (2, 1)
    assert isinstance(deleted, Lost) and deleted.failure.kind == "PodDeleted"
    assert isinstance(aborted, Ended) and aborted.unknown_effects is not None


def test_a_pod_that_does_not_start_needs_a_person_after_the_grace() -> None:
    pulling = containers({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})

    young, old = (decide(view(attempt_status(), pod=pending_pod(created=ago(s), **pulling)))[0] for s in (5, 60))

    assert isinstance(young, Starting) and (young.reason, young.is_stalled) == ("ImagePullBackOff", False)
    assert isinstance(old, Starting) and (old.reason, old.is_stalled) == ("ImagePullBackOff", True)


def test_a_queued_pod_waits_for_its_turn_without_a_deadline() -> None:
    raw = raw_pod({"phase": "Pending"}, created=ago(9999), spec={"schedulingGates": [{"name": "kueue"}]})

    situation, plan = decide(view(attempt_status(), pod=read_pod(raw)))

    assert isinstance(situation, Starting)
    assert (situation.reason, situation.is_queued, situation.is_stalled) == ("Queued", True, False)
    assert plan == Stay()


@pytest.mark.parametrize(
    ("obstacle", "want_stalled"),
    [
        (Obstacle("QuotaExceeded", "m", True, ago(5)), False),
        (Obstacle("QuotaExceeded", "m", True, ago(90)), True),
        (Obstacle("PodRefused", "violates PodSecurity", False, ago(0)), True),
    ],
)
def test_a_refused_pod_is_shown_and_tried_again(obstacle: Obstacle, want_stalled: bool) -> None:
    situation, plan = decide(view(attempt_status(), obstacle=obstacle))

    assert isinstance(situation, Starting)
    assert (situation.reason, situation.is_stalled) == (obstacle.reason, want_stalled)
    assert plan == MakePod(1)


# ---------------------------------------------------------------- running, parked


def test_a_running_pod_is_left_alone() -> None:
    assert decide(view(attempt_status(), pod=running_pod())) == (Live(), Stay())


def test_a_held_park_is_left_alone() -> None:
    given = view(attempt_status(), pod=running_pod(), snapshot={"attempt": 1, "parked": parked()})

    assert decide(given) == (Parked("Paused", 3, is_held=True), Stay())


def test_a_park_of_an_older_attempt_says_nothing_about_this_one() -> None:
    given = view(attempt_status(2), pod=running_pod(2), snapshot={"attempt": 1, "parked": parked(released=True)})

    assert decide(given) == (Live(), Stay())


def test_a_released_run_waits_without_a_pod_until_it_is_due() -> None:
    snapshot = {"attempt": 1, "parked": parked(released=True), "control": {"mode": {"value": "Pause"}}}
    status = attempt_status(1, "n1", attempts={"crashes": 1})

    waiting = decide(view(status, snapshot=snapshot, terms=DURABLE, control={"mode": "Pause"}))
    due = decide(view(status, snapshot=snapshot, terms=DURABLE, control={"mode": "Run"}, pod=ended_pod(0)))

    ended = decide(view(status, snapshot=snapshot, terms=DURABLE, control={"mode": "Pause"}, pod=ended_pod(0)))

    assert waiting == (Parked("Paused", 3, is_held=False), Stay())
    assert ended == (Parked("Paused", 3, is_held=False), RemovePod("the run waits without a pod"))
    assert isinstance(due[0], Parked) and due[0].is_due
    assert due[1] == BeginAttempt(2, Attempts(crashes=1), is_old_pod_removed=True)


def test_a_released_approval_is_due_when_a_person_decides_and_not_for_a_decision_that_was_refused() -> None:
    call, edit = "t1-0-9f2c11ab", {"decision": "Approve", "arguments": {"amount": "many"}}
    refused = {"state": "NotLanded", "digest": decision_digest(ApprovalDecision.model_validate(edit))}
    snapshot = {
        "attempt": 1,
        "parked": parked("AwaitingApproval", released=True),
        "pendingApprovals": [{"callId": call, "tool": "refund", "requestedAt": text(ago(60))}],
        "control": {"approvals": {call: refused}},
    }

    def plan(decision: dict[str, object]) -> object:
        control = {"approvals": {call: decision}}
        status = attempt_status(1, "n1")
        return decide(view(status, snapshot=snapshot, terms=DURABLE, control=control))[1]

    assert plan(edit) == Stay()
    assert isinstance(plan({"decision": "Approve"}), BeginAttempt)
    assert isinstance(plan({"decision": "Deny"}), BeginAttempt)


def test_a_release_is_no_crash_whatever_the_exit_code() -> None:
    snapshot = {"attempt": 1, "parked": parked("AwaitingApproval", released=True)}

    situation, _ = decide(view(attempt_status(1, "n1"), pod=ended_pod(137), snapshot=snapshot, terms=DURABLE))

    assert isinstance(situation, Parked)


def test_a_release_whose_journal_died_with_the_pod_ends_the_run() -> None:
    snapshot = {"attempt": 1, "turn": 3, "parked": parked(released=True)}

    situation, plan = decide(view(attempt_status(1, "n1"), pod=ended_pod(0), snapshot=snapshot))

    assert isinstance(situation, Ended)
    assert (situation.signal, situation.reason) == ("error", "JournalLost")
    assert situation.unknown_effects is not None
    assert plan == Stay()


# ---------------------------------------------------------------- lost attempts

CRASHED = Failure("Crashed", "the runner ended with exit code 1 and no result", True)


@pytest.mark.parametrize(
    ("pod", "crashes", "want_crashes", "want_delay"),
    [
        (ended_pod(1), 0, 1, 0),
        (ended_pod(0), 0, 1, 0),
        (ended_pod(137, reason="OOMKilled"), 0, 1, 0),
        (ended_pod(1), 1, 2, 10),
        (ended_pod(1, reason="Error"), 3, 4, 40),
        (ended_pod(1), 9, 10, 300),
        (ended_pod(137, reason="Error"), 1, 2, 10),
        (read_pod(raw_pod({"phase": "Failed", "reason": "Evicted"})), 1, 1, 0),
        (read_pod(raw_pod({"phase": "Failed", "reason": "NodeLost"})), 1, 1, 0),
        (read_pod(raw_pod({"phase": "Failed", "reason": "OutOfcpu"})), 1, 1, 0),
        (None, 1, 1, 0),
    ],
)
def test_crashes_are_counted_and_back_off_and_disruptions_are_not(
    pod: Any, crashes: int, want_crashes: int, want_delay: int
) -> None:
    attempt = crashes + 1
    status = attempt_status(attempt, "n1", attempts={"crashes": crashes})
    terms = Terms(is_journal_durable=True, max_attempts=99)

    situation, plan = decide(view(status, pod=pod, terms=terms))

    assert isinstance(situation, Lost) and situation.settle is None
    assert isinstance(plan, BeginAttempt)
    assert (plan.number, plan.attempts.crashes) == (attempt + 1, want_crashes)
    assert plan.not_before == (NOW + timedelta(seconds=want_delay) if want_delay else None)
    assert plan.attempts.next_retry_time == (text(NOW + timedelta(seconds=want_delay)) if want_delay else None)
    assert plan.attempts.last_failure is not None and plan.attempts.last_failure.startswith(situation.failure.kind)


@pytest.mark.parametrize(("attempt", "want"), [(1, 0), (2, 5), (3, 10), (5, 40), (6, 60), (99, 60)])
def test_somebody_who_deletes_every_pod_is_not_raced(attempt: int, want: int) -> None:
    status = attempt_status(attempt, "n1", attempts={"crashes": 0})

    _, plan = decide(view(status, terms=DURABLE))

    assert isinstance(plan, BeginAttempt)
    assert plan.not_before == (NOW + timedelta(seconds=want) if want else None)


def test_the_next_attempt_waits_for_its_retry_time() -> None:
    soon = attempt_status(2, attempts={"crashes": 2, "lastFailure": "Crashed: x", "nextRetryTime": text(ago(-9))})
    past = attempt_status(2, attempts={"crashes": 2, "lastFailure": "Crashed: x", "nextRetryTime": text(ago(1))})

    situation, plan = decide(view(soon, terms=DURABLE))

    assert isinstance(situation, Starting) and situation.reason == "AttemptBackoff"
    assert plan == Stay(until=NOW + timedelta(seconds=9))
    assert decide(view(past, terms=DURABLE))[1] == MakePod(2)


def test_the_last_crash_is_followed_by_an_attempt_that_only_settles() -> None:
    status = attempt_status(3, "n1", attempts={"crashes": 2})

    situation, plan = decide(view(status, pod=ended_pod(1, 3), terms=DURABLE))

    assert isinstance(situation, Lost) and situation.settle == "MaxAttempts"
    assert isinstance(plan, BeginAttempt) and (plan.settle, plan.not_before) == ("MaxAttempts", None)


@pytest.mark.parametrize("pod", [ended_pod(1), None, read_pod(raw_pod({"phase": "Failed", "reason": "Evicted"}))])
def test_without_a_durable_journal_a_lost_attempt_that_began_ends_the_run(pod: Any) -> None:
    snapshot = {"attempt": 1, "turn": 2, "effects": {"unknown": [{"callId": "t1-0-a", "tool": "refund", "at": "x"}]}}

    situation, plan = decide(view(attempt_status(1, "n1"), pod=pod, snapshot=snapshot))

    assert isinstance(situation, Ended)
    assert (situation.signal, situation.reason) == ("error", "JournalLost")
    assert "emptyDir" in situation.message and "PersistentVolumeClaim" in situation.message
    assert situation.unknown_effects is not None and "refund (t1-0-a)" in situation.unknown_effects
    assert plan == Stay()


def test_without_a_durable_journal_a_pod_in_which_nothing_ran_is_simply_made_again() -> None:
    refused = read_pod(raw_pod({"phase": "Failed", "reason": "OutOfcpu"}))

    situation, plan = decide(view(attempt_status(1), pod=refused))

    assert isinstance(situation, Lost)
    assert isinstance(plan, BeginAttempt) and plan.number == 2


def test_a_runner_that_crashed_before_its_first_report_may_have_acted() -> None:
    situation, _ = decide(view(attempt_status(1), pod=ended_pod(1)))

    assert isinstance(situation, Ended) and situation.reason == "JournalLost"
    assert "exit code 1" in situation.message


def test_a_node_that_does_not_answer_is_given_up_after_the_deletion_grace() -> None:
    waiting = running_pod(deletionTimestamp=text(ago(5)))
    silent = running_pod(deletionTimestamp=text(ago(15)))

    assert decide(view(attempt_status(1, "n1"), pod=waiting, terms=DURABLE)) == (Live(), Stay())
    situation, plan = decide(view(attempt_status(1, "n1"), pod=silent, terms=DURABLE))
    assert isinstance(situation, Lost) and situation.failure.kind == "NodeLost"
    assert isinstance(plan, BeginAttempt) and plan.attempts.crashes == 0


# ---------------------------------------------------------------- abort, deadline, settling


def test_an_abort_before_anything_ran_is_written_by_the_operator() -> None:
    for given in (
        view(plan=None, obstacle=MISSING, **ABORT),
        view(plan=None, **ABORT),
        view(attempt_status(), **ABORT),
    ):
        situation, plan = decide(given)
        assert isinstance(situation, Ended)
        assert (situation.signal, situation.reason, situation.unknown_effects) == ("aborted", "Aborted", None)
        assert plan == Stay()


def test_an_abort_takes_away_a_pod_that_has_not_begun_and_ends_when_it_is_gone() -> None:
    situation, plan = decide(view(attempt_status(), pod=pending_pod(), **ABORT))

    assert isinstance(situation, Settling) and situation.kind == "Removal"
    assert isinstance(plan, RemovePod)


def test_an_abort_that_does_not_land_ends_the_pod_after_the_grace() -> None:
    patient = view(attempt_status(), pod=running_pod(), seen=Seen(abort=ago(29)), **ABORT)
    over = view(attempt_status(), pod=running_pod(), seen=Seen(abort=ago(31)), **ABORT)
    leaving = view(
        attempt_status(), pod=running_pod(deletionTimestamp=text(ago(-20))), seen=Seen(abort=ago(31)), **ABORT
    )

    assert decide(patient) == (Live(), Stay())
    assert decide(over)[1] == RemovePod("Abort did not land within 30 s")
    assert decide(leaving) == (Live(), Stay())


def test_an_abort_of_a_lost_run_is_settled_by_a_runner_where_the_journal_lives() -> None:
    given = view(attempt_status(1, "n1"), pod=ended_pod(143), terms=DURABLE, **ABORT)

    situation, plan = decide(given)

    assert isinstance(situation, Lost) and situation.settle == "Aborted"
    assert isinstance(plan, BeginAttempt) and plan.settle == "Aborted"


def test_an_abort_of_a_lost_run_without_a_journal_is_written_with_its_doubts() -> None:
    situation, _ = decide(view(attempt_status(1, "n1"), pod=ended_pod(143), **ABORT))

    assert isinstance(situation, Ended)
    assert (situation.signal, situation.reason) == ("aborted", "Aborted")
    assert situation.unknown_effects is not None


def test_an_abort_of_a_released_run_lands_in_an_ordinary_attempt() -> None:
    snapshot = {"attempt": 1, "parked": parked(released=True)}

    _, plan = decide(view(attempt_status(1, "n1"), snapshot=snapshot, terms=DURABLE, **ABORT))

    assert isinstance(plan, BeginAttempt) and plan.settle is None


def test_a_runner_without_a_sign_of_life_is_ended_after_its_deadline_and_a_grace() -> None:
    terms = Terms(active_deadline=timedelta(seconds=100), is_journal_durable=True)
    old = running_pod(created=ago(500))
    silent = attempt_status(1, "n1", startTime=text(ago(500)))

    moving = view(silent, pod=old, terms=terms, snapshot={"attempt": 1, "lastProgressTime": text(ago(150))})
    resumed = view(
        silent,
        pod=old,
        terms=terms,
        snapshot={
            "attempt": 1,
            "lastProgressTime": text(ago(400)),
            "control": {"mode": {"value": "Run", "time": text(ago(20))}},
        },
    )
    paused = view(silent, pod=old, terms=terms, snapshot={"attempt": 1, "parked": parked()})

    assert isinstance(decide(view(silent, pod=old, terms=terms))[1], RemovePod)
    assert decide(moving)[1] == decide(resumed)[1] == decide(paused)[1] == Stay()


def test_a_runner_that_was_ended_for_its_silence_is_followed_by_one_that_settles() -> None:
    terms = Terms(active_deadline=timedelta(seconds=100), is_journal_durable=True)
    status = attempt_status(1, "n1")

    def settle_of(**pods: Any) -> str | None:
        situation, _ = decide(view(status, terms=terms, **pods))
        assert isinstance(situation, Lost)
        return situation.settle

    removed = running_pod(created=ago(500), deletionTimestamp=text(ago(20)))
    ended_at = {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": text(ago(400))}}
    early = read_pod(raw_pod({"phase": "Failed", **containers(ended_at)}, created=ago(500)))

    assert settle_of(pod=removed) == settle_of(ghost=removed) == "DeadlineExceeded"
    # Time without a pod is no active time, however long it lasts: the journal of the next attempt counts it.
    assert settle_of(pod=early) is settle_of(ghost=early) is settle_of() is None


def test_an_abort_has_all_of_its_grace_in_an_attempt_that_began_after_it() -> None:
    started = {"phase": "Running", **containers({"running": {"startedAt": text(ago(10))}})}
    fresh = read_pod(raw_pod(started, 2))
    late = read_pod(raw_pod({**started, **containers({"running": {"startedAt": text(ago(31))}})}, 2))

    assert decide(view(attempt_status(2), pod=fresh, seen=Seen(abort=ago(300)), **ABORT)) == (Live(), Stay())
    assert decide(view(attempt_status(2), pod=late, seen=Seen(abort=ago(300)), **ABORT))[1] == RemovePod(
        "Abort did not land within 30 s"
    )


BEGAN_BEFORE: dict[str, Any] = {"conditions": [condition("Started")]}


def test_an_abort_is_settled_without_the_attempt_that_does_not_start() -> None:
    stuck = pending_pod(2, created=ago(90), **containers({"waiting": {"reason": "ImagePullBackOff"}}))
    quota = Obstacle("QuotaExceeded", "m", True, ago(90))
    status = attempt_status(2, **BEGAN_BEFORE)

    early = decide(view(status, pod=stuck, terms=DURABLE, seen=Seen(abort=ago(20)), **ABORT))
    removed = decide(view(status, pod=stuck, terms=DURABLE, seen=Seen(abort=ago(31)), **ABORT))
    situation, plan = decide(view(status, obstacle=quota, terms=DURABLE, seen=Seen(abort=ago(31)), **ABORT))

    assert isinstance(early[0], Starting) and early[1] == Stay()
    assert removed == (
        Settling("Removal", "Aborted", removal="the run is aborted, and its pod does not start"),
        RemovePod("the run is aborted, and its pod does not start"),
    )
    assert isinstance(situation, Lost) and "QuotaExceeded" in situation.failure.message
    assert isinstance(plan, BeginAttempt) and (plan.number, plan.settle, plan.attempts.crashes) == (3, "Aborted", 0)


def test_an_abort_while_the_journal_is_away_is_settled_after_its_grace() -> None:
    snapshot = {"attempt": 1, "parked": parked("JournalLost", released=True)}
    status = attempt_status(1, "n1")

    _, early = decide(view(status, snapshot=snapshot, terms=DURABLE, seen=Seen(abort=ago(20)), **ABORT))
    _, late = decide(view(status, snapshot=snapshot, terms=DURABLE, seen=Seen(abort=ago(31)), **ABORT))

    assert isinstance(early, BeginAttempt) and early.settle is None
    assert isinstance(late, BeginAttempt) and late.settle == "Aborted"


def test_a_runner_that_let_go_and_does_not_end_is_ended() -> None:
    snapshot = {"attempt": 1, "parked": parked("Stopped", released=True)}
    leaving = view(attempt_status(1, "n1"), pod=running_pod(), snapshot=snapshot, seen=Seen(exit=ago(29)))
    stuck = view(attempt_status(1, "n1"), pod=running_pod(), snapshot=snapshot, seen=Seen(exit=ago(31)))

    assert decide(leaving)[1] == Stay()
    assert isinstance(decide(stuck)[1], RemovePod)


def test_a_park_whose_pod_ended_well_is_let_go_although_nothing_could_be_published() -> None:
    snapshot = {"attempt": 1, "parked": parked("ControlLost")}

    situation, plan = decide(view(attempt_status(1, "n1"), pod=ended_pod(0), snapshot=snapshot, terms=DURABLE))
    crashed, _ = decide(view(attempt_status(1, "n1"), pod=ended_pod(1), snapshot=snapshot, terms=DURABLE))

    assert isinstance(situation, Parked) and situation.is_due
    assert plan == BeginAttempt(2, Attempts(), is_old_pod_removed=True)
    assert isinstance(crashed, Lost)


def test_containers_that_outlive_the_runner_are_taken_away_with_its_pod() -> None:
    mesh = {"name": "mesh", "state": {"running": {}}}
    crashed = {"name": "runner", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    pod = read_pod(raw_pod({"phase": "Running", "containerStatuses": [mesh, crashed]}))

    situation, plan = decide(view(attempt_status(1, "n1"), pod=pod, terms=DURABLE))

    assert isinstance(situation, Lost) and situation.failure.kind == "Crashed"
    assert isinstance(plan, BeginAttempt) and plan.is_old_pod_removed


@pytest.mark.parametrize(
    ("reason", "want"), [("EvictionByEvictionAPI", "Evicted"), ("DeletionByTaintManager", "Disrupted")]
)
def test_a_pod_that_vanished_was_taken_by_whoever_had_said_so(reason: str, want: str) -> None:
    condition_of_pod = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m"}
    status = {"phase": "Running", **containers({"running": {}}), "conditions": [condition_of_pod]}
    ghost = read_pod(raw_pod(status, metadata={"deletionTimestamp": text(ago(1)), "deletionGracePeriodSeconds": 30}))

    situation, plan = decide(view(attempt_status(1, "n1"), ghost=ghost, terms=DURABLE))

    assert isinstance(situation, Lost) and situation.failure.kind == want
    assert isinstance(plan, BeginAttempt) and plan.attempts.crashes == 0


def test_a_node_that_does_not_answer_is_told_with_who_gave_its_pod_up() -> None:
    taint = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "NoExecute"}
    status = {"phase": "Running", **containers({"running": {}}), "conditions": [taint]}
    silent = read_pod(raw_pod(status, metadata={"deletionTimestamp": text(ago(15)), "deletionGracePeriodSeconds": 30}))

    situation, _ = decide(view(attempt_status(1, "n1"), pod=silent, terms=DURABLE))

    assert isinstance(situation, Lost) and situation.failure.kind == "NodeLost"
    assert "DeletionByTaintManager: NoExecute" in situation.failure.message


def test_a_pod_that_is_silent_about_its_start_needs_a_person_after_a_longer_grace() -> None:
    creating = containers({"waiting": {"reason": "ContainerCreating"}})

    slow, stuck = (decide(view(attempt_status(), pod=pending_pod(created=ago(s), **creating)))[0] for s in (599, 600))

    assert isinstance(slow, Starting) and not slow.is_stalled
    assert isinstance(stuck, Starting) and stuck.is_stalled and "kubectl describe pod r1-1" in stuck.message


def test_what_never_starts_is_given_up_after_its_attempts() -> None:
    ended = {"terminated": {"exitCode": 128, "reason": "StartError", "message": "no such file"}}
    pod = read_pod(raw_pod({"phase": "Failed", **containers(ended)}, 3))

    situation, _ = decide(view(attempt_status(3, attempts={"crashes": 2}), pod=pod))

    assert isinstance(situation, Ended)
    assert (situation.reason, situation.unknown_effects) == ("MaxAttempts", None)
    assert "no such file" in situation.message


SETTLES = [condition("Settling", reason="Aborted", since=ago(20)), condition("Started")]


def test_a_settling_attempt_is_started_watched_and_at_last_given_up() -> None:
    status = attempt_status(2, conditions=SETTLES)
    stale = attempt_status(2, conditions=[condition("Settling", reason="Aborted", since=ago(301))])

    assert decide(view(status, terms=DURABLE))[1] == MakePod(2, "Aborted")
    assert decide(view(status, pod=running_pod(2), terms=DURABLE))[1] == Stay()
    assert isinstance(decide(view(stale, pod=running_pod(2), terms=DURABLE))[1], RemovePod)
    given_up, _ = decide(view(stale, terms=DURABLE))
    assert isinstance(given_up, Ended)
    assert (given_up.reason, given_up.unknown_effects is not None) == ("Aborted", True)


def test_a_settling_attempt_that_dies_leaves_effects_unknown() -> None:
    situation, _ = decide(view(attempt_status(2, conditions=SETTLES), pod=ended_pod(1, 2), terms=DURABLE))

    assert isinstance(situation, Ended)
    assert situation.unknown_effects is not None
    assert "the settling attempt failed: the runner ended with exit code 1" in situation.message


@pytest.mark.parametrize(
    "taken",
    [
        {"pod": read_pod(raw_pod({"phase": "Failed", "reason": "Evicted"}, 2))},
        {"pod": ended_pod(0, 2), "snapshot": {"attempt": 2, "parked": parked("Stopped", released=True)}},
        {"ghost": running_pod(2)},
    ],
    ids=["evicted", "drained", "deleted"],
)
def test_a_settling_attempt_that_the_cluster_took_away_is_followed_by_another(taken: dict[str, Any]) -> None:
    status = attempt_status(2, "n1", conditions=SETTLES, attempts={"crashes": 2})

    situation, plan = decide(view(status, terms=DURABLE, **taken))

    assert isinstance(situation, Lost) and situation.settle == "Aborted"
    assert isinstance(plan, BeginAttempt) and (plan.number, plan.settle, plan.attempts.crashes) == (3, "Aborted", 2)


def test_a_settling_attempt_waits_for_its_retry_time_and_no_longer_than_settling_may_take() -> None:
    soon = {"crashes": 0, "lastFailure": "PodDeleted: x", "nextRetryTime": text(ago(-9))}

    waits = decide(view(attempt_status(3, conditions=SETTLES, attempts=soon), terms=DURABLE))
    over = [condition("Settling", reason="Aborted", since=ago(301))]
    closed, _ = decide(view(attempt_status(3, "n1", conditions=over), ghost=running_pod(3), terms=DURABLE))

    assert waits[1] == Stay(until=NOW + timedelta(seconds=9))
    assert isinstance(closed, Ended) and closed.unknown_effects is not None


# ---------------------------------------------------------------- ends


UNKNOWN_CALL = {"unknown": [{"callId": "t2-0-ab", "tool": "refund", "at": "x"}]}


def test_a_run_has_ended_when_its_runner_says_so() -> None:
    snapshot = {"attempt": 1, "exit": an_exit()}
    for pod in (running_pod(), ended_pod(0), ended_pod(1), None):
        assert decide(view(attempt_status(), pod=pod, snapshot=snapshot)) == (
            Ended("default", "Complete", "done"),
            Stay(),
        )


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"exit": an_exit("Aborted", "aborted")}, id="an abort"),
        pytest.param({"exit": an_exit("PauseDeadline", "aborted")}, id="a pause that was too long"),
        pytest.param({"exit": an_exit(), "effects": UNKNOWN_CALL}, id="an unknown effect"),
    ],
)
def test_an_end_that_proves_something_waits_for_the_end_of_its_pod(told: dict[str, Any]) -> None:
    snapshot = {"attempt": 1, **told}
    running = view(attempt_status(), pod=running_pod(), snapshot=snapshot, seen=Seen(exit=ago(3)))
    stuck = view(attempt_status(), pod=running_pod(), snapshot=snapshot, seen=Seen(exit=ago(31)))

    situation, plan = decide(running)
    assert isinstance(situation, Settling) and situation.kind == "Exit" and plan == Stay()
    assert isinstance(decide(stuck)[1], RemovePod)
    for pod in (ended_pod(0), ended_pod(1), None):
        assert isinstance(decide(view(attempt_status(), pod=pod, snapshot=snapshot))[0], Ended)


def test_an_exit_wins_over_whatever_else_is_asked_for() -> None:
    snapshot = {"attempt": 1, "exit": an_exit()}

    situation, _ = decide(view(attempt_status(), pod=ended_pod(0), snapshot=snapshot, **ABORT))

    assert situation == Ended("default", "Complete", "done")


def test_unknown_effects_of_a_good_end_are_told() -> None:
    snapshot = {"attempt": 1, "exit": an_exit(), "effects": UNKNOWN_CALL}

    situation, _ = decide(view(attempt_status(), pod=ended_pod(0), snapshot=snapshot))

    assert isinstance(situation, Ended)
    assert situation.unknown_effects is not None and "refund (t2-0-ab)" in situation.unknown_effects


def test_what_has_ended_stays_as_it_was_reported() -> None:
    exit_report = {"signal": "error", "reason": "Error", "message": "m"}
    status = attempt_status(exit=exit_report, conditions=[condition("Finished")])

    assert decide(view(status, pod=running_pod(), **ABORT)) == (Ended("error", "Error", "m"), Stay())
