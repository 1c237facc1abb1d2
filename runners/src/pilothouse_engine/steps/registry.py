"""The table of executors by step kind. Agent steps are the loop itself; the other kinds come with their issues."""

from collections.abc import Mapping

from pilothouse_engine.ports import Ports
from pilothouse_engine.steps.contract import StepCall, StepEnd, StepExecutor
from pilothouse_engine.steps.response import execute_response


async def execute_api_call(call: StepCall, ports: Ports) -> StepEnd:
    """Make an HTTP call; what that takes is imported by the runs that do it."""
    from pilothouse_engine.steps import api_call

    return await api_call.execute_api_call(call, ports)


async def execute_mcp(call: StepCall, ports: Ports) -> StepEnd:
    """Call a tool of an MCP server; what that takes is imported by the runs that do it."""
    from pilothouse_engine.steps import mcp

    return await mcp.execute_mcp(call, ports)


async def execute_resource(call: StepCall, ports: Ports) -> StepEnd:
    """Call the Kubernetes API; what that takes is imported by the runs that do it."""
    from pilothouse_engine.steps import resource

    return await resource.execute_resource(call, ports)


async def execute_router(call: StepCall, ports: Ports) -> StepEnd:
    """Choose a signal; what that takes is imported by the runs that do it."""
    from pilothouse_engine.steps import router

    return await router.execute_router(call, ports)


async def execute_function(call: StepCall, ports: Ports) -> StepEnd:
    """Run author code; what that takes is imported by the runs that do it."""
    from pilothouse_engine.steps import function

    return await function.execute_function(call, ports)


EXECUTORS: Mapping[str, StepExecutor] = {
    "APICall": execute_api_call,
    "MCP": execute_mcp,
    "Resource": execute_resource,
    "Router": execute_router,
    "Function": execute_function,
    "Response": execute_response,
}
