"""Which keys a run's context can have, and the templates, paths and expressions that name others."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pilothouse_api.expressions import ExpressionError, compile_expression
from pilothouse_api.mcp import ALL_TOOLS, offered_name
from pilothouse_api.templates import is_path
from pilothouse_api.v1alpha1.agent import AgentSpec, McpTools, Tool
from pilothouse_api.v1alpha1.steps import APICall, FunctionCall
from pilothouse_api.v1alpha1.workflow import InputSpec, Step
from pilothouse_control.findings import FieldPath
from pilothouse_control.validation.hooks import notified_steps
from pilothouse_control.validation.scene import Check, Problem, Scene, UsedAgent, WorkflowSubject
from pilothouse_control.validation.sentences import did_you_mean
from pilothouse_control.validation.specs import context_paths, templates_of

ENGINE_KEYS = frozenset({"_last_error", "_last_error_type", "_partial_result", "_api_status_code"})
"""The engine's own keys that a template may name."""

_IDENTIFIER = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


@dataclass(frozen=True, slots=True)
class ContextKeys:
    """Keys that are declared; `may_have_others`: input or code may bring more; `is_declared`: the input says which."""

    keys: frozenset[str]
    may_have_others: bool
    is_declared: bool


def context_keys(subject: WorkflowSubject) -> ContextKeys:
    """Return what the context of a workflow's runs can hold."""
    of_input = _input_keys(subject.spec.input)
    keys = set(of_input.keys)
    is_declared = of_input.is_declared
    used = {agent.index: agent for agent in subject.used}
    for index, step in enumerate(subject.spec.steps):
        written = _written_by(step.id, step, used.get(index))
        is_declared = is_declared and written is not None
        keys |= written or set()
    return ContextKeys(frozenset(keys), of_input.may_have_others or not is_declared, is_declared)


def _input_keys(spec: InputSpec) -> ContextKeys:
    schema = spec.schema_ or {}
    properties = schema.get("properties")
    is_declared = isinstance(properties, dict)
    keys = frozenset({*spec.defaults, *(properties if isinstance(properties, dict) else ())})
    return ContextKeys(keys, schema.get("additionalProperties") is not False, is_declared)


def _written_by(name: str, step: Step, agent: UsedAgent | None) -> set[str] | None:
    """Return the keys that a step writes, or None where it may write any."""
    if step.kind == "Agent":
        return _written_by_agent(name, agent.spec) if agent is not None else None
    if step.kind in ("Router", "Response", "Approval"):
        return set()
    if step.kind == "Delegate":
        return {f"{name}_result"}
    return _written_by_call(name, step.api_call or step.function or step.mcp or step.resource)


def _written_by_call(name: str, call: Any) -> set[str] | None:
    if call is None or (isinstance(call, FunctionCall) and call.output is None):
        return None
    extracts = [part.as_ for part in call.extract] if isinstance(call, APICall) else []
    return {call.output or f"{name}_result", *extracts}


def _written_by_agent(name: str, spec: AgentSpec) -> set[str] | None:
    keys = {spec.outcome.write or f"{name}_result", *(spec.outcome.map or ())}
    for tool in spec.tools:
        inline = tool.inline_step
        if not tool.writes_context or (inline is not None and inline.kind == "Router"):
            continue
        if inline is not None:
            written = _written_by_call(tool.name, inline.api_call or inline.function or inline.mcp or inline.resource)
        elif tool.mcp is not None:
            written = _written_by_server(tool.mcp)
        elif tool.agent_ref is not None:
            written = {f"{tool.name}_result"}
        else:
            continue
        if written is None:
            return None
        keys |= written
    return keys


def _written_by_server(tools: McpTools) -> set[str] | None:
    if ALL_TOOLS in tools.allow:
        return None
    return {f"{offered_name(tools.server, name)}_result" for name in tools.allow}


def _tool_keys(subject: WorkflowSubject, step: Step) -> frozenset[str] | None:
    """Return the arguments that a step gets as a tool, or None where they may be any (or are derived from it)."""
    keys: set[str] = set()
    for agent in subject.used:
        for tool in agent.spec.tools:
            if tool.step != step.id:
                continue
            declared = _declared_arguments(tool)
            if declared is None:
                return None
            keys |= declared
    return frozenset(keys)


def _declared_arguments(tool: Tool) -> set[str] | None:
    properties = (tool.parameters or {}).get("properties")
    return set(properties) if isinstance(properties, dict) else None


def _named(subject: WorkflowSubject, notified: frozenset[str]) -> Iterator[tuple[FieldPath, str, str, frozenset[str]]]:
    """Yield every context path that a workflow and its agents name: place, prefix of the message, path, more keys."""
    for place, step in subject.steps():
        extra = _tool_keys(subject, step)
        if extra is None or step.agent is not None or (step.tool_only and step.id in notified):
            continue  # a step that only hooks run sees their payload, which has a check of its own
        for path, found in (*templates_of(step, place), *context_paths(step, place)):
            yield path, "", found, extra
    for used in subject.used:
        where = used.path if used.is_inline else ("spec",)
        for path, found in (*templates_of(used.spec, where), *context_paths(used.spec, where)):
            if "tools" in path or "contextInjection" in path:
                continue
            if used.is_inline:
                yield path, "", found, frozenset()
            else:
                yield used.path, f"Agent {used.name}: ", found, frozenset()


def _unresolved(scene: Scene, subject: WorkflowSubject) -> Iterator[tuple[FieldPath, str, str, bool]]:
    """Yield place, sentence, hint, and whether the path can never resolve."""
    context = context_keys(subject)
    for place, prefix, found, extra in _named(subject, notified_steps(scene, subject)):
        root = found.split(".")[0]
        if not is_path(found) or root in context.keys or root in extra or root in ENGINE_KEYS:
            continue
        if root.startswith("_"):
            hint = did_you_mean(root, ENGINE_KEYS) or f"there are {', '.join(sorted(ENGINE_KEYS))}"
            yield place, f"{prefix}{found} can never resolve: the engine has no key {root}", hint, True
        elif not context.may_have_others:
            known = ", ".join(sorted(context.keys | extra)) or "nothing"
            hint = did_you_mean(root, context.keys | extra) or f"the context holds {known}"
            yield place, f"{prefix}{found} can never resolve: neither the input nor a step sets {root}", hint, True
        elif context.is_declared:
            hint = did_you_mean(root, context.keys | extra) or "add it to input.schema.properties"
            yield place, f"{prefix}{found}: neither input.schema nor a step names {root}", hint, False


def judge_never_resolves(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A path that no run can resolve."""
    yield from (Problem(place, what, hint) for place, what, hint, is_never in _unresolved(scene, subject) if is_never)


def judge_may_not_resolve(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A path that only an undeclared input resolves."""
    yield from (
        Problem(place, what, hint) for place, what, hint, is_never in _unresolved(scene, subject) if not is_never
    )


def judge_router_names(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A Router condition that names what only an undeclared input brings."""
    context = context_keys(subject)
    if not context.is_declared:
        return
    names = ("context", *sorted(key for key in context.keys if _IDENTIFIER.fullmatch(key)))
    for path, step in subject.steps():
        conditions = step.router.conditions or () if step.router is not None else ()
        for index, condition in enumerate(conditions):
            try:
                compile_expression(condition.cel)
                compile_expression(condition.cel, names)
            except ExpressionError as error:
                if "undeclared reference" in str(error):
                    hint = "name a key of the context, or context.<key>"
                    yield Problem((*path, "router", "conditions", index, "cel"), str(error), hint)


CONTEXT_CHECKS: tuple[Check[WorkflowSubject], ...] = (
    Check("NeverResolves", "Error", judge_never_resolves),
    Check("MayNotResolve", "Warning", judge_may_not_resolve),
    Check("RouterNameUnknown", "Warning", judge_router_names),
)
