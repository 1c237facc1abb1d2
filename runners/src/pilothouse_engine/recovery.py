"""When failing tools end a step, and what is said then in place of an answer (engine.md §5). Pure."""

import re
from collections.abc import Mapping
from typing import Any

from pilothouse_engine.catalog import PlannedStep
from pilothouse_engine.facts import UNDECLARED, Cause
from pilothouse_engine.state import CallError, Visit
from pilothouse_engine.values import Value

MAX_NAMES_SHOWN = 8
_SHOWN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
"""Names of parameters that are shown to people: a server that lists tools may call one anything."""

FALLBACK_CAUSES: frozenset[Cause] = frozenset({"SameErrorRepeated", "ToolsKeepFailing"})
"""Causes of exits whose partial result is the engine's own text."""

HELP: Mapping[str, str] = {
    "tool_error": "see that what {tool} reaches is there and lets the run in, and start again with input that it can"
    " work on{parameters}",
    "tool_invalid_arguments": "start again with input that says what {tool} is to be called with{parameters}",
    "tool_arguments_truncated": "start again with less to do at once, or with a larger model.maxOutputTokens",
    "tool_unknown": "give the agent the tool that the task needs, or start again with a task for the tools that it has",
    "tool_max_calls": "start again with a narrower task, or raise maxCalls of {tool}",
    "tool_policy_denied": "start again with a task that needs nothing that is denied, or change the policy",
}
"""What would help, by the code of the error; one row for each code that recovery counts."""


class Unrecoverable(Value):
    """Why the step ends: `cause` is its reason, `message` names the limit, `fallback` stands in for an answer.

    All of them are the engine's own words: what a tool said may hold what must not be shown.
    """

    cause: Cause
    message: str
    fallback: str


def judge_recovery(planned: PlannedStep, visit: Visit) -> Unrecoverable | None:
    """Return why a visit whose tools keep failing ends now, or None while it goes on."""
    if not visit.failing_batches:
        return None
    recovery = planned.agent.recovery
    error, count = max(visit.same_errors.items(), key=lambda item: item[1])
    name, code, _ = error
    tool = name if name in planned.tools else UNDECLARED
    if count >= recovery.max_same_error:
        message = f"{tool} failed with {code} in {count} batches: recovery.maxSameError is {recovery.max_same_error}"
        return Unrecoverable("SameErrorRepeated", message, _fallback(planned, visit, error, tool, count))
    if visit.failing_batches >= recovery.max_failing_batches:
        message = (
            f"{visit.failing_batches} batches failed, {tool} with {code}:"
            f" recovery.maxFailingBatches is {recovery.max_failing_batches}"
        )
        return Unrecoverable("ToolsKeepFailing", message, _fallback(planned, visit, error, tool, visit.failing_batches))
    return None


def _fallback(planned: PlannedStep, visit: Visit, error: CallError, tool: str, count: int) -> str:
    code, kind = error[1], visit.error_types.get(error)
    named = f"{code} ({kind})" if kind else code
    help_text = HELP[code].format(tool=tool, parameters=_say_parameters(planned, tool))
    return (
        f"No answer was found: {tool} failed with {named}, and {count} batches of calls had errors. What would help:"
        f" {help_text}."
    )


def _say_parameters(planned: PlannedStep, tool: str) -> str:
    """Return what a tool must be given, by the names that its schema requires."""
    parameters: Mapping[str, Any] = next((spec.parameters for spec in planned.specs if spec.name == tool), {})
    required = parameters.get("required")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    shown = [name for name in names if _SHOWN_NAME.fullmatch(name)][:MAX_NAMES_SHOWN]
    return f" ({', '.join(shown)})" if shown else ""
