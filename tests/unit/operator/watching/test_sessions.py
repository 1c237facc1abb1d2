"""One run of a session at a time: who holds it, who is next, and who is woken (engine.md §11)."""

from dataclasses import replace
from typing import Any

import pytest

from pilothouse_operator.runs.attempts import BeginAttempt, Stay, plan_attempt
from pilothouse_operator.runs.classification import classify
from pilothouse_operator.runs.situation import Starting
from pilothouse_operator.status.rendering import render_status
from pilothouse_operator.watching.cache import Cache, Key
from pilothouse_operator.watching.routing import route
from pilothouse_operator.watching.sessions import runs_of_session, session_holder, waiting_for
from unit.operator.run_views import view


def a_run(
    name: str, created: int = 0, *, attempt: int = 0, session: str | None = "s", namespace: str = "ns", **true: bool
) -> dict[str, Any]:
    conditions = [{"type": kind, "status": "True" if value else "False"} for kind, value in true.items()]
    return {
        "kind": "AgentRun",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"u-{name}",
            "resourceVersion": "1",
            "creationTimestamp": f"2026-03-01T12:00:{created:02}Z",
        },
        "spec": {"session": session} if session else {},
        "status": {"attempt": attempt, "conditions": conditions},
    }


ME = a_run("me", 5)


@pytest.mark.parametrize(
    ("others", "claimed", "want"),
    [
        ([], "", None),
        ([a_run("older", 1)], "", "older"),
        ([a_run("younger", 9)], "", None),
        ([a_run("a", 5), a_run("z", 5)], "", "a"),
        ([a_run("younger", 9, attempt=1)], "", "younger"),
        ([a_run("older", 1), a_run("younger", 9, attempt=2)], "", "younger"),
        ([a_run("older", 1, attempt=1, Finished=True)], "", None),
        ([a_run("older", 1, attempt=1, Stalled=True)], "", "older"),
        ([a_run("parked", 1, attempt=1, Paused=True)], "", "parked"),
        ([a_run("broken", 1, Stalled=True)], "", None),
        ([a_run("younger", 9)], "u-younger", "younger"),
        ([a_run("younger", 9, Stalled=True)], "u-younger", None),
        ([a_run("older", 1)], "u-me", None),
        ([a_run("older", 1, attempt=1)], "u-me", "older"),
        ([a_run("older", 1)], "u-gone", "older"),
    ],
)
def test_a_run_waits_for_the_one_that_has_begun_else_for_the_oldest(others: Any, claimed: str, want: Any) -> None:
    assert session_holder(ME, others, claimed) == want


def test_a_run_that_has_begun_waits_for_nobody() -> None:
    assert session_holder(a_run("me", 5, attempt=1), [a_run("older", 1), a_run("other", 2, attempt=1)]) is None


def test_runs_of_other_sessions_and_namespaces_are_not_seen() -> None:
    cache = Cache()
    mine = [a_run("me"), a_run("same")]
    for raw in [*mine, a_run("other", session="t"), a_run("none", session=None), a_run("far", namespace="ns-2")]:
        cache.apply(raw)
    assert [raw["metadata"]["name"] for raw in runs_of_session(mine[0], cache)] == ["same"]
    assert list(runs_of_session(a_run("none", session=None), cache)) == []


def test_a_change_of_a_run_wakes_those_that_wait_for_its_session() -> None:
    cache = Cache()
    for raw in (a_run("held", attempt=1), a_run("next", 1), a_run("last", 2), a_run("other", session="t")):
        cache.apply(raw)
    held = a_run("held", attempt=1)
    waiting = {Key("AgentRun", "ns", "next"), Key("AgentRun", "ns", "last")}
    assert set(waiting_for(held, cache)) == waiting
    assert {key for key, delay in route(held, cache) if delay == 0} == {Key("AgentRun", "ns", "held"), *waiting}


def test_a_run_whose_session_is_busy_is_ready_and_makes_nothing() -> None:
    waiting = replace(view(plan=None, session="c-17"), session_holder="r0")
    situation = classify(waiting)
    assert situation == Starting(
        0, False, "SessionBusy", "session c-17: waits until run r0 is finished", is_queued=True
    )
    assert plan_attempt(waiting, situation) == Stay()
    status = render_status(waiting, situation, Stay())
    conditions = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
    assert status["phase"] == "Pending"
    assert conditions["Ready"] == ("True", "SessionBusy")
    assert (conditions["Reconciling"][0], conditions["Stalled"][0]) == ("False", "False")
    assert "attempt" not in status and "plan" not in status

    free = view(session="c-17")
    assert isinstance(plan_attempt(free, classify(free)), BeginAttempt)
