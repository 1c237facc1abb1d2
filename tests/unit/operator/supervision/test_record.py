"""Supervision of runs in status and Events: what is shown, what may wait, what a wait at the barrier looks like."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pilothouse_api.judging import JudgeFailure, Verdict
from pilothouse_api.observation import Observation
from pilothouse_api.v1alpha1.agentrun import Supervision, SupervisionAction
from pilothouse_control.supervision import (
    JudgeAsk,
    JudgeAvailable,
    JudgeFailed,
    JudgeUnavailable,
    NewVerdict,
    SupervisionPlan,
)
from pilothouse_operator.runs.attempts import plan_attempt
from pilothouse_operator.runs.classification import classify
from pilothouse_operator.runs.looks import next_look
from pilothouse_operator.runs.situation import Live, Parked
from pilothouse_operator.runs.view import RunView
from pilothouse_operator.status.events import draft_intervention, recent_interventions
from pilothouse_operator.status.rendering import phase_of, render_status
from pilothouse_operator.supervision.record import Watch, may_wait, note_failures, to_raw
from pilothouse_operator.watching.cache import Cache, trim
from pilothouse_operator.watching.routing import SOON, route
from unit.operator.run_views import DURABLE, NOW, ago, attempt_status, condition, running_pod, text, view

Raw = dict[str, Any]
SPEC = {"rules": [{"name": "long", "when": "IterationReached"}]}
JUDGED = {"judge": {"model": "small", "criteria": {"inline": "Be good."}}}


def record(*, barrier: bool = False, actions: list[Raw] | None = None, **supervisor: Any) -> Supervision:
    raw: Raw = {"supervisors": {"s": {"name": "careful", "generation": 2, "spec": SPEC, **supervisor}}}
    if barrier:
        raw |= {"barrier": {"timeoutSeconds": 60, "onTimeout": "Pause"}, "clock": {"journalLength": 10}}
    return Supervision.model_validate(raw | {"actions": actions or []})


def action(state: str = "Done", kind: str = "Pause", **more: Any) -> Raw:
    return {
        "id": "sup-000003-careful-long",
        "time": text(NOW),
        "supervisor": "careful",
        "generation": 2,
        "action": kind,
        "source": "Rule/long",
        "reason": "it took long",
        "turn": 3,
        "state": state,
        **more,
    }


def watch(of: Supervision, **more: Any) -> Watch:
    return Watch(of, SupervisionPlan(of), **more)


def seen(
    of: Supervision | None, snapshot: Raw | None = None, conditions: list[Raw] | None = None, **more: Any
) -> RunView:
    status = attempt_status(conditions=conditions or [])
    made = view(status, pod=running_pod(), snapshot={"attempt": 1, "turn": 3, **(snapshot or {})}, terms=DURABLE)
    return replace(made, watch=None if of is None else watch(of, **more))


def conditions_of(of: RunView) -> dict[str, Raw]:
    situation = classify(of)
    status = render_status(of, situation, plan_attempt(of, situation))
    return {one["type"]: one for one in status["conditions"]}


# ---------------------------------------------------------------- conditions


@pytest.mark.parametrize(
    ("actions", "reason", "message"),
    [
        ([], "Watched", "watched by careful"),
        ([action("Intended")], "Intervened", "Pause by careful (Rule/long, generation 2) at turn 3: it took long"),
        ([action("Done")], "Intervened", "Pause by careful (Rule/long, generation 2) at turn 3: it took long"),
        ([action("Superseded")], "Watched", "watched by careful"),
        ([action("Done"), action("Dropped", "Steer")], "Intervened", "Pause by careful"),
    ],
)
def test_supervised_says_who_watches_and_what_was_done_last(actions: list[Raw], reason: str, message: str) -> None:
    found = conditions_of(seen(record(actions=actions)))["Supervised"]
    assert (found["status"], found["reason"]) == ("True", reason)
    assert message in found["message"]


def test_supervised_marks_sync_supervisors_and_those_that_are_deleted() -> None:
    found = conditions_of(seen(record(spec={**SPEC, "enforcement": "Sync"}, isDeleted=True)))["Supervised"]
    assert "careful (Sync, deleted, its last copy is in force)" in found["message"]


def test_a_run_that_nobody_watches_has_no_word_of_supervision() -> None:
    found = conditions_of(seen(None))
    assert "Supervised" not in found and "JudgeReady" not in found


def test_what_was_said_stays_while_supervision_is_not_looked_at() -> None:
    old = [condition("Supervised", reason="Watched"), condition("JudgeReady", "False", "JudgeTimeout")]
    found = conditions_of(seen(None, conditions=old))
    assert found["Supervised"]["reason"] == "Watched"
    assert found["JudgeReady"]["reason"] == "JudgeTimeout"


@pytest.mark.parametrize(
    ("judge", "judges", "want"),
    [
        ({}, {"s": JudgeAvailable("Be good.")}, ("True", "Askable")),
        ({}, {"s": JudgeUnavailable("UnknownModel", "no small")}, ("False", "JudgeUnknownModel")),
        ({"isFailing": True, "lastError": "Timeout: 30 s"}, {"s": JudgeAvailable("")}, ("False", "JudgeTimeout")),
        ({"isFailing": False, "lastError": "Timeout: 30 s"}, {"s": JudgeAvailable("")}, ("True", "Askable")),
        ({}, {}, ("Unknown", "Starting")),
    ],
)
def test_judge_ready_says_whether_the_judge_answers(judge: Raw, judges: Any, want: tuple[str, str]) -> None:
    found = conditions_of(seen(record(spec={**SPEC, **JUDGED}, judge=judge), judges=judges))["JudgeReady"]
    assert (found["status"], found["reason"]) == want


def test_a_run_whose_supervisors_have_no_judge_has_no_judge_ready() -> None:
    assert "JudgeReady" not in conditions_of(seen(record()))


# ---------------------------------------------------------------- the barrier

PARK: Raw = {"reason": "Barrier", "turn": 3, "wake": text(ago(-60))}
WAITS: Raw = {"journalLength": 20, "parked": {**PARK, "since": text(ago(1))}}
WAITS_LONG: Raw = {"journalLength": 20, "parked": {**PARK, "since": text(ago(5))}}
SYNC = {**SPEC, "enforcement": "Sync"}


@pytest.mark.parametrize(
    ("snapshot", "clock", "want"),
    [(WAITS, 10, Live()), (WAITS_LONG, 20, Live()), (WAITS_LONG, 10, Parked("Barrier", 3, True, wake=ago(-60)))],
    ids=["it has just begun", "it is over", "it lasts"],
)
def test_a_wait_at_the_barrier_is_shown_only_when_it_lasts(snapshot: Raw, clock: int, want: Any) -> None:
    known = record(barrier=True, spec=SYNC)
    known = known.model_copy(update={"clock": known.clock and known.clock.model_copy(update={"journal_length": clock})})
    made = seen(known, snapshot)
    assert classify(made) == want
    assert phase_of(classify(made)) == "Running"
    ready = conditions_of(made)["Ready"]
    assert ready["status"] == "True"
    if isinstance(want, Parked):
        assert ready["message"] == "waits since turn 3 for the word of careful (Sync)"


TIMED_OUT = "supervision has not judged turn 3 within 60 s"
GIVEN_UP: Raw = {**WAITS_LONG, "parked": {**WAITS_LONG["parked"], "wake": None, "message": TIMED_OUT}}


def test_a_barrier_that_nobody_lifted_in_time_is_a_pause_and_says_why() -> None:
    made = seen(record(barrier=True, spec=SYNC), GIVEN_UP)
    found = conditions_of(made)
    assert phase_of(classify(made)) == "Paused"
    assert found["Paused"]["status"] == "True"
    assert TIMED_OUT in found["Ready"]["message"]


def test_a_wait_at_the_barrier_is_looked_at_when_it_begins_to_last() -> None:
    made = seen(record(barrier=True, spec=SYNC), WAITS)
    moment = next_look(made, classify(made))
    assert moment is not None and timedelta(0) < moment - NOW <= timedelta(seconds=1.1)


# ---------------------------------------------------------------- what may wait for another write


@pytest.mark.parametrize(
    ("new", "is_landing", "want"),
    [
        (record(), False, True),
        (record(judge={"iteration": 3, "askedAt": text(NOW), "askedLength": 30, "calls": 1}), False, True),
        (record(judge={"iteration": 3, "calls": 1, "tokensUsed": 7}), False, False),
        (record(judge={"calls": 1, "failures": 1, "lastError": "Timeout"}), False, False),
        (record(seen={"journalLength": 30}), False, True),
        (record(fired=["aaaa"]), False, False),
        (record(actions=[action("Intended")]), True, False),
        (record(generation=3), False, False),
    ],
)
def test_only_what_may_be_lost_waits_for_another_write(new: Supervision, is_landing: bool, want: bool) -> None:
    assert may_wait(record(), new, is_landing=is_landing) == want


@pytest.mark.parametrize(
    ("new", "is_landing", "want"),
    [
        (record(actions=[action("Done")]), True, True),
        (record(actions=[action("Done")]), False, False),
        (record(actions=[action("Done", landedTurn=4)]), True, False),
        (record(actions=[action("Superseded")]), True, False),
    ],
)
def test_that_an_intent_is_carried_out_waits_until_it_lands(new: Supervision, is_landing: bool, want: bool) -> None:
    assert may_wait(record(actions=[action("Intended")]), new, is_landing=is_landing) == want


@pytest.mark.parametrize("is_held", [True, False])
def test_under_sync_what_was_seen_is_written_at_once_where_a_runner_waits_for_it(is_held: bool) -> None:
    old, new = record(barrier=True, spec=SYNC), record(barrier=True, spec=SYNC, seen={"journalLength": 30})
    awaited = 30 if is_held else None
    assert may_wait(old, new, awaited=awaited)  # another one holds it still
    raised = new.model_copy(update={"clock": new.supervisors["s"].seen})
    assert may_wait(old, raised, awaited=awaited) is not is_held
    assert may_wait(old, raised, awaited=31)


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        ({"visit": 0}, {"visit": 1}, True),
        ({"visit": 1, "fired": ["aaaa"]}, {"visit": 2}, True),
        ({"visit": 1}, {"visit": 1, "fired": ["aaaa"]}, False),
        ({"visit": 1, "fired": ["aaaa"]}, {"visit": 2, "fired": ["aaaa"]}, False),
        ({"visit": 1, "fired": ["aaaa"]}, {"visit": 1, "fired": ["aaaa", "bbbb"]}, False),
    ],
)
def test_a_visit_in_which_nothing_has_fired_yet_needs_no_write(old: Raw, new: Raw, want: bool) -> None:
    assert may_wait(record(**old), record(**new)) is want


def test_a_record_has_one_form() -> None:
    made = record(judge={"askedAt": None, "calls": 0}, actions=[action()])
    again = Supervision.model_validate(to_raw(made))
    assert to_raw(again) == to_raw(made)
    assert again.to_raw() == to_raw(made)


@pytest.mark.parametrize("is_given", [True, False])
def test_the_newest_verdict_says_whether_a_judge_fails(is_given: bool) -> None:
    observed = Observation(step="say", visit=1, turn=1, iteration=1, max_iterations=8, now=text(NOW))
    ask = JudgeAsk("s", "careful", 1, 10, "small", "Be good.", observed, 30)
    answer = Verdict(passed=True, reason="") if is_given else JudgeFailure(type="Timeout", message="late")
    old = record(judge={"isFailing": is_given, "calls": 2})
    failures = () if is_given else (JudgeFailed("s", "careful", "Timeout", "late"),)
    new = note_failures(old, SupervisionPlan(old, failures=failures), {"s": NewVerdict(ask, answer)})
    judge = new.supervisors["s"].judge
    assert judge is not None and judge.is_failing is not is_given and judge.calls == 2


# ---------------------------------------------------------------- Events


@pytest.mark.parametrize(
    ("state", "kind", "want"),
    [
        ("Done", "Pause", ("Warning", "SupervisorPaused")),
        ("Done", "Steer", ("Normal", "SupervisorSteered")),
        ("Done", "Abort", ("Warning", "SupervisorAborted")),
        ("Superseded", "Pause", ("Normal", "SupervisorSuperseded")),
        ("Dropped", "Steer", None),
        ("Intended", "Pause", None),
    ],
)
def test_each_intervention_has_one_event(state: str, kind: str, want: tuple[str, str] | None) -> None:
    draft = draft_intervention(SupervisionAction.model_validate(action(state, kind)))
    assert (draft and (draft.type, draft.reason)) == want


def test_a_word_that_is_said_anew_in_the_same_turn_has_an_event_of_its_own() -> None:
    said = [
        action("Done", visit=1, generation=2),
        action("Done", visit=2, generation=2),
        action("Done", visit=2, generation=3),
    ]
    drafts = [draft_intervention(SupervisionAction.model_validate(one)) for one in said]
    assert len({draft.once for draft in drafts if draft is not None}) == 3


def test_a_process_that_starts_tells_again_what_its_forerunner_may_not_have_told() -> None:
    told = [action("Done"), action("Intended", "Steer"), action("Done", "Abort", time=text(ago(3600)))]
    actions = [SupervisionAction.model_validate(one) for one in told]
    assert [one.action for one in recent_interventions(actions, NOW)] == ["Pause"]


# ---------------------------------------------------------------- picture and routes


def stored(name: str, uid: str = "s", supervisor: str = "careful", **status: Any) -> Raw:
    supervision = {"supervisors": {uid: {"name": supervisor, "generation": 1, "spec": {**SPEC}}}}
    return {
        "kind": "AgentRun",
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"},
        "spec": {},
        "status": {"plan": {}, "supervision": supervision, **status},
    }


def test_a_changed_supervisor_has_those_runs_looked_at_that_it_watches_or_may_watch() -> None:
    cache = Cache()
    deleted = stored("watched-before", "the one that was deleted")
    for raw in (stored("watched"), stored("other", "t", "kind"), deleted, stored("plain", supervision=None)):
        cache.apply(raw)

    def runs(**spec: Any) -> set[str]:
        raw = {"kind": "Supervisor", "metadata": {"name": "careful", "namespace": "ns", "uid": "s"}, "spec": spec}
        return {key.name for key, delay in route(raw, cache) if key.kind == "AgentRun" and delay == SOON}

    assert runs() == {"watched", "watched-before"}
    assert runs(selector={}) == {"watched", "watched-before", "other", "plain"}


def test_runs_share_the_copies_of_their_supervisors() -> None:
    specs = [trim(stored(name))["status"]["supervision"]["supervisors"]["s"]["spec"] for name in ("a", "b")]
    assert specs[0] is specs[1]
    changed = stored("c")
    changed["status"]["supervision"]["supervisors"]["s"] |= {"generation": 2, "spec": {"rules": []}}
    assert trim(changed)["status"]["supervision"]["supervisors"]["s"]["spec"] == {"rules": []}


def test_a_copy_that_is_not_what_its_generation_says_is_kept_as_it_is() -> None:
    trim(stored("a"))
    odd = stored("b")
    odd["status"]["supervision"]["supervisors"]["s"]["spec"] = {"rules": [], "judge": {}}
    assert trim(odd)["status"]["supervision"]["supervisors"]["s"]["spec"] == {"rules": [], "judge": {}}
