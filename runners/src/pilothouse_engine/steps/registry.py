"""The table of executors by step kind. Agent steps are the loop itself; the other kinds come with their issues."""

from collections.abc import Callable, Mapping
from functools import cache

from pilothouse_engine.steps.contract import StepExecutor
from pilothouse_engine.steps.response import execute_response


def _api_call() -> StepExecutor:
    from pilothouse_engine.steps.api_call import execute_api_call

    return execute_api_call


def _mcp() -> StepExecutor:
    from pilothouse_engine.steps.mcp import execute_mcp

    return execute_mcp


def _resource() -> StepExecutor:
    from pilothouse_engine.steps.resource import execute_resource

    return execute_resource


def _router() -> StepExecutor:
    from pilothouse_engine.steps.router import execute_router

    return execute_router


def _function() -> StepExecutor:
    from pilothouse_engine.steps.function import execute_function

    return execute_function


EXECUTORS: Mapping[str, Callable[[], StepExecutor]] = {
    "APICall": _api_call,
    "MCP": _mcp,
    "Resource": _resource,
    "Router": _router,
    "Function": _function,
    "Response": lambda: execute_response,
}
"""What imports the executor of a kind."""

LOCAL_KINDS = frozenset({"Router", "Response"})
"""Kinds that follow from the context and ask no port: a step of them acts on nothing, and may be made again."""


@cache
def executor_of(kind: str) -> StepExecutor:
    """Return what executes a step of a kind; what that takes is imported by the runs that do it, once."""
    return EXECUTORS[kind]()
