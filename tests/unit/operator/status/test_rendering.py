"""What people see of a run: every row of the phase table, and what may never cost a write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pilothouse_api.v1alpha1.agentrun import AgentRunStatus
from pilothouse_operator.runs.attempts import plan_attempt
from pilothouse_operator.runs.classification import classify
from pilothouse_operator.runs.directives import pending_directives
from pilothouse_operator.runs.view import Obstacle, RunView, Seen
from pilothouse_operator.status.rendering import bounded_result, operator_part, render_status
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


def render(given: RunView) -> dict[str, Any]:
    situation = classify(given)
    return render_status(given, situation, plan_attempt(given, situation))


def shown(status: dict[str, Any]) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in status["conditions"]}


def reason(status: dict[str, Any], kind: str = "Ready") -> str:
    return str(next(entry["reason"] for entry in status["conditions"] if entry["type"] == kind))


def message(status: dict[str, Any], kind: str) -> str:
    return str(next(entry["message"] for entry in status["conditions"] if entry["type"] == kind))


QUEUED = read_pod(raw_pod({"phase": "Pending"}, spec={"schedulingGates": [{"name": "kueue"}]}))
PULLING = pending_pod(created=ago(90), **containers({"waiting": {"reason": "ErrImagePull"}}))
BEGUN = attempt_status(1, "n1", conditions=[condition("Started")])


@pytest.mark.parametrize(
    ("given", "phase", "ready", "why", "reconciling", "stalled", "also"),
    [
        # Pending
        (view(), "Pending", "False", "Starting", "True", "False", {"Accepted": "True"}),
        (view(attempt_status(), pod=pending_pod()), "Pending", "False", "Starting", "True", "False", {}),
        (
            view(attempt_status(2, attempts={"crashes": 2, "nextRetryTime": text(ago(-9))}), terms=DURABLE),
            *("Pending", "False", "AttemptBackoff", "True", "False", {}),
        ),
        (view(attempt_status(), pod=QUEUED), "Pending", "True", "Queued", "False", "False", {}),
        (
            view(plan=None, obstacle=Obstacle("WorkflowNotFound", "m", True, ago(5))),
            *("Pending", "False", "WorkflowNotFound", "True", "False", {"Accepted": "False"}),
        ),
        (
            view(plan=None, obstacle=Obstacle("WorkflowNotFound", "m", True, ago(65))),
            *("Pending", "False", "WorkflowNotFound", "False", "True", {"Accepted": "False"}),
        ),
        (
            view(plan=None, obstacle=Obstacle("InputInvalid", "m", False, ago(5))),
            *("Pending", "False", "InputInvalid", "False", "True", {}),
        ),
        (view(attempt_status(), pod=PULLING), "Pending", "False", "ImagePullBackOff", "False", "True", {}),
        (view(BEGUN, pod=ended_pod(1), terms=DURABLE), "Pending", "False", "Starting", "True", "False", {}),
        # Running
        (
            view(attempt_status(), pod=running_pod()),
            "Running",
            "True",
            "Running",
            "False",
            "False",
            {"Started": "True"},
        ),
        (
            view(attempt_status(), pod=running_pod(), snapshot={"attempt": 1, "parked": parked("ControlLost")}),
            *("Running", "False", "ControlLost", "True", "False", {}),
        ),
        (
            view(
                attempt_status(2, conditions=[condition("Settling", reason="Aborted")]),
                pod=running_pod(2),
                terms=DURABLE,
            ),
            *("Running", "False", "Settling", "True", "False", {"Settling": "True"}),
        ),
        # Paused, AwaitingApproval
        (
            view(attempt_status(), pod=running_pod(), snapshot={"attempt": 1, "parked": parked()}),
            *("Paused", "True", "Paused", "False", "False", {"Paused": "True"}),
        ),
        (
            view(
                BEGUN,
                snapshot={"attempt": 1, "parked": parked("AwaitingApproval", released=True)},
                terms=DURABLE,
            ),
            *("AwaitingApproval", "True", "AwaitingApproval", "False", "False", {"AwaitingApproval": "True"}),
        ),
        (
            view(BEGUN, snapshot={"attempt": 1, "parked": parked(released=True)}, terms=DURABLE),
            *("Pending", "False", "Starting", "True", "False", {}),
        ),
        # ends
        (
            view(BEGUN, pod=ended_pod(0), snapshot={"attempt": 1, "exit": an_exit()}),
            *("Succeeded", "True", "Complete", "False", "False"),
            {"Complete": "True", "Finished": "True", "EffectsSettled": "True"},
        ),
        (
            view(BEGUN, pod=ended_pod(0), snapshot={"attempt": 1, "exit": an_exit("FinishedEarly")}),
            *("Succeeded", "True", "FinishedEarly", "False", "False", {"Complete": "True", "Finished": "True"}),
        ),
        (
            view(
                BEGUN, pod=ended_pod(0), snapshot={"attempt": 1, "exit": an_exit("BudgetExceeded", "budget_exceeded")}
            ),
            *("Failed", "False", "BudgetExceeded", "False", "True"),
            {"Failed": "True", "Finished": "True", "EffectsSettled": "True"},
        ),
        (
            view(BEGUN, pod=ended_pod(0), snapshot={"attempt": 1, "exit": an_exit("Aborted", "aborted")}),
            *("Aborted", "False", "Aborted", "False", "True", {"Failed": "True", "Finished": "True"}),
        ),
        (
            view(BEGUN, pod=ended_pod(0), snapshot={"attempt": 1, "exit": an_exit("PauseDeadline", "aborted")}),
            *("Aborted", "False", "PauseDeadline", "False", "True", {"Finished": "True"}),
        ),
        (
            view(BEGUN, pod=ended_pod(1)),
            *("Failed", "False", "JournalLost", "False", "True", {"Finished": "True", "EffectsSettled": "Unknown"}),
        ),
    ],
)
def test_the_phase_table(
    given: RunView, phase: str, ready: str, why: str, reconciling: str, stalled: str, also: dict[str, str]
) -> None:
    status = render(given)

    conditions = shown(status)
    assert (status["phase"], conditions["Ready"], reason(status)) == (phase, ready, why)
    assert (conditions["Reconciling"], conditions["Stalled"]) == (reconciling, stalled)
    assert also.items() <= conditions.items()
    if phase not in ("Succeeded", "Failed", "Aborted"):
        assert not {"Finished", "Complete", "Failed", "EffectsSettled"} & set(conditions)


def test_what_is_reported_is_a_legal_status() -> None:
    given = view(BEGUN, pod=ended_pod(0), snapshot={"attempt": 1, "exit": an_exit(), "result": {"a": 1}})

    status = AgentRunStatus.model_validate(render(given))

    assert status.exit is not None and status.exit.reason == "Complete"
    assert status.result == {"a": 1}
    assert status.completion_time == "2026-03-01T12:00:00.000000Z"


def test_a_second_look_at_the_same_changes_nothing() -> None:
    first = render(view(attempt_status(), pod=running_pod()))

    assert render(view(first, pod=running_pod())) == first


def test_a_new_turn_costs_no_write() -> None:
    first = render(view(attempt_status(), pod=running_pod(), snapshot={"attempt": 1, "turn": 1}))

    assert render(view(first, pod=running_pod(), snapshot={"attempt": 1, "turn": 2, "step": "other"})) == first


def test_a_published_abort_costs_no_write_before_the_pod_ends() -> None:
    old = attempt_status()

    assert render(view(old, pod=running_pod(), snapshot={"attempt": 1, "exit": an_exit("Aborted", "aborted")})) == {
        **operator_part(view(old).run.status)
    }


def test_a_transition_time_moves_only_with_its_status() -> None:
    old = attempt_status(
        conditions=[
            condition("Ready", "False", "Starting", since=ago(40)),
            condition("Stalled", "False", "Progressing", since=ago(30)),
        ]
    )

    status = render(view(old, pod=running_pod()))

    times = {entry["type"]: entry["lastTransitionTime"] for entry in status["conditions"]}
    assert times["Ready"] == text(NOW)
    assert times["Stalled"] == text(ago(30))


def test_a_new_attempt_stands_in_status_with_its_pod_and_its_failures() -> None:
    status = render(view({**BEGUN, "attempts": {"crashes": 1}}, pod=ended_pod(1), terms=DURABLE))

    assert (status["attempt"], status["pod"]) == (2, {"name": "r1-2"})
    assert status["attempts"]["crashes"] == 2
    assert status["attempts"]["nextRetryTime"] == "2026-03-01T12:00:10Z"
    assert status["attempts"]["lastFailure"].startswith("Crashed: ")
    assert status["startTime"] == text(ago(100))


def test_the_retry_time_goes_when_the_attempt_runs() -> None:
    old = attempt_status(2, attempts={"crashes": 2, "nextRetryTime": text(ago(1))})

    status = render(view(old, pod=running_pod(2), terms=DURABLE))

    assert status["attempts"] == {"crashes": 2}
    assert status["pod"] == {"name": "r1-2", "node": "n1"}


def test_a_park_that_is_over_is_told_so() -> None:
    old = attempt_status(conditions=[condition("Paused")])

    assert shown(render(view(old, pod=running_pod())))["Paused"] == "False"


# ---------------------------------------------------------------- directives


def test_the_condition_of_a_wait_for_a_person_names_the_call() -> None:
    pending = {"callId": "t3-0-9f2c11ab", "tool": "refund", "requestedAt": "t", "expiresAt": "2026-03-02T12:00:00Z"}
    snapshot = {"attempt": 1, "parked": parked("AwaitingApproval", released=True), "pendingApprovals": [pending]}

    status = render(view(BEGUN, snapshot=snapshot, terms=DURABLE))

    want = "waits since turn 3 for a decision on refund (t3-0-9f2c11ab) until 2026-03-02T12:00:00Z"
    assert message(status, "AwaitingApproval") == want


@pytest.mark.parametrize(
    ("control", "answer", "want"),
    [
        ({"mode": "Pause"}, None, ["Pause"]),
        ({"mode": "Pause"}, {"mode": {"value": "Run"}}, ["Pause"]),
        ({"mode": "Pause"}, {"mode": {"value": "Pause", "turn": 2}}, []),
        ({"mode": "Pause"}, {"mode": {"value": "Finish", "state": "Superseded"}}, []),
        ({"mode": "Run"}, None, []),
        ({}, None, []),
        ({"steer": {"b": {"message": "m"}, "a": {"message": "m"}}}, {"steer": {"b": {}}}, ["steer a"]),
        ({"approvals": {"t1": {"decision": "Approve"}}}, {}, ["approval t1"]),
        ({"approvals": {"t1": {"decision": "Approve"}}}, {"approvals": {"t1": {"digest": "another"}}}, ["approval t1"]),
        ({"approvals": {"t1": {"decision": "Approve"}}}, {"approvals": {"t1": {"state": "Expired"}}}, []),
    ],
)
def test_what_is_not_answered_is_pending(
    control: dict[str, Any], answer: dict[str, Any] | None, want: list[str]
) -> None:
    snapshot = None if answer is None else {"attempt": 1, "control": answer}

    assert pending_directives(view(attempt_status(), snapshot=snapshot, control=control)) == want


def test_limits_are_pending_until_they_are_answered() -> None:
    limits = {"tokenBudget": 5}
    answer = {"attempt": 1, "control": {"limits": {"generation": 2, "turn": 1}}}

    assert pending_directives(view(attempt_status(), limits=limits)) == ["limits"]
    assert pending_directives(view(attempt_status(), snapshot=answer, limits=limits)) == []


def test_a_directive_that_lands_within_moments_is_not_reported_as_pending() -> None:
    going: dict[str, Any] = {"pod": running_pod(), "snapshot": {"attempt": 1}}
    old = render(view(attempt_status(), **going))

    fresh = view(old, **going, seen=Seen(directive=ago(1)), generation=2, control={"mode": "Pause"})
    waiting = view(old, **going, seen=Seen(directive=ago(3)), generation=2, control={"mode": "Pause"})

    assert render(fresh) == old
    status = render(waiting)
    assert status["observedGeneration"] == 2
    assert shown(status)["ControlPending"] == "True"
    assert message(status, "ControlPending") == "Pause: lands at the next turn boundary"


@pytest.mark.parametrize(
    ("seconds", "attempt", "snapshot", "control", "want"),
    [
        (3, 1, None, {"mode": "Pause"}, None),
        (3, 2, {"attempt": 1}, {"mode": "Pause"}, None),
        (3, 2, {"attempt": 2}, {"mode": "Pause"}, "True"),
        (81, 1, None, {"mode": "Pause"}, "True"),
        (81, 1, {"attempt": 0}, {"mode": "Pause"}, "True"),
        (3, 1, None, {"mode": "Abort"}, "True"),
    ],
)
def test_a_directive_that_an_attempt_reads_when_it_has_started_is_acknowledged_and_no_condition(
    seconds: int, attempt: int, snapshot: dict[str, Any] | None, control: dict[str, Any], want: str | None
) -> None:
    begun = attempt_status(attempt, observedGeneration=1)
    seen = Seen(directive=ago(seconds), abort=ago(seconds))

    status = render(view(begun, pod=pending_pod(attempt), snapshot=snapshot, seen=seen, generation=2, control=control))

    assert (status["observedGeneration"], shown(status).get("ControlPending")) == (2, want)


RELEASED = {"attempt": 1, "parked": parked("AwaitingApproval", released=True, wake=text(ago(1)))}
SECOND_CRASH = attempt_status(2, "n1", conditions=[condition("Started")], attempts={"crashes": 1})
LAST_CRASH = attempt_status(3, "n1", conditions=[condition("Started")], attempts={"crashes": 2})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (view(), "Starting"),
        (view(BEGUN, snapshot=RELEASED, terms=DURABLE), "Starting"),
        (view(BEGUN, pod=ended_pod(1), terms=DURABLE), "Starting"),
        (view(SECOND_CRASH, pod=ended_pod(1, 2), terms=DURABLE), "AttemptBackoff"),
        (view(LAST_CRASH, pod=ended_pod(1, 3), terms=DURABLE), "Settling"),
    ],
)
def test_from_the_number_of_an_attempt_to_its_pods_start_there_is_one_write(given: RunView, why: str) -> None:
    begun = render(given)
    numbered = view(begun, snapshot=RELEASED if given.snapshot else None, terms=given.terms)
    made = replace(numbered, pod=pending_pod(begun["attempt"]))

    assert begun["attempt"] == given.attempt + 1
    assert reason(begun) == why
    assert render(numbered) == begun
    if why == "Starting":
        assert render(made) == begun


@pytest.mark.parametrize(("started", "want"), [(50, None), (61, "True")])
def test_the_minute_in_which_an_attempt_reads_its_directives_begins_when_it_starts(
    started: int, want: str | None
) -> None:
    pod = replace(running_pod(created=ago(120)), started=ago(started))
    given = view(attempt_status(), pod=pod, seen=Seen(directive=ago(110)), generation=2, control={"mode": "Pause"})

    assert shown(render(given)).get("ControlPending") == want


def test_what_begins_an_attempt_is_acknowledged_in_the_same_write() -> None:
    given = {"approvals": {"t1-0-9f2c11ab": {"decision": "Approve"}}}
    waiting = {
        **RELEASED,
        "pendingApprovals": [
            {"callId": "t1-0-9f2c11ab", "tool": "refund", "step": "talk", "requestedAt": text(ago(60))}
        ],
    }
    old = {**BEGUN, "observedGeneration": 1}

    status = render(
        view(old, snapshot=waiting, seen=Seen(directive=ago(0)), generation=2, terms=DURABLE, control=given)
    )

    assert (status["attempt"], status["observedGeneration"]) == (2, 2)
    assert "ControlPending" not in shown(status)


def test_a_park_is_written_once_whether_or_not_it_has_let_go_of_its_pod() -> None:
    held = view(BEGUN, pod=running_pod(), snapshot={"attempt": 1, "parked": parked("AwaitingApproval")}, terms=DURABLE)
    written = render(held)

    released = {"attempt": 1, "parked": parked("AwaitingApproval", released=True)}
    assert render(view(written, pod=running_pod(), snapshot=released, terms=DURABLE)) == written
    assert render(view(written, snapshot=released, terms=DURABLE)) == written


def test_a_directive_waits_for_the_call_that_runs() -> None:
    call = {"callId": "t1-0-9f2c11ab", "tool": "account_lookup", "since": "2030-01-01T11:59:48.000Z"}
    given = view(
        render(view(attempt_status(), pod=running_pod())),
        pod=running_pod(),
        snapshot={"attempt": 1, "running": call},
        seen=Seen(directive=ago(3)),
        generation=2,
        control={"mode": "Pause"},
    )

    said = message(render(given), "ControlPending")

    assert said == "Pause: lands when account_lookup returns, which runs since 2030-01-01T11:59:48.000Z"


def test_the_last_report_acknowledges_the_newest_generation_whatever_is_pending() -> None:
    given = view(
        {**BEGUN, "observedGeneration": 1},
        pod=ended_pod(0),
        snapshot={"attempt": 1, "exit": an_exit()},
        seen=Seen(directive=ago(0)),
        generation=2,
        control={"steer": {"a": {"message": "too late"}}},
    )

    status = render(given)

    assert status["observedGeneration"] == 2
    assert {entry["observedGeneration"] for entry in status["conditions"]} == {2}
    assert "ControlPending" not in shown(status)


def test_an_answered_directive_is_pending_no_more() -> None:
    old = attempt_status(conditions=[condition("ControlPending")])
    answer = {"attempt": 1, "control": {"mode": {"value": "Pause", "turn": 1}}}

    status = render(view(old, pod=running_pod(), snapshot=answer, control={"mode": "Pause"}))

    assert shown(status)["ControlPending"] == "False"


def test_a_result_that_is_too_large_is_told_by_its_size() -> None:
    assert bounded_result({"a": "x"}) == {"a": "x"}
    assert bounded_result({"a": "x" * 9000}) == {"bytes": 9009, "limit": 8192, "truncated": True}


@pytest.mark.parametrize("service", ["ControlLost", "JournalLost", "StoreLost"])
def test_a_service_that_is_away_has_a_condition_of_its_own_that_heals(service: str) -> None:
    park = parked(service, message="Unavailable: no answer within 4 s")
    away = render(view(BEGUN, pod=running_pod(), snapshot={"attempt": 1, "parked": park}))
    status = {**BEGUN, "conditions": away["conditions"]}
    back = render(view(status, pod=running_pod(), snapshot={"attempt": 1}))

    assert (shown(away)[service], reason(away), shown(away)["Reconciling"]) == ("True", service, "True")
    for kind in (service, "Ready"):
        assert "Unavailable: no answer within 4 s" in message(away, kind)
        assert str(park["since"]) in message(away, kind)
    assert (shown(back)[service], reason(back, service), shown(back)["Ready"]) == ("False", f"Not{service}", "True")


def test_a_run_that_never_lost_a_service_has_no_condition_for_it() -> None:
    assert not shown(render(view(BEGUN, pod=running_pod()))).keys() & {"ControlLost", "JournalLost", "StoreLost"}
