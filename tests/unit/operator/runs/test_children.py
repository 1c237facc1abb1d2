"""A run and its children, as situation and status say it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from pilothouse_api import names
from pilothouse_api.patches import merge_patch
from pilothouse_api.v1alpha1.agentrun import ChildReport
from pilothouse_kubernetes.client import AlreadyExists, NotFound
from pilothouse_operator.reconcile.children import Children
from pilothouse_operator.runs.attempts import BeginAttempt, plan_attempt
from pilothouse_operator.runs.children import after_children
from pilothouse_operator.runs.classification import classify
from pilothouse_operator.runs.situation import Ended, Parked, Settling
from pilothouse_operator.runs.view import RunView
from pilothouse_operator.status.rendering import render_status
from pilothouse_operator.watching.cache import Cache, Key, parent_key, workflow_of
from pilothouse_operator.watching.finished import read_finished
from pilothouse_operator.watching.routing import route
from pilothouse_operator.workloads.plans import StoredPlan
from unit.control.manifests import a_run, a_workflow, agent_step, an_agent
from unit.control.test_children import DELEGATE
from unit.control.test_resolution import plan_of
from unit.operator.run_views import (
    DURABLE,
    PLAN,
    an_exit,
    attempt_status,
    condition,
    ended_pod,
    parked,
    running_pod,
    view,
)

CALL = "t1-0-0a1b2c3d"
AWAITED = {"callId": CALL, "ref": {"kind": "Agent", "name": "a"}, "state": "Awaited"}
OWNER = {"apiVersion": names.API_VERSION, "kind": "AgentRun", "name": "r1", "uid": "u1", "controller": True}
ASKS = {
    "callId": CALL,
    "name": "r1-c",
    "pendingApprovals": [{"run": "r1-c", "callId": "t2-0-9", "tool": "refund", "expiresAt": "2026-03-02T00:00:00Z"}],
}
ENDED = {"callId": CALL, "name": "r1-c", "exit": {"signal": "default", "reason": "Complete", "message": ""}}


def awaiting(*reports: dict[str, Any], released: bool = True) -> RunView:
    snapshot = {"attempt": 1, "turn": 3, "parked": parked("AwaitingChild", released=released), "children": [AWAITED]}
    made = view(attempt_status(node="n1"), pod=ended_pod(0), snapshot=snapshot, terms=DURABLE)
    return RunView(**{**_fields(made), "children": tuple(ChildReport.model_validate(raw) for raw in reports)})


def _fields(made: RunView) -> dict[str, Any]:
    return {name: getattr(made, name) for name in RunView.__slots__}


def status_of(made: RunView) -> dict[str, Any]:
    situation = after_children(made, classify(made))
    return render_status(made, situation, plan_attempt(made, situation))


def conditions_of(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {entry["type"]: (entry["status"], entry["reason"]) for entry in status["conditions"]}


def test_a_released_run_goes_on_when_its_child_has_ended_and_not_before() -> None:
    living = {"callId": CALL, "name": "r1-c"}
    situation = classify(awaiting(living))
    assert isinstance(situation, Parked)
    assert not situation.is_due
    made = awaiting(ENDED)
    woken = classify(made)
    assert isinstance(woken, Parked)
    assert woken.is_due
    assert isinstance(plan_attempt(made, woken), BeginAttempt)
    assert status_of(made)["children"] == [ENDED]  # in the write that raises the attempt: the runner finds it there


def test_what_a_child_asks_stands_on_the_run_that_waits_for_it() -> None:
    status = status_of(awaiting(ASKS))
    assert status["phase"] == "AwaitingApproval"
    [asked] = [entry for entry in status["conditions"] if entry["type"] == "AwaitingApproval"]
    assert (asked["status"], asked["reason"]) == ("True", "ChildAwaitingApproval")
    assert asked["message"] == (
        "the child r1-c waits until 2026-03-02T00:00:00Z for a decision on refund (t2-0-9): "
        "pilothouse approve r1-c t2-0-9"
    )


def test_a_run_that_waits_for_a_child_that_works_is_running() -> None:
    status = status_of(awaiting({"callId": CALL, "name": "r1-c"}))
    assert status["phase"] == "Running"
    assert "AwaitingApproval" not in conditions_of(status)


@pytest.mark.parametrize("reason", ["Complete", "Aborted"])
def test_a_run_ends_after_its_children(reason: str) -> None:
    status = attempt_status(node="n1", phase="Running")
    made = view(status, pod=ended_pod(0), snapshot={"attempt": 1, "turn": 3, "exit": an_exit(reason)}, terms=DURABLE)
    with_child = RunView(**{**_fields(made), "open_children": ("r1-c",)})
    assert after_children(with_child, classify(with_child)) == Settling("Exit", reason)
    assert "completionTime" not in status_of(with_child)
    assert isinstance(after_children(made, classify(made)), Ended)
    assert "completionTime" in status_of(made)


def raw_child(**metadata: Any) -> dict[str, Any]:
    return {
        "kind": "AgentRun",
        "metadata": {"name": "r1-c", "namespace": "ns", "uid": "c1", "ownerReferences": [OWNER], **metadata},
        "spec": {"workflowRef": {"name": "flow"}},
        "status": {"phase": "Succeeded"},
    }


def test_a_child_wakes_its_parent_and_counts_for_no_workflow() -> None:
    raw = raw_child()
    parent = Key("AgentRun", "ns", "r1")
    assert parent_key(raw) == parent
    assert [key for key, _ in route(raw, Cache())] == [Key("AgentRun", "ns", "r1-c"), parent]
    assert workflow_of(raw) is None
    assert read_finished(raw).workflow == ""


@pytest.mark.parametrize(
    "owner",
    [
        {**OWNER, "kind": "Workflow"},
        {**OWNER, "apiVersion": "other.dev/v1"},
        {**OWNER, "controller": False},
    ],
)
def test_what_is_owned_otherwise_is_no_child(owner: dict[str, Any]) -> None:
    raw = raw_child(ownerReferences=[owner])
    assert parent_key(raw) is None
    assert workflow_of(raw) == Key("Workflow", "ns", "flow")


# ---------------------------------------------------------------- an operator that dies at any request


class Died(Exception):
    """The operator's process is gone."""


@dataclass
class ApiServer:
    """Runs by name, and an operator that dies before or after its n-th request."""

    runs: dict[str, dict[str, Any]]
    dies_at: int
    is_after: bool
    made: list[str] = field(default_factory=list)
    requests: int = 0

    def _serve(self, answer: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        self.requests += 1
        if self.requests == self.dies_at and not self.is_after:
            raise Died
        answered = answer()
        if self.requests == self.dies_at:
            raise Died
        return answered

    async def get(self, resource: Any, namespace: str, name: str) -> dict[str, Any]:
        def answer() -> dict[str, Any]:
            if resource.kind == "Agent":
                return {"kind": "Agent"}
            if name not in self.runs:
                raise NotFound(404, name)
            return self.runs[name]

        return self._serve(answer)

    async def create(self, resource: Any, namespace: str, body: Any) -> dict[str, Any]:
        def answer() -> dict[str, Any]:
            name = body["metadata"]["name"]
            if name in self.runs:
                raise AlreadyExists(409, name)
            self.made.append(name)
            metadata = {**body["metadata"], "uid": f"c{len(self.made)}", "resourceVersion": "5"}
            self.runs[name] = {**body, "metadata": metadata}
            return self.runs[name]

        return self._serve(answer)

    async def merge_patch(self, resource: Any, namespace: str, name: str, patch: Any) -> dict[str, Any]:
        def answer() -> dict[str, Any]:
            self.runs[name] = merge_patch(self.runs[name], patch)
            return self.runs[name]

        return self._serve(answer)


def look_of(api: ApiServer) -> Callable[[RunView], Awaitable[RunView]]:
    """Return the looks of one operator process: it knows nothing but what the API server shows it."""
    cache = Cache()
    queue = SimpleNamespace(add=lambda key: None, add_after=lambda key, seconds: None)
    desk: Any = SimpleNamespace(
        client=api, cache=cache, queue=queue, notice=lambda raw, is_deleted: cache.apply(raw, is_deleted)
    )
    children = Children(desk)
    plan = plan_of(a_run(), a_workflow(agent_step(tools=[DELEGATE])), an_agent())
    stored = StoredPlan(plan, PLAN)

    async def look(made: RunView) -> RunView:
        return await children.tend(made, stored, classify(made))

    return look


def end_child(api: ApiServer) -> None:
    for name, raw in api.runs.items():
        ended = condition("Finished") | {"message": "m"}
        api.runs[name] = {**raw, "status": {"conditions": [ended], "exit": an_exit(), "result": {"found": 3}}}


@pytest.mark.anyio
@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("dies_at", range(1, 8))
async def test_a_child_is_made_once_and_its_end_reported_whenever_the_operator_dies(
    dies_at: int, is_after: bool
) -> None:
    api = ApiServer({}, dies_at, is_after)
    reports: list[dict[str, Any]] = []
    look = look_of(api)
    for at in range(12):
        if at == 6:
            end_child(api)
            look = look_of(api)  # the ended one has left the picture of the watch
        asked = {**AWAITED, "ref": {"kind": "Agent", "name": "helper"}, "hold": {}}
        snapshot = {"attempt": 1, "turn": 3, "children": [asked]}
        mode = "Pause" if at > 2 else "Run"
        status = attempt_status(node="n1", children=reports)
        seen = view(status, pod=running_pod(), snapshot=snapshot, terms=DURABLE, control={"mode": mode})
        seen = replace(seen, children=tuple(seen.run.status.children))
        try:
            looked = await look(seen)
        except Died:
            look = look_of(api)  # another process, after whatever had come of that request
            continue
        reports = [report.to_raw() for report in looked.children]
    assert api.made == [f"r1-{CALL}"]
    [report] = reports
    assert report["exit"]["reason"] == "Complete"
    assert report["result"] == {"found": 3}
    assert api.runs[f"r1-{CALL}"]["spec"]["control"]["mode"] == "Pause"
    assert api.requests >= dies_at
