"""A server of the official SDK, well behaved in its messages and hostile in what they hold.

As a program it speaks over stdio: `python sdk_server.py`.
"""

import os
import threading
from typing import Any

import anyio
from mcp import types
from mcp.server.lowlevel.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

OPEN: dict[str, Any] = {"type": "object"}
TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def tool(name: str, description: str = "", schema: dict[str, Any] | None = None) -> types.Tool:
    return types.Tool(name=name, description=description, input_schema=OPEN if schema is None else schema)


TOOLS = [
    tool("echo", "Returns the text.", TEXT),
    tool("structured"),
    tool("pictures"),
    tool("fail"),
    tool("rpc_error"),
    tool("big"),
    tool("sleep"),
    tool("meta"),
    tool("env"),
]


class ServerState:
    """What a test changes while the server runs, and what it has seen."""

    def __init__(self) -> None:
        self.tools = list(TOOLS)
        self.page_size = 4
        self.is_endless = False
        self.calls: list[types.CallToolRequestParams] = []
        self.called = threading.Event()
        self.cancelled = 0
        self.at_once = self.most_at_once = 0


def build_server(state: ServerState) -> Server[Any]:
    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        begin = int(params.cursor) if params is not None and params.cursor else 0
        if state.is_endless:
            many = [tool(f"t{begin + n}") for n in range(state.page_size)]
            return types.ListToolsResult(tools=many, next_cursor=str(begin + state.page_size))
        end = begin + state.page_size
        more = str(end) if end < len(state.tools) else None
        return types.ListToolsResult(tools=state.tools[begin:end], next_cursor=more)

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        state.calls.append(params)
        state.called.set()
        state.at_once += 1
        state.most_at_once = max(state.most_at_once, state.at_once)
        try:
            return await _answer(params)
        except anyio.get_cancelled_exc_class():
            state.cancelled += 1
            raise
        finally:
            state.at_once -= 1

    return Server("things", on_list_tools=list_tools, on_call_tool=call_tool)


async def _answer(params: types.CallToolRequestParams) -> types.CallToolResult:
    arguments = params.arguments or {}
    match params.name:
        case "echo":
            return _text(str(arguments.get("text")))
        case "structured":
            return types.CallToolResult(
                content=[types.TextContent(text="two")], structured_content={"count": 2, "names": ["a", "b"]}
            )
        case "pictures":
            return types.CallToolResult(
                content=[
                    types.TextContent(text="see"),
                    types.ImageContent(data="QUJD", mime_type="image/png"),
                    types.ResourceLink(name="report", uri="file:///report.txt"),
                    types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///a.txt", text="inside")),
                ]
            )
        case "fail":
            return types.CallToolResult(content=[types.TextContent(text="no such customer")], is_error=True)
        case "rpc_error":
            raise MCPError(-32050, "the ledger is closed\nuntil noon")
        case "big":
            return _text("x" * int(arguments.get("size", 50_000_000)))
        case "sleep":
            await anyio.sleep(float(arguments.get("seconds", 60)))
            return _text("slept")
        case "meta":
            return _text(str((params.meta or {}).get("pilothouse.dev/idempotency-key")))
        case "env":
            return _text("\n".join(sorted(os.environ)))
        case _:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")


def _text(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)])


async def _serve_stdio() -> None:
    server = build_server(ServerState())
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(_serve_stdio)
