"""MCP: one tool of an MCP server, as a step of the graph or as a tool of an agent."""

from typing import Any, Protocol, assert_never

from pilothouse_api.signals import DEFAULT
from pilothouse_api.structs import McpCall
from pilothouse_api.templates import MissingPath, render_value
from pilothouse_engine.ports import Mcp, McpFailure, McpResult
from pilothouse_engine.steps.contract import StepCall, StepDone, StepEnd, StepUnknown
from pilothouse_engine.steps.outcomes import failed
from pilothouse_engine.strict_json import JsonError, parse_json, printable

_FAILURE_TYPES = {
    "Timeout": "Timeout",
    "Connection": "Connection",
    "Unavailable": "McpUnavailable",
    "Credentials": "McpUnavailable",
    "Protocol": "McpProtocol",
    "TooLarge": "ResponseTooLarge",
    "JsonRpc": "McpError",
}


class ListedCall(McpCall, kw_only=True):
    """A tool that a server listed: its arguments are the model's own, and no templates.

    The loop's deadline is the tool's; the adapter's is only there because it must have one.
    """

    timeout_seconds: int = 3600


class McpPorts(Protocol):
    """What this executor needs of the ports."""

    @property
    def mcp(self) -> Mcp:
        """The servers."""
        ...


async def execute_mcp(call: StepCall, ports: McpPorts) -> StepEnd:
    """Return what the tool gave; its own error flag is an error, and nothing is repeated."""
    params = call.params
    assert isinstance(params, McpCall)
    try:
        arguments = call.arguments if isinstance(params, ListedCall) else render_value(params.arguments, call.context)
    except MissingPath as missing:
        return failed("MissingContext", f"mcp.arguments: {missing}")
    answer = await ports.mcp.call_tool(
        params.server,
        params.tool,
        arguments or {},
        call.idempotency_key,
        float(params.timeout_seconds),
        call.settings.max_response_bytes,
    )
    match answer:
        case McpResult():
            return _end_of(call, params, answer)
        case McpFailure():
            return _failure_of(call, params, answer)
        case _:
            assert_never(answer)


def _end_of(call: StepCall, params: McpCall, result: McpResult) -> StepDone:
    output = _value_of(result)
    if result.is_error:
        return failed("McpToolError", f"{_label(params)} returned an error", output=output)
    return StepDone(signal=DEFAULT, writes={params.output or f"{call.step_id}_result": output}, output=output)


def _failure_of(call: StepCall, params: McpCall, failure: McpFailure) -> StepEnd:
    message = f"{_label(params)}: {failure.message}"
    if failure.sent and not call.may_repeat:
        return StepUnknown(printable(message, 500))
    return failed(_FAILURE_TYPES[failure.kind], message, output=failure.detail or None)


def _value_of(result: McpResult) -> Any:
    """Return what a path can look into: the structured value, else a text as JSON where it is JSON."""
    if result.structured is not None:
        return result.structured
    if result.text.lstrip()[:1] in ("{", "["):
        try:
            return parse_json(result.text)
        except JsonError:
            return result.text
    return result.text


def _label(params: McpCall) -> str:
    return f"tool {params.tool} of MCP server {params.server.name}"
