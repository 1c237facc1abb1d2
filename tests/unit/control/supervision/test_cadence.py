"""When a judge is asked, and what its answer or its silence means."""

from typing import Any

import pytest

from pilothouse_api.judging import JudgeFailure, Verdict
from pilothouse_api.v1alpha1.agentrun import JudgeRecord
from pilothouse_control.supervision import JudgeAvailable, JudgeUnavailable
from unit.control.supervision.worlds import World, a_guard, a_judge, a_snapshot, at_barrier, calling

PASSED = Verdict(passed=True, reason="fine", tokens=10)
FAILED = Verdict(passed=False, reason="It pays twice.", tokens=10)
TIMEOUT = JudgeFailure(type="Timeout", message="no verdict within 30 s", tokens=5)
OFF = JudgeUnavailable("UnknownModel", "the platform has no model small")


def judged(judge: dict[str, Any] | None = None, **spec: Any) -> World:
    return World([a_guard("guard", judge=judge or a_judge(), **spec)])


def judge_of(world: World) -> JudgeRecord:
    judge = world.record.supervisors["uid-guard"].judge
    assert judge is not None
    return judge


def asked_at(world: World, turns: int) -> list[int]:
    """Return the iterations at which a judge that answers at once is asked."""
    asked = []
    for turn in range(turns + 1):
        world.settle(a_snapshot(turn))
        if world.underway:
            asked.append(world.underway["uid-guard"].observation.iteration)
            world.answer(PASSED)
            world.settle()
    return asked


@pytest.mark.parametrize(("every", "want"), [(1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (5, [5]), (7, [])])
def test_a_judge_is_asked_where_a_multiple_is_crossed(every: int, want: list[int]) -> None:
    assert asked_at(judged(a_judge(everyNIterations=every)), 6) == want


def test_a_multiple_that_no_snapshot_shows_is_crossed_by_the_next_one() -> None:
    world = judged(a_judge(everyNIterations=3))
    world.settle(a_snapshot(2))
    assert not world.underway
    world.settle(a_snapshot(4))
    assert world.underway["uid-guard"].observation.iteration == 4


def test_a_judge_is_asked_once_for_an_iteration_however_many_snapshots_it_has() -> None:
    world = judged()
    world.settle(a_snapshot(1))
    world.answer(PASSED)
    for length in range(11, 15):
        world.settle(a_snapshot(1, journalLength=length))
    assert judge_of(world).calls == 1


def test_a_request_is_what_the_supervisor_and_the_observation_say() -> None:
    world = judged(a_judge(timeoutSeconds=12))
    world.settle(a_snapshot(1))
    ask = world.underway["uid-guard"]
    assert (ask.model, ask.criteria, ask.timeout_seconds, ask.journal_length) == ("small", "Be fair.", 12, 10)
    assert ask.observation.tool_calls == {"lookup": 1}


def test_a_verdict_under_way_makes_the_next_slot_skip_and_does_not_hold_up_the_rules() -> None:
    world = judged()
    world.settle(a_snapshot(1))
    world.settle(a_snapshot(2))
    world.settle(calling(3, 3))
    assert world.states == [("Pause", "Done")]
    assert judge_of(world).calls == 1
    world.answer(PASSED)
    world.settle()
    assert judge_of(world).asked_at is None
    world.settle(a_snapshot(4))
    assert judge_of(world).calls == 2


def test_a_verdict_that_fails_the_run_is_carried_out() -> None:
    world = judged()
    world.settle(a_snapshot(1))
    world.answer(FAILED)
    world.settle()
    [action] = world.record.actions
    assert (action.id, action.action, action.source) == ("judge-000001-guard", "Pause", "Judge")
    assert (action.state, action.reason) == ("Done", "It pays twice.")
    assert judge_of(world).tokens_used == 10


def test_the_reason_of_a_verdict_is_the_text_of_its_steer() -> None:
    world = judged(onViolation="Steer", steerMessage="Not this.")
    world.settle(a_snapshot(1))
    world.answer(FAILED)
    world.settle()
    assert world.control["steer"] == {"judge-000001-guard": {"message": "It pays twice."}}


def test_under_sync_a_judge_is_asked_once_the_turn_is_over() -> None:
    world = judged(enforcement="Sync")
    world.settle(a_snapshot(1, journalLength=7))
    assert world.underway == {}
    world.settle(at_barrier(1))
    [ask] = world.underway.values()
    assert ask.journal_length == 10
    clock = world.record.clock
    assert clock is not None
    assert clock.journal_length == 7


def test_a_verdict_that_fails_the_run_without_a_word_gives_a_message_that_is_none_the_less_one() -> None:
    world = judged(onViolation="Steer")
    world.settle(a_snapshot(1))
    world.answer(Verdict(passed=False, reason=" \u2028"))
    world.settle()
    assert world.control["steer"] == {"judge-000001-guard": {"message": "the judge gave no reason"}}


def test_a_verdict_on_a_visit_that_has_ended_is_dropped_and_paid() -> None:
    world = judged()
    world.settle(a_snapshot(1))
    world.settle(a_snapshot(2, visit=2, iteration=0))
    world.answer(FAILED)
    world.settle()
    assert world.states == []
    assert judge_of(world).tokens_used == 10


def test_a_verdict_is_dropped_once_no_agent_is_at_work() -> None:
    world = judged()
    world.settle(a_snapshot(1))
    world.settle(a_snapshot(2, step="fetch", visitCounts=None))
    assert judge_of(world).asked_at is None
    world.answer(FAILED)
    world.settle()
    assert world.states == []
    assert judge_of(world).tokens_used == 10


def test_a_verdict_that_a_dead_host_asked_for_is_asked_for_again_and_counted_once() -> None:
    world = judged(enforcement="Sync")
    world.snapshot = at_barrier(1)
    world.look(dies_before="asks")
    world.settle()
    assert world.underway["uid-guard"].is_repeated
    assert judge_of(world).calls == 1
    world.answer(PASSED)
    world.settle()
    assert judge_of(world).calls == 1
    assert world.record.clock is not None


@pytest.mark.parametrize(("on_error", "want"), [("Ignore", []), ("Pause", ["Pause"]), ("Abort", ["Abort"])])
def test_a_failure_means_what_on_error_says(on_error: str, want: list[str]) -> None:
    world = judged(a_judge(onError=on_error))
    world.settle(a_snapshot(1))
    world.answer(TIMEOUT)
    world.settle()
    assert [action.action for action in world.record.actions] == want
    assert all(action.source == "JudgeError" for action in world.record.actions)
    assert all(action.reason == "judge unavailable (Timeout)" for action in world.record.actions)
    judge = judge_of(world)
    assert (judge.failures, judge.tokens_used, judge.last_error) == (1, 5, "Timeout: no verdict within 30 s")


@pytest.mark.parametrize(("on_error", "want"), [("Ignore", []), ("Pause", ["Pause"]), ("Abort", ["Abort"])])
def test_a_judge_that_cannot_be_asked_is_off_or_as_good_as_one_that_fails(on_error: str, want: list[str]) -> None:
    world = judged(a_judge(onError=on_error), enforcement="Sync")
    world.judges["uid-guard"] = OFF
    world.settle(at_barrier(1))
    assert not world.underway
    assert [action.action for action in world.record.actions] == want
    assert all(action.reason == "judge unavailable (UnknownModel)" for action in world.record.actions)
    assert judge_of(world).failures == len(want)
    clock = world.record.clock
    assert clock is not None
    assert clock.turn == 1


def test_a_judge_that_is_off_takes_its_slot_once_it_can_be_asked() -> None:
    world = judged()
    world.judges["uid-guard"] = OFF
    world.settle(a_snapshot(1))
    assert not world.underway
    world.judges["uid-guard"] = JudgeAvailable("Be fair.")
    world.settle()
    assert world.underway["uid-guard"].observation.iteration == 1


def test_what_nobody_knows_of_a_judge_yet_is_waited_for() -> None:
    world = judged(enforcement="Sync")
    del world.judges["uid-guard"]
    world.settle(at_barrier(1))
    assert not world.underway
    assert world.record.clock is None


@pytest.mark.parametrize(("on_error", "want"), [("Ignore", []), ("Abort", ["Abort"])])
def test_an_exhausted_budget_is_an_error_and_nobody_is_asked(on_error: str, want: list[str]) -> None:
    world = judged(a_judge(tokenBudget=10, onError=on_error))
    world.settle(a_snapshot(1))
    world.answer(PASSED)
    world.settle()
    for turn in range(2, 5):
        world.settle(a_snapshot(turn))
    assert not world.underway
    assert [action.action for action in world.record.actions if action.state == "Done"][:1] == want
    judge = judge_of(world)
    assert judge.calls == 1
    assert (judge.last_error or "").startswith("BudgetExceeded: 10 tokens of judge.tokenBudget 10")
    assert judge.failures == (3 if on_error == "Abort" else 1)


def test_a_budget_is_of_the_run_and_not_of_a_visit() -> None:
    world = judged(a_judge(tokenBudget=15))
    for visit in range(1, 5):
        world.settle(a_snapshot(visit, visit=visit, iteration=1))
        if world.underway:
            world.answer(PASSED)
            world.settle()
    assert judge_of(world).tokens_used == 20


def test_the_clock_waits_for_a_due_verdict() -> None:
    world = judged(enforcement="Sync")
    world.settle(at_barrier(0))
    plan = world.settle(at_barrier(1))
    clock = world.record.clock
    assert clock is None or clock.turn == 0
    assert plan.next_look is not None
    world.answer(PASSED)
    world.settle()
    clock = world.record.clock
    assert clock is not None
    assert clock.turn == 1


@pytest.mark.parametrize("on_error", ["Ignore", "Pause"])
def test_a_judge_that_hangs_is_a_timeout_however_long_its_client_waits(on_error: str) -> None:
    world = judged(a_judge(onError=on_error), enforcement="Sync")
    plan = world.settle(at_barrier(1))
    assert plan.next_look is not None
    world.now = plan.next_look
    world.settle()
    assert judge_of(world).failures == 1
    assert [action.state for action in world.record.actions] == ["Done"] * (on_error == "Pause")
    clock = world.record.clock
    assert clock is not None
    assert clock.turn == 1


def test_a_sync_slot_waits_until_the_answer_that_nobody_needs_is_out_of_the_way() -> None:
    world = judged(enforcement="Sync")
    world.settle(at_barrier(1))
    world.settle(at_barrier(2, visit=2, iteration=1))
    clock = world.record.clock
    assert clock is None
    world.answer(FAILED)
    world.settle()
    assert world.underway["uid-guard"].visit == 2
    world.answer(PASSED)
    world.settle()
    clock = world.record.clock
    assert clock is not None
    assert clock.visit == 2
    assert world.states == []


def test_a_judge_that_is_taken_away_is_not_waited_for() -> None:
    world = judged(enforcement="Sync")
    world.settle(at_barrier(1))
    world.supervisors = [a_guard("guard", enforcement="Sync", generation=2)]
    world.settle()
    assert world.record.clock is not None
    world.answer(FAILED)
    world.settle()
    assert world.states == []
    assert judge_of(world).tokens_used == 10
