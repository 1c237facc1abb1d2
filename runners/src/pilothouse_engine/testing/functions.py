"""Author code without a child process: a test registers callables."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pilothouse_engine.ports import FunctionFailure, FunctionReply, FunctionRequest

Result = FunctionReply | FunctionFailure | dict[str, Any] | str | tuple[dict[str, Any], str] | None
Function = Callable[[dict[str, Any]], Result | Awaitable[Result]]


class InProcessFunctions:
    """Runs registered functions by name (`module:function`) in this process; keeps what was asked."""

    def __init__(self, functions: Mapping[str, Function] | None = None) -> None:
        self._functions = dict(functions or {})
        self.requests: list[FunctionRequest] = []

    async def run(self, request: FunctionRequest) -> FunctionReply | FunctionFailure:
        """Return what the function returned: a dict, a signal, both, or why there is nothing."""
        self.requests.append(request)
        function = self._functions.get(request.callable)
        if function is None:
            return FunctionFailure("Invalid", f"{request.callable} is not registered")
        try:
            result = function(dict(request.arguments))
            given = await result if inspect.isawaitable(result) else result
        except Exception as error:  # author code: whatever it raises is its end
            return FunctionFailure("Raised", f"{type(error).__name__}: {error}")
        return _reply_of(given)


def _reply_of(given: Result) -> FunctionReply | FunctionFailure:
    if isinstance(given, FunctionReply | FunctionFailure):
        return given
    if isinstance(given, tuple):
        return FunctionReply(output=given[0], signal=given[1])
    if isinstance(given, str):
        return FunctionReply(signal=given)
    return FunctionReply(output=given)
