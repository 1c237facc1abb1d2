"""What is played, drawn from a seed: the runs, who kills their runners when, and what a person does to them.

Everything about one run follows from the seed and its number, so that one run can be played again by itself.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any, Literal

from pilothouse_api import names

Blow = Literal["crash", "oom", "term", "delete", "force", "evict", "zombie", "lostnode"]
"""How an attempt ends. `crash` SIGKILL; `oom` SIGKILL that the kubelet calls so; `term` SIGTERM to the process alone;
`delete` the pod is deleted with its grace; `force` the pod is gone at once and the process with it; `evict` a drain;
`zombie` the process is stopped, its pod is gone at once, and it wakes when another attempt is there; `lostnode` the
same with a pod whose deletion its node never confirms."""

COUNTED: frozenset[Blow] = frozenset({"crash", "oom"})
"""Blows that count against maxAttempts."""

MAX_COUNTED = 3
"""More counted crashes of one run would wait for its backoff, which is another test's."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A blow to the next attempt: after it has appended so many batches, or so many seconds after its start."""

    blow: Blow
    batches: int | None
    seconds: float
    """After the batches; without them after the start of the process."""

    def to_raw(self) -> dict[str, Any]:
        return {"blow": self.blow, "batches": self.batches, "seconds": self.seconds}


@dataclass(frozen=True, slots=True)
class Deed:
    """What a person does, so many seconds after the run was first seen to run."""

    seconds: float
    control: dict[str, Any]
    limits: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run: its manifests, and what is done to it."""

    number: int
    name: str
    script: list[dict[str, Any]]
    agent: dict[str, Any]
    workflow: dict[str, Any]
    run: dict[str, Any]
    strikes: list[Strike]
    deeds: list[Deed]
    approve_after: float
    is_model_served: bool
    token_budget: int | None = None
    max_attempts: int = 8
    tools: dict[str, str] = field(default_factory=dict)
    """The declared effect of each tool and step that calls the tool server."""


EFFECTS = {"look": "ReadOnly", "put": "Idempotent", "pay": "Once", "open": "Idempotent", "book": "Once", "act": "Once"}
HELPER = "helper"
"""An Agent that others ask for help: children of their runs, which act once each."""
HOWS = {
    "look": ["ok", "ok", "slow", "late", "hang"],
    "put": ["ok", "slow", "late", "hang"],
    "pay": ["ok", "ok", "slow", "slow", "late", "drop"],
}


def plan_run(seed: int, number: int, address: str, *, is_brisk: bool = False) -> RunPlan:
    """Return the plan of one run. `address` is the tool server's; brisk plans wait for nothing that takes long."""
    dice = random.Random(f"{seed}/{number}")
    name = f"c{number}"
    is_served = dice.random() < 0.3
    script = _script(dice, name)
    budget = dice.choice([None, None, None, 1500, 3000, 6000])
    agent = _agent(dice, script, address, name, is_served, budget)
    workflow = _workflow(dice, agent, address)
    run = {
        "apiVersion": names.API_VERSION,
        "kind": "AgentRun",
        "metadata": {"name": name},
        "spec": {"workflowRef": {"name": name}, "input": {"who": name}},
    }
    return RunPlan(
        number,
        name,
        script,
        agent,
        {"apiVersion": names.API_VERSION, "kind": "Workflow", "metadata": {"name": name}, "spec": workflow},
        run,
        _strikes(dice, is_brisk),
        _deeds(dice),
        _approval_delay(dice, is_brisk),
        is_served,
        budget,
        workflow["runTemplate"]["maxAttempts"],
        EFFECTS,
    )


# ---------------------------------------------------------------- manifests


def _script(dice: random.Random, name: str) -> list[dict[str, Any]]:
    """Return the turns of the agent's model: every call has a number of its own in its run."""
    turns: list[dict[str, Any]] = []
    helps = dice.choice([0, 0, 0, 1, 2])
    number, fails = 0, dice.choice([0, 0, 1])
    for _ in range(dice.randint(2, 5)):
        same = dice.choice([None, None, "look"])
        calls = []
        for _ in range(dice.choice([1, 1, 2, 3, 4])):
            tool = same or dice.choice(["look", "put", "pay", "pay"])
            how = dice.choice(HOWS[tool])
            if fails and tool == "look" and dice.random() < 0.3:
                how, fails = "fail", fails - 1
            calls.append({"name": tool, "arguments": {"n": number, "how": how}})
            number += 1
        if helps and dice.random() < 0.6:
            how = dice.choice(HOWS["pay"])
            tool = dice.choice(["help", "help", "start_help_task"])
            calls.append({"name": tool, "arguments": {"n": number, "how": how, "who": f"{name}-h{number}"}})
            number, helps = number + 1, helps - 1
        turns.append({"toolCalls": calls, **_usage(dice), "delaySeconds": dice.choice([0.0, 0.05, 0.2, 0.5])})
    turns.append({"text": "all is done", **_usage(dice), "delaySeconds": dice.choice([0.0, 0.2])})
    return turns


def _usage(dice: random.Random) -> dict[str, Any]:
    return {"usage": {"input": dice.randint(20, 120), "output": dice.randint(5, 40)}}


def _agent(
    dice: random.Random, script: list[dict[str, Any]], address: str, name: str, is_served: bool, budget: int | None
) -> dict[str, Any]:
    model: dict[str, Any] = {"maxOutputTokens": 50}
    if is_served:
        model |= {"name": f"openai/{name}", "apiBase": f"{address}/v1"}
    else:
        # A last turn (Finish, a wrap-up) plays the next entry: there is always another one.
        spare = [{"text": "stopped early", **_usage(dice)} for _ in range(3)]
        text = json.dumps({"turns": [*script, *spare], "repeat": "None"})
        model |= {"name": "scripted", "script": {"inline": text}}
    parameters = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "how": {"type": "string"}},
        "required": ["n", "how"],
    }
    tools: list[dict[str, Any]] = [
        {"name": tool, "step": tool, "description": f"Does {tool}.", "parameters": parameters, "effect": EFFECTS[tool]}
        for tool in ("look", "put", "pay")
    ]
    if dice.random() < 0.2:
        tools[2]["approval"] = "Always"
    if any(call["name"].endswith(("help", "help_task")) for turn in script for call in turn.get("toolCalls", ())):
        tools.append({"name": "help", "description": "Helps.", "agentRef": {"name": HELPER}, "background": True})
    limits: dict[str, Any] = {
        "maxIterations": len(script) + 4,
        "maxParallelToolCalls": dice.choice([1, 4]),
        "pauseSeconds": 1,
    }
    if budget is not None:
        limits["tokenBudget"] = budget
    agent: dict[str, Any] = {
        "mode": "Autonomous",
        "model": model,
        "steering": {"inline": "Do it."},
        "tools": tools,
        "limits": limits,
        "recovery": {"maxFailingBatches": 5, "maxSameError": 5},
        "retry": {"attempts": 3, "backoffSeconds": 1},
    }
    if dice.random() < 0.3:
        agent["guardrails"] = {
            "tools": [{"check": "SecretMask"}],
            "output": [{"check": "MaxChars", "maxChars": {"limit": 500}}],
        }
    if dice.random() < 0.2:
        rule = f"tool == 'pay' && args.n == {dice.randint(0, 3)}"
        agent["policy"] = [{"name": "ask", "at": "ToolCall", "cel": rule, "verdict": "RequireApproval"}]
    return agent


def helper(address: str) -> dict[str, Any]:
    """Return the Agent of children."""
    script = [
        {"toolCalls": [{"name": "act", "arguments": {}}], "usage": {"input": 20, "output": 5}, "delaySeconds": 0.2},
        {"text": "helped", "usage": {"input": 20, "output": 5}, "delaySeconds": 0.2},
    ]
    text = json.dumps({"turns": [*script, script[-1], script[-1]], "repeat": "None"})
    step = {"kind": "APICall", "apiCall": _call(address, "act", "POST")}
    spec = {
        "mode": "Autonomous",
        "model": {"name": "scripted", "script": {"inline": text}, "maxOutputTokens": 50},
        "steering": {"inline": "Help."},
        "tools": [{"name": "act", "description": "Acts.", "effect": "Once", "inlineStep": step}],
        "limits": {"pauseSeconds": 1},
    }
    return {"apiVersion": names.API_VERSION, "kind": "Agent", "metadata": {"name": HELPER}, "spec": spec}


def child_strikes(seed: int, name: str, *, is_brisk: bool) -> list[Strike]:
    """Return what is done to the runners of a child, whose name follows from its parent's."""
    return _strikes(random.Random(f"{seed}/{name}"), is_brisk)[:2]


def _call(address: str, tool: str, method: str, **more: Any) -> dict[str, Any]:
    return {
        "method": method,
        "url": f"{address}/do/{{{{ who }}}}/{tool}/{{{{ n }}}}",
        "query": {"how": "{{ how }}"},
        "timeoutSeconds": 20,
        "output": f"{tool}_result",
        **more,
    }


def _workflow(dice: random.Random, agent: dict[str, Any], address: str) -> dict[str, Any]:
    retry = {"retry": {"attempts": 3, "backoffSeconds": 1}}
    tools = [
        {"id": "look", "apiCall": _call(address, "look", "GET", **retry)},
        {"id": "put", "apiCall": _call(address, "put", "POST", **retry)},
        {"id": "pay", "apiCall": _call(address, "pay", "POST")},
    ]
    tool_steps = [
        {"kind": "APICall", "description": "A tool.", "toolOnly": True, "effect": EFFECTS[tool["id"]], **tool}
        for tool in tools
    ]
    ends = ("error", "max_iterations", "budget_exceeded", "unrecoverable", "guardrail_violation", "policy_denied")
    after = "ask" if dice.random() < 0.15 else "book"
    steps: list[dict[str, Any]] = []
    if dice.random() < 0.4:
        steps.append(_graph_step(dice, address, "open", ["ok", "slow", "hang"], retry))
    steps.append(
        {
            "id": "work",
            "kind": "Agent",
            "agent": agent,
            "routes": {"default": after, "aborted": "end", **dict.fromkeys(ends, "say")},
        }
    )
    if after == "ask":
        approval = {"title": "Go on?", "show": ["who"], "expiresSeconds": 600}
        routes = {"approved": "book", "denied": "say", "expired": "say"}
        steps.append({"id": "ask", "kind": "Approval", "approval": approval, "routes": routes})
    steps.append(_graph_step(dice, address, "book", ["ok", "slow", "late", "drop"], {}))
    response = {"mapping": {"who": "who"}}
    steps.append({"id": "say", "kind": "Response", "response": response, "routes": {"default": "end"}})
    return {
        "input": {"defaults": {"n": 0, "how": "ok"}},
        "steps": [*steps, *tool_steps],
        "runTemplate": {"maxAttempts": dice.choice([8, 8, 8, 8, 2])},
    }


def _graph_step(dice: random.Random, address: str, id: str, hows: list[str], more: dict[str, Any]) -> dict[str, Any]:
    call = _call(address, id, "POST", **more)
    call["query"] = {"how": dice.choice(hows)}
    return {"id": id, "kind": "APICall", "effect": EFFECTS[id], "apiCall": call, "routes": {"error": "say"}}


# ---------------------------------------------------------------- what is done to it

_BLOWS: list[Blow] = ["crash"] * 9 + ["oom", "term", "term", "term", "delete", "delete", "force", "force", "evict"]
_SLOW_BLOWS: list[Blow] = ["zombie", "zombie", "zombie", "lostnode"]


def _strikes(dice: random.Random, is_brisk: bool) -> list[Strike]:
    blows: list[Blow] = _BLOWS if is_brisk else _BLOWS + _SLOW_BLOWS
    strikes: list[Strike] = []
    for _ in range(dice.choice([0, 1, 2, 2, 3, 3, 4, 4, 5]) if not is_brisk else dice.choice([1, 2, 2, 3])):
        blow = dice.choice(blows)
        counted = sum(strike.blow in COUNTED for strike in strikes)
        if blow in COUNTED and counted >= (1 if is_brisk else MAX_COUNTED - 1):
            blow = "term"
        if dice.random() < 0.15:
            strikes.append(Strike(blow, None, round(dice.uniform(0.0, 0.9), 3)))  # while it starts
        else:
            after = dice.choice([0.0, 0.0, 0.002, 0.01, round(dice.uniform(0.0, 0.4), 3)])
            strikes.append(Strike(blow, dice.randint(1, 12), after))
    return strikes


def _deeds(dice: random.Random) -> list[Deed]:
    deeds: list[Deed] = []
    if dice.random() < 0.3:
        at = dice.uniform(0.0, 4.0)
        deeds.append(Deed(at, {"mode": "Pause", "reason": "lunch"}))
        deeds.append(Deed(at + dice.choice([0.2, 1.0, 3.0, 6.0]), {"mode": "Run"}))
    for number in range(dice.choice([0, 0, 1, 2])):
        message = {"message": f"Mind the gap {number}."}
        deeds.append(Deed(dice.uniform(0.0, 6.0), {"steer": {f"s{number}": message}}))
    last = dice.random()
    if last < 0.1:
        deeds.append(Deed(dice.uniform(0.5, 8.0), {"mode": "Abort", "reason": "wrong"}))
    elif last < 0.2:
        deeds.append(Deed(dice.uniform(0.5, 8.0), {"mode": "Finish"}))
    if dice.random() < 0.1:
        deeds.append(Deed(dice.uniform(0.5, 5.0), {}, limits={"tokenBudget": dice.choice([200, 2000, 20000])}))
    return sorted(deeds, key=lambda deed: deed.seconds)


def _approval_delay(dice: random.Random, is_brisk: bool) -> float:
    return dice.choice([0.1, 0.5, 2.0] if is_brisk else [0.1, 0.5, 2.0, 4.0, 36.0])


def decide(seed: int, name: str, call: str, tool: str) -> dict[str, Any]:
    """Return what a person decides of a pending call; an Approval step has no arguments to change."""
    dice = random.Random(f"{seed}/{name}/{call}")
    said = dice.random()
    if said < 0.2:
        return {"decision": "Deny", "reason": "no"}
    if said < 0.4 and tool == "pay":
        return {"decision": "Approve", "arguments": {"how": "ok"}}
    return {"decision": "Approve"}
