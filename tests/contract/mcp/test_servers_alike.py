"""What holds of every server, however it is reached: the fake, StreamableHTTP and Stdio pass the same tests."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pilothouse_api.structs import McpServer
from pilothouse_engine.ports import Mcp, McpFailure, McpListing, McpResult, McpTool
from pilothouse_engine.testing.mcp import InProcessMcp
from support.mcp_servers import sdk_server
from support.mcp_servers.clients import MakeClient
from support.mcp_servers.http_servers import sdk_http_server

pytestmark = pytest.mark.slow


MIB = 1_048_576


@dataclass
class World:
    """A way to reach the same server."""

    mcp: Mcp
    server: McpServer

    async def call(self, tool: str, **arguments: Any) -> McpResult | McpFailure:
        return await self.mcp.call_tool(self.server, tool, arguments, "key-1", 60.0, MIB)


def _fake() -> World:
    async def structured(arguments: dict[str, Any]) -> McpResult:
        return McpResult("two", {"count": 2, "names": ["a", "b"]})

    def echo(arguments: dict[str, Any]) -> str:
        return str(arguments["text"])

    def fail(arguments: dict[str, Any]) -> McpResult:
        return McpResult("no such customer", is_error=True)

    mcp = InProcessMcp({"things": {"echo": echo, "structured": structured, "fail": fail}})
    mcp.listings["things"] = McpListing((McpTool("echo", "Returns the text.", sdk_server.TEXT),))
    return World(mcp, McpServer(name="things", transport="StreamableHTTP", url="http://things.test/mcp"))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with sdk_http_server() as server:
        yield server.url


@asynccontextmanager
async def reached(kind: str, address: str, a_client: MakeClient) -> AsyncIterator[World]:
    if kind == "fake":
        yield _fake()
        return
    async with a_client() as mcp:
        if kind == "http":
            yield World(mcp, McpServer(name="things", transport="StreamableHTTP", url=address))
        else:
            command = [sys.executable, str(Path(sdk_server.__file__))]
            yield World(mcp, McpServer(name="things", transport="Stdio", command=command))


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["fake", "http", "stdio"])
async def test_a_server_lists_and_calls(kind: str, address: str, a_client: MakeClient) -> None:
    async with reached(kind, address, a_client) as world:
        listing = await world.mcp.list_tools(world.server, 60.0)
        assert isinstance(listing, McpListing)
        assert listing.tools[0] == McpTool("echo", "Returns the text.", sdk_server.TEXT)

        assert await world.call("echo", text="grüße 🎈") == McpResult("grüße 🎈")
        assert await world.call("structured") == McpResult("two", {"count": 2, "names": ["a", "b"]})
        assert await world.call("fail") == McpResult("no such customer", is_error=True)

        want = McpFailure("JsonRpc", "it answered with JSON-RPC error -32602", detail="Unknown tool: nope")
        assert await world.call("nope") == want
