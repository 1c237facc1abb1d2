"""Function: a Python callable of the author's, run in a child process."""

from copy import deepcopy
from typing import Any

from pilothouse_api.signals import DEFAULT, ERROR
from pilothouse_api.stored_plan import text_key
from pilothouse_api.structs import FunctionCall
from pilothouse_api.templates import MissingPath, render_value
from pilothouse_engine.ports import FunctionFailure, FunctionReply, FunctionRequest, Ports
from pilothouse_engine.steps.contract import StepCall, StepDone, StepEnd, StepUnknown
from pilothouse_engine.steps.outcomes import MAX_MESSAGE_CHARS, failed, public_context, signal_problem
from pilothouse_engine.strict_json import printable

_ERROR_TYPES = {
    "Timeout": "FunctionTimeout",
    "Raised": "FunctionRaised",
    "Invalid": "InvalidOutput",
    "TooLarge": "OutputTooLarge",
    "Died": "FunctionDied",
    "NotStarted": "FunctionNotStarted",
}
CUT_SHORT = frozenset({"Timeout", "Died"})
"""Ends after which nobody knows how far the function came."""


async def execute_function(call: StepCall, ports: Ports) -> StepEnd:
    """Return what the callable gave: keys for the context, a signal, or both; unknown where it was cut short.

    Unknown only where it may not be repeated, as for every transport that fails after the request was sent.
    """
    function = call.params
    assert isinstance(function, FunctionCall)
    try:
        arguments = _arguments_of(call, function)
    except MissingPath as missing:
        return failed("MissingContext", f"function.arguments: {missing}")
    answer = await ports.functions.run(
        FunctionRequest(
            callable=function.callable,
            arguments=arguments,
            source=_source_of(call, function),
            timeout=float(function.timeout_seconds),
            max_bytes=call.settings.max_response_bytes,
        )
    )
    if isinstance(answer, FunctionFailure):
        message = f"{function.callable}: {answer.message}"
        if answer.kind in CUT_SHORT and not call.may_repeat:
            return StepUnknown(printable(message, MAX_MESSAGE_CHARS))
        return failed(_ERROR_TYPES[answer.kind], message)
    return _end_of(function, answer)


def _arguments_of(call: StepCall, function: FunctionCall) -> dict[str, Any]:
    """Return a deep copy: author code may change what it is given, and the context is the run's own."""
    given = public_context(call) if function.arguments is None else render_value(function.arguments, call.context)
    copy: dict[str, Any] = deepcopy(given)
    return copy


def _source_of(call: StepCall, function: FunctionCall) -> str | None:
    if function.source is None:
        return None
    return function.source.inline if function.source.inline is not None else call.texts[text_key(function.source)]


def _end_of(function: FunctionCall, reply: FunctionReply) -> StepDone:
    output = dict(reply.output) if reply.output is not None else None
    signal = DEFAULT if reply.signal is None else reply.signal
    if problem := signal_problem(signal):
        return failed("InvalidSignal", f"{function.callable}: {problem}", output=output)
    if signal == ERROR:
        return failed("FunctionError", f"{function.callable} returned the signal error", output=output)
    if output is None:
        return StepDone(signal=signal, writes={}, output=None)
    if function.output is not None:
        return StepDone(signal=signal, writes={function.output: output}, output=output)
    reserved = sorted(key for key in output if key.startswith("_") or not key)
    if reserved:
        return failed(
            "InvalidOutput",
            f"{function.callable} returned the key {reserved[0]!r}: empty keys and keys that begin with _ cannot be"
            " written; rename it, or set function.output",
        )
    return StepDone(signal=signal, writes=output, output=output)
