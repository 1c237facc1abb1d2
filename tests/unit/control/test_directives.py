"""What asks something of a run, and how its answer is found in the run's status."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import ApprovalDecision
from pilothouse_api.wake import decision_digest
from pilothouse_control.directives import (
    Answer,
    Directive,
    answer_of,
    answered_steers,
    approval_directive,
    is_held_at_barrier,
    limits_directive,
    mode_directive,
    prunable_steers,
    reason_to_go_on,
    snapshot_of,
    steer_directive,
)

PAUSE = mode_directive("Pause")
STEER = steer_directive("a1", "look")
LIMITS = limits_directive({"maxIterations": 3})
APPROVE = approval_directive("t1", {"decision": "Approve"})
EDIT = approval_directive("t1", {"decision": "Approve", "arguments": {"amount": "many"}})
APPROVED, EDITED = (
    decision_digest(ApprovalDecision.model_validate(directive.patch["control"]["approvals"]["t1"]))
    for directive in (APPROVE, EDIT)
)


def run_with(control: Mapping[str, Any], phase: str = "Running", *, parked: str | None = None) -> AgentRun:
    snapshot: dict[str, Any] = {"attempt": 1, "turn": 7, "control": control}
    if parked:
        snapshot["parked"] = {"reason": parked, "turn": 7, "since": "t"}
    return AgentRun.model_validate(
        {
            "metadata": {"name": "r1", "generation": 3},
            "spec": {"workflowRef": {"name": "w"}},
            "status": {"phase": phase, "run": snapshot},
        }
    )


PAUSED = {"value": "Pause", "turn": 4}
CASES: list[tuple[str, Directive, AgentRun, Answer | None]] = [
    ("nothing said yet", PAUSE, run_with({}), None),
    ("landed", PAUSE, run_with({"observedGeneration": 3, "mode": PAUSED}), Answer("Landed", 4)),
    ("an older pause is no answer", PAUSE, run_with({"observedGeneration": 2, "mode": PAUSED}), None),
    (
        "answered as one that cannot land",
        PAUSE,
        run_with({"observedGeneration": 3, "mode": {"value": "Finish", "turn": 2, "state": "NotLanded"}}),
        Answer("NotLanded", 2),
    ),
    ("the run has ended", PAUSE, run_with({"observedGeneration": 2}, "Succeeded"), Answer("Ended", 7)),
    ("steer landed", STEER, run_with({"steer": {"a1": {"state": "Landed", "turn": 5}}}), Answer("Landed", 5)),
    ("steer is late", STEER, run_with({"steer": {"a1": {"state": "NotLanded", "turn": 6}}}), Answer("NotLanded", 6)),
    ("another steer landed", STEER, run_with({"steer": {"b2": {"state": "Landed", "turn": 5}}}), None),
    (
        "a paused run keeps a steer",
        STEER,
        run_with({"observedGeneration": 3, "mode": PAUSED}, "Paused", parked="Paused"),
        Answer("Kept", 7),
    ),
    (
        "a paused run that has not read yet",
        STEER,
        run_with({"observedGeneration": 2, "mode": PAUSED}, "Paused", parked="Paused"),
        None,
    ),
    (
        "a decision landed",
        APPROVE,
        run_with({"approvals": {"t1": {"state": "Landed", "turn": 2, "digest": APPROVED}}}),
        Answer("Landed", 2),
    ),
    (
        "an edit was refused",
        EDIT,
        run_with({"approvals": {"t1": {"state": "NotLanded", "turn": 2, "digest": EDITED, "message": "no number"}}}),
        Answer("NotLanded", 2, "no number"),
    ),
    (
        "the decision before it was refused",
        APPROVE,
        run_with({"approvals": {"t1": {"state": "NotLanded", "turn": 2, "digest": EDITED}}}),
        None,
    ),
    (
        "nobody decided in time",
        APPROVE,
        run_with({"approvals": {"t1": {"state": "Expired", "turn": 2}}}),
        Answer("Expired", 2),
    ),
    ("limits hold", LIMITS, run_with({"limits": {"generation": 3, "turn": 6}}), Answer("Landed", 6)),
    ("older limits hold", LIMITS, run_with({"limits": {"generation": 2, "turn": 6}}), None),
]


@pytest.mark.parametrize(("case", "directive", "run", "want"), CASES)
def test_an_answer_is_found_in_status(case: str, directive: Directive, run: AgentRun, want: Answer | None) -> None:
    assert answer_of(run, snapshot_of(run), directive, generation=3) == want


def test_a_mode_without_a_reason_takes_the_last_reason_and_its_author_away() -> None:
    assert mode_directive("Run").patch == {"control": {"mode": "Run", "reason": None, "by": None}}
    want = {"control": {"mode": "Pause", "reason": "lunch", "by": "ada"}}
    assert mode_directive("Pause", "lunch", "ada").patch == want


def test_a_steer_message_says_who_gave_it_where_that_is_known() -> None:
    assert steer_directive("a1", "look").patch == {"control": {"steer": {"a1": {"message": "look"}}}}
    want = {"control": {"steer": {"a1": {"message": "look", "by": "ada"}}}}
    assert steer_directive("a1", "look", "ada").patch == want


def test_a_writer_takes_away_its_own_answered_messages_once_the_map_is_half_full() -> None:
    own = re.compile("s-")
    many = [f"s-{number}" for number in range(16)] + [f"a-{number}" for number in range(16)]
    assert prunable_steers(many, {"s-1", "s-7", "a-3", "s-99"}, own) == {"s-1", "s-7"}
    assert prunable_steers(many[:-1], {"s-1"}, own) == frozenset()
    patch = steer_directive("s-x", "look", taken_away=["s-7", "s-1"]).patch
    assert patch == {"control": {"steer": {"s-1": None, "s-7": None, "s-x": {"message": "look"}}}}


@pytest.mark.parametrize("report", [None, {}, {"control": 7}, {"control": {"steer": "many"}}])
def test_a_runner_that_says_nothing_readable_has_answered_nothing(report: Any) -> None:
    run = run_with({})
    run = run.model_copy(update={"status": run.status.model_copy(update={"run": report})})
    assert answered_steers(run) == frozenset()


@pytest.mark.parametrize(
    ("parked", "mode", "held", "reason"),
    [
        ({"reason": "Barrier"}, "Run", True, "resumed at the barrier of turn 7 (41 facts)"),
        ({"reason": "Barrier"}, None, True, None),
        ({"reason": "Barrier", "wake": "t"}, "Run", False, None),
        ({"reason": "Paused"}, "Pause", False, None),
        (None, "Run", False, None),
    ],
)
def test_a_run_that_the_barrier_has_paused_is_told_to_go_on_in_words_that_change_something(
    parked: dict[str, Any] | None, mode: str | None, held: bool, reason: str | None
) -> None:
    snapshot = {"attempt": 1, "turn": 7, "journalLength": 41, "parked": parked}
    raw = {
        "metadata": {"name": "r1"},
        "spec": {"workflowRef": {"name": "w"}, "control": {"mode": mode}},
        "status": {"run": snapshot},
    }
    run = AgentRun.model_validate(raw)
    assert (is_held_at_barrier(run), reason_to_go_on(run)) == (held, reason)
