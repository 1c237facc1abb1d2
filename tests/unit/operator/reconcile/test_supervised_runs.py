"""Looks at a supervised run, one after another, over an API server that refuses what the real one refuses."""

from __future__ import annotations

import asyncio
import itertools
import json
from datetime import timedelta
from typing import Any

import pytest

import pilothouse_control.validation  # noqa: F401  resolution and validation name each other; this order loads
from pilothouse_api import names
from pilothouse_api.digests import text_digest
from pilothouse_api.judging import JudgeAnswer, JudgeFailure, JudgeRequest, Verdict
from pilothouse_api.v1alpha1.agentrun import PlanReport
from pilothouse_kubernetes.client import Conflict, Invalid, Raw
from pilothouse_operator.metrics import Metrics
from pilothouse_operator.reconcile.runs import RunReconciler
from pilothouse_operator.reconcile.suspension import Suspensions
from pilothouse_operator.supervision.departed import Departed
from pilothouse_operator.supervision.judges import Judges
from pilothouse_operator.watching.cache import Cache, Key
from pilothouse_operator.workloads.manifests import PodSettings
from pilothouse_operator.workloads.plans import StoredPlan
from unit.engine.scenarios import agent_step, written_plan
from unit.operator.run_views import NOW, text

pytestmark = pytest.mark.anyio

VERSIONS = itertools.count(1000)
"""No two versions of an object are the same: what was read of one is remembered."""
PLAN = written_plan(agent_step())
RUN = Key("AgentRun", "ns", "r1")
PAUSES = {"rules": [{"name": "long", "when": "IterationReached", "then": "Pause"}]}
STEERS = {"rules": [{"name": "long", "when": "IterationReached", "then": "Steer"}]}


class FakeServer:
    """One run, and what was written to it."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw
        self.writes: list[str] = []
        self.refuses: list[Exception] = []
        self.before_patch: list[Raw] = []
        self.behind_status: list[Raw] = []

    def put(self, raw: Raw) -> Raw:
        metadata = raw["metadata"]
        generation = metadata["generation"] + (raw["spec"] != self.raw["spec"])
        version = str(int(self.raw["metadata"]["resourceVersion"]) + 1)
        self.raw = {**raw, "metadata": {**metadata, "generation": generation, "resourceVersion": version}}
        return json.loads(json.dumps(self.raw))  # type: ignore[no-any-return]

    def report(self, **run: Any) -> Raw:
        status = {**self.raw["status"], "run": {**self.raw["status"]["run"], **run}}
        return self.put({**self.raw, "status": status})

    def steer(self, **control: Any) -> Raw:
        known = self.raw["spec"].get("control", {})
        return self.put({**self.raw, "spec": {**self.raw["spec"], "control": {**known, **control}}})

    async def get(self, resource: Any, namespace: str, name: str) -> Raw:
        return json.loads(json.dumps(self.raw))  # type: ignore[no-any-return]

    async def json_patch(self, resource: Any, namespace: str, name: str, patch: list[Raw], subresource: str) -> Raw:
        if patch[0]["value"] != self.raw["metadata"]["resourceVersion"]:
            raise Conflict(409, "the object has changed")
        status = dict(self.raw["status"])
        for operation in patch[1:]:
            field = operation["path"].removeprefix("/status/")
            if operation["op"] == "remove":
                del status[field]
            else:
                status[field] = operation["value"]
        self.writes.append("status")
        written = self.put({**self.raw, "status": status})
        return self.steer(**self.behind_status.pop()) if self.behind_status else written

    async def merge_patch(
        self, resource: Any, namespace: str, name: str, patch: Raw, *, field_manager: str = ""
    ) -> Raw:
        if self.before_patch:
            self.steer(**self.before_patch.pop())
        if patch["metadata"]["resourceVersion"] != self.raw["metadata"]["resourceVersion"]:
            raise Conflict(409, "the object has changed")
        if self.refuses:
            raise self.refuses.pop()
        assert field_manager == names.FIELD_MANAGER_SUPERVISION
        self.writes.append("control")
        control = {key: value for key, value in patch["spec"]["control"].items() if value is not None}
        return self.steer(**control)


class _Plans:
    async def load(self, *_: Any) -> StoredPlan:
        return StoredPlan(PLAN, PlanReport(name=names.plan_name("r1"), digest=text_digest(PLAN.encode())))

    def forget(self, uid: str) -> None: ...


class _Settings:
    is_journal_durable = True
    abort_grace_seconds = 30

    def pods(self) -> PodSettings:
        return PodSettings(journal_claim="journals")


class _Taker:
    """Takes what is posted, or asked to be looked at."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def post(self, event: Raw) -> None:
        if event["reason"].startswith("Supervisor"):
            self.taken.append(event["reason"])

    def add(self, key: Key) -> None:
        self.taken.append(key)

    def add_after(self, key: Key, seconds: float) -> None:
        self.taken.append(key)


class AnsweringJudge:
    def __init__(self, answer: JudgeAnswer) -> None:
        self.answer = answer

    async def ask(self, request: JudgeRequest) -> JudgeAnswer:
        return self.answer

    async def models(self) -> frozenset[str]:
        return frozenset({"small"})


class _Desk:
    def __init__(self, server: FakeServer, judge: AnsweringJudge | None) -> None:
        self.client, self.seconds = server, 0.0
        self.cache, self.plans, self.settings, self.metrics = Cache(), _Plans(), _Settings(), Metrics()
        self.events, self.queue, self.departed = _Taker(), _Taker(), Departed()
        self.judges = Judges(judge, self.queue.add)

    def now(self) -> Any:
        return NOW + timedelta(seconds=self.seconds)

    def notice(self, raw: Raw, is_deleted: bool) -> None:
        self.cache.apply(raw, is_deleted)


class Operator:
    """One operator process after another, over one server."""

    def __init__(self, *supervisors: Raw, judge: AnsweringJudge | None = None) -> None:
        self.server = FakeServer(live_run())
        self.supervisors = supervisors
        self.judge = judge
        self.events: list[str] = []
        self.seconds = 0.0
        self.restart()

    def restart(self) -> None:
        self.desk = _Desk(self.server, self.judge)
        self.desk.events.taken = self.events
        for raw in self.supervisors:
            self.desk.cache.apply(raw)
        self.desk.cache.apply(live_pod())
        self.reconciler = RunReconciler(self.desk, Suspensions(self.desk))  # type: ignore[arg-type]

    async def look(self, seconds: float = 0.0) -> Raw:
        """Let some time go by, and look until nothing is left to do."""
        self.seconds += seconds
        self.desk.seconds = self.seconds
        for _ in range(8):
            self.desk.cache.apply(self.server.raw)
            pause = await self.reconciler.reconcile(RUN)
            if pause is not None and pause <= 0:
                continue
            if not self.desk.judges.underway("u1"):
                break
            for _ in range(5):
                await asyncio.sleep(0)
        return self.server.raw

    def writes(self) -> list[str]:
        """What was written since this was asked last."""
        found, self.server.writes = self.server.writes, []
        return found


def live_run() -> Raw:
    status = {
        "attempt": 1,
        "pod": {"name": "r1-1", "node": "n1"},
        "plan": {"name": "r1-plan", "digest": "d1"},
        "startTime": text(NOW),
        "run": {"attempt": 1, "turn": 0, "journalLength": 1},
    }
    metadata = {"name": "r1", "namespace": "ns", "uid": "u1", "generation": 1, "resourceVersion": "10"}
    spec = {"workflowRef": {"name": "flow"}}
    kind = {"apiVersion": names.API_VERSION, "kind": "AgentRun"}
    return {**kind, "metadata": {**metadata, "creationTimestamp": text(NOW)}, "spec": spec, "status": status}


def live_pod() -> Raw:
    metadata = {
        "name": "r1-1",
        "namespace": "ns",
        "uid": "p1",
        "resourceVersion": "5",
        "creationTimestamp": text(NOW),
        "labels": {names.LABEL_ATTEMPT: "1", names.LABEL_RUN: "r1"},
        "ownerReferences": [{"uid": "u1", "controller": True}],
    }
    running = {"containerStatuses": [{"name": "runner", "state": {"running": {}}}]}
    return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"phase": "Running", **running}}


def a_supervisor(name: str = "careful", generation: int = 1, **spec: Any) -> Raw:
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "generation": generation,
        "resourceVersion": str(next(VERSIONS)),
    }
    kind = {"apiVersion": names.API_VERSION, "kind": "Supervisor"}
    return {**kind, "metadata": metadata, "spec": {"selector": {}, **spec}}


def a_turn(turn: int, **more: Any) -> Raw:
    return {
        "step": PLAN.spec.steps[0].id,
        "visit": 1,
        "turn": turn,
        "iteration": turn,
        "journalLength": 10 * turn,
        "visitCounts": {},
        "lastProgressTime": text(NOW),
        **more,
    }


def answer(mode: str = "Run", turn: int = 0, steer: Raw | None = None, **more: Any) -> Raw:
    return {"control": {"observedGeneration": 9, "mode": {"value": mode, "turn": turn}, "steer": steer or {}}, **more}


def actions(raw: Raw) -> list[tuple[str, str, int | None]]:
    found = raw["status"]["supervision"].get("actions", [])
    return [(one["action"], one.get("state", "Intended"), one.get("landedTurn")) for one in found]


async def watched(*supervisors: Raw, judge: AnsweringJudge | None = None) -> Operator:
    operator = Operator(*supervisors, judge=judge)
    if judge is not None:
        await operator.desk.judges._read_table()
    await operator.look()
    assert operator.writes() == ["status"]  # who watches, and what is said of a run that begins
    return operator


async def test_an_action_costs_its_intent_its_patch_and_the_acknowledgement() -> None:
    operator = await watched(a_supervisor(**STEERS))
    operator.server.report(**a_turn(1))
    raw = await operator.look()
    assert operator.writes() == ["status", "control"]
    (steer,) = raw["spec"]["control"]["steer"]
    assert actions(raw) == [("Steer", "Intended", None)]
    assert operator.events == ["SupervisorSteered"]

    operator.server.report(**a_turn(2, **answer(steer={steer: {"state": "Landed", "turn": 2}})))
    raw = await operator.look(0.5)
    assert operator.writes() == ["status"]
    assert actions(raw) == [("Steer", "Done", 2)]
    assert raw["status"]["observedGeneration"] == raw["metadata"]["generation"]
    assert raw["status"]["supervision"]["supervisors"]["uid-careful"]["actions"] == {"steer": 1}
    for turn in (3, 4):
        operator.server.report(**a_turn(turn, **answer(steer={steer: {"state": "Landed", "turn": 2}})))
        await operator.look()
    assert operator.writes() == []
    assert operator.events == ["SupervisorSteered"]


async def test_a_directive_that_does_not_land_is_told_after_a_while() -> None:
    operator = await watched(a_supervisor(**STEERS))
    operator.server.report(**a_turn(1))
    await operator.look()
    operator.writes()
    raw = await operator.look(2.5)
    assert operator.writes() == ["status"]
    assert actions(raw) == [("Steer", "Done", None)]


async def test_a_process_that_dies_while_news_wait_loses_nothing() -> None:
    operator = await watched(a_supervisor(**PAUSES))
    operator.server.report(**a_turn(1))
    raw = await operator.look()
    assert actions(raw) == [("Pause", "Intended", None)]
    operator.writes()
    operator.restart()
    await operator.look()
    raw = await operator.look(3)
    assert operator.writes() == ["status"]
    assert actions(raw) == [("Pause", "Done", None)]
    assert raw["status"]["supervision"]["supervisors"]["uid-careful"]["actions"] == {"pause": 1}
    assert set(operator.events) == {"SupervisorPaused"}


async def test_something_else_that_was_written_first_is_looked_at_before_the_directive_goes_out() -> None:
    operator = await watched(a_supervisor(**PAUSES))
    operator.server.before_patch = [{"steer": {"a1": {"message": "Look at invoice 42."}}}]
    operator.server.report(**a_turn(1))
    raw = await operator.look()
    assert raw["spec"]["control"]["mode"] == "Pause"
    assert list(raw["spec"]["control"]["steer"]) == ["a1"]
    raw = await operator.look(3)
    assert actions(raw) == [("Pause", "Done", None)]


async def test_what_a_person_writes_behind_the_intent_does_not_disarm_it() -> None:
    operator = await watched(a_supervisor(**PAUSES))
    operator.server.report(**a_turn(1))
    operator.server.behind_status = [{"steer": {"mine": {"message": "Hurry."}}}]
    raw = await operator.look()
    assert raw["spec"]["control"]["mode"] == "Pause"
    assert operator.events == ["SupervisorPaused"]


async def test_a_pause_that_is_said_anew_in_the_same_turn_is_told_anew() -> None:
    spent = {"name": "spent", "when": "Expression", "expression": {"cel": "run.turn >= 1"}, "then": "Pause"}
    operator = await watched(a_supervisor(rules=[spent]))
    operator.server.report(**a_turn(1))
    await operator.look()
    operator.server.steer(mode="Run", reason="go on")
    operator.server.report(**a_turn(1, visit=2, journalLength=99))
    raw = await operator.look()
    assert raw["spec"]["control"]["mode"] == "Pause"
    assert operator.events == ["SupervisorPaused", "SupervisorPaused"]


async def test_a_directive_that_comes_after_finish_is_superseded() -> None:
    operator = await watched(a_supervisor(**PAUSES))
    operator.server.before_patch = [{"mode": "Finish"}]
    operator.server.report(**a_turn(1))
    raw = await operator.look()
    assert raw["spec"]["control"]["mode"] == "Finish"
    assert actions(raw) == [("Pause", "Superseded", None)]
    assert operator.events == ["SupervisorSuperseded"]
    assert "control" not in operator.writes()
    assert "actions" not in raw["status"]["supervision"]["supervisors"]["uid-careful"]


async def test_a_directive_that_a_policy_of_the_cluster_refuses_stands_and_is_given_again_after_a_while() -> None:
    operator = await watched(a_supervisor(**PAUSES, enforcement="Sync"))
    operator.server.refuses = [Invalid(422, "a policy of this cluster says no")]
    operator.server.report(**a_turn(1))
    raw = await operator.look()
    assert actions(raw) == [("Pause", "Intended", None)]
    assert raw["status"]["supervision"]["clock"]["journalLength"] == 1
    operator.server.steer(steer={"a1": {"message": "Look at invoice 42."}})
    operator.desk.queue.taken.clear()
    await operator.look(29)
    assert "control" not in operator.writes()
    assert RUN in operator.desk.queue.taken
    raw = await operator.look(2)
    raw = await operator.look(3)
    assert actions(raw) == [("Pause", "Done", None)]
    assert raw["status"]["supervision"]["clock"]["journalLength"] == 10


async def test_a_directive_that_is_refused_after_abort_is_not_given_again() -> None:
    operator = await watched(a_supervisor(**STEERS))
    operator.server.steer(mode="Finish")
    operator.server.refuses = [Invalid(422, "this run is finished")]
    operator.server.report(**a_turn(1))
    raw = await operator.look()
    assert actions(raw) == [("Steer", "Superseded", None)]
    await operator.look(60)
    assert "control" not in operator.writes()


async def test_a_person_who_resumes_while_done_waits_is_not_paused_again() -> None:
    operator = await watched(a_supervisor(**PAUSES))
    operator.server.report(**a_turn(1))
    await operator.look()
    operator.server.steer(mode="Run")
    raw = await operator.look(0.5)
    raw = await operator.look(5)
    assert raw["spec"]["control"]["mode"] == "Run"
    assert actions(raw) == [("Pause", "Done", None)]
    assert operator.events == ["SupervisorPaused"]


@pytest.mark.parametrize(
    ("given", "counted", "ready"),
    [
        (Verdict(passed=True, reason="", tokens=5), {"calls": 1, "iteration": 1, "tokensUsed": 5}, "True"),
        (
            JudgeFailure(type="BadAnswer", message="garbage", tokens=3),
            {"calls": 1, "failures": 1, "isFailing": True, "iteration": 1, "lastError": "BadAnswer: garbage"}
            | {"tokensUsed": 3},
            "False",
        ),
    ],
)
async def test_a_verdict_costs_one_write(given: JudgeAnswer, counted: Raw, ready: str) -> None:
    spec = {"judge": {"model": "small", "criteria": {"inline": "Be good."}}}
    operator = await watched(a_supervisor(**spec), judge=AnsweringJudge(given))
    operator.server.report(**a_turn(1))
    raw = await operator.look()
    assert operator.writes() == ["status"]
    judge = raw["status"]["supervision"]["supervisors"]["uid-careful"]["judge"]
    assert {name: value for name, value in judge.items() if name != "askedLength"} == counted
    found = {one["type"]: one["status"] for one in raw["status"]["conditions"]}
    assert found["JudgeReady"] == ready
    assert RUN in operator.desk.queue.taken


async def test_under_sync_a_quiet_turn_costs_one_write_which_raises_the_clock() -> None:
    operator = await watched(a_supervisor(enforcement="Sync", rules=[PAUSES["rules"][0] | HIGH]))
    for turn in (1, 2):
        park = {"reason": "Barrier", "turn": turn, "since": text(NOW)}
        operator.server.report(**a_turn(turn, parked=park))
        raw = await operator.look()
        assert raw["status"]["supervision"]["clock"]["journalLength"] == 10 * turn
        operator.server.report(**a_turn(turn, journalLength=10 * turn + 1, parked=None))
        await operator.look()
    assert operator.writes() == ["status", "status"]


async def test_under_sync_a_verdict_and_the_clock_are_one_write() -> None:
    spec = {"judge": {"model": "small", "criteria": {"inline": "Be good."}}, "enforcement": "Sync"}
    operator = await watched(a_supervisor(**spec), judge=AnsweringJudge(Verdict(passed=True, reason="", tokens=5)))
    for turn in (1, 2, 3):
        park = {"reason": "Barrier", "turn": turn, "since": text(NOW), "wake": text(NOW + timedelta(seconds=60))}
        operator.server.report(**a_turn(turn, parked=park))
        raw = await operator.look()
        assert raw["status"]["supervision"]["clock"]["journalLength"] == 10 * turn
        assert operator.writes() == ["status"]
        operator.server.report(**a_turn(turn, journalLength=10 * turn + 1, parked=None))
        await operator.look()
        assert operator.writes() == []


HIGH = {"iterationReached": {"count": 900}}


async def test_a_run_that_nobody_watches_costs_nothing() -> None:
    operator = Operator()
    await operator.look()
    operator.writes()
    for turn in (1, 2, 3):
        operator.server.report(**a_turn(turn))
        raw = await operator.look()
    assert operator.writes() == []
    assert "supervision" not in raw["status"]
