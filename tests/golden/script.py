"""The form of a golden script: a short run as YAML, and the plan that it stands for.

    about: one sentence, what the run shows
    agent: {...}            the one Agent step `work`; or `steps:`, a list as in a Workflow
    routes: {...}           routes of `work`; where they are left out each outcome leads to end
    model: {turns: [...]}   what the scripted model plays (engine.md §18), for every agent
    fallback: {turns: [...]}  the script of one fallback endpoint
    functions: {lookup: [{output: {...}}, {raises: text}, {hangs: true}]}  what a function gives, call by call; the
                            last one is repeated, and one that is not named gives {"done": true}
    http: [{status: 200, json: {...}}, {failure: Timeout, sent: true}]     the same for HTTP
    mcp: {crm: {tools: [{name: search}], calls: {search: [{text: found}, {failure: Timeout}]}}}
    session: c-17           the conversation that the run continues
    past: [[{role: user, text: hi}, ...]]   what earlier runs of it have said in the step `work`, run by run
    objects: [{kind: ConfigMap, ...}]   objects of the cluster, in the run's namespace; `forbidden`: names of others
    secrets: {shop/token: text}         keys of Secrets
    events:                 what people and the world do, and when
    - when: {turn: 2}       while the model is asked at turn 2
      control: {mode: Abort}
    - when: {call: lookup}  while the function runs; {fact: CallStarted}: once that is journaled; {parked: Paused}: once
      kill: true            it is published; {ended: Released}: between two attempts; `nth` counts from 1

    - when: {start: true}
      supervision: {barrier: {timeoutSeconds: 60, onTimeout: Pause}}   # what the operator writes; {}: watches alone
    - when: {parked: Barrier}   # once it is published; {settled: 1}: once a snapshot is that says so of effects
      judges: true              # from now on supervision sees each snapshot of a barrier at once; false: no more

    - when: {fact: ChildRequested}
      child: {exit: {signal: done, reason: Complete, message: ""}, result: {...}}   the operator's report on each child

A long text is `{of: text, times: n}`. A decision may name a pending call without the digest of its id:
`approvals: {t1-0: {decision: Approve}}`.

In an agent, `mode`, `model` and `tools` may be left out, and a tool may be a word or a mapping of its fields without
the work: it is then a function of that name.
"""

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from pilothouse_api import plan as models
from pilothouse_api.structs import Plan
from pilothouse_api.v1alpha1.agent import AgentSpec
from pilothouse_api.v1alpha1.workflow import WorkflowSpec
from pilothouse_engine.attempt import SettleCause

UID = "uid-1"


class _Node(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


class When(_Node):
    """A moment; exactly one of the first is set."""

    start: bool = False
    turn: int | None = None
    call: str | None = None
    http: bool = False
    fact: str | None = None
    parked: str | None = None
    settled: int | None = None
    ended: Literal["Released", "Killed"] | None = None
    nth: int = 1


class Event(_Node):
    """What happens then."""

    when: When
    after: float = 0.0
    control: dict[str, Any] | None = None
    takes_back: bool = False
    limits: dict[str, Any] | None = None
    child: dict[str, Any] | None = None
    supervision: dict[str, Any] | None = None
    judges: bool | None = None
    delete: bool = False
    store: Literal["Back", "Unavailable", "Forbidden"] | None = None
    journal_fails: int = 0
    journal_keeps: int | None = None
    sessions_fail: int = 0
    stop: bool = False
    kill: bool = False
    settle: SettleCause | None = None
    passes: float = 0.0

    @property
    def said(self) -> str:
        """The event in one line."""
        fields = self.model_dump(exclude={"when", "after"}, exclude_defaults=True, by_alias=True)
        return ", ".join(f"{name}: {_flow(value)}" for name, value in fields.items())


class McpScript(_Node):
    """An MCP server: what it lists (or why it does not), and what its tools give, call by call."""

    unlisted: Literal["Timeout", "Connection", "Credentials"] | None = None
    tools: list[dict[str, Any]] = []
    calls: dict[str, list[dict[str, Any]]] = {}


class Script(_Node):
    """One golden run."""

    about: str
    agent: dict[str, Any] | None = None
    routes: dict[str, str] | None = None
    steps: list[dict[str, Any]] = []
    workflow: dict[str, Any] = {}
    agents: dict[str, dict[str, Any]] = {}
    texts: dict[str, dict[str, str]] = {}
    input: dict[str, Any] = {"ticket": "I was charged twice"}
    active_deadline_seconds: int = 3600
    model: dict[str, Any] | None = None
    fallback: dict[str, Any] | None = None
    functions: dict[str, list[dict[str, Any]]] = {}
    http: list[dict[str, Any]] = []
    mcp: dict[str, McpScript] = {}
    session: str | None = None
    past: list[list[dict[str, Any]]] = []
    damaged: bool = False
    """Whether what is stored of the session is no conversation."""
    objects: list[dict[str, Any]] = []
    forbidden: list[str] = []
    secrets: dict[str, str] = {}
    events: list[Event] = []
    durable: bool = True
    settings: dict[str, float] = {}
    hidden: list[str] = []
    """What stands in no snapshot and in no frame."""
    may_end_otherwise: str = ""
    """Why a run that is cut and resumed in between may end otherwise; empty where it may not."""

    @property
    def journal_was_cut(self) -> bool:
        """Whether the journal is cut short under the run."""
        return any(event.journal_keeps is not None for event in self.events)

    def plan(self) -> Plan:
        """Return what the run executes."""
        steps = self.steps or [{"id": "work", "kind": "Agent", "agent": self.agent or {}}]
        if self.routes is not None:
            steps = [{**steps[0], "routes": self.routes}, *steps[1:]]
        valid = models.Plan(
            run=models.RunIdentity(namespace="ns", name="run-1", uid=UID),
            workflow=models.Origin(name="flow", digest="d"),
            spec=WorkflowSpec.model_validate({"steps": [self._step(step) for step in steps], **self.workflow}),
            agents={
                name: models.PlannedAgent(
                    origin=models.Origin(name=name, digest="d"), spec=AgentSpec.model_validate(self._agent(spec))
                )
                for name, spec in self.agents.items()
            },
            texts={key: models.PlannedText.model_validate(text) for key, text in self.texts.items()},
            input=self.input,
            active_deadline_seconds=self.active_deadline_seconds,
            ceilings=models.LiveCeilings(),
            **({"session": self.session} if self.session is not None else {}),
        )
        return Plan.read(valid.to_raw())

    def _step(self, step: dict[str, Any]) -> dict[str, Any]:
        if "agent" in step:
            agent = self._agent(step["agent"])
            step = {**step, "agent": agent}
            outcomes = agent.get("outcome", {}).get("enum", ["default"])
            step.setdefault("routes", dict.fromkeys(outcomes, "end"))
        if step["kind"] == "Function" and "function" not in step:
            step = {**step, "function": {"callable": f"steps:{step['id']}"}}
        return step

    def _agent(self, agent: dict[str, Any]) -> dict[str, Any]:
        mode = agent.get("mode", "Autonomous")
        built = {**agent, "mode": mode, "model": self._model(agent.get("model", {}))}
        if mode == "Autonomous":
            built["tools"] = [_tool(tool) for tool in agent.get("tools", ["lookup"])]
        return built

    def _model(self, fields: dict[str, Any]) -> dict[str, Any]:
        model = {"name": "scripted", "script": {"inline": dump(self.model)}, "maxOutputTokens": 1000} | fields
        if self.fallback is not None:
            model["fallbacks"] = [
                {"name": "scripted", "script": {"inline": dump(self.fallback)}, "maxOutputTokens": 1000}
            ]
        return model


def _tool(tool: str | dict[str, Any]) -> dict[str, Any]:
    fields = {"name": tool} if isinstance(tool, str) else tool
    if not {"step", "inlineStep", "mcp", "agentRef"}.isdisjoint(fields):
        return fields
    name = fields["name"]
    work = {"kind": "Function", "function": {"callable": f"tools:{name}", "output": name}}
    return {"description": f"Does {name}.", "effect": "ReadOnly", "inlineStep": work} | fields


def read_script(path: Path) -> Script:
    """Return the script of a file."""
    return Script.model_validate(_written_out(yaml.safe_load(path.read_text())))


def _written_out(value: Any) -> Any:
    """Return a value with each `{of: text, times: n}` written out."""
    if isinstance(value, dict):
        if value.keys() == {"of", "times"}:
            return value["of"] * value["times"]
        return {key: _written_out(item) for key, item in value.items()}
    return [_written_out(item) for item in value] if isinstance(value, list) else value


def dump(value: Any) -> str:
    """Return a value as YAML, as it was written."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000)


def _flow(value: Any) -> str:
    if isinstance(value, bool | int | float | str):
        return str(value)
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000).strip()
