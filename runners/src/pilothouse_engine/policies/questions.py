"""What a policy is asked about: one call, and where the run stands."""

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import Any

from pilothouse_engine.policies.verdicts import At
from pilothouse_engine.values import value


@value
class Usage:
    """What the run has used; `cost_usd` of calls without a known price is not in it."""

    tokens: int = 0
    cost_usd: float = 0.0
    tool_calls: int = 0


@value
class Question:
    """One call that waits for a verdict.

    `tool` is a tool's name (`server__tool` for MCP) or the id of a step of the graph; `tool`, `args` and `effect` are
    empty at ModelCall. `now` is aware.
    """

    at: At
    step: str
    agent: str
    workflow: str
    namespace: str
    turn: int
    iteration: int
    now: datetime
    tool: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    effect: str = ""
    usage: Usage = field(default_factory=Usage)
    labels: Mapping[str, str] = field(default_factory=dict)


def build_variables(question: Question) -> dict[str, Any]:
    """Return the variables of an expression (`pilothouse_api.expressions.POLICY_VARIABLES`)."""
    usage = question.usage
    return {
        "tool": question.tool,
        "args": dict(question.args),
        "effect": question.effect,
        "step": question.step,
        "agent": question.agent,
        "workflow": question.workflow,
        "__namespace__": question.namespace,
        "turn": question.turn,
        "iteration": question.iteration,
        "usage": {"tokens": usage.tokens, "costUSD": usage.cost_usd, "toolCalls": usage.tool_calls},
        "now": question.now,
        "labels": dict(question.labels),
    }


def build_input(question: Question) -> dict[str, Any]:
    """Return the same for an endpoint, as JSON: the time as RFC 3339, and `at`, so that one may serve both."""
    now = question.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    told = {name.strip("_"): value for name, value in build_variables(question).items()}
    return {**told, "now": now, "at": question.at}
