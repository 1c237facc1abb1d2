"""Asking MCP servers for their tools, once a visit, before its first model call (engine.md §3 "MCP.")."""

import asyncio
import logging
from collections.abc import Callable
from typing import assert_never

from pilothouse_api.signals import ERROR
from pilothouse_api.structs import AgentSpec, McpServer
from pilothouse_engine.alarms import Alarms, Cut
from pilothouse_engine.endings import plan_exit
from pilothouse_engine.facts import Facts, ToolSurface
from pilothouse_engine.mcp.tools import McpMissing, McpSurface, build_surface, used_servers
from pilothouse_engine.ports import Mcp, McpFailure, McpListing
from pilothouse_engine.state import RunState

LISTING_SECONDS = 10.0
BACKSTOP_SECONDS = 30.0
"""When the engine stops waiting for an adapter that does not keep its deadline; the SDK's import is not counted in it,
and takes seconds on a busy machine."""

_log = logging.getLogger("pilothouse.engine")


async def list_surface(
    state: RunState, agent: AgentSpec, mcp: Mcp, alarms: Alarms, seconds: float, now: Callable[[], float]
) -> Facts:
    """Return what the visit under way offers, or its end where a required server cannot tell its tools.

    All servers are asked at once, `seconds` is how long the run may still be active. No fact comes of it where it is
    interrupted: the next attempt asks again.
    """
    async with asyncio.TaskGroup() as group:
        asked = {server.name: group.create_task(_ask(server, mcp, alarms, seconds)) for server in used_servers(agent)}
    answers: dict[str, McpListing | McpFailure] = {}
    for name, task in asked.items():
        answer = task.result()
        if answer is None:
            return ()
        answers[name] = answer
    built = build_surface(agent, answers)
    match built:
        case McpMissing():
            return plan_exit(state, now(), ERROR, "McpUnavailable", built.message)
        case McpSurface(tools, left_out, warnings):
            for warning in warnings:
                _log.warning("agent.tools_left_out step=%s %s", state.visit.step if state.visit else "", warning)
            return (ToolSurface(now(), tools, left_out, warnings),)
        case _:
            assert_never(built)


async def _ask(server: McpServer, mcp: Mcp, alarms: Alarms, seconds: float) -> McpListing | McpFailure | None:
    """Return the answer of one server, None where the run is asked to let go."""
    answer = await alarms.bound(mcp.list_tools(server, min(LISTING_SECONDS, seconds)), min(BACKSTOP_SECONDS, seconds))
    if answer is Cut.INTERRUPTED:
        return None
    if isinstance(answer, Cut):
        return McpFailure("Timeout", "it did not list its tools in time")
    return answer
