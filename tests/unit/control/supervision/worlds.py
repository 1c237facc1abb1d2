"""A run, its runner and an API server in a few lines, for tests of the state machine of supervision.

The host of these tests does what a `SupervisionPlan` says, in its order, and may die at any point of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pilothouse_api.judging import JudgeAnswer
from pilothouse_api.patches import merge_patch
from pilothouse_api.plan import Origin, Plan, RunIdentity
from pilothouse_api.v1alpha1 import AgentRun, Supervisor
from pilothouse_api.v1alpha1.agentrun import Snapshot, Supervision, SupervisionAction
from pilothouse_api.v1alpha1.workflow import WorkflowSpec
from pilothouse_control.supervision import (
    JudgeAsk,
    JudgeAvailability,
    JudgeAvailable,
    NewVerdict,
    SupervisionPlan,
    SupervisionView,
    find_bound,
    plan_supervision,
)
from unit.control.manifests import a_tool, an_mcp_server, autonomous, with_mcp

START = datetime(2026, 1, 1, tzinfo=UTC)
REPEATED = {"name": "loop", "when": "ToolRepeated"}


def a_plan(*refs: str, agent: Mapping[str, Any] | None = None) -> Plan:
    steps = [{"id": "work", "kind": "Agent", "agent": agent or autonomous()}]
    spec = WorkflowSpec.model_validate({"steps": steps, "supervisorRefs": [{"name": ref} for ref in refs]})
    identity = RunIdentity(namespace="ns", name="run-1", uid="u-run")
    return Plan(run=identity, workflow=Origin(name="triage", digest="d"), spec=spec)


def a_guard(name: str = "guard", *rules: Mapping[str, Any], generation: int = 1, **spec: Any) -> Supervisor:
    raw = {"selector": {}, "rules": [dict(rule) for rule in rules] or [REPEATED], **spec}
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "generation": generation}
    return Supervisor.model_validate({"kind": "Supervisor", "metadata": metadata, "spec": raw})


def a_judge(**changes: Any) -> dict[str, Any]:
    return {"model": "small", "criteria": {"inline": "Be fair."}, **changes}


def a_snapshot(turn: int = 1, **changes: Any) -> Snapshot:
    raw = {
        "attempt": 1,
        "journalLength": 10 * turn,
        "step": "work",
        "visit": 1,
        "turn": turn,
        "iteration": turn,
        "maxIterations": 50,
        "visitCounts": {"toolCalls": {"lookup": 1}},
        "lastProgressTime": START.isoformat(),
    }
    return Snapshot.model_validate({**raw, **changes})


def calling(turn: int, times: int, tool: str = "lookup", **changes: Any) -> Snapshot:
    return a_snapshot(turn, visitCounts={"toolCalls": {tool: times}}, **changes)


def at_barrier(turn: int, **changes: Any) -> Snapshot:
    """The snapshot behind a turn of a Sync run, whose runner waits for the clock."""
    wake = (START + timedelta(seconds=60)).isoformat()
    parked = {"reason": "Barrier", "turn": turn, "since": START.isoformat(), "wake": wake, "onTimeout": "Pause"}
    return a_snapshot(turn, parked=parked, **changes)


@dataclass
class World:
    """One run with its supervisors. `look` is one step of the host, `settle` looks until there is nothing to do."""

    supervisors: list[Supervisor]
    plan: Plan = field(default_factory=a_plan)
    snapshot: Snapshot | None = None
    now: datetime = START
    judges: dict[str, JudgeAvailability] = field(default_factory=dict)
    verdicts: dict[str, NewVerdict] = field(default_factory=dict)
    underway: dict[str, JudgeAsk] = field(default_factory=dict)
    unapplied: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    acted: list[SupervisionAction] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    patches: list[Mapping[str, Any]] = field(default_factory=list)
    parent: Supervision | None = None

    def __post_init__(self) -> None:
        metadata = {"name": "run-1", "namespace": "ns", "uid": "u-run", "generation": 1}
        self.raw: dict[str, Any] = {
            "kind": "AgentRun",
            "metadata": metadata,
            "spec": {"workflowRef": {"name": "triage"}},
            "status": {"phase": "Running"},
        }
        for supervisor in self.supervisors:
            if supervisor.spec.judge is not None:
                self.judges.setdefault(str(supervisor.metadata.uid), JudgeAvailable("Be fair."))

    @property
    def run(self) -> AgentRun:
        return AgentRun.model_validate(self.raw)

    @property
    def record(self) -> Supervision:
        return self.run.status.supervision or Supervision()

    @property
    def control(self) -> dict[str, Any]:
        return self.raw["spec"].get("control") or {}

    @property
    def states(self) -> list[tuple[str, str]]:
        return [(action.action, action.state) for action in self.record.actions]

    def view(self) -> SupervisionView:
        refs = [ref.name for ref in self.plan.spec.supervisor_refs]
        return SupervisionView(
            run=self.run,
            now=self.now,
            bound=find_bound(self.run, refs, self.supervisors, self.parent).bound,
            plan=self.plan,
            snapshot=self.snapshot,
            judges=self.judges,
            verdicts=dict(self.verdicts),
            underway=frozenset(self.underway),
            unapplied=self.unapplied,
            refused=self.refused,
        )

    def person(self, **control: Any) -> None:
        """Patch `spec.control` as a person does."""
        self._patch({"control": control})

    def _patch(self, spec: Mapping[str, Any]) -> None:
        changed = merge_patch(self.raw["spec"], spec)
        if changed != self.raw["spec"]:
            generation = self.raw["metadata"]["generation"] + 1
            self.raw = {**self.raw, "spec": changed, "metadata": {**self.raw["metadata"], "generation": generation}}

    def look(self, *, dies_before: str = "") -> SupervisionPlan:
        """Do what one plan says, in its order; `dies_before` write, asks or done: the host dies there."""
        plan = plan_supervision(self.view())
        if dies_before == "write":
            self.die()
            return plan
        if plan.is_changed:
            assert plan.record is not None
            raw = plan.record.to_raw()
            Supervision.model_validate(raw)
            self.raw = {**self.raw, "status": {**self.raw["status"], "supervision": raw}}
            self.verdicts = {}
            self.unapplied |= frozenset(plan.intended)
            if dies_before == "asks":
                self.die()
                return plan
            self.acted += plan.acted
            self.logged += [line.message for line in plan.log]
        self.underway |= {ask.uid: ask for ask in plan.asks}
        if not plan.is_changed and plan.directive is not None:
            self.patches.append(plan.directive.patch)
            self.unapplied -= frozenset(plan.directive.actions)
            self._patch(plan.directive.patch)
            if dies_before == "done":
                self.die()
        return plan

    def die(self) -> None:
        """Forget what is in no record."""
        self.verdicts, self.underway = {}, {}
        self.unapplied = self.refused = frozenset()

    def settle(self, snapshot: Snapshot | None = None) -> SupervisionPlan:
        """Publish a snapshot, and look until there is nothing to do."""
        self.snapshot = snapshot or self.snapshot
        for _ in range(12):
            before = self.raw, dict(self.underway)
            plan = self.look()
            if (self.raw, self.underway) == before:
                return plan
        raise AssertionError("it does not come to rest")

    def answer(self, answer: JudgeAnswer, name: str = "guard") -> None:
        """Have the judge of a supervisor answer."""
        uid = f"uid-{name}"
        self.verdicts[uid] = NewVerdict(self.underway.pop(uid), answer)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)


def agent_with_servers(*allow: str) -> dict[str, Any]:
    agent = with_mcp(an_mcp_server(), allow=list(allow))["spec"]
    delegate = a_tool(name="ask", inlineStep=None, agentRef={"name": "helper"}, background=True)
    return {**agent, "tools": [*agent["tools"], a_tool(), delegate]}
