"""When a run is looked at again although nothing happens; and whom an object concerns."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from pilothouse_api import names
from pilothouse_operator.runs.classification import classify
from pilothouse_operator.runs.looks import TICK, next_look
from pilothouse_operator.runs.view import Obstacle, RunView, Seen
from pilothouse_operator.watching.cache import Cache, Key
from pilothouse_operator.watching.routing import route
from unit.operator.run_views import (
    DURABLE,
    NOW,
    ago,
    an_exit,
    attempt_status,
    condition,
    containers,
    parked,
    pending_pod,
    running_pod,
    text,
    view,
)

PULLING = containers({"waiting": {"reason": "ErrImagePull"}})
SETTLES = [condition("Settling", since=ago(20))]
ABORTED = {"attempt": 1, "exit": an_exit("Aborted", "aborted")}


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (view(attempt_status(), pod=running_pod()), None),
        (view(plan=None, obstacle=Obstacle("X", "m", True, ago(55))), 5),
        (view(plan=None, obstacle=Obstacle("X", "m", True, ago(5))), 15),
        (view(attempt_status(), pod=pending_pod(created=ago(10), **PULLING)), 50),
        (view(attempt_status(), pod=pending_pod(created=ago(4))), 6),
        (view(attempt_status(), pod=pending_pod(created=ago(15))), 10),
        (view(attempt_status(), pod=pending_pod(created=ago(55))), 5),
        (view(attempt_status(), pod=pending_pod(created=ago(70))), 60),
        (view(attempt_status(), pod=pending_pod(created=ago(570))), 30),
        (
            view(
                attempt_status(),
                pod=running_pod(),
                snapshot={"attempt": 1, "parked": parked(released=True)},
                seen=Seen(exit=ago(10)),
            ),
            20,
        ),
        (view(attempt_status(), pod=running_pod(deletionTimestamp=text(ago(-20)))), 30),
        (
            view(attempt_status(), pod=running_pod(), snapshot=ABORTED, seen=Seen(exit=ago(10))),
            20,
        ),
        (view(attempt_status(conditions=SETTLES), pod=running_pod(), terms=DURABLE), 280),
        (
            view(
                attempt_status(1, "n1"),
                snapshot={"attempt": 1, "parked": parked("AwaitingApproval", released=True, wake=text(ago(-99)))},
                terms=DURABLE,
            ),
            99,
        ),
        # An unanswered directive: acknowledged, and shown as pending, by an attempt that has not said anything later.
        (view(attempt_status(), pod=running_pod(), seen=Seen(directive=ago(1)), control={"mode": "Pause"}), 1),
        (view(attempt_status(), pod=running_pod(), seen=Seen(directive=ago(3)), control={"mode": "Pause"}), 57),
        (
            view(
                attempt_status(),
                pod=running_pod(),
                snapshot={"attempt": 1},
                seen=Seen(directive=ago(3)),
                control={"mode": "Pause"},
            ),
            None,
        ),
        (
            view(
                attempt_status(),
                pod=running_pod(),
                seen=Seen(directive=ago(10), abort=ago(10)),
                control={"mode": "Abort"},
            ),
            20,
        ),
    ],
)
def test_time_alone_may_change_a_run(given: RunView, want: float | None) -> None:
    look: datetime | None = next_look(given, classify(given))

    assert look == (None if want is None else NOW + timedelta(seconds=want) + TICK)


def obj(kind: str, name: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", **more.pop("metadata", {})}
    return {"kind": kind, "metadata": metadata, **more}


def test_an_object_concerns_itself_its_owner_and_those_who_refer_to_it() -> None:
    cache = Cache()
    waiting = obj("AgentRun", "waiting", spec={"workflowRef": {"name": "flow"}}, status={})
    for raw in (
        waiting,
        obj("AgentRun", "planned", spec={}, status={"plan": {}}),
        obj("Workflow", "flow"),
        obj("Agent", "a"),
    ):
        cache.apply(raw)

    def keys(raw: dict[str, Any]) -> set[Key]:
        return {key for key, _ in route(raw, cache)}

    flow, agent, run = Key("Workflow", "ns", "flow"), Key("Agent", "ns", "a"), Key("AgentRun", "ns", "waiting")
    assert keys(obj("Pod", "p", metadata={"labels": {names.LABEL_RUN: "waiting"}})) == {run}
    assert keys(obj("Pod", "p")) == set()
    assert keys(waiting) == {run, flow}
    assert keys(obj("Agent", "a")) == {agent, flow, run}
    assert keys(obj("ConfigMap", "c")) == {agent, flow, run}
    assert keys(obj("Supervisor", "s")) == {Key("Supervisor", "ns", "s"), flow, run}
