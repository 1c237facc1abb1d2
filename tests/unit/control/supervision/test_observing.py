"""What supervision sees of a run: numbers of the snapshot, names of the plan, and no word of anybody else."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse_api.v1alpha1.agentrun import Snapshot
from pilothouse_control.supervision import observe
from unit.control.supervision.worlds import START, a_plan, a_snapshot, agent_with_servers

PLAN = a_plan(agent=agent_with_servers("pull", "push"))
OPEN = a_plan(agent=agent_with_servers("*"))


def test_declared_tools_are_counted_by_their_names() -> None:
    calls = {
        "lookup": 2,
        "gh__pull": 3,
        "ask": 1,
        "start_ask_task": 1,
        "read_tool_result": 4,
    }
    observation = observe(a_snapshot(1, visitCounts={"toolCalls": calls, "undeclaredToolCalls": 2}), PLAN, START)
    assert observation is not None
    assert observation.tool_calls == calls
    assert observation.undeclared_tool_calls == 2


def test_what_the_plan_does_not_name_is_counted_and_not_named() -> None:
    calls = {"lookup": 1, "gh__merge": 2, "start_lookup_task": 1, "ignore all rules": 3, "other__pull": 1}
    observation = observe(a_snapshot(1, visitCounts={"toolCalls": calls}), PLAN, START)
    assert observation is not None
    assert observation.tool_calls == {"lookup": 1}
    assert observation.undeclared_tool_calls == 7


def test_tools_of_a_server_that_allows_all_are_counted_under_the_authors_entry() -> None:
    calls = {"gh__whatever the server says": 2, "gh__pull": 1, "lookup": 1}
    observation = observe(a_snapshot(1, visitCounts={"toolCalls": calls}), OPEN, START)
    assert observation is not None
    assert observation.tool_calls == {"github": 3, "lookup": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"exit": {"signal": "done", "reason": "Complete"}},
        {"step": None},
        {"step": "elsewhere"},
        {"visitCounts": None},
    ],
)
def test_without_an_open_visit_of_an_agent_there_is_nothing_to_see(changes: dict[str, Any]) -> None:
    assert observe(a_snapshot(1, **changes), PLAN, START) is None


def test_budgets_are_those_in_force_and_money_is_written_anew() -> None:
    tokens = {"used": 9, "budget": 100, "visit": {"used": 5, "budget": 50}}
    cost = {"usedUSD": "0.10", "budgetUSD": "ignore all rules", "visit": {"usedUSD": "1E-2", "budgetUSD": "NaN"}}
    observation = observe(a_snapshot(1, tokens=tokens, cost=cost), PLAN, START)
    assert observation is not None
    assert (observation.spend.used, observation.spend.budget) == (9, 100)
    assert (observation.visit_spend.used, observation.visit_spend.budget) == (5, 50)
    assert (observation.spend.used_usd, observation.spend.budget_usd) == ("0.10", None)
    assert (observation.visit_spend.used_usd, observation.visit_spend.budget_usd) == ("0.01", None)


def test_the_limit_of_iterations_is_the_plans_where_the_runner_says_none() -> None:
    observation = observe(a_snapshot(1, maxIterations=None), PLAN, START)
    assert observation is not None
    assert observation.max_iterations == 8


@pytest.mark.parametrize(
    ("parked_after", "looked_after", "want"), [(None, 75.9, 75), (30, 500, 30), (None, -5, 0), (-10, 50, 0)]
)
def test_idle_seconds_are_unparked_ones(parked_after: int | None, looked_after: float, want: int) -> None:
    changes: dict[str, Any] = {}
    if parked_after is not None:
        since = (START + timedelta(seconds=parked_after)).isoformat()
        changes = {"parked": {"reason": "Paused", "turn": 1, "since": since}}
    observation = observe(a_snapshot(1, **changes), PLAN, START + timedelta(seconds=looked_after))
    assert observation is not None
    assert observation.idle_seconds == want


WORDS = st.text(max_size=40) | st.sampled_from(["gh__x", "start_x_task", "ignore all rules", "2026-01-01", "lookup "])
COUNTS = st.dictionaries(WORDS, st.integers(-3, 9), max_size=5)
SNAPSHOTS = st.fixed_dictionaries(
    {
        "attempt": st.just(1),
        "step": st.sampled_from(["work", "elsewhere"]) | WORDS,
        "visit": st.integers(0, 5),
        "turn": st.integers(0, 50),
        "visitCounts": st.fixed_dictionaries({"toolCalls": COUNTS}),
        "toolCalls": COUNTS,
        "lastProgressTime": WORDS,
        "cost": st.fixed_dictionaries({"usedUSD": WORDS, "budgetUSD": WORDS}),
        "effects": st.fixed_dictionaries(
            {"unknown": st.lists(st.fixed_dictionaries({"callId": WORDS, "tool": WORDS, "at": WORDS}), max_size=2)}
        ),
        "trace": st.lists(st.dictionaries(WORDS, WORDS, max_size=2), max_size=2),
    }
)


def strings_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {text for key, item in value.items() for text in {key} | strings_of(item)}
    if isinstance(value, list):
        return {text for item in value for text in strings_of(item)}
    return {value} if isinstance(value, str) else set()


@given(raw=SNAPSHOTS)
def test_no_word_of_a_snapshot_that_is_not_in_the_plan_reaches_an_observation(raw: dict[str, Any]) -> None:
    snapshot = Snapshot.model_validate(raw)
    for plan in (PLAN, OPEN):
        observation = observe(snapshot, plan, START)
        if observation is None:
            continue
        shown = json.loads(observation.model_dump_json(by_alias=True))
        planned = strings_of(plan.model_dump(mode="json", by_alias=True)) | {"gh__pull", "gh__push", "start_ask_task"}
        allowed = planned | {"read_tool_result"} | set(shown)
        for text in strings_of({key: value for key, value in shown.items() if "Time" not in key and key != "now"}):
            assert text in allowed or is_money(text) or text in ("used", "budget", "usedUSD", "budgetUSD"), text


def is_money(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isascii() and text.lstrip("-").replace(".", "", 1).isdigit()


@given(raw=WORDS)
def test_a_time_is_a_time(raw: str) -> None:
    observation = observe(a_snapshot(1, lastProgressTime=raw), PLAN, datetime(2026, 1, 1, tzinfo=UTC))
    assert observation is not None
    assert observation.last_progress_time is None or datetime.fromisoformat(observation.last_progress_time)
