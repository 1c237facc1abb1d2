"""What a policy is asked about: one call, and where the run stands."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import field

from pilothouse_engine.policies.verdicts import At
from pilothouse_engine.values import Value


class Usage(Value):
    """What the run has used; `cost_usd` of calls without a known price is not in it."""

    tokens: int = 0
    cost_usd: float = 0.0
    tool_calls: int = 0


class Question(Value):
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
    usage: Usage = Usage()
    labels: Mapping[str, str] = field(default_factory=dict)


VARIABLES: Mapping[str, Callable[[Question], Any]] = {
    "tool": lambda question: question.tool,
    "args": lambda question: dict(question.args),
    "effect": lambda question: question.effect,
    "step": lambda question: question.step,
    "agent": lambda question: question.agent,
    "workflow": lambda question: question.workflow,
    "__namespace__": lambda question: question.namespace,
    "turn": lambda question: question.turn,
    "iteration": lambda question: question.iteration,
    "usage": lambda question: _usage(question.usage),
    "now": lambda question: question.now,
    "labels": lambda question: dict(question.labels),
}
"""What an expression may name (`pilothouse_api.expressions.POLICY_VARIABLES`): most name one or two."""


def _usage(usage: Usage) -> dict[str, Any]:
    return {"tokens": usage.tokens, "costUSD": usage.cost_usd, "toolCalls": usage.tool_calls}


def build_variables(question: Question, names: Iterable[str] = tuple(VARIABLES)) -> dict[str, Any]:
    """Return the variables of an expression that names these."""
    return {name: VARIABLES[name](question) for name in names}


def build_input(question: Question) -> dict[str, Any]:
    """Return the same for an endpoint, as JSON: the time as RFC 3339, and `at`, so that one may serve both."""
    now = question.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    told = {name.strip("_"): value for name, value in build_variables(question).items()}
    return {**told, "now": now, "at": question.at}
