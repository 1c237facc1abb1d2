"""The table of executors by step kind. Agent steps are the loop itself; the other kinds come with their issues."""

from collections.abc import Mapping

from pilothouse_engine.ports import Ports
from pilothouse_engine.steps.contract import StepCall, StepExecutor, StepRun
from pilothouse_engine.steps.response import execute_response


def execute_api_call(call: StepCall, ports: Ports) -> StepRun:
    """Make an HTTP call; what that takes is imported by the runs that do it."""
    from pilothouse_engine.steps.api_call import execute_api_call as execute

    return execute(call, ports)


def execute_mcp(call: StepCall, ports: Ports) -> StepRun:
    """Call a tool of an MCP server; what that takes is imported by the runs that do it."""
    from pilothouse_engine.steps.mcp import execute_mcp as execute

    return execute(call, ports)


def execute_resource(call: StepCall, ports: Ports) -> StepRun:
    """Call the Kubernetes API; what that takes is imported by the runs that do it."""
    from pilothouse_engine.steps.resource import execute_resource as execute

    return execute(call, ports)


def execute_router(call: StepCall, ports: Ports) -> StepRun:
    """Choose a signal; what that takes is imported by the runs that do it."""
    from pilothouse_engine.steps.router import execute_router as execute

    return execute(call, ports)


def execute_function(call: StepCall, ports: Ports) -> StepRun:
    """Run author code; what that takes is imported by the runs that do it."""
    from pilothouse_engine.steps.function import execute_function as execute

    return execute(call, ports)


EXECUTORS: Mapping[str, StepExecutor] = {
    "APICall": execute_api_call,
    "MCP": execute_mcp,
    "Resource": execute_resource,
    "Router": execute_router,
    "Function": execute_function,
    "Response": execute_response,
}
