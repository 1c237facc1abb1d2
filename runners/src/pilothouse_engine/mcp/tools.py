"""From what MCP servers list to what is offered to the model (engine.md §3 "MCP."). Pure.

What is offered is journaled once a visit and reused on resume; a server that lists something else later changes
nothing about a visit that has begun.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from pilothouse_api.mcp import ALL_TOOLS, is_offerable, offered_name
from pilothouse_api.structs import AgentSpec, McpServer, McpTools, Tool
from pilothouse_engine.facts import OfferedTool
from pilothouse_engine.mcp.schemas import SchemaRefused, clean_text, normalise_schema, open_schema
from pilothouse_engine.ports import McpFailure, McpListing, McpTool
from pilothouse_engine.results import compact
from pilothouse_engine.values import Value

MAX_OFFERED = 128
"""Most tools of MCP servers for one agent: providers refuse more."""

MAX_SURFACE_CHARS = 262_144
"""Most characters of all descriptions and schemas together: they are journaled, and sent with every request."""

MAX_DESCRIPTION_CHARS = 1_024
MAX_WARNINGS = 32


class McpSurface(Value):
    """What is offered of all servers, in the order of the agent's list; what was left out, and which servers were."""

    tools: tuple[OfferedTool, ...]
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]


class McpMissing(Value):
    """A required server cannot tell its tools: the step ends, error type McpUnavailable."""

    server: str
    message: str


def used_servers(agent: AgentSpec) -> tuple[McpServer, ...]:
    """Return the servers that a tool of the agent names, in the order of mcpServers."""
    named = {tool.mcp.server for tool in agent.tools if tool.mcp is not None}
    return tuple(server for server in agent.mcp_servers if server.name in named)


def build_surface(agent: AgentSpec, answers: Mapping[str, McpListing | McpFailure]) -> McpSurface | McpMissing:
    """Return what is offered, from the answer of each server by name.

    A required server without a listing ends the step: tools are never made up. An optional one is left out.
    """
    warnings = _Warnings()
    listings: dict[str, McpListing] = {}
    left_out: list[str] = []
    for server in used_servers(agent):
        answer = answers[server.name]
        if isinstance(answer, McpListing):
            listings[server.name] = answer
        elif server.required:
            what = f"MCP server {server.name} cannot tell its tools: {answer.message}"
            return McpMissing(server.name, f"{what}; a server that can be done without has required: false")
        else:
            left_out.append(server.name)
            warnings.add(f"MCP server {server.name} is left out: {answer.message}")
    offered = _Offered()
    for entry in agent.tools:
        if entry.mcp is not None and entry.mcp.server in listings:
            _offer_entry(entry, entry.mcp, listings[entry.mcp.server], offered, warnings)
    return McpSurface(tuple(offered.tools.values()), tuple(left_out), warnings.texts())


def declared_form(entry: Tool, offered: OfferedTool) -> Tool:
    """Return an offered tool in the form of a declared one, so that the same gates and the same validator serve both.

    Objects of the schema stay open where the server says nothing: only declared ones are closed by default.
    """
    parameters = open_schema(offered.parameters)
    return replace(entry, name=offered.name, description=offered.description, parameters=parameters)


def _offer_entry(entry: Tool, mcp: McpTools, listing: McpListing, offered: "_Offered", warnings: "_Warnings") -> None:
    """Add the tools that one entry allows; what an earlier entry or tool has is not offered twice."""
    seen: set[str] = set()
    for tool in _allowed(mcp, listing.tools, warnings):
        label = f"tool {clean_text(tool.name, 80)!r} of MCP server {mcp.server}"
        name = offered_name(mcp.server, tool.name)
        if tool.name in seen:
            warnings.add(f"{label} is listed twice; the first one is offered")
            continue
        seen.add(tool.name)
        if not tool.name or not is_offerable(name):
            warnings.add(f"{label} is left out: providers do not take the name {clean_text(name, 80)!r}")
            continue
        if name in offered.tools:
            _note_collision(mcp, tool, offered.tools[name], label, warnings)
            continue
        if len(offered.tools) >= MAX_OFFERED:
            warnings.add(f"{label} and later ones are left out: at most {MAX_OFFERED} are offered; narrow mcp.allow")
            return
        try:
            parameters = normalise_schema(tool.parameters)
        except SchemaRefused as refused:
            warnings.add(f"{label} is left out: {refused}")
            continue
        description = _describe(entry, mcp, tool)
        if not offered.add(OfferedTool(name, entry.name, mcp.server, tool.name, description, parameters)):
            what = f"what is offered would be larger than {MAX_SURFACE_CHARS:,} characters; narrow mcp.allow"
            warnings.add(f"{label} is left out: {what}")


def _note_collision(mcp: McpTools, tool: McpTool, other: OfferedTool, label: str, warnings: "_Warnings") -> None:
    if other.server != mcp.server:
        warnings.add(f"{label} is left out: MCP server {other.server} has one that is called {other.name} too")
    elif tool.name in mcp.allow:  # by ["*"] it is meant to be the rest
        warnings.add(f"{label} belongs to the tool entry {other.entry}, which allows it first")


def _allowed(mcp: McpTools, tools: Sequence[McpTool], warnings: "_Warnings") -> Iterator[McpTool]:
    if ALL_TOOLS in mcp.allow:
        yield from tools
        return
    listed = {tool.name for tool in tools}
    for name in mcp.allow:
        if name not in listed:
            warnings.add(f"MCP server {mcp.server} does not list {clean_text(name, 80)!r}, which mcp.allow names")
    yield from (tool for tool in tools if tool.name in mcp.allow)


def _describe(entry: Tool, mcp: McpTools, tool: McpTool) -> str:
    """Return the description: the author's stands first, and alone where the entry is for one tool.

    What a server says of itself is marked as its own words: it is material, and may try to give orders.
    """
    own = clean_text(tool.description, MAX_DESCRIPTION_CHARS)
    if entry.description and len(mcp.allow) == 1 and mcp.allow != [ALL_TOOLS]:
        return entry.description
    theirs = f"MCP server {mcp.server} says: {own}" if own else f"A tool of MCP server {mcp.server}."
    return f"{entry.description} {theirs}" if entry.description else theirs


class _Offered:
    """What is offered so far, by name, and how large it is."""

    def __init__(self) -> None:
        self.tools: dict[str, OfferedTool] = {}
        self._chars = 0

    def add(self, tool: OfferedTool) -> bool:
        """Add a tool; tell whether there was room for it."""
        chars = len(tool.description) + len(compact(tool.parameters))
        if self._chars + chars > MAX_SURFACE_CHARS:
            return False
        self._chars += chars
        self.tools[tool.name] = tool
        return True


class _Warnings:
    """What was left out, each thing once, bounded: a hostile listing must not fill the journal."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._more = 0

    def add(self, text: str) -> None:
        if len(self._texts) < MAX_WARNINGS:
            self._texts.setdefault(text)
        elif text not in self._texts:
            self._more += 1

    def texts(self) -> tuple[str, ...]:
        more = (f"and {self._more} more like these",) if self._more else ()
        return (*self._texts, *more)
