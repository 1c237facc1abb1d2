"""The MCP step: arguments out, results and failures back, effects that nobody knows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pilothouse_api.structs import McpCall, McpServer
from pilothouse_engine.ports import McpFailure, McpResult
from pilothouse_engine.steps.contract import StepCall, StepDone, StepEnd, StepUnknown
from pilothouse_engine.steps.mcp import ListedCall, execute_mcp
from pilothouse_engine.testing.mcp import InProcessMcp, McpCalled, ToolFunction

pytestmark = pytest.mark.anyio

MakeCall = Callable[..., StepCall]

SERVER = McpServer(name="things", transport="StreamableHTTP", url="http://things.test/mcp")


@dataclass
class OneServer:
    mcp: InProcessMcp


def serving(tool: ToolFunction) -> OneServer:
    return OneServer(InProcessMcp({"things": {"t": tool}}))


def giving(answer: McpResult | McpFailure) -> OneServer:
    return serving(lambda arguments: answer)


def a_step(**more: Any) -> McpCall:
    return McpCall.read({"server": SERVER.to_raw(), "tool": "t", **more})


def done(end: StepEnd) -> StepDone:
    assert isinstance(end, StepDone), end
    return end


async def test_templates_in_arguments_are_filled_in_and_the_key_is_sent(make_call: MakeCall) -> None:
    world = giving(McpResult("ok"))
    params = a_step(arguments={"id": "{{ ticket.id }}", "deep": ["{{ n }}"], "plain": 1})
    call = make_call(params, {"ticket": {"id": "t-1"}, "n": 2}, idempotency_key="k")
    assert done(await execute_mcp(call, world)).signal == "default"
    assert world.mcp.calls == [McpCalled("things", "t", {"id": "t-1", "deep": [2], "plain": 1}, "k")]


async def test_a_models_arguments_are_no_templates(make_call: MakeCall) -> None:
    world = giving(McpResult("ok"))
    params, arguments = ListedCall(server=SERVER, tool="t"), {"text": "{{ _last_error }}"}
    await execute_mcp(make_call(params, {"_last_error": "inside"}, arguments=arguments), world)
    assert world.mcp.calls[0].arguments == {"text": "{{ _last_error }}"}


async def test_a_path_that_is_missing_calls_nothing(make_call: MakeCall) -> None:
    world = giving(McpResult("ok"))
    end = done(await execute_mcp(make_call(a_step(arguments={"a": "{{ nope }}"})), world))
    assert (end.signal, end.error_type) == ("error", "MissingContext")
    assert world.mcp.calls == []


@pytest.mark.parametrize(
    ("result", "want"),
    [
        (McpResult("plain"), "plain"),
        (McpResult('{"a": [1]}'), {"a": [1]}),
        (McpResult(" [1, 2]"), [1, 2]),
        (McpResult("{not json"), "{not json"),
        (McpResult("two", {"count": 2}), {"count": 2}),
        (McpResult(""), ""),
    ],
)
async def test_what_a_tool_gave_is_written_under_the_steps_key(
    result: McpResult, want: Any, make_call: MakeCall
) -> None:
    end = done(await execute_mcp(make_call(a_step()), giving(result)))
    assert (end.signal, end.output, end.writes) == ("default", want, {"look-up_result": want})
    named = done(await execute_mcp(make_call(a_step(output="found")), giving(result)))
    assert named.writes == {"found": want}


async def test_the_tools_own_error_is_an_error_that_writes_nothing_and_shows_its_text(make_call: MakeCall) -> None:
    end = done(await execute_mcp(make_call(a_step()), giving(McpResult("no such customer", is_error=True))))
    assert (end.signal, end.error_type, end.output) == ("error", "McpToolError", "no such customer")
    assert end.error_message == "tool t of MCP server things returned an error"
    assert end.writes == {}


@pytest.mark.parametrize(
    ("failure", "error_type"),
    [
        (McpFailure("Timeout", "late"), "Timeout"),
        (McpFailure("Connection", "gone"), "Connection"),
        (McpFailure("Unavailable", "no"), "McpUnavailable"),
        (McpFailure("Credentials", "unreadable"), "McpUnavailable"),
        (McpFailure("Protocol", "html"), "McpProtocol"),
        (McpFailure("TooLarge", "big"), "ResponseTooLarge"),
        (McpFailure("JsonRpc", "code -1", detail="their words"), "McpError"),
    ],
)
async def test_a_failure_is_an_error_with_its_cause(failure: McpFailure, error_type: str, make_call: MakeCall) -> None:
    end = done(await execute_mcp(make_call(a_step()), giving(failure)))
    assert (end.signal, end.error_type, end.output) == ("error", error_type, failure.detail or None)
    assert end.error_message == f"tool t of MCP server things: {failure.message}"


async def test_what_was_sent_and_not_answered_is_unknown_unless_it_may_be_repeated(make_call: MakeCall) -> None:
    sent = McpFailure("Connection", "its process ended with exit code 3", sent=True)
    end = await execute_mcp(make_call(a_step()), giving(sent))
    assert end == StepUnknown("tool t of MCP server things: its process ended with exit code 3")
    assert done(await execute_mcp(make_call(a_step(), may_repeat=True), giving(sent))).error_type == "Connection"
