"""The state machine of supervision, step by step: what is recorded, what is patched, and what happens only once."""

import re
from typing import Any

import pytest

from pilothouse_api.v1alpha1.agentrun import Supervision
from pilothouse_control.supervision import SupervisionView, find_bound, plan_supervision
from pilothouse_control.supervision.acting import MAX_ACTIONS, action_id
from pilothouse_control.supervision.digested import digest_spec
from pilothouse_control.supervision.findings import judge_rules, kept_marks
from unit.control.supervision.observations import an_observation
from unit.control.supervision.worlds import (
    REPEATED,
    START,
    World,
    a_guard,
    a_judge,
    a_plan,
    a_snapshot,
    at_barrier,
    calling,
)

PAUSE = {**REPEATED, "then": "Pause"}
STEER = {"name": "nudge", "when": "IterationReached", "iterationReached": {"count": 3}, "then": "Steer"}
ABORT = {"name": "stop", "when": "IterationReached", "iterationReached": {"count": 3}, "then": "Abort"}


def control_answer(**parts: Any) -> dict[str, Any]:
    return {"observedGeneration": 9, **parts}


def test_a_run_that_nobody_watches_has_no_record() -> None:
    world = World([a_guard(selector=None)])
    plan = world.settle(calling(3, 9))
    assert plan.record is None
    assert not plan.is_changed
    assert "supervision" not in world.raw["status"]


def test_before_the_first_snapshot_the_record_says_who_watches_and_what_the_runner_waits_for() -> None:
    world = World([a_guard(enforcement="Sync", barrierTimeoutSeconds=90), a_guard("other")])
    world.settle()
    record = world.record
    assert [one.name for one in record.supervisors.values()] == ["guard", "other"]
    assert record.barrier is not None
    assert (record.barrier.timeout_seconds, record.barrier.on_timeout) == (90, "Pause")
    assert record.clock is None


def test_the_barrier_is_the_longest_time_and_the_most_severe_word_of_the_sync_supervisors() -> None:
    world = World(
        [
            a_guard("a", enforcement="Sync", barrierTimeoutSeconds=90, onBarrierTimeout="Continue"),
            a_guard("b", enforcement="Sync", barrierTimeoutSeconds=70, onBarrierTimeout="Abort"),
            a_guard("c"),
        ]
    )
    world.settle()
    barrier = world.record.barrier
    assert barrier is not None
    assert (barrier.timeout_seconds, barrier.on_timeout) == (90, "Abort")


def test_a_finding_is_recorded_then_patched_then_done() -> None:
    world = World([a_guard("guard", PAUSE)])
    world.settle(calling(2, 2))
    assert world.states == []
    world.snapshot = calling(3, 3)
    assert world.look().directive is None
    assert world.states == [("Pause", "Intended")]
    assert world.control == {}
    world.look()
    assert world.control["mode"] == "Pause"
    assert world.states == [("Pause", "Intended")]
    world.look()
    assert world.states == [("Pause", "Done")]
    [action] = world.acted
    assert (action.id, action.source, action.turn, action.generation) == ("sup-000003-guard_loop", "Rule/loop", 3, 1)
    assert world.control["reason"] == f"supervisor guard (Rule/loop): {action.reason}"
    assert world.record.supervisors["uid-guard"].actions.pause == 1


def test_a_rule_fires_once_in_a_visit_and_again_in_the_next() -> None:
    world = World([a_guard("guard", PAUSE)])
    world.settle(calling(3, 3))
    world.person(mode="Run")
    world.settle(calling(4, 5))
    assert world.control["mode"] == "Run"
    world.settle(calling(7, 3, visit=2))
    assert world.control["mode"] == "Pause"
    assert [action.visit for action in world.record.actions] == [1, 2]


def test_a_word_that_is_said_anew_in_the_same_turn_is_told_and_counted_anew() -> None:
    spent = {"name": "spent", "when": "Expression", "expression": {"cel": "run.spend.used > 10"}, "then": "Pause"}
    world = World([a_guard("guard", spent)])
    world.settle(a_snapshot(3, tokens={"used": 11}))
    world.person(mode="Run", reason="go on")
    world.settle(a_snapshot(3, tokens={"used": 11}, visit=2, journalLength=40))
    world.person(mode="Run", reason="go on, I say")
    world.supervisors = [a_guard("guard", {**spent, "expression": {"cel": "run.spend.used > 9"}}, generation=2)]
    world.settle()
    assert world.control["mode"] == "Pause"
    assert [(one.state, one.visit, one.generation) for one in world.acted] == [
        ("Done", 1, 1),
        ("Done", 2, 1),
        ("Done", 2, 2),
    ]
    assert world.record.supervisors["uid-guard"].actions.pause == 3


def test_a_message_that_stands_is_told_once_though_the_next_visit_begins_at_its_turn() -> None:
    rule = {"name": "nudge", "when": "Expression", "expression": {"cel": "run.turn >= 3"}, "then": "Steer"}
    world = World([a_guard("guard", rule)])
    world.settle(a_snapshot(3))
    world.settle(a_snapshot(3, visit=2, journalLength=40))
    assert list(world.control["steer"]) == ["sup-000003-guard_nudge"]
    assert len(world.acted) == 1


def test_a_rule_that_was_changed_is_another_rule() -> None:
    world = World([a_guard("guard", PAUSE)])
    world.settle(calling(3, 3))
    world.person(mode="Run")
    world.supervisors = [a_guard("guard", {**PAUSE, "toolRepeated": {"count": 4}}, generation=2)]
    world.settle(calling(4, 4))
    assert [(action.generation, action.turn) for action in world.record.actions] == [(1, 3), (2, 4)]


def test_a_rule_fires_once_in_a_visit_however_often_the_others_are_changed() -> None:
    def versions(number: int) -> list[dict[str, Any]]:
        changed = [{**STEER, "name": f"n{one}", "iterationReached": {"count": 1 + number}} for one in range(16)]
        failing = [
            {
                "name": f"f{one}",
                "when": "Expression",
                "expression": {"cel": f"run.turn / 0 > {number}"},
                "then": "Pause",
            }
            for one in range(15)
        ]
        return [PAUSE, *changed, *failing]

    world = World([a_guard("guard", *versions(0))])
    world.settle(calling(10, 3))
    world.person(mode="Run")
    for number in range(1, 7):
        world.supervisors = [a_guard("guard", *versions(number), generation=number + 1)]
        world.settle(calling(10 + number, 3))
    assert len(world.record.supervisors["uid-guard"].fired) == 64
    assert [action.action for action in world.acted].count("Pause") == 1
    assert world.control["mode"] == "Run"


def test_of_marks_those_of_rules_in_force_are_kept_and_of_others_that_they_fired() -> None:
    [binding] = World([a_guard("guard", PAUSE)]).view().bound.values()
    [(mark, _)] = digest_spec(binding.spec).rules
    earlier = [f"failed-{mark}", "a", "failed-b", mark, "c", "failed-d", "e"]
    assert kept_marks(binding, earlier, 7) == earlier
    assert kept_marks(binding, earlier, 5) == [f"failed-{mark}", "a", mark, "c", "e"]
    assert kept_marks(binding, earlier, 3) == [f"failed-{mark}", mark, "e"]


def test_a_person_who_resumes_before_the_host_has_noted_its_pause_is_not_paused_again() -> None:
    world = World([a_guard("guard", PAUSE)])
    world.snapshot = calling(3, 3)
    world.look()
    world.look(dies_before="done")
    assert world.control["mode"] == "Pause"
    world.person(mode="Run")
    world.settle()
    assert world.control["mode"] == "Run"
    assert world.states == [("Pause", "Superseded")]


def test_a_person_who_changes_something_else_first_does_not_disarm_a_pause() -> None:
    world = World([a_guard("guard", PAUSE)])
    world.snapshot = calling(3, 3)
    world.look()
    world.person(steer={"hello": {"message": "hello"}})
    world.settle()
    assert world.control["mode"] == "Pause"
    assert world.states == [("Pause", "Done")]


def test_a_host_that_did_not_see_its_forerunner_die_leaves_a_changed_run_to_the_person() -> None:
    world = World([a_guard("guard", PAUSE)])
    world.snapshot = calling(3, 3)
    world.look()
    world.die()
    world.person(steer={"hello": {"message": "hello"}})
    world.settle()
    assert "mode" not in world.control
    assert world.states == [("Pause", "Superseded")]


def test_an_abort_is_patched_until_it_stands() -> None:
    world = World([a_guard("guard", ABORT)])
    world.snapshot = a_snapshot(3)
    world.look()
    world.person(mode="Finish")
    world.settle()
    assert world.control["mode"] == "Abort"
    assert world.states == [("Abort", "Done")]


@pytest.mark.parametrize(("mode", "want"), [("Finish", "Superseded"), ("Abort", "Superseded"), ("Pause", "Done")])
def test_a_pause_does_not_overwrite_what_stands(mode: str, want: str) -> None:
    world = World([a_guard("guard", PAUSE)])
    world.person(mode=mode, reason="mine")
    world.settle(calling(3, 3))
    assert world.control == {"mode": mode, "reason": "mine"}
    assert world.states == [("Pause", want)]


def test_what_the_api_server_refuses_for_good_is_superseded() -> None:
    world = World([a_guard("guard", PAUSE)])
    world.snapshot = calling(3, 3)
    world.look()
    world.refused = frozenset({"sup-000003-guard_loop"})
    world.settle()
    assert world.states == [("Pause", "Superseded")]
    assert world.control == {}


def test_the_most_severe_wins_and_a_steer_goes_beside_a_pause() -> None:
    world = World([a_guard("guard", PAUSE, STEER)])
    world.settle(calling(3, 3))
    assert world.states == [("Pause", "Done"), ("Steer", "Done")]
    assert world.control["mode"] == "Pause"
    assert list(world.control["steer"]) == ["sup-000003-guard_nudge"]


def test_abort_drops_a_steer_and_supersedes_a_pause() -> None:
    world = World([a_guard("a", PAUSE, STEER), a_guard("b", ABORT)])
    world.settle(calling(3, 3))
    assert world.states == [("Pause", "Superseded"), ("Steer", "Dropped"), ("Abort", "Done")]
    assert world.control.get("steer") is None
    assert world.record.supervisors["uid-a"].actions.pause == 0


def test_rules_of_one_supervisor_that_fire_at_once_are_one_intervention_of_each_kind() -> None:
    again = {"name": "again", "when": "IterationReached", "then": "Pause"}
    third = {"name": "third", "when": "IterationReached", "iterationReached": {"count": 2}, "then": "Steer"}
    world = World([a_guard("guard", PAUSE, again, STEER, third)])
    world.settle(calling(3, 3))
    assert [(action.action, action.source) for action in world.record.actions] == [
        ("Pause", "Rule/loop"),
        ("Steer", "Rule/nudge"),
    ]
    assert world.record.actions[0].reason.endswith("; 2 rules of it fired at once")
    assert len(world.record.supervisors["uid-guard"].fired) == 4


def test_a_steer_says_what_its_supervisor_says() -> None:
    world = World([a_guard("guard", STEER, steerMessage="Read the page first.")])
    world.settle(a_snapshot(3))
    assert world.control["steer"]["sup-000003-guard_nudge"]["message"] == "Read the page first."


def test_an_id_that_would_be_too_long_is_hashed() -> None:
    rule = {**STEER, "name": "n" * 60}
    world = World([a_guard("g" * 60, rule), a_guard("h" * 60, rule)])
    world.settle(a_snapshot(3))
    ids = list(world.control["steer"])
    assert [len(one) for one in ids] == [63, 63]
    assert len(set(ids)) == 2


@pytest.mark.parametrize(
    "pairs",
    [
        [("a-b", "c"), ("a", "b-c")],
        [("a", "b c"), ("a", "b-c")],
        [("a", "b_c"), ("a", "b-c")],
        [("a", "ä"), ("a", "ö")],
    ],
)
def test_no_two_rules_share_an_id_whatever_their_names_are(pairs: list[tuple[str, str]]) -> None:
    rules: dict[str, list[dict[str, Any]]] = {}
    for supervisor, rule in pairs:
        rules.setdefault(supervisor, []).append({**STEER, "name": rule})
    ids = [
        action_id(finding, 3)
        for binding in World([a_guard(name, *some) for name, some in rules.items()]).view().bound.values()
        for finding in judge_rules(binding, an_observation(iteration=3), ()).findings
    ]
    assert len(set(ids)) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", one) for one in ids)


def test_answered_messages_of_supervisors_are_pruned_where_the_map_is_half_full() -> None:
    world = World([a_guard("guard", STEER)])
    mine = {f"sup-{n:06d}-guard-nudge": {"message": "x"} for n in range(100, 131)}
    world.person(steer={**mine, "of-a-person": {"message": "y"}})
    landed = {key: {"state": "Landed", "turn": 2} for key in [*list(mine)[:-1], "of-a-person"]}
    world.settle(a_snapshot(3, control=control_answer(steer=landed)))
    assert sorted(world.control["steer"]) == ["of-a-person", "sup-000003-guard_nudge", "sup-000130-guard-nudge"]


def test_a_steer_for_which_there_is_no_room_is_dropped() -> None:
    world = World([a_guard("guard", STEER)])
    world.person(steer={f"p-{n}": {"message": "x"} for n in range(64)})
    world.settle(a_snapshot(3))
    assert world.states == [("Steer", "Dropped")]
    assert len(world.control["steer"]) == 64


def test_landings_are_filled_in_from_the_answers_of_the_runner() -> None:
    world = World([a_guard("guard", PAUSE, STEER)])
    world.settle(calling(3, 3))
    steer = {"sup-000003-guard_nudge": {"state": "Landed", "turn": 4}}
    world.settle(calling(4, 3, control=control_answer(mode={"value": "Pause", "turn": 4}, steer=steer)))
    assert [action.landed_turn for action in world.record.actions] == [4, 4]


def test_an_earlier_mode_is_no_landing() -> None:
    world = World([a_guard("guard", PAUSE)])
    world.settle(calling(3, 3, control=control_answer(mode={"value": "Pause", "turn": 2})))
    assert [action.landed_turn for action in world.record.actions] == [None]


def test_what_was_meant_when_the_run_ends_is_superseded_and_nothing_is_judged_any_more() -> None:
    world = World([a_guard("guard", PAUSE)])
    world.snapshot = calling(3, 3)
    world.look()
    world.settle(calling(4, 9, exit={"signal": "done", "reason": "Complete"}))
    assert world.states == [("Pause", "Superseded")]
    assert world.control == {}


def test_the_newest_twenty_actions_are_kept() -> None:
    world = World([a_guard("guard", PAUSE)])
    for visit in range(1, 31):
        world.settle(calling(visit, 3, visit=visit))
        world.person(mode="Run")
    assert len(world.record.actions) == MAX_ACTIONS
    assert world.record.actions[-1].visit == 30
    assert world.record.supervisors["uid-guard"].actions.pause == 30


def test_sixteen_supervisors_that_all_fire_stay_within_the_record() -> None:
    world = World([a_guard(f"g{n:02d}", PAUSE, STEER) for n in range(16)])
    world.settle(calling(3, 3))
    assert len(world.record.actions) == MAX_ACTIONS
    assert world.control["mode"] == "Pause"
    assert len(world.control["steer"]) == 4
    counts = [record.actions for record in world.record.supervisors.values()]
    assert (sum(one.pause for one in counts), sum(one.steer for one in counts)) == (16, 4)


# ---------------------------------------------------------------- the clock


def test_the_clock_is_the_least_that_the_sync_supervisors_have_seen() -> None:
    world = World([a_guard("a", enforcement="Sync"), a_guard("b", enforcement="Sync"), a_guard("c")])
    world.settle(a_snapshot(1))
    clock = world.record.clock
    assert clock is not None
    assert (clock.visit, clock.turn, clock.journal_length) == (1, 1, 10)


def test_there_is_no_clock_without_a_sync_supervisor() -> None:
    world = World([a_guard("a")])
    world.settle(a_snapshot(1))
    assert world.record.clock is None
    assert world.record.barrier is None


def test_the_clock_is_raised_in_the_write_that_says_done_and_not_before() -> None:
    world = World([a_guard("guard", PAUSE, enforcement="Sync")])
    world.settle(calling(2, 2))
    world.snapshot = calling(3, 3)
    lengths = []
    for _ in range(3):
        world.look()
        clock = world.record.clock
        lengths.append((clock.journal_length if clock else 0, world.states[0][1]))
    assert lengths == [(20, "Intended"), (20, "Intended"), (30, "Done")]


def test_a_finding_of_an_async_supervisor_holds_the_clock_too_until_it_is_carried_out() -> None:
    world = World([a_guard("sync", STEER, enforcement="Sync"), a_guard("async", PAUSE)])
    world.settle(calling(2, 2))
    world.snapshot = calling(2, 3, journalLength=21)
    world.look()
    clock = world.record.clock
    assert clock is not None
    assert clock.journal_length == 20


def test_snapshots_of_one_turn_are_told_apart() -> None:
    world = World([a_guard("guard", enforcement="Sync")])
    for length in (10, 12, 14):
        world.settle(a_snapshot(1, journalLength=length))
        clock = world.record.clock
        assert clock is not None
        assert clock.journal_length == length


def test_a_snapshot_that_is_older_than_what_was_judged_is_not_judged() -> None:
    world = World([a_guard("guard", PAUSE, enforcement="Sync")])
    world.settle(a_snapshot(5))
    world.settle(calling(3, 9))
    assert world.states == []
    clock = world.record.clock
    assert clock is not None
    assert clock.journal_length == 50


def test_the_clock_goes_on_where_no_agent_is_at_work() -> None:
    world = World([a_guard("guard", enforcement="Sync")])
    world.settle(a_snapshot(4, step="fetch", visitCounts=None, maxIterations=None))
    clock = world.record.clock
    assert clock is not None
    assert clock.turn == 4


def test_a_sync_supervisor_that_comes_later_does_not_take_the_clock_back() -> None:
    world = World([a_guard("a", enforcement="Sync")])
    world.settle(a_snapshot(5))
    world.supervisors.append(a_guard("b", enforcement="Sync"))
    world.snapshot = None
    world.settle()
    clock = world.record.clock
    assert clock is not None
    assert clock.turn == 5


def test_a_look_of_an_async_supervisor_that_finds_nothing_writes_nothing() -> None:
    world = World([a_guard("guard")])
    world.settle(a_snapshot(1))
    before = world.raw
    for turn in range(2, 6):
        world.settle(a_snapshot(turn))
    assert world.raw == before


def test_a_pause_of_the_barrier_is_told_once_and_of_the_supervisor_that_is_behind() -> None:
    world = World([a_guard("quick", enforcement="Sync"), a_guard("slow", enforcement="Sync", judge=a_judge())])
    world.settle(at_barrier(1))
    parked = {"reason": "Barrier", "turn": 1, "since": START.isoformat(), "message": "not judged within 60 s"}
    for length in (11, 12):
        world.settle(a_snapshot(1, journalLength=length, parked=parked))
    [action] = world.record.actions
    assert (action.id, action.source, action.state) == ("barrier-000001-slow", "Barrier", "Done")
    assert (action.action, action.reason, action.landed_turn) == ("Pause", "not judged within 60 s", 1)
    assert [one.id for one in world.acted] == [action.id]
    assert world.record.supervisors["uid-slow"].actions.pause == 1
    assert world.control == {}


def test_a_wait_at_the_barrier_that_goes_on_is_no_intervention() -> None:
    world = World([a_guard("guard", enforcement="Sync", judge=a_judge())])
    wake = START.replace(minute=1).isoformat()
    world.settle(a_snapshot(1, parked={"reason": "Barrier", "turn": 1, "since": START.isoformat(), "wake": wake}))
    assert world.record.actions == []


def test_an_abort_of_the_barrier_is_told_when_the_run_has_ended() -> None:
    world = World([a_guard("guard", enforcement="Sync", judge=a_judge())])
    world.settle(a_snapshot(1))
    world.settle(a_snapshot(1, exit={"signal": "aborted", "reason": "BarrierTimeout", "message": "too late"}))
    assert [(one.action, one.source, one.reason) for one in world.record.actions] == [("Abort", "Barrier", "too late")]


# ---------------------------------------------------------------- time


def test_no_progress_is_looked_for_when_it_is_due() -> None:
    rule = {"name": "idle", "when": "NoProgressFor", "noProgressFor": {"seconds": 60}}
    world = World([a_guard("guard", rule)])
    plan = world.settle(a_snapshot(1))
    assert plan.next_look is not None
    assert (plan.next_look - START).total_seconds() == 60
    world.now = plan.next_look
    world.settle()
    assert world.states == [("Pause", "Done")]
    assert plan_supervision(world.view()).next_look is None


def test_a_parked_run_makes_no_progress_and_is_not_blamed_for_it() -> None:
    rule = {"name": "idle", "when": "NoProgressFor", "noProgressFor": {"seconds": 60}}
    world = World([a_guard("guard", rule)])
    since = START.replace(second=59).isoformat()
    world.now = START.replace(hour=5)
    plan = world.settle(a_snapshot(1, parked={"reason": "AwaitingApproval", "turn": 1, "since": since}))
    assert plan.next_look is None
    assert world.states == []


def test_an_expression_that_fails_is_told_once_in_a_visit() -> None:
    rule = {"name": "cel", "when": "Expression", "expression": {"cel": "run.toolCalls['other'] > 2"}}
    world = World([a_guard("guard", rule)])
    for turn in range(1, 4):
        world.settle(a_snapshot(turn))
    assert len(world.logged) == 1
    assert "rule cel" in world.logged[0]
    world.settle(a_snapshot(4, visit=2))
    assert len(world.logged) == 2
    world.settle(calling(5, 3, "lookup", visit=2))
    assert world.states == []


# ---------------------------------------------------------------- live changes


def test_a_deleted_supervisor_stays_in_force_by_its_last_copy() -> None:
    world = World([a_guard("guard", PAUSE, enforcement="Sync")])
    world.settle(a_snapshot(1))
    world.supervisors = []
    world.settle(calling(3, 3))
    assert world.states == [("Pause", "Done")]
    [record] = world.record.supervisors.values()
    assert record.is_deleted
    assert world.record.barrier is not None


def test_one_that_is_made_anew_takes_the_place_of_its_deleted_namesake() -> None:
    world = World([a_guard("guard", PAUSE)])
    world.settle(a_snapshot(1))
    anew = a_guard("guard", STEER)
    metadata = anew.metadata.model_copy(update={"uid": "uid-anew"})
    world.supervisors = [anew.model_copy(update={"metadata": metadata})]
    world.settle(calling(3, 3))
    assert list(world.record.supervisors) == ["uid-anew"]
    assert world.states == [("Steer", "Done")]


def test_a_change_from_sync_to_async_lets_the_runner_go() -> None:
    world = World([a_guard("guard", enforcement="Sync")])
    world.settle(a_snapshot(1))
    world.supervisors = [a_guard("guard", generation=2)]
    world.settle()
    assert world.record.barrier is None
    assert world.record.supervisors["uid-guard"].generation == 2


def test_a_look_may_be_repeated_at_any_time() -> None:
    world = World([a_guard("guard", PAUSE, STEER, enforcement="Sync")])
    world.settle(calling(3, 3))
    view = world.view()
    assert plan_supervision(view) == plan_supervision(view)
    assert not plan_supervision(view).is_changed


def test_nothing_is_judged_while_the_plan_is_not_at_hand() -> None:
    world = World([a_guard("guard", PAUSE, enforcement="Sync")])
    run = world.run
    bound = find_bound(run, (), world.supervisors).bound
    plan = plan_supervision(SupervisionView(run, START, bound, None, calling(3, 9)))
    assert plan.record is not None
    assert plan.record.actions == []
    assert plan.record.clock is None


def test_the_record_comes_back_as_it_was_written() -> None:
    world = World([a_guard("guard", PAUSE, enforcement="Sync")], plan=a_plan())
    world.settle(calling(3, 3))
    raw = world.raw["status"]["supervision"]
    assert Supervision.model_validate(raw).to_raw() == raw
