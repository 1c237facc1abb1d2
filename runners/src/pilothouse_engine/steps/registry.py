"""The table of executors by step kind. Agent steps are the loop itself; the other kinds come with their issues."""

from collections.abc import Mapping

from pilothouse_engine.steps.api_call import execute_api_call
from pilothouse_engine.steps.contract import StepExecutor
from pilothouse_engine.steps.function import execute_function
from pilothouse_engine.steps.response import execute_response
from pilothouse_engine.steps.router import execute_router

EXECUTORS: Mapping[str, StepExecutor] = {
    "APICall": execute_api_call,
    "Router": execute_router,
    "Function": execute_function,
    "Response": execute_response,
}
