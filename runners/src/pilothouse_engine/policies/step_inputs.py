"""What a policy sees of a step of the graph: the inputs that the step would send, its templates filled in.

| kind | `args` |
|---|---|
| APICall | `method`, `url` (as it is sent, query included), `body`; no headers: they may hold secrets |
| Function | its arguments: those that it names, else the public context |
| MCP | its arguments |
| Delegate | its input |
| Resource | its own fields, with the data of a Secret masked |
| any other | its own fields |
"""

from collections.abc import Mapping
from typing import Any

from pilothouse_api.crossing import Written
from pilothouse_api.structs import APICall, Delegate, FunctionCall, McpCall, ResourceCall
from pilothouse_api.templates import MissingPath, render_value
from pilothouse_engine.resource_masks import mask_answer
from pilothouse_engine.steps.api_request import RequestProblem, shown_request


class InputsUnknown(Exception):
    """The inputs cannot be filled in; carries the reason, without any value."""


def render_inputs(params: Written, context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a step; `context` holds the engine's own keys too. Raises InputsUnknown."""
    try:
        return _render(params, context)
    except (MissingPath, RequestProblem) as problem:
        raise InputsUnknown(str(problem)) from None


def _render(params: Written, context: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(params, APICall):
        return shown_request(params, context)
    template: Any = params.to_raw()
    if isinstance(params, FunctionCall):
        if params.arguments is None:
            return {key: value for key, value in context.items() if not key.startswith("_")}
        template = params.arguments
    elif isinstance(params, McpCall):
        template = params.arguments
    elif isinstance(params, Delegate):
        template = params.input
    rendered: dict[str, Any] = render_value(template, context)
    if isinstance(params, ResourceCall) and params.body is not None:
        # What is asked of policy endpoints and shown to people must not hold what a step writes into a Secret.
        rendered["body"] = mask_answer(rendered["body"], is_secret=params.kind == "Secret")
    return rendered
