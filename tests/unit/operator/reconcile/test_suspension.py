"""Namespaces in which no run begins: what is held back, what goes on, and how often the API server is asked."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from pilothouse_kubernetes.client import Forbidden, NotFound, Resource, Unavailable
from pilothouse_operator.reconcile.suspension import FRESH, Suspensions
from pilothouse_operator.runs.attempts import Stay, plan_attempt
from pilothouse_operator.runs.classification import classify
from pilothouse_operator.runs.looks import SUSPENDED_RECHECK, next_look
from pilothouse_operator.runs.situation import Starting
from pilothouse_operator.runs.view import RunView
from pilothouse_operator.status.rendering import render_status
from pilothouse_operator.watching.cache import Cache, Key
from pilothouse_operator.workloads.pods import read_pod
from unit.operator.run_views import (
    DURABLE,
    NOW,
    an_exit,
    attempt_status,
    ended_pod,
    parked,
    pending_pod,
    raw_pod,
    running_pod,
    view,
)

PAUSED = {"attempt": 1, "turn": 3, "parked": parked(released=True)}
EVICTED = read_pod(raw_pod({"phase": "Failed", "reason": "Evicted"}))
ABORT = {"control": {"mode": "Abort"}}

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("case", "seen", "want"),
    [
        ("new", view(plan=None), "Starting NamespaceSuspended"),
        ("planned", view(), "Starting NamespaceSuspended"),
        ("numbered, without a pod", view(attempt_status()), "Starting NamespaceSuspended"),
        ("its pod is over and never began", view(attempt_status(), pod=EVICTED), "Starting NamespaceSuspended"),
        ("its pod is there already", view(attempt_status(), pod=pending_pod()), "Starting Starting"),
        ("live", view(attempt_status(node="n1"), pod=running_pod()), "Live"),
        ("crashed", view(attempt_status(node="n1"), pod=ended_pod(), terms=DURABLE), "Lost"),
        ("waits without a pod", view(attempt_status(node="n1"), snapshot=PAUSED, terms=DURABLE), "Parked"),
        ("aborted before it began", view(**ABORT), "Ended"),
        ("over", view(attempt_status(), snapshot={"attempt": 1, "exit": an_exit()}), "Ended"),
    ],
)
def test_only_what_has_not_begun_is_held_back(case: str, seen: RunView, want: str) -> None:
    situation = classify(replace(seen, is_suspended=True))
    reason = f" {situation.reason}" if isinstance(situation, Starting) else ""
    assert f"{type(situation).__name__}{reason}" == want


def test_a_run_that_is_held_back_is_pending_and_no_person_must_mend_it() -> None:
    seen = replace(view(), is_suspended=True)
    situation = classify(seen)
    plan = plan_attempt(seen, situation)
    status = render_status(seen, situation, plan)
    conditions = {one["type"]: one for one in status["conditions"]}

    assert plan == Stay()
    assert status["phase"] == "Pending"
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("False", "NamespaceSuspended")
    assert "kubectl annotate namespace ns pilothouse.dev/suspend-" in conditions["Ready"]["message"]
    assert (conditions["Reconciling"]["status"], conditions["Stalled"]["status"]) == ("False", "False")
    look = next_look(seen, situation)
    assert look is not None and look - NOW >= SUSPENDED_RECHECK


class Cluster:
    """An API server that knows one namespace, and the operator's desk before it."""

    def __init__(self) -> None:
        self.annotations: dict[str, str] | None = None
        self.error: Exception | None = None
        self.asked = 0
        self.time = NOW
        self.woken: list[Key] = []
        self.cache = Cache()
        self.queue = SimpleNamespace(add=self.woken.append)
        self.client = self

    def now(self) -> Any:
        return self.time

    async def get(self, resource: Resource, namespace: str | None, name: str) -> dict[str, Any]:
        assert (resource.plural, namespace, name) == ("namespaces", None, "ns")
        self.asked += 1
        if self.error is not None:
            raise self.error
        return {"metadata": {"name": name, **({"annotations": self.annotations} if self.annotations else {})}}

    def suspensions(self) -> Suspensions:
        return Suspensions(self)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        (None, False),
        ({}, False),
        ({"pilothouse.dev/suspend": "true"}, True),
        ({"pilothouse.dev/suspend": "false"}, False),
        ({"pilothouse.dev/suspend": ""}, False),
        ({"other/suspend": "true"}, False),
    ],
)
async def test_a_namespace_is_suspended_by_one_annotation(annotations: dict[str, str] | None, want: bool) -> None:
    cluster = Cluster()
    cluster.annotations = annotations
    assert await cluster.suspensions().is_suspended("ns") is want


async def test_many_that_begin_at_once_ask_once_a_second() -> None:
    cluster = Cluster()
    suspensions = cluster.suspensions()
    for _ in range(100):
        await suspensions.is_suspended("ns")
    assert cluster.asked == 1
    cluster.time += FRESH
    await suspensions.is_suspended("ns")
    assert cluster.asked == 2


async def test_who_finds_the_annotation_gone_wakes_the_others() -> None:
    cluster = Cluster()
    for kind, name in (("AgentRun", "r1"), ("Workflow", "w1"), ("Agent", "a1")):
        cluster.cache.apply({"kind": kind, "metadata": {"name": name, "namespace": "ns", "resourceVersion": "1"}})
    suspensions = cluster.suspensions()
    cluster.annotations = {"pilothouse.dev/suspend": "true"}
    assert await suspensions.is_suspended("ns")
    cluster.annotations = None
    cluster.time += timedelta(seconds=5)
    assert not await suspensions.is_suspended("ns")
    assert cluster.woken == [Key("Workflow", "ns", "w1"), Key("AgentRun", "ns", "r1")]


async def test_what_may_not_be_read_suspends_nothing_and_what_cannot_be_read_now_is_asked_again() -> None:
    cluster = Cluster()
    for error in (Forbidden(403, "no"), NotFound(404, "gone")):
        cluster.error = error
        assert not await cluster.suspensions().is_suspended("ns")
    cluster.error = Unavailable(0, "away")
    with pytest.raises(Unavailable):
        await cluster.suspensions().is_suspended("ns")
