"""The ports of one attempt, put together: the same in a pod and on a laptop but for journal, store, frames, secrets."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilothouse_api import names
from pilothouse_api.structs import McpServer, Plan
from pilothouse_engine.ports import (
    FrameSink,
    Journal,
    McpFailure,
    McpListing,
    McpResult,
    Ports,
    ResourceFailure,
    ResourceReply,
    ResourceRequest,
    RunStore,
    Secrets,
    Sessions,
)
from pilothouse_engine.values import Value
from pilothouse_runner.adapters.api_server import Cluster
from pilothouse_runner.adapters.clock import SystemClock
from pilothouse_runner.adapters.functions import ProcessFunctions
from pilothouse_runner.adapters.http import HttpxHttp
from pilothouse_runner.adapters.models import ModelRouter

if TYPE_CHECKING:
    from pilothouse_runner.adapters.kubernetes_resources import KubernetesResources
    from pilothouse_runner.adapters.mcp import SdkMcp

FindCluster = Callable[[], Cluster | ResourceFailure]
"""Tells where Resource steps act, or why nowhere; asked when the first one does."""


class McpHost(Value):
    """What MCP servers find where a run is hosted; the defaults are those of a pod.

    `environment` and `folder` are those of programs (Stdio), which `is_confined` keeps from the runner's files;
    `tokens` is the folder of projected tokens, None where there are none.
    """

    environment: Mapping[str, str]
    folder: str = "/"
    is_confined: bool = True
    tokens: Path | None = Path(names.AUDIENCE_TOKENS_PATH)


def named_environment(plan: Plan, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `runTemplate.env` names: a pod has their values, a laptop those that are written."""
    named: dict[str, str] = {}
    for entry in plan.pod.get("env") or ():
        name = str(entry.get("name"))
        value = entry["value"] if "value" in entry else environment.get(name)
        if value is not None:
            named[name] = str(value)
    return named


@asynccontextmanager
async def open_ports(
    *,
    journal: Journal,
    store: RunStore,
    frames: FrameSink,
    secrets: Secrets,
    environment: Mapping[str, str],
    find_cluster: FindCluster,
    mcp_host: McpHost | None = None,
    sessions: Sessions | None = None,
) -> AsyncIterator[Ports]:
    """Give the ports, and close connections and MCP sessions afterwards.

    `environment` is what Function steps see, and in a pod (no `mcp_host`) programs of MCP servers too.
    """
    clock = SystemClock()
    model = ModelRouter(secrets, clock)
    mcp = McpWhenAsked(secrets, mcp_host or McpHost(environment))
    resources = ResourcesWhenAsked(find_cluster)
    try:
        yield Ports(
            model=model,
            http=HttpxHttp(),
            functions=ProcessFunctions(environment),
            mcp=mcp,
            resources=resources,
            secrets=secrets,
            journal=journal,
            store=store,
            frames=frames,
            clock=clock,
            sessions=sessions,
        )
    finally:
        await mcp.aclose()
        await resources.aclose()
        await model.aclose()


class McpWhenAsked:
    """MCP servers, and nothing of what they need before a run asks one."""

    def __init__(self, secrets: Secrets, host: McpHost) -> None:
        self._secrets = secrets
        self._host = host
        self._mcp: SdkMcp | None = None

    async def list_tools(self, server: McpServer, deadline: float) -> McpListing | McpFailure:
        """Return all tools of a server or why they cannot be told."""
        return await self._opened().list_tools(server, deadline)

    async def call_tool(
        self,
        server: McpServer,
        tool: str,
        arguments: Mapping[str, Any],
        idempotency_key: str | None,
        timeout: float,
        max_bytes: int,
    ) -> McpResult | McpFailure:
        """Return what a tool gave or why it gave nothing."""
        return await self._opened().call_tool(server, tool, arguments, idempotency_key, timeout, max_bytes)

    async def end_visit(self) -> None:
        """Close the sessions, where there are any."""
        if self._mcp is not None:
            await self._mcp.end_visit()

    async def aclose(self) -> None:
        """Close the sessions, at the end of the attempt."""
        if self._mcp is not None:
            await self._mcp.aclose()

    def _opened(self) -> "SdkMcp":
        from pilothouse_runner.adapters.mcp import SdkMcp

        if self._mcp is None:
            host = self._host
            self._mcp = SdkMcp(
                self._secrets,
                tokens=host.tokens,
                environment=host.environment,
                folder=host.folder,
                is_confined=host.is_confined,
            )
        return self._mcp


class ResourcesWhenAsked:
    """Objects of a cluster, and nothing of what they need before a run asks for one."""

    def __init__(self, find_cluster: FindCluster) -> None:
        self._find_cluster = find_cluster
        self._resources: KubernetesResources | None = None

    async def call(self, request: ResourceRequest) -> ResourceReply | ResourceFailure:
        """Return what the API server gave or why it gave nothing."""
        if self._resources is None:
            cluster = self._find_cluster()
            if isinstance(cluster, ResourceFailure):
                return cluster
            from pilothouse_runner.adapters.kubernetes_resources import KubernetesResources

            self._resources = KubernetesResources(cluster.server, cluster.namespace)
        return await self._resources.call(request)

    async def aclose(self) -> None:
        """Close the connections, at the end of the attempt."""
        if self._resources is not None:
            await self._resources.aclose()
