"""What becomes of an order, by the run as it is."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import ApprovalDecision
from pilothouse_api.wake import decision_digest
from pilothouse_console.orders import (
    ApprovalOrder,
    LimitsOrder,
    Mode,
    ModeOrder,
    Planned,
    Refusal,
    SteerOrder,
    plan_approval,
    plan_limits,
    plan_mode,
    plan_steer,
)
from pilothouse_control.directives import snapshot_of


def run_with(phase: str = "Running", snapshot: dict[str, Any] | None = None, **control: Any) -> AgentRun:
    return AgentRun.model_validate(
        {
            "metadata": {"name": "r1", "generation": 3},
            "spec": {"workflowRef": {"name": "w"}, "control": control},
            "status": {"phase": phase, "run": {"attempt": 1, **(snapshot or {})}},
        }
    )


def outcome(plan: Planned | Refusal) -> int | str:
    return plan.status if isinstance(plan, Refusal) else plan.id


@pytest.mark.parametrize(
    ("stands", "mode", "want"),
    [
        ("Run", "Pause", "pause"),
        ("Pause", "Run", "run"),
        ("Pause", "Finish", "finish"),
        ("Finish", "Finish", "finish"),
        ("Finish", "Abort", "abort"),
        ("Finish", "Pause", 409),
        ("Finish", "Run", 409),
        ("Abort", "Abort", "abort"),
        ("Abort", "Finish", 409),
        ("Abort", "Run", 409),
    ],
)
def test_finish_may_only_become_abort_and_abort_stays(stands: str, mode: Mode, want: int | str) -> None:
    assert outcome(plan_mode(mode, ModeOrder(), run_with(mode=stands), "ada")) == want


@pytest.mark.parametrize(
    ("reason", "want"),
    [(None, "resumed at the barrier of turn 7 (41 facts)"), ("the judge is back", "the judge is back")],
)
def test_a_run_that_the_barrier_has_paused_goes_on_by_words_that_change_something(
    reason: str | None, want: str
) -> None:
    held = {"turn": 7, "journalLength": 41, "parked": {"reason": "Barrier", "turn": 7, "since": "t"}}
    plan = plan_mode("Run", ModeOrder(reason=reason), run_with(snapshot=held, mode="Run"), "ada")
    assert isinstance(plan, Planned)
    assert plan.directive.patch["control"]["reason"] == want


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Aborted"])
def test_an_ended_run_takes_no_order(phase: str) -> None:
    run = run_with(phase)
    approval = ApprovalOrder(call_id="t1")
    assert [
        outcome(plan_mode("Pause", ModeOrder(), run, "ada")),
        outcome(plan_steer(SteerOrder(message="x"), "n", run, "ada")),
        outcome(plan_steer(SteerOrder(message=" "), "n", run, "ada")),
        outcome(plan_approval(approval, run, snapshot_of(run), "ada")),
        outcome(plan_limits(LimitsOrder(max_iterations=3), run)),
    ] == [409] * 5


def test_a_steer_message_has_one_text_under_its_id() -> None:
    run = run_with(steer={"a": {"message": "look"}})
    again = plan_steer(SteerOrder(message="look", id="a"), "n", run, "ada")
    assert isinstance(again, Planned)
    assert again.is_written
    assert outcome(plan_steer(SteerOrder(message="look there", id="a"), "n", run, "ada")) == 409
    assert outcome(plan_steer(SteerOrder(message="look", id="sup-000001-a-b"), "n", run, "ada")) == 422
    assert outcome(plan_steer(SteerOrder(message="look"), "n", run, "ada")) == "n"
    full = run_with(steer={f"s{number}": {"message": "x"} for number in range(64)})
    assert outcome(plan_steer(SteerOrder(message="look"), "n", full, "ada")) == 409
    assert outcome(plan_steer(SteerOrder(message="x", id="s1"), "n", full, "ada")) == "s1"


@pytest.mark.parametrize("answered", [0, 3])
def test_answered_messages_of_the_api_make_room_for_a_new_one(answered: int) -> None:
    ids = [f"api-{number:08x}" for number in range(4)] + [f"s{number}" for number in range(60)]
    full = run_with(steer={key: {"message": "x"} for key in ids})
    report = {"control": {"steer": {key: {"state": "Landed"} for key in [*ids[:answered], "s1"]}}}
    full = full.model_copy(update={"status": full.status.model_copy(update={"run": report})})
    planned = plan_steer(SteerOrder(message="look"), "n", full, "ada")
    if not answered:
        assert outcome(planned) == 409
        return
    assert isinstance(planned, Planned)
    steer = planned.directive.patch["control"]["steer"]
    assert [key for key, text in steer.items() if text is None] == ids[:answered]
    assert steer["n"] == {"message": "look", "by": "ada"}


PENDING = {"pendingApprovals": [{"callId": "t1", "tool": "refund", "requestedAt": "t"}]}
DENIED = {"decision": "Deny", "by": "bob"}
DIGEST = decision_digest(ApprovalDecision.model_validate(DENIED))


@pytest.mark.parametrize(
    ("call_id", "given", "answer", "want"),
    [
        ("t1", None, None, ("t1", False)),
        ("t2", None, None, 409),
        ("t1", DENIED, None, 409),
        ("t1", DENIED, {"state": "NotLanded", "digest": DIGEST}, ("t1", True)),
        ("t1", DENIED, {"state": "NotLanded", "digest": "another"}, 409),
    ],
)
def test_a_call_is_decided_on_once_unless_the_decision_changed_nothing(
    call_id: str, given: dict[str, str] | None, answer: dict[str, str] | None, want: Any
) -> None:
    control = {"control": {"approvals": {"t1": answer}}} if answer else {}
    run = run_with(snapshot={**PENDING, **control}, approvals={"t1": given} if given else {})
    plan = plan_approval(ApprovalOrder(call_id=call_id), run, snapshot_of(run), "ada")
    got = outcome(plan) if isinstance(plan, Refusal) else (plan.id, plan.taken_back is not None)
    assert got == want


@pytest.mark.parametrize("value", ["\ud800", float("nan"), [{"a": float("inf")}]])
def test_arguments_that_are_no_json_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="no JSON that can be kept"):
        ApprovalOrder(call_id="t1", arguments={"a": value})


def test_a_name_that_is_too_long_is_cut_to_one_that_is_still_its_own() -> None:
    plans = [plan_mode("Pause", ModeOrder(), run_with(), f"{'x' * 300}{who}") for who in "ab"]
    signed = [plan.directive.patch["control"]["by"] for plan in plans if isinstance(plan, Planned)]
    assert [len(name) for name in signed] == [253, 253]
    assert signed[0] != signed[1]


def test_limits_that_are_not_named_stay_and_null_takes_one_away() -> None:
    plan = plan_limits(LimitsOrder.model_validate({"maxIterations": 5, "costBudgetUSD": None}), run_with())
    assert isinstance(plan, Planned)
    assert plan.directive.patch == {"limits": {"maxIterations": 5, "costBudgetUSD": None}}
