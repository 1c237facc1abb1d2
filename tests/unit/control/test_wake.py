"""When a park is over: one table for the waiting runner, the operator and local mode (engine.md §8)."""

from datetime import UTC, datetime
from typing import Any

import pytest

from pilothouse_api.v1alpha1.agentrun import ApprovalDecision, Control, Snapshot
from pilothouse_api.wake import decision_digest, is_answered, wake_due

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
PAST, LATER = "2030-01-01T11:59:59.000Z", "2030-01-01T12:00:01.000Z"
CALL = "t1-0-9f2c11ab"
APPROVE = {"decision": "Approve"}
EDIT = {"decision": "Approve", "arguments": {"amount": "many"}}


def digest_of(decision: dict[str, Any]) -> str:
    return decision_digest(ApprovalDecision.model_validate(decision))


def snapshot(reason: str | None, *, wake: str | None = LATER, answers: Any = None, **parked: Any) -> Snapshot:
    given: dict[str, Any] = {"attempt": 1, "control": {"approvals": answers or {}}}
    if reason is not None:
        given["parked"] = {"reason": reason, "turn": 1, "since": PAST, "wake": wake, **parked}
    if reason == "AwaitingApproval":
        given["pendingApprovals"] = [{"callId": CALL, "tool": "refund", "requestedAt": PAST}]
    return Snapshot.model_validate(given)


@pytest.mark.parametrize(
    ("seen", "control", "want"),
    [
        (snapshot(None), {}, True),
        (snapshot("Paused"), {"mode": "Pause"}, False),
        (snapshot("Paused"), {}, True),
        (snapshot("Paused", wake=PAST), {"mode": "Pause"}, False),
        (snapshot("Paused", wake=PAST, onTimeout="Abort"), {"mode": "Pause"}, True),
        (snapshot("AwaitingChild"), {}, False),
        (snapshot("AwaitingChild"), {"mode": "Abort"}, True),
        (snapshot("StoreLost"), {}, True),
        (snapshot("AwaitingApproval"), {}, False),
        (snapshot("AwaitingApproval"), {"mode": "Pause"}, False),
        (snapshot("AwaitingApproval"), {"mode": "Finish"}, True),
        (snapshot("AwaitingApproval"), {"mode": "Abort"}, True),
        (snapshot("AwaitingApproval", wake=PAST), {}, True),
        (snapshot("AwaitingApproval"), {"approvals": {"t9-0-00000000": APPROVE}}, False),
        (snapshot("AwaitingApproval"), {"approvals": {CALL: APPROVE}}, True),
        # An edit that was refused stays in the spec: it must not start a pod again and again.
        (
            snapshot("AwaitingApproval", answers={CALL: {"state": "NotLanded", "digest": digest_of(EDIT)}}),
            {"approvals": {CALL: EDIT}},
            False,
        ),
        (
            snapshot("AwaitingApproval", answers={CALL: {"state": "NotLanded", "digest": digest_of(EDIT)}}),
            {"approvals": {CALL: APPROVE}},
            True,
        ),
    ],
)
def test_a_park_is_over(seen: Snapshot, control: dict[str, Any], want: bool) -> None:
    assert wake_due(seen, Control.model_validate(control), NOW) is want


def test_an_answer_without_a_digest_answers_every_decision() -> None:
    decision = ApprovalDecision.model_validate(APPROVE)
    answers = snapshot("AwaitingApproval", answers={CALL: {"state": "Expired"}}).control.approvals
    assert is_answered(decision, answers[CALL])
    assert not is_answered(decision, None)


@pytest.mark.parametrize(
    ("state", "ended", "want"),
    [
        ("Awaited", [], False),
        ("Awaited", ["t2-0-00000000"], False),
        ("Awaited", [CALL], True),
        ("Background", [CALL], False),
        ("Delivered", [CALL], False),
        ("Abandoned", [CALL], False),
    ],
)
def test_a_run_wakes_at_the_end_of_the_child_that_it_waits_for(state: str, ended: list[str], want: bool) -> None:
    child = {"callId": CALL, "ref": {"kind": "Agent", "name": "a"}, "state": state}
    seen = snapshot("AwaitingChild", wake=None).to_raw() | {"children": [child]}
    assert wake_due(Snapshot.model_validate(seen), Control(), NOW, ended) is want
