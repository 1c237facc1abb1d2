"""For every CEL rule of the models: one spec that passes and one that is refused.

`before` (and `status`) make it a transition: the run is created so, and `good` and `bad` are merge-patches of its spec.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Spec = dict[str, Any]

CALL = {"method": "GET", "url": "http://a/b"}
SERVER = {"name": "s", "transport": "StreamableHTTP", "url": "http://a/mcp"}


@dataclass(frozen=True)
class RuleCase:
    model: str
    """Class that holds the rule."""
    message: str
    """The rule's message, whole or from its beginning."""
    kind: str
    good: Spec
    bad: Spec
    before: Spec | None = None
    status: Spec = field(default_factory=dict)
    good_name: str = ""
    bad_name: str = ""


def _completion(**more: Any) -> Spec:
    return {"mode": "Completion", "model": {"name": "m"}, "prompt": {"inline": "x"}} | more


def _autonomous(**more: Any) -> Spec:
    return {"mode": "Autonomous", "model": {"name": "m"}, "tools": [{"name": "t", "step": "s"}]} | more


def _tool(**tool: Any) -> Spec:
    return _autonomous(tools=[{"name": "t"} | tool])


def _inline(**inline_step: Any) -> Spec:
    return _tool(inlineStep=inline_step)


def _header(**header: Any) -> Spec:
    return _inline(kind="APICall", apiCall={**CALL, "headers": [{"name": "h"} | header]})


def _policy(**rule: Any) -> Spec:
    return _completion(policy=[{"name": "r"} | rule])


def _steps(*steps: Spec, **more: Any) -> Spec:
    return {"steps": list(steps), **more}


def _step(**more: Any) -> Spec:
    return {"id": "a", "kind": "APICall", "apiCall": CALL} | more


def _rule(**rule: Any) -> Spec:
    return {"rules": [{"name": "r"} | rule]}


UNDECLARED = {"name": "r", "when": "UndeclaredToolCalled"}
RUN = {"workflowRef": {"name": "w"}, "input": {"a": 1}, "session": "s", "overrides": {"maxAttempts": 1}}
PENDING = {"run": {"attempt": 1, "pendingApprovals": [{"callId": "t3-0-9f2c11ab", "tool": "refund"}]}}
APPROVED = {"approvals": {"t3-0-9f2c11ab": {"decision": "Approve"}}}
LONG = "x" * 64


def _immutable(name: str, before: Spec, bad: Spec) -> RuleCase:
    return RuleCase("AgentRunSpec", f"{name} is immutable", "AgentRun", {"control": {"mode": "Pause"}}, bad, before)


AGENT_CASES = (
    RuleCase("Agent", "the name of an Agent", "Agent", _completion(), _completion(), bad_name="has.dots"),
    RuleCase(
        "AgentModel",
        "name: scripted needs script",
        "Agent",
        _completion(model={"name": "scripted", "script": {"inline": "turns: []"}}),
        _completion(model={"name": "scripted"}),
    ),
    RuleCase(
        "ModelEndpoint",
        "name: scripted needs script",
        "Agent",
        _completion(model={"name": "m", "fallbacks": [{"name": "n"}]}),
        _completion(model={"name": "m", "fallbacks": [{"name": "n", "script": {"inline": "turns: []"}}]}),
    ),
    RuleCase("AgentSpec", "mode: Autonomous needs tools", "Agent", _autonomous(), _autonomous(tools=[])),
    RuleCase(
        "AgentSpec",
        "system and prompt belong to mode: Completion",
        "Agent",
        _autonomous(steering={"inline": "x"}),
        _autonomous(system={"inline": "x"}),
    ),
    RuleCase(
        "AgentSpec",
        "mode: Completion needs prompt",
        "Agent",
        _completion(),
        {"mode": "Completion", "model": {"name": "m"}},
    ),
    RuleCase(
        "AgentSpec",
        "mode: Completion takes system and prompt",
        "Agent",
        _completion(system={"inline": "x"}, guardrails={"output": []}),
        _completion(steering={"inline": "x"}),
    ),
    RuleCase(
        "AgentSpec",
        "outcome.format and outcome.map",
        "Agent",
        _completion(outcome={"format": "Text"}),
        _autonomous(outcome={"format": "Text"}),
    ),
    RuleCase(
        "AgentSpec",
        "retry.causes: ParseError",
        "Agent",
        _completion(retry={"causes": ["ParseError"]}),
        _autonomous(retry={"causes": ["ParseError"]}),
    ),
    RuleCase(
        "AgentSpec",
        "limits.tokenBudget needs model.maxOutputTokens",
        "Agent",
        _completion(model={"name": "m", "maxOutputTokens": 10}, limits={"tokenBudget": 100}),
        _completion(limits={"tokenBudget": 100}),
    ),
    RuleCase(
        "APICall",
        "retry.causes of an APICall",
        "Agent",
        _inline(kind="APICall", apiCall={**CALL, "retry": {"causes": ["Timeout"]}}),
        _inline(kind="APICall", apiCall={**CALL, "retry": {"causes": ["ParseError"]}}),
    ),
    RuleCase(
        "GuardrailCheck",
        "set only the field that check names",
        "Agent",
        _completion(guardrails={"input": [{"check": "MaxChars", "maxChars": {"limit": 3}}, {"check": "SecretMask"}]}),
        _completion(guardrails={"input": [{"check": "MaxChars", "maxChars": {"limit": 3}, "secretMask": {}}]}),
    ),
    RuleCase(
        "Header",
        "set exactly one of: value, valueFrom",
        "Agent",
        _header(value="x"),
        _header(value="x", valueFrom={"secretKeyRef": {"name": "s", "key": "k"}}),
    ),
    RuleCase(
        "Hook",
        "set event and action",
        "Agent",
        _completion(hooks=[{"artifact": "audit@1"}]),
        _completion(hooks=[{"artifact": "audit@1", "event": "OnError", "action": "Log"}]),
    ),
    RuleCase(
        "Hook",
        "set notify exactly when action is Notify",
        "Agent",
        _completion(hooks=[{"event": "OnError", "action": "Notify", "notify": {"step": "s"}}]),
        _completion(hooks=[{"event": "OnError", "action": "Notify"}]),
    ),
    RuleCase(
        "InlineStep",
        "set only the field that kind names",
        "Agent",
        _inline(kind="Router", router={"match": "a.b"}),
        _inline(kind="Router", apiCall=CALL),
    ),
    RuleCase(
        "McpServer",
        "set transport, or artifact alone",
        "Agent",
        _autonomous(mcpServers=[{"name": "s", "artifact": "gh@1"}]),
        _autonomous(mcpServers=[{"name": "s"}]),
    ),
    RuleCase(
        "McpServer",
        "headers and auth of a server that is an artifact stand in its text",
        "Agent",
        _autonomous(mcpServers=[{"name": "s", "artifact": "gh@1", "required": False}]),
        _autonomous(mcpServers=[{"name": "s", "artifact": "gh@1", "headers": [{"name": "a", "value": "b"}]}]),
    ),
    RuleCase(
        "McpServer",
        "transport: StreamableHTTP needs url",
        "Agent",
        _autonomous(mcpServers=[SERVER]),
        _autonomous(mcpServers=[{"name": "s", "transport": "StreamableHTTP"}]),
    ),
    RuleCase(
        "McpServer",
        "transport: Stdio needs command",
        "Agent",
        _autonomous(mcpServers=[{"name": "s", "transport": "Stdio", "command": ["serve"]}]),
        _autonomous(mcpServers=[{"name": "s", "transport": "Stdio"}]),
    ),
    RuleCase(
        "Outcome",
        "outcome.enum cannot hold reserved exits",
        "Agent",
        _completion(outcome={"enum": ["resolved"]}),
        _completion(outcome={"enum": ["resolved", "max_iterations"]}),
    ),
    RuleCase(
        "Outcome",
        "YAML turns this word into a boolean",
        "Agent",
        _completion(outcome={"enum": ["agreed", "refused"]}),
        _completion(outcome={"enum": ["yes", "no"]}),
    ),
    RuleCase(
        "PolicyRule",
        "set exactly one of: cel, http",
        "Agent",
        _policy(at="ToolCall", http={"url": "http://opa/allow"}),
        _policy(at="ToolCall", http={"url": "http://opa/allow"}, cel="true", verdict="Deny"),
    ),
    RuleCase(
        "PolicyRule",
        "verdict belongs beside cel",
        "Agent",
        _policy(at="ToolCall", cel="true", verdict="RequireApproval"),
        _policy(at="ToolCall", cel="true"),
    ),
    RuleCase(
        "PolicyRule",
        "at: ModelCall takes the verdicts",
        "Agent",
        _policy(at="ModelCall", cel="true", verdict="Deny"),
        _policy(at="ModelCall", cel="true", verdict="RequireApproval"),
    ),
    RuleCase(
        "ResourceCall",
        "operations Get, Patch and Delete need name",
        "Agent",
        _inline(kind="Resource", resource={"operation": "Get", "apiVersion": "v1", "kind": "Pod", "name": "p"}),
        _inline(kind="Resource", resource={"operation": "Get", "apiVersion": "v1", "kind": "Pod"}),
    ),
    RuleCase(
        "ResourceCall",
        "operations Create and Patch need body",
        "Agent",
        _inline(kind="Resource", resource={"operation": "Create", "apiVersion": "v1", "kind": "Pod", "body": {"a": 1}}),
        _inline(kind="Resource", resource={"operation": "List", "apiVersion": "v1", "kind": "Pod", "body": {"a": 1}}),
    ),
    RuleCase(
        "Router",
        "set exactly one of: match, conditions",
        "Agent",
        _inline(kind="Router", router={"conditions": [{"cel": "true", "signal": "s"}]}),
        _inline(kind="Router", router={}),
    ),
    RuleCase(
        "Skill",
        "set exactly one of: inline, configMapKeyRef, artifact",
        "Agent",
        _autonomous(skills=[{"name": "s", "artifact": "a@1"}]),
        _autonomous(skills=[{"name": "s"}]),
    ),
    RuleCase(
        "TextSource",
        "set exactly one of: inline, configMapKeyRef, artifact",
        "Agent",
        _completion(prompt={"configMapKeyRef": {"name": "c", "key": "k"}}),
        _completion(prompt={"inline": "x", "artifact": "a@1"}),
    ),
    RuleCase(
        "Tool",
        "set exactly one of: step, inlineStep, mcp, agentRef",
        "Agent",
        _tool(agentRef={"name": "a"}),
        _tool(agentRef={"name": "a"}, step="s"),
    ),
    RuleCase(
        "Tool",
        "a tool's name cannot contain __",
        "Agent",
        _tool(step="s"),
        _autonomous(tools=[{"name": "start_x_task", "step": "s"}]),
    ),
    RuleCase(
        "Tool",
        "tools of an MCP server bring their own parameters",
        "Agent",
        _tool(mcp={"server": "s", "allow": ["*"]}),
        _tool(mcp={"server": "s", "allow": ["*"]}, parameters={"type": "object"}),
    ),
)

WORKFLOW_CASES = (
    RuleCase(
        "Workflow",
        "the name of a Workflow",
        "Workflow",
        _steps(_step()),
        _steps(_step()),
        good_name="w" * 52,
        bad_name="w" * 53,
    ),
    RuleCase(
        "Delegate",
        "set exactly one of: workflowRef, agentRef",
        "Workflow",
        _steps({"id": "a", "kind": "Delegate", "delegate": {"agentRef": {"name": "a"}}}),
        _steps({"id": "a", "kind": "Delegate", "delegate": {}}),
    ),
    RuleCase(
        "RunTemplate",
        "labels cannot hold app.kubernetes.io/managed-by",
        "Workflow",
        _steps(_step(), runTemplate={"labels": {"kueue.x-k8s.io/queue-name": "agents"}}),
        _steps(_step(), runTemplate={"labels": {"pilothouse.dev/finished": "true"}}),
    ),
    RuleCase(
        "Step",
        "set only the field that kind names",
        "Workflow",
        _steps(_step()),
        _steps(_step(response={"mapping": {"a": "b"}})),
    ),
    RuleCase(
        "Step",
        "kind: Agent needs exactly one of agentRef and agent",
        "Workflow",
        _steps({"id": "a", "kind": "Agent", "agentRef": {"name": "a"}}),
        _steps({"id": "a", "kind": "Agent", "agentRef": {"name": "a"}, "agent": _completion()}),
    ),
    RuleCase(
        "Step",
        "end and default cannot be ids of steps",
        "Workflow",
        _steps(_step(id="ending")),
        _steps(_step(id="end")),
    ),
    RuleCase(
        "Step",
        "YAML turns this signal into a boolean",
        "Workflow",
        _steps(_step(routes={"agreed": "end"})),
        _steps(_step(routes={"true": "end"})),
    ),
    RuleCase(
        "Step",
        "a signal in routes has 1 to 63 characters",
        "Workflow",
        _steps(_step(routes={LONG[:63]: "end"})),
        _steps(_step(routes={LONG: "end"})),
    ),
    RuleCase(
        "Trigger",
        "set schedule exactly when type is Schedule",
        "Workflow",
        _steps(_step(), trigger={"type": "Schedule", "schedule": {"cron": "* * * * *"}}),
        _steps(_step(), trigger={"schedule": {"cron": "* * * * *"}}),
    ),
    RuleCase(
        "WorkflowSpec",
        "a route leads to a step that does not exist",
        "Workflow",
        _steps(_step(routes={"default": "b"}), _step(id="b")),
        _steps(_step(routes={"default": "c"}), _step(id="b")),
    ),
    RuleCase(
        "WorkflowSpec",
        "every step is toolOnly",
        "Workflow",
        _steps(_step(toolOnly=True), _step(id="b")),
        _steps(_step(toolOnly=True)),
    ),
)

SUPERVISOR_CASES = (
    RuleCase(
        "Supervisor",
        "the name of a Supervisor",
        "Supervisor",
        _rule(when="UndeclaredToolCalled"),
        _rule(when="UndeclaredToolCalled"),
        bad_name=LONG,
    ),
    RuleCase(
        "LabelRequirement",
        "values is set with In and NotIn",
        "Supervisor",
        {"selector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}, "rules": [UNDECLARED]},
        {"selector": {"matchExpressions": [{"key": "team", "operator": "In"}]}, "rules": [UNDECLARED]},
    ),
    RuleCase(
        "SupervisorRule",
        "set only the field that when names",
        "Supervisor",
        _rule(when="ToolRepeated"),
        _rule(when="UndeclaredToolCalled", toolRepeated={"count": 2}),
    ),
    RuleCase(
        "SupervisorSpec",
        "barrierTimeoutSeconds (default 60) must exceed",
        "Supervisor",
        {"judge": {"model": "m", "criteria": {"inline": "x"}, "timeoutSeconds": 90}},
        {"judge": {"model": "m", "criteria": {"inline": "x"}, "timeoutSeconds": 90}, "enforcement": "Sync"},
    ),
    RuleCase(
        "SupervisorSpec",
        "a steer message cannot be blank",
        "Supervisor",
        {"rules": [UNDECLARED], "steerMessage": "go on"},
        {"rules": [UNDECLARED], "steerMessage": "  "},
    ),
    RuleCase(
        "SupervisorSpec",
        "a supervisor needs rules, a judge, or both",
        "Supervisor",
        {"rules": [UNDECLARED]},
        {"rules": []},
    ),
)

RUN_CASES = (
    RuleCase("AgentRun", "the name of an AgentRun", "AgentRun", RUN, RUN, good_name="r" * 58, bad_name="r" * 59),
    RuleCase(
        "AgentRunSpec",
        "set exactly one of: workflowRef, agentRef",
        "AgentRun",
        {"agentRef": {"name": "a"}},
        {"agentRef": {"name": "a"}, "workflowRef": {"name": "w"}},
    ),
    _immutable("workflowRef", RUN, {"workflowRef": {"name": "other"}}),
    _immutable("agentRef", {"agentRef": {"name": "a"}}, {"agentRef": {"name": "other"}}),
    _immutable("input", RUN, {"input": {"a": 2}}),
    _immutable("session", RUN, {"session": None}),
    _immutable("overrides", RUN, {"overrides": {"maxAttempts": 2}}),
    RuleCase(
        "AgentRunSpec",
        "Finish may only become Abort",
        "AgentRun",
        {"control": {"mode": "Abort"}},
        {"control": {"mode": "Run"}},
        {**RUN, "control": {"mode": "Finish"}},
    ),
    RuleCase(
        "Control",
        "a steer message cannot be changed once it is set",
        "AgentRun",
        {"control": {"steer": {"a2": {"message": "and this"}}}},
        {"control": {"steer": {"a1": {"message": "changed"}}}},
        {**RUN, "control": {"steer": {"a1": {"message": "this"}}}},
    ),
    RuleCase(
        "Control",
        "a decision cannot be changed once it is set",
        "AgentRun",
        {"control": {"mode": "Pause", "approvals": {"t3-0-9f2c11ab": None}}},
        {"control": {"approvals": {"t3-0-9f2c11ab": {"decision": "Deny"}}}},
        {**RUN, "control": APPROVED},
        PENDING,
    ),
    RuleCase(
        "Control",
        "the id of a steer message",
        "AgentRun",
        {**RUN, "control": {"steer": {"a.1-b_c": {"message": "this"}}}},
        {**RUN, "control": {"steer": {"a/1": {"message": "this"}}}},
    ),
    RuleCase(
        "Control",
        "an approval is named by the id of a pending call",
        "AgentRun",
        {"control": APPROVED},
        {"control": {"approvals": {LONG: {"decision": "Approve"}}}},
        RUN,
        PENDING,
    ),
    RuleCase(
        "SteerMessage",
        "a steer message cannot be blank",
        "AgentRun",
        {**RUN, "control": {"steer": {"a1": {"message": " x "}}}},
        {**RUN, "control": {"steer": {"a1": {"message": " \n "}}}},
    ),
)

CASES = AGENT_CASES + WORKFLOW_CASES + SUPERVISOR_CASES + RUN_CASES
