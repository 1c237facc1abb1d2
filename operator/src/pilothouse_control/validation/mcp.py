"""Checks of MCP servers, wherever they are named: by agents, and by steps of kind MCP."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from pilothouse_api.mcp import ALL_TOOLS, is_clients_own, is_offerable, is_server_name, offered_name
from pilothouse_api.v1alpha1.steps import McpServer
from pilothouse_control import mcp_artifacts  # the module: it needs the shapes of this package, so it may be half made
from pilothouse_control.findings import FieldPath
from pilothouse_control.tree import walk
from pilothouse_control.validation.scene import AgentSubject, Check, Problem, Scene, SpecSubject
from pilothouse_control.validation.sentences import did_you_mean
from pilothouse_control.validation.urls import url_problem


def servers_of(scene: Scene, subject: SpecSubject) -> Iterator[tuple[FieldPath, McpServer]]:
    """Yield the servers in a spec with their places; those of an artifact that is known as its text says."""
    for place, node in walk(subject.spec, subject.path):
        if isinstance(node, McpServer):
            server = mcp_artifacts.server_of(node, scene.config_maps)
            yield place, server if isinstance(server, McpServer) else node


def judge_artifacts(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """An artifact of type mcp whose text is no server, or one that no run may call."""
    for place, node in walk(subject.spec, subject.path):
        if not isinstance(node, McpServer) or node.artifact is None:
            continue
        server = mcp_artifacts.server_of(node, scene.config_maps)
        what = server if isinstance(server, str) else url_problem(server.url) if server and server.url else None
        if what is not None:
            yield Problem((*place, "artifact"), f"the artifact {node.artifact} holds no usable server: {what}")


def judge_templates(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A template where values are sent as they are: a session outlives a call, and serves many."""
    for place, server in servers_of(scene, subject):
        what = "addresses and headers of MCP servers are no templates, and are sent as they are"
        if "{{" in (server.url or ""):
            yield Problem((*place, "url"), what, "name one server for each address")
        for index, header in enumerate(server.headers):
            if "{{" in (header.value or ""):
                yield Problem((*place, "headers", index, "value"), what, "use valueFrom.secretKeyRef, or a fixed value")


def judge_command_templates(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """Braces in a command that look like a placeholder."""
    for place, server in servers_of(scene, subject):
        for index, word in enumerate(server.command or ()):
            if "{{" in word:
                what = "a command of an MCP server is no template: the braces stay as they are"
                yield Problem((*place, "command", index), what, "hand values in by runTemplate.env or by arguments")


def judge_transport(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """Fields of HTTP at a program, or a program without a name."""
    for place, server in servers_of(scene, subject):
        if server.transport != "Stdio":
            continue
        for field, value in (("headers", server.headers), ("auth", server.auth)):
            if value:
                what = f"{field} belongs to transport: StreamableHTTP; a program gets what runTemplate.env names"
                yield Problem((*place, field), what, "remove it")
        if server.command and not server.command[0].strip():
            yield Problem((*place, "command", 0), "the program has no name", "name a program of the runner's image")


def judge_credentials(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """Headers that the client sets, or that are set twice."""
    for place, server in servers_of(scene, subject):
        seen: set[str] = set()
        for index, header in enumerate(server.headers):
            name, where = header.name.lower(), (*place, "headers", index, "name")
            if is_clients_own(name):
                yield Problem(where, f"the client sets {header.name} itself", "remove it")
            elif name in seen:
                yield Problem(where, f"{header.name} is set twice: names of headers know no case", "remove one")
            elif name == "authorization" and server.auth is not None:
                yield Problem(where, "auth sets Authorization too", "remove auth or this header")
            seen.add(name)


def judge_audience(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A token that the server could use against the API server."""
    for place, server in servers_of(scene, subject):
        if server.auth is None:
            continue
        audience = server.auth.service_account_token.audience
        host = (urlsplit(audience).hostname or "") if "://" in audience else audience.split("/")[0]
        if host.partition(".")[0] == "kubernetes":
            what = f"a token for {audience} is good for the API server, and {server.name} would be handed it"
            field = (*place, "auth", "serviceAccountToken", "audience")
            yield Problem(field, what, "name an audience that only the MCP server accepts")


def judge_server_name(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A name that tools cannot be offered under."""
    for index, server in enumerate(subject.spec.mcp_servers):
        if not is_server_name(server.name):
            what = f"tools would be called {offered_name(server.name, '<tool>')}, which no provider or no reader takes"
            hint = "use letters, digits, - and single _, and begin with a letter"
            yield Problem((*subject.path, "mcpServers", index, "name"), what, hint)


def judge_unknown_server(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A tool of an MCP server that the agent does not name."""
    servers = [server.name for server in subject.spec.mcp_servers]
    for path, tool in subject.tools():
        if tool.mcp is not None and tool.mcp.server not in servers:
            what = f"mcpServers has no {tool.mcp.server}; it has {', '.join(servers) or 'none'}"
            yield Problem((*path, "mcp", "server"), what, did_you_mean(tool.mcp.server, servers))


def judge_unused_server(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A server that no tool names: it is never asked."""
    named = {tool.mcp.server for _, tool in subject.tools() if tool.mcp is not None}
    for index, server in enumerate(subject.spec.mcp_servers):
        if server.name not in named:
            what = f"no tool names the MCP server {server.name}, so it is never asked"
            yield Problem((*subject.path, "mcpServers", index), what, "add a tool with mcp.server, or remove it")


def judge_allowed_names(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """An allowed tool that can never be offered."""
    for path, tool in subject.tools():
        for index, name in enumerate(tool.mcp.allow if tool.mcp is not None else ()):
            full = offered_name(tool.mcp.server if tool.mcp else "", name)
            if name != ALL_TOOLS and not is_offerable(full):
                what = f"providers do not take a tool that is called {full}, so it would be left out"
                yield Problem((*path, "mcp", "allow", index), what, "64 letters, digits, _ and - at most")


def judge_star_among_names(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """A star that makes the names beside it mean nothing."""
    for path, tool in subject.tools():
        if tool.mcp is not None and ALL_TOOLS in tool.mcp.allow and len(tool.mcp.allow) > 1:
            what = f"* allows all tools of {tool.mcp.server}, and the names beside it nothing more"
            yield Problem((*path, "mcp", "allow"), what, "remove the star, or the names")


MCP_SPEC_CHECKS: tuple[Check[SpecSubject], ...] = (
    Check("McpArtifactInvalid", "Error", judge_artifacts),
    Check("McpTemplate", "Error", judge_templates),
    Check("McpCommandTemplate", "Warning", judge_command_templates),
    Check("McpTransport", "Error", judge_transport),
    Check("McpHeader", "Error", judge_credentials),
    Check("McpAudience", "Error", judge_audience),
)

MCP_AGENT_CHECKS: tuple[Check[AgentSubject], ...] = (
    Check("McpServerName", "Error", judge_server_name),
    Check("McpServerNotFound", "Error", judge_unknown_server),
    Check("McpServerUnused", "Warning", judge_unused_server),
    Check("McpToolName", "Error", judge_allowed_names),
    Check("McpStarAmongNames", "Warning", judge_star_among_names),
)
