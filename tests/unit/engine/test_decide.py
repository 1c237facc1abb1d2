"""The rules that stand above every step: which wins, and that the one look that skips them skips none in vain."""

import hashlib
import json
from itertools import product
from typing import Any

import pytest

from pilothouse_api.structs import Control, PlannedText
from pilothouse_engine.actions import Action, Commit, Execute, Finish, Inputs, ReadControl, Release
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.control import RETRY_SECONDS
from pilothouse_engine.decide import (
    RULES,
    abort_grace_left,
    enforce_deadline,
    is_undisturbed,
    next_action,
    remaining_seconds,
    wait_while_parked,
)
from pilothouse_engine.facts import (
    AttemptStarted,
    CallFinished,
    CallStarted,
    ModeAnswered,
    ParkBegan,
    ParkReleased,
    RunEnded,
    RunStarted,
    SteerAnswered,
    StepEntered,
    StepFinished,
)
from pilothouse_engine.ports import Directives, StoreFailure
from pilothouse_engine.settings import Settings
from pilothouse_engine.state import RunState
from pilothouse_engine.steps.contract import StepCall
from unit.engine.scenarios import agent_step, build_plan, function_step, response_step

NOW = 1000.0


def catalog() -> Catalog:
    return Catalog(
        build_plan(agent_step(), active_deadline_seconds=60),
        lambda endpoint: None,
        lambda endpoint: None,
        is_durable=True,
    )


def state(*, attempt: int = 1, park: bool = False, ended: bool = False, active: float = 0.0) -> RunState:
    built = RunState()
    built.apply(RunStarted(NOW, "d"))
    built.apply(AttemptStarted(NOW, attempt))
    built.active_seconds = active
    if park:
        built.apply(ParkBegan(NOW, "Paused", 1, NOW + 300, "Release"))
    if ended:
        built.apply(RunEnded(NOW, "default", "Complete"))
    return built


def inputs(**fields: Any) -> Inputs:
    given = {"published_length": 0, "opened_length": 0, "attempt": 1, "settle": None, "has_begun": True} | fields
    return Inputs(settings=Settings(), plan_digest="d", now=NOW, read_at=NOW, **given)


def test_where_one_look_finds_nothing_no_rule_has_anything_to_do() -> None:
    found = {True: 0, False: 0}
    cases = product((1, 2), (False, True), (False, True), (0.0, 60.0), (None, 0, 9), (None, "Aborted"), (False, True))
    for attempt, park, ended, active, published, settle, is_stopping in cases:
        run = state(attempt=attempt, park=park, ended=ended, active=active)
        known = inputs(published_length=published, settle=settle, is_stopping=is_stopping, has_begun=attempt == 1)
        quiet = is_undisturbed(catalog(), run, known)
        found[quiet] += 1
        assert quiet == all(rule(catalog(), run, known) is None for rule in RULES)
    assert found[True] >= 1 and found[False] > 100


@pytest.mark.parametrize(
    ("run", "known", "want"),
    [
        (state(attempt=2, ended=True), inputs(has_begun=False), Commit),
        (state(), inputs(has_begun=False), Commit),
        (state(ended=True), inputs(is_stopping=True), Finish),
        (state(ended=True), inputs(published_length=None), Finish),
        (state(), inputs(published_length=None), ReadControl),
        (state(park=True), inputs(published_length=None, is_stopping=True), Commit),
        (state(), inputs(published_length=None, is_stopping=True), Commit),
        (state(), inputs(settle="Aborted", published_length=9), ReadControl),
        (state(active=60.0), inputs(published_length=9), Commit),
    ],
)
def test_the_rules_win_in_their_order(run: RunState, known: Inputs, want: type[Action]) -> None:
    assert isinstance(next_action(catalog(), run, known), want)


def test_a_released_park_lets_go_at_once() -> None:
    run = state(park=True)
    run.apply(ParkReleased(NOW))
    assert next_action(catalog(), run, inputs(is_stopping=True)) == Release()


# ---------------------------------------------------------------- what the rules say


def said(action: Action | None) -> tuple[Any, ...]:
    """The facts that a decision commits."""
    assert isinstance(action, Commit), action
    return action.facts


def read(run: RunState, **fields: Any) -> Inputs:
    """Inputs after a look at the run's object that found nothing to do."""
    known = inputs(**fields)
    known.read_tick = run.tick
    known.directives = known.directives or Directives("uid-1", 1)
    return known


def test_the_first_attempt_begins_the_run_and_a_later_one_only_takes_it_over() -> None:
    new = inputs(has_begun=False)
    assert said(next_action(catalog(), RunState(), new)) == (RunStarted(NOW, "d"), AttemptStarted(NOW, 1))
    assert said(next_action(catalog(), state(), inputs(attempt=2, has_begun=False))) == (AttemptStarted(NOW, 2),)


def test_a_pod_that_has_the_number_of_another_one_fences_it_as_well() -> None:
    assert said(next_action(catalog(), state(), inputs(has_begun=False))) == (AttemptStarted(NOW, 1),)


def test_an_attempt_that_is_asked_to_let_go_parks_and_releases_at_once() -> None:
    run = state()
    run.turn = 4
    assert said(next_action(catalog(), run, inputs(is_stopping=True))) == (
        ParkBegan(NOW, "Stopped", 4),
        ParkReleased(NOW),
    )
    assert said(next_action(catalog(), state(park=True), inputs(is_stopping=True))) == (ParkReleased(NOW),)


def test_the_object_is_read_before_anything_else_and_waited_for_where_it_cannot_be() -> None:
    unread = inputs(published_length=None)
    assert next_action(catalog(), state(), unread) == ReadControl()
    away = inputs(published_length=None, failure=StoreFailure("Unavailable", "503"))
    away.read_tick = state().tick
    assert next_action(catalog(), state(), away) == ReadControl(RETRY_SECONDS)
    away.now = NOW + 3600
    assert said(next_action(catalog(), state(), away)) == (
        ParkBegan(NOW + 3600, "ControlLost", 0, message="Unavailable: 503"),
    )


def test_a_journal_that_is_shorter_than_what_was_published_ends_the_run_and_says_both() -> None:
    ended = said(next_action(catalog(), state(), inputs(published_length=9, opened_length=3)))[-1]
    assert (ended.signal, ended.reason, ended.error_type) == ("error", "JournalLost", "JournalLost")
    assert "holds 3 facts" in ended.message and "there were 9" in ended.message
    assert ended.message == ended.error_message


@pytest.mark.parametrize(
    ("active", "later", "want"), [(59.0, 0.0, 1.0), (50.0, 4.0, 6.0), (60.0, 0.0, 0.0), (50.0, 15.0, -5.0)]
)
def test_what_remains_of_the_deadline_counts_the_time_since_the_newest_fact(
    active: float, later: float, want: float
) -> None:
    assert remaining_seconds(catalog(), state(active=active), NOW + later) == want


def test_a_clock_behind_the_newest_fact_gives_no_time() -> None:
    assert remaining_seconds(catalog(), state(active=50.0), NOW - 30) == 10.0


def test_a_run_past_its_deadline_fails_and_a_parked_one_does_not() -> None:
    ended = said(next_action(catalog(), state(active=60.0), inputs()))[-1]
    assert (ended.signal, ended.reason) == ("error", "DeadlineExceeded")
    assert "active for 60 s" in ended.message and "activeDeadlineSeconds" in ended.message
    parked = state(park=True, active=60.0)
    assert enforce_deadline(catalog(), parked, read(parked)) is None
    assert enforce_deadline(catalog(), state(ended=True, active=60.0), inputs()) is None
    assert enforce_deadline(catalog(), state(active=59.9), inputs()) is None


# ---------------------------------------------------------------- settling


def settled(run: RunState, reason: str, control: Any = None, **fields: Any) -> tuple[Any, ...]:
    directives = Directives("uid-1", 1, control=Control.read(control) if control else None)
    return said(next_action(catalog(), run, read(run, settle=reason, directives=directives, **fields)))


def test_a_settling_attempt_reads_the_object_and_closes_the_run_for_the_cause_it_was_given() -> None:
    assert next_action(catalog(), state(), inputs(settle="DeadlineExceeded")) == ReadControl()
    (ended,) = settled(state(), "DeadlineExceeded")
    assert (ended.signal, ended.reason, ended.error_type) == ("error", "DeadlineExceeded", "DeadlineExceeded")
    assert ended.message == "closed by a settling attempt: DeadlineExceeded"


def test_a_settled_abort_lands_first_and_says_by_whom_and_why() -> None:
    control = {"mode": "Abort", "reason": "too dear", "by": "ada"}
    landed, ended = settled(state(), "Aborted", control)
    assert landed == ModeAnswered(NOW, 0, "Abort", "Landed", "too dear", "ada")
    assert (ended.signal, ended.reason) == ("aborted", "Aborted")
    assert ended.message == "aborted at turn 0 by ada: too dear; closed by a settling attempt: Aborted"


def test_an_abort_that_landed_before_is_not_landed_again_by_settling() -> None:
    run = state()
    run.apply(ModeAnswered(NOW, 3, "Abort", by="eve"))
    (ended,) = settled(run, "Aborted", {"mode": "Abort", "by": "ada"})
    assert ended.message.startswith("aborted at turn 3 by eve; ")


def test_an_abort_that_is_asked_for_lands_in_no_run_that_is_settled_for_another_cause() -> None:
    facts = settled(state(), "DeadlineExceeded", {"mode": "Abort"})
    assert [fact for fact in facts if isinstance(fact, ModeAnswered) and fact.state == "Landed"] == []
    assert facts[-1].reason == "DeadlineExceeded"


def test_directives_that_a_settled_run_cannot_follow_are_answered() -> None:
    answers = settled(state(), "Aborted", {"mode": "Abort", "steer": {"s": {"message": "go on"}}})
    assert SteerAnswered(NOW, 0, "s", "NotLanded") in answers


def test_a_run_that_is_settled_without_its_journal_says_that_nobody_knows_what_calls_did() -> None:
    (ended,) = settled(state(), "Aborted", published_length=9, opened_length=0)
    assert ended.message == (
        "closed by a settling attempt: Aborted; the journal was lost, so nobody knows what open calls did"
    )


def test_a_run_is_settled_without_directives_too() -> None:
    run = state()
    (ended,) = said(next_action(catalog(), run, inputs(settle="Aborted", read_tick=run.tick)))
    assert (ended.signal, ended.reason) == ("aborted", "Aborted")


def test_nothing_waits_where_nothing_is_parked() -> None:
    assert wait_while_parked(catalog(), state(), inputs()) is None


# ---------------------------------------------------------------- between steps


def flow(**spec: Any) -> Catalog:
    steps = (
        response_step("first", {"default": "second"}, a="ticket"),
        response_step("second", {"default": "work", "aborted": "first"}, a="ticket"),
        agent_step("work", {"resolved": "end", "aborted": "first"}),
    )
    plan = build_plan(*steps, active_deadline_seconds=60, **spec)
    return Catalog(plan, lambda endpoint: None, lambda endpoint: None, is_durable=True)


def after(step: str, kind: str, signal: str, *facts: Any) -> RunState:
    run = state()
    for fact in (StepEntered(NOW, step, 1, kind, 1), *facts, StepFinished(NOW, signal)):
        run.apply(fact)
    return run


def between(run: RunState, **fields: Any) -> Action:
    return next_action(flow(), run, read(run, **fields))


def test_a_run_begins_at_its_first_step_and_follows_routes() -> None:
    assert said(between(state())) == (StepEntered(NOW, "first", 1, "Response", 1),)
    assert said(between(after("first", "Response", "default"))) == (StepEntered(NOW, "second", 2, "Response", 2),)


def test_the_turns_of_an_agent_step_are_its_model_calls() -> None:
    assert said(between(after("second", "Response", "default"))) == (StepEntered(NOW, "work", 2, "Agent", 0),)


def test_a_signal_that_no_route_maps_ends_the_run() -> None:
    ended = said(between(after("work", "Agent", "needs_human")))[-1]
    assert (ended.signal, ended.reason) == ("needs_human", "UnroutedSignal")
    assert said(between(after("work", "Agent", "resolved")))[-1].reason == "Complete"


def test_a_run_that_goes_in_circles_ends_at_its_limit_of_visits() -> None:
    run = after("first", "Response", "default")
    run.visits = 3
    limited = flow(maxStepVisits=3)
    ended = said(next_action(limited, run, read(run)))[-1]
    assert (ended.signal, ended.reason) == ("error", "StepVisitLimit")
    assert "3 visits were made" in ended.message and "maxStepVisits" in ended.message
    run.visits = 2
    assert isinstance(said(next_action(limited, run, read(run)))[-1], StepEntered)


ABORT = ModeAnswered(NOW, 1, "Abort")


def test_an_abort_between_steps_ends_the_run() -> None:
    run = state()
    run.apply(ABORT)
    ended = said(between(run))[-1]
    assert (ended.signal, ended.reason) == ("aborted", "Aborted")


@pytest.mark.parametrize(
    ("run", "later", "is_followed"),
    [
        (after("work", "Agent", "aborted", ABORT), 0.0, True),
        (after("work", "Agent", "aborted", ABORT), 29.9, True),
        (after("work", "Agent", "aborted", ABORT), 30.0, False),  # abortGraceSeconds
        (after("first", "Response", "aborted", ABORT), 0.0, False),  # first maps no route for it
        (after("second", "Response", "aborted", ABORT), 0.0, True),
        (after("first", "Response", "default", ABORT), 0.0, True),
        (after("second", "Response", "default", ABORT), 0.0, False),  # work is an Agent
    ],
)
def test_the_mapped_route_of_an_abort_is_followed_within_its_grace_and_through_some_kinds(
    run: RunState, later: float, is_followed: bool
) -> None:
    known = read(run)
    known.now = NOW + later
    last = said(next_action(flow(), run, known))[-1]
    assert isinstance(last, StepEntered if is_followed else RunEnded)
    if isinstance(last, RunEnded):
        assert (last.signal, last.reason) == ("aborted", "Aborted")


def test_the_route_of_an_abort_waits_for_no_control() -> None:
    run = after("work", "Agent", "aborted", ABORT)
    assert isinstance(said(next_action(flow(), run, inputs()))[-1], StepEntered)


def test_a_finish_follows_routes_but_begins_no_agent() -> None:
    finish = ModeAnswered(NOW, 1, "Finish")
    directives = Directives("uid-1", 2, control=Control.read({"mode": "Finish"}))
    followed = between(after("first", "Response", "default", finish), directives=directives)
    assert isinstance(said(followed)[-1], StepEntered)
    ended = said(between(after("second", "Response", "default", finish), directives=directives))[-1]
    assert (ended.signal, ended.reason) == ("default", "FinishedEarly")


def test_how_long_an_abort_leaves() -> None:
    assert abort_grace_left(state(), inputs()) == float("inf")
    run = state()
    run.apply(ABORT)
    known = inputs()
    known.now = NOW + 12
    assert abort_grace_left(run, known) == 18.0


# ---------------------------------------------------------------- a step of the graph


def graph(effect: str, *facts: Any) -> tuple[Catalog, RunState]:
    step = function_step("fetch", effect=effect)
    plan = build_plan(step, active_deadline_seconds=60)
    run = state()
    for fact in (StepEntered(NOW, "fetch", 1, "Function", 1), *facts):
        run.apply(fact)
    return Catalog(plan, lambda endpoint: None, lambda endpoint: None, is_durable=True), run


CALLED = CallStarted(NOW, "t1-0-d", "fetch", "Once", "key", "d", 1)


def test_a_step_of_the_graph_runs_once_control_was_read() -> None:
    plan, run = graph("Once")
    run.context["ticket"], run.engine_context["_last_error"] = "I was charged twice", "none"
    assert next_action(plan, run, inputs()) == ReadControl()
    action = next_action(plan, run, read(run))
    assert isinstance(action, Execute)
    (execution,) = action.executions
    started = execution.started
    assert (started.at, started.tool, started.effect, started.attempt) == (NOW, "fetch", "Once", 1)
    assert started.id == f"t1-0-{started.digest[:8]}" and len(started.key) == 64
    assert (execution.timeout, execution.timeout_type, execution.is_tool) == (float("inf"), "AbortGrace", False)
    assert isinstance(execution.work, StepCall)
    assert execution.work.context == {"ticket": "I was charged twice", "_last_error": "none"}
    assert (execution.work.may_repeat, execution.work.idempotency_key) == (False, started.key)


def test_a_step_that_was_lost_with_its_attempt_is_repeated_unless_its_effect_is_unknown() -> None:
    plan, run = graph("Once", CALLED)
    (unknown,) = said(next_action(plan, run, read(run)))
    assert (unknown.id, unknown.is_unknown, unknown.error_type) == ("t1-0-d", True, "EffectUnknown")
    plan, run = graph("Idempotent", CALLED)
    assert isinstance(next_action(plan, run, read(run)), Execute)


def test_the_end_of_a_steps_call_is_the_end_of_the_step() -> None:
    end = CallFinished(
        NOW, "t1-0-d", "", "tool_error", "error", "no", writes={"a": 1}, error_type="HttpStatus", result={"b": 2}
    )
    plan, run = graph("Once", CALLED, end)
    assert said(next_action(plan, run, read(run))) == (
        StepFinished(NOW, "error", {"a": 1}, "HttpStatus", "no", result={"b": 2}),
    )
    plan, run = graph("Once", CALLED, CallFinished(NOW, "t1-0-d", ""))
    assert said(next_action(plan, run, read(run)))[0].signal == "error"


def test_a_step_that_an_abort_meets_is_not_run() -> None:
    plan, run = graph("Once", ModeAnswered(NOW, 1, "Abort", reason="stop", by="ada"))
    (finished,) = said(next_action(plan, run, read(run)))
    assert (finished.signal, finished.error_type) == ("aborted", "Aborted")
    assert finished.error_message == "aborted at turn 1 by ada: stop"
    plan, run = graph("Once", ModeAnswered(NOW, 1, "Abort", cause="PauseDeadline"))
    assert said(next_action(plan, run, read(run)))[0].error_type == "PauseDeadline"


@pytest.mark.parametrize(("mode", "lands"), [("Abort", True), ("Finish", False), ("Pause", False)])
def test_only_an_abort_lands_before_a_step_of_the_graph(mode: str, lands: bool) -> None:
    plan, run = graph("Once")
    known = read(run, directives=Directives("uid-1", 2, control=Control.read({"mode": mode})))
    action = next_action(plan, run, known)
    if lands:
        assert said(action) == (ModeAnswered(NOW, 1, "Abort"),)
    else:
        assert isinstance(action, Execute)


@pytest.mark.parametrize(("effect", "goes_on"), [("ReadOnly", True), ("Idempotent", True), ("Once", False)])
def test_a_step_that_may_be_repeated_goes_on_without_control_and_another_waits(effect: str, goes_on: bool) -> None:
    plan, run = graph(effect)
    action = next_action(plan, run, read(run, failure=StoreFailure("Unavailable", "503")))
    assert isinstance(action, Execute if goes_on else ReadControl)


def test_a_step_on_the_route_of_an_abort_runs_within_the_grace_that_is_left() -> None:
    plan, run = graph("Once")
    run.abort, run.abort_visit = ModeAnswered(NOW - 10, 1, "Abort"), 7
    action = next_action(plan, run, inputs())
    assert isinstance(action, Execute)
    assert action.executions[0].timeout == 20.0


def test_the_idempotency_key_is_the_digest_of_where_a_call_stands_and_of_its_arguments() -> None:
    plan, run = graph("Once")
    action = next_action(plan, run, read(run))
    assert isinstance(action, Execute)
    started = action.executions[0].started
    params = json.dumps({"callable": "steps:fetch"}, sort_keys=True, separators=(",", ":"))
    assert started.digest == hashlib.sha256(params.encode()).hexdigest()
    place = json.dumps(["uid-1", "fetch", 1, 1, 0, "fetch", started.digest], separators=(",", ":"))
    assert started.key == hashlib.sha256(place.encode()).hexdigest()


def test_a_step_whose_text_is_not_what_was_planned_is_not_run() -> None:
    source = {"artifact": "code@1"}
    step = function_step("fetch", effect="Once")
    step["function"] |= {"source": source}
    forged = PlannedText(text="changed", digest="0" * 64, resolved="artifact:code@1")
    plan = build_plan(step, texts={"artifact:code@1": forged}, active_deadline_seconds=60)
    run = state()
    run.apply(StepEntered(NOW, "fetch", 1, "Function", 1))
    known = Catalog(plan, lambda endpoint: None, lambda endpoint: None, is_durable=True)
    (finished,) = said(next_action(known, run, read(run)))
    assert (finished.at, finished.signal, finished.error_type) == (NOW, "error", "IntegrityViolation")
    assert "code@1" in finished.error_message
