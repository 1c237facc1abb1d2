"""MCP servers without processes and networks: a test says what is listed and what comes back."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pilothouse_api.structs import McpServer
from pilothouse_engine.ports import McpFailure, McpListing, McpResult, McpTool
from pilothouse_engine.values import Value

Result = McpResult | McpFailure | str
ToolFunction = Callable[[dict[str, Any]], Result | Awaitable[Result]]


class McpCalled(Value):
    """One call as it was made."""

    server: str
    tool: str
    arguments: Mapping[str, Any]
    idempotency_key: str | None


class InProcessMcp:
    """Serves registered functions by server and tool; keeps what was asked."""

    def __init__(self, servers: Mapping[str, Mapping[str, ToolFunction] | McpFailure] | None = None) -> None:
        self.servers = dict(servers or {})
        self.listings: dict[str, McpListing] = {}
        self.listed: list[str] = []
        self.calls: list[McpCalled] = []
        self.visits_ended = 0

    async def list_tools(self, server: McpServer, deadline: float) -> McpListing | McpFailure:
        """Return `listings[name]`, else the registered functions as open tools."""
        self.listed.append(server.name)
        served = self.servers.get(server.name)
        if isinstance(served, McpFailure):
            return served
        if server.name in self.listings:
            return self.listings[server.name]
        if served is None:
            return McpFailure("Connection", f"MCP server {server.name} is not registered")
        return McpListing(tuple(McpTool(name, inspect.getdoc(tool) or "", {}) for name, tool in served.items()))

    async def call_tool(
        self,
        server: McpServer,
        tool: str,
        arguments: Mapping[str, Any],
        idempotency_key: str | None,
        timeout: float,
        max_bytes: int,
    ) -> McpResult | McpFailure:
        """Return what the function returned; a text is a result."""
        served = self.servers.get(server.name)
        if isinstance(served, McpFailure):
            return served
        self.calls.append(McpCalled(server.name, tool, dict(arguments), idempotency_key))
        if served is None:
            return McpFailure("Connection", f"MCP server {server.name} is not registered")
        if tool not in served:
            return McpFailure("JsonRpc", "it answered with JSON-RPC error -32602", detail=f"Unknown tool: {tool}")
        given = served[tool](dict(arguments))
        result = await given if inspect.isawaitable(given) else given
        return McpResult(result) if isinstance(result, str) else result

    async def end_visit(self) -> None:
        """Count it."""
        self.visits_ended += 1
