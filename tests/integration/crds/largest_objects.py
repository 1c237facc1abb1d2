"""Objects whose lists, maps and texts stand at their bounds (nested lists in their first entry: etcd takes 1.5 MB)."""

from __future__ import annotations

from typing import Any

Raw = dict[str, Any]

LINE, TEXT = "x" * 1024, "x" * 16384
HEADERS = [{"name": f"h{n}", "value": "x"} for n in range(32)]
SERVERS = [
    {"name": f"s{n}", "transport": "StreamableHTTP", "url": "http://a/mcp", "headers": HEADERS} for n in range(16)
]
CALL = {
    "method": "POST",
    "url": "http://a/" + "x" * 2000,
    "headers": HEADERS,
    "query": {f"q{n}": "x" for n in range(32)},
    "body": {"text": LINE},
    "extract": [{"path": "a", "as": f"e{n}"} for n in range(32)],
}
HOOKS = [{"event": "OnError", "action": "Notify", "notify": {"step": "s"}} for _ in range(16)]
POLICY = [{"name": f"p{n}", "at": "ToolCall", "cel": "x" * 4096, "verdict": "Deny"} for n in range(32)]
GATE = [{"check": "RegexDeny", "regexDeny": {"patterns": ["x" * 64] * 32}} for _ in range(16)]


def _object(kind: str, name: str, spec: Raw) -> Raw:
    return {"apiVersion": "pilothouse.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _tools(count: int) -> list[Raw]:
    return [
        {"name": f"t{n}", "description": "x", "inlineStep": {"kind": "APICall", "apiCall": CALL}} for n in range(count)
    ]


def _agent(**more: Any) -> Raw:
    return {
        "mode": "Autonomous",
        "model": {"name": "m", "maxOutputTokens": 1, "fallbacks": [{"name": "n"}] * 4},
        "steering": {"inline": TEXT},
        "skills": [{"name": f"k{n}", "inline": TEXT[:4096]} for n in range(32)],
        "tools": _tools(64),
        "mcpServers": SERVERS,
        "outcome": {"enum": [f"o{n}" for n in range(32)], "schema": {"a": LINE}},
        "limits": {"tokenBudget": 1},
        "retry": {"causes": ["Timeout", "Error"]},
        "contextInjection": [f"c{n}" for n in range(32)],
        "guardrails": {"input": GATE, "tools": GATE, "output": GATE},
        "policy": POLICY,
        "hooks": HOOKS,
    } | more


COMPLETION = {
    "mode": "Completion",
    "model": {"name": "m"},
    "prompt": {"inline": TEXT},
    "outcome": {"map": {f"m{n}": "a" for n in range(32)}},
}
ROUTES = {f"signal_{n}": "s99" for n in range(32)}


def _plain_step(number: int) -> Raw:
    return {"id": f"s{number}", "kind": "Agent", "agentRef": {"name": "a"}, "routes": ROUTES, "hooks": HOOKS}


def _inline_step(number: int) -> Raw:
    """An inline agent with as many tools and servers as fit a hundred times."""
    bare = [{"name": f"t{n}", "step": "s1"} for n in range(64)]
    servers = [{"name": f"s{n}", "transport": "StreamableHTTP", "url": "http://a"} for n in range(16)]
    agent = {"mode": "Autonomous", "model": {"name": "m"}, "tools": bare, "mcpServers": servers}
    return {"id": f"s{number}", "kind": "Agent", "agent": agent, "routes": ROUTES}


WORKFLOW = {
    "description": LINE,
    "input": {"schema": {"a": LINE}, "defaults": {"a": LINE}},
    "supervisorRefs": [{"name": f"v{n}"} for n in range(8)],
    "hooks": HOOKS,
    "policy": POLICY,
    "runTemplate": {
        "env": [{"name": f"e{n}", "value": "x"} for n in range(64)],
        "envFrom": [{"configMapRef": {"name": f"e{n}"}} for n in range(16)],
        "nodeSelector": {f"n{n}": "x" * 63 for n in range(16)},
        "tolerations": [{"key": f"t{n}"} for n in range(32)],
        "labels": {f"l{n}": "x" * 63 for n in range(16)},
    },
}
STEPS = [
    {"id": "s0", "kind": "Agent", "agent": _agent(skills=[]), "routes": ROUTES},
    {"id": "s1", "kind": "Agent", "agent": COMPLETION},
    {"id": "s2", "kind": "Response", "response": {"mapping": {f"m{n}": "a" for n in range(64)}}},
    {"id": "s3", "kind": "Approval", "approval": {"title": "x", "show": ["a"] * 32}},
    {"id": "s4", "kind": "Router", "router": {"conditions": [{"cel": LINE, "signal": "a"}] * 32}},
    {
        "id": "s5",
        "kind": "MCP",
        "mcp": {"server": {"name": "s", "transport": "Stdio", "command": ["x"] * 32}, "tool": "t"},
    },
    *(_plain_step(number) for number in range(6, 100)),
]
SUPERVISOR = {
    "selector": {
        "matchLabels": {f"l{n}": "x" * 63 for n in range(32)},
        "matchExpressions": [{"key": f"k{n}", "operator": "In", "values": ["x"] * 32} for n in range(32)],
    },
    "rules": [{"name": f"r{n}", "when": "Expression", "expression": {"cel": "x" * 4096}} for n in range(32)],
    "steerMessage": "x" * 4096,
    "judge": {"model": "m", "criteria": {"inline": TEXT}},
}
RUN = {
    "workflowRef": {"name": "w" * 253},
    "input": {"text": "x" * 200_000},
    "session": "x" * 128,
    "control": {"steer": {f"{n:063}": {"message": "x" * 4096} for n in range(64)}},
}

LARGEST = (
    _object("Agent", "largest-agent", _agent()),
    _object("Agent", "largest-completion", COMPLETION),
    _object("Workflow", "largest-workflow", WORKFLOW | {"steps": STEPS}),
    _object("Workflow", "largest-inline-agents", {"steps": [_inline_step(number) for number in range(100)]}),
    _object("Supervisor", "largest-supervisor", SUPERVISOR),
    _object("AgentRun", "largest-run", RUN),
)
