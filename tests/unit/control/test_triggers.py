"""Triggers: what starts, what waits, what is replaced, and what is never started twice."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilothouse_api import names
from pilothouse_api.v1alpha1 import AgentRun, Workflow
from pilothouse_api.v1alpha1.workflow import LastTriggered
from pilothouse_control.schedules import newest_slot, next_slot
from pilothouse_control.triggers import TriggerDecision, TriggeredRun, plan_triggers, trigger_digest
from unit.control.manifests import Raw, a_workflow, agent_step, call_step
from unit.engine.hostile import examples

Active = tuple[TriggeredRun, ...]

CREATED = "2026-03-01T00:00:00Z"
RUNNING = (TriggeredRun("old"),)
ABORTING = (TriggeredRun("old", is_aborting=True),)


def at(text: str) -> datetime:
    """Return a moment of March 2026 (`10T12:00`), or of a whole ISO text."""
    return datetime.fromisoformat(f"2026-03-{text}:00+00:00" if len(text) == len("10T12:00") else text)


def workflow(
    last: LastTriggered | None = None, generation: int = 1, steps: list[Raw] | None = None, **spec: Any
) -> Workflow:
    raw = a_workflow(*(steps or []), **spec)
    raw["metadata"] |= {"uid": "u", "namespace": "team", "generation": generation, "creationTimestamp": CREATED}
    made = Workflow.model_validate(raw)
    return made.model_copy(update={"status": made.status.model_copy(update={"last_triggered": last})})


def on_change(last: LastTriggered | None = None, generation: int = 1, **spec: Any) -> Workflow:
    return workflow(last, generation, trigger={"type": "OnChange"}, **spec)


def scheduled(
    last_slot: str | None = None, generation: int = 1, cron: str = "0 7 * * *", zone: str = "UTC", **spec: Any
) -> Workflow:
    """A workflow that is due at seven; `last_slot` is the newest slot that is noted."""
    deadline = spec.pop("deadline", None)
    schedule = {"cron": cron, "timeZone": zone} | ({"startingDeadlineSeconds": deadline} if deadline else {})
    trigger = {"type": "Schedule", "schedule": schedule}
    made = workflow(None, generation, trigger=trigger, **spec)
    if last_slot is None:
        return made
    noted = LastTriggered(
        generation=generation, digest=trigger_digest(made.spec), slot=int(at(last_slot).timestamp()) // 60
    )
    return made.model_copy(update={"status": made.status.model_copy(update={"last_triggered": noted})})


def minute(text: str) -> int:
    return int(at(text).timestamp()) // 60


def decide(made: Workflow, now: str, active: Active = (), ended: str | None = None) -> TriggerDecision:
    return plan_triggers(made, active, at(ended) if ended else None, at(now))


def started(decision: TriggerDecision) -> list[str]:
    return [new.name for new in decision.creates]


# ---- OnChange


def test_a_new_workflow_starts_its_first_generation_once() -> None:
    decision = decide(on_change(), "10T12:00")
    assert started(decision) == [names.generation_run_name("triage", 1, "u")]
    assert decision.last_triggered is not None
    assert decision.last_triggered.generation == 1
    assert started(decide(on_change(decision.last_triggered), "10T12:01")) == []


def test_a_change_of_what_runs_starts_its_generation() -> None:
    noted = decide(on_change(), "10T12:00").last_triggered
    decision = decide(on_change(noted, 2, steps=[agent_step(), call_step()]), "10T13:00")
    assert started(decision) == [names.generation_run_name("triage", 2, "u")]


@pytest.mark.parametrize(
    "change",
    [
        {"history": {"succeeded": 1}},
        {"concurrencyPolicy": "Replace"},
        {"suspend": False},
        {"description": "other words"},
    ],
)
def test_a_change_of_what_does_not_run_starts_nothing(change: Raw) -> None:
    noted = decide(on_change(), "10T12:00").last_triggered
    assert decide(on_change(noted, 2, **change), "10T13:00") == TriggerDecision()


def test_a_change_back_is_a_change() -> None:
    first = decide(on_change(), "10T12:00").last_triggered
    second = decide(on_change(first, 2, maxStepVisits=5), "10T13:00").last_triggered
    assert started(decide(on_change(second, 3), "10T14:00")) == [names.generation_run_name("triage", 3, "u")]


def test_another_way_to_make_digests_starts_nothing_again() -> None:
    noted = LastTriggered(generation=4, digest="of an older version")
    assert started(decide(on_change(noted, 4), "10T12:00")) == []


def test_a_suspended_workflow_starts_its_newest_generation_when_it_goes_on() -> None:
    noted = decide(on_change(), "10T12:00").last_triggered
    assert decide(on_change(noted, 2, suspend=True, maxStepVisits=5), "10T13:00") == TriggerDecision()
    assert started(decide(on_change(noted, 3, maxStepVisits=5), "10T14:00")) == [
        names.generation_run_name("triage", 3, "u")
    ]


@pytest.mark.parametrize(
    ("policy", "active", "want"),
    [
        ("Allow", RUNNING, ("creates", 1, ())),
        ("Forbid", (), ("creates", 1, ())),
        ("Forbid", RUNNING, ("waits", 0, ())),
        ("Replace", (), ("creates", 1, ())),
        ("Replace", RUNNING, ("waits", 0, ("old",))),
        ("Replace", ABORTING, ("waits", 0, ())),
    ],
)
@pytest.mark.parametrize("kind", ["OnChange", "Schedule"])
def test_a_policy_decides_beside_an_active_run(
    kind: str, policy: str, active: Active, want: tuple[str, int, tuple[str, ...]]
) -> None:
    made = (
        on_change(concurrencyPolicy=policy) if kind == "OnChange" else scheduled("09T07:00", concurrencyPolicy=policy)
    )
    decision = decide(made, "10T07:01", active)
    assert (len(decision.creates), decision.aborts) == want[1:]
    if kind == "Schedule" and policy == "Forbid" and active:
        assert decision.last_triggered is not None  # the slot is skipped for good
    else:
        assert (decision.last_triggered is not None) == (want[0] == "creates")


def test_the_own_run_of_a_decision_that_was_not_noted_does_not_block_it() -> None:
    own = (TriggeredRun(names.generation_run_name("triage", 1, "u")),)
    decision = decide(on_change(concurrencyPolicy="Forbid"), "10T12:00", own)
    assert started(decision) == [own[0].name]
    assert decision.last_triggered is not None


# ---- Schedule


def test_a_slot_starts_once_when_it_is_due() -> None:
    made = scheduled("09T07:00")
    assert started(decide(made, "10T06:59")) == []
    decision = decide(made, "10T07:00")
    assert started(decision) == [names.slot_run_name("triage", minute("10T07:00"), "u")]
    assert decision.last_triggered is not None
    assert decision.last_triggered.slot == minute("10T07:00")
    assert decision.next_due == decision.next_schedule_time == at("11T07:00")
    assert started(decide(scheduled("10T07:00"), "10T07:00")) == []


def test_of_several_missed_slots_the_newest_is_caught_up_once() -> None:
    decision = decide(scheduled("05T07:00"), "10T12:00")
    assert started(decision) == [names.slot_run_name("triage", minute("10T07:00"), "u")]


@pytest.mark.parametrize(("now", "want"), [("10T07:10", 1), ("10T07:11", 0)])
def test_a_missed_slot_is_caught_up_within_its_deadline(now: str, want: int) -> None:
    decision = decide(scheduled("09T07:00", deadline=600), now)
    assert len(decision.creates) == want
    assert decision.last_triggered is not None
    assert decision.last_triggered.slot == minute("10T07:00")


def test_the_wait_for_a_replaced_run_does_not_make_a_slot_late() -> None:
    made = scheduled("09T07:00", deadline=60, concurrencyPolicy="Replace")
    assert decide(made, "10T07:00", RUNNING).aborts == ("old",)
    waiting = decide(made, "10T07:05", ABORTING)
    assert (waiting.creates, waiting.last_triggered) == ((), None)
    assert len(decide(made, "10T07:06", (), ended="10T07:06").creates) == 1
    late = decide(made, "10T07:09", (), ended="10T07:06")
    assert (late.creates, late.last_triggered is not None) == ((), True)


def test_a_suspended_schedule_notes_its_slots_and_starts_none_of_them_later() -> None:
    decision = decide(scheduled("09T07:00", suspend=True), "10T07:00")
    assert decision.creates == ()
    assert decision.last_triggered is not None
    assert decision.last_triggered.slot == minute("10T07:00")
    assert decision.next_schedule_time is None
    assert decision.next_due == at("11T07:00")


def test_a_new_schedule_starts_nothing_that_was_due_before_it() -> None:
    created = decide(scheduled(), "01T06:00")
    assert (created.creates, created.next_due) == ((), at("01T07:00"))
    assert created.last_triggered is not None
    assert len(decide(scheduled(), "01T07:00").creates) == 1  # the operator saw it only then
    assert decide(scheduled(generation=2), "10T12:00").creates == ()  # it was no schedule before


def test_a_changed_schedule_starts_nothing_that_would_have_been_due() -> None:
    noted = scheduled("10T07:00").status.last_triggered
    changed = workflow(noted, 2, trigger={"type": "Schedule", "schedule": {"cron": "0 9 * * *"}})
    decision = decide(changed, "10T12:00")
    assert decision.creates == ()
    assert decision.last_triggered is not None
    assert decision.last_triggered.slot == minute("10T12:00")
    assert decision.next_due == at("11T09:00")


def test_a_change_of_something_else_keeps_a_missed_slot() -> None:
    assert len(decide(scheduled("09T07:00", generation=5, maxStepVisits=3), "10T08:00").creates) == 1


def test_a_clock_that_goes_back_starts_nothing() -> None:
    assert decide(scheduled("10T07:00"), "09T07:00").creates == ()


@pytest.mark.parametrize(
    ("now", "want"),
    [
        ("2026-03-29T05:30:00+00:00", "2026-03-30T05:00:00+00:00"),
        ("2026-03-28T12:00:00+00:00", "2026-03-29T05:00:00+00:00"),
        ("2026-10-25T12:00:00+00:00", "2026-10-26T06:00:00+00:00"),
    ],
)
def test_a_slot_follows_the_clocks_of_its_time_zone(now: str, want: str) -> None:
    assert decide(scheduled("01T07:00", zone="Europe/Berlin"), now).next_due == at(want)


@pytest.mark.parametrize("schedule", [{"cron": "0 7 31 2 *"}, {"cron": "0 7 * * *", "timeZone": "Mars/Base"}])
def test_a_schedule_that_cannot_be_read_starts_nothing(schedule: Raw) -> None:
    assert decide(workflow(trigger={"type": "Schedule", "schedule": schedule}), "10T07:00") == TriggerDecision()


def test_a_manual_workflow_starts_nothing() -> None:
    assert decide(workflow(), "10T07:00") == TriggerDecision()


def test_a_run_of_a_trigger_is_legal_and_belongs_to_its_workflow() -> None:
    made = on_change(runTemplate={"labels": {"team": "a", "pilothouse.dev/workflow": "stolen"}})
    raw = decide(made, "10T12:00").creates[0].raw
    run = AgentRun.model_validate(raw)
    assert run.spec.workflow_ref is not None
    assert run.spec.workflow_ref.name == "triage"
    assert (run.metadata.namespace, run.metadata.labels["team"]) == ("team", "a")
    assert run.metadata.labels[names.LABEL_WORKFLOW] == "triage"
    assert run.metadata.labels[names.LABEL_TRIGGER] == "OnChange"
    assert raw["metadata"]["ownerReferences"][0]["uid"] == "u"


MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC))
CRONS = st.sampled_from(["*/5 * * * *", "30 2 * * *", "0 7 * * 1-5", "0 0 29 2 *", "59 23 31 12 *", "* * * * *"])
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"])


@settings(max_examples=examples(150), deadline=None)
@given(now=MOMENTS, cron=CRONS, zone=ZONES, back=st.integers(1, 4000))
def test_the_newest_slot_is_the_last_one_that_walking_forward_finds(
    now: datetime, cron: str, zone: str, back: int
) -> None:
    since = now - timedelta(minutes=back)
    want, slot = None, next_slot(cron, ZoneInfo(zone), since)
    while slot <= now:
        want, slot = slot, next_slot(cron, ZoneInfo(zone), slot)
    assert newest_slot(cron, ZoneInfo(zone), since, now) == want
