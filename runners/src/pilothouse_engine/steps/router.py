"""Router: chooses a signal from the context."""

from pilothouse_api.expressions import ExpressionError, compile_expression
from pilothouse_api.signals import DEFAULT, ERROR
from pilothouse_api.structs import Router, RouterCondition
from pilothouse_api.templates import MissingPath, lookup
from pilothouse_engine.ports import Ports
from pilothouse_engine.steps.contract import StepCall, StepDone, StepEnd
from pilothouse_engine.steps.outcomes import failed, public_context, signal_problem


async def execute_router(call: StepCall, ports: Ports) -> StepEnd:
    """Return the signal that the context gives."""
    router = call.params
    assert isinstance(router, Router)
    if router.match is not None:
        return _match(call, router.match)
    return _judge(call, router.conditions or [])


def _match(call: StepCall, path: str) -> StepDone:
    try:
        value = lookup(call.context, path)
    except MissingPath as missing:
        return failed("MissingContext", f"router.match: {missing}")
    if problem := signal_problem(value):
        return failed("InvalidSignal", f"router.match: {path}: {problem}")
    if value == ERROR:
        return failed("RoutedToError", f"router.match: {path} is error")
    return _chosen(value)


def _judge(call: StepCall, conditions: list[RouterCondition]) -> StepDone:
    # `context` holds the engine's keys too (context._api_status_code); at top level stand the public ones alone.
    variables = {**public_context(call), "context": dict(call.context)}
    for index, condition in enumerate(conditions):
        try:
            verdict = compile_expression(condition.cel).evaluate(variables)
        except ExpressionError as error:
            return failed("ExpressionFailed", f"router.conditions[{index}].cel: {error}")
        if not isinstance(verdict, bool):
            return failed("ExpressionFailed", f"router.conditions[{index}].cel must give true or false")
        if verdict:
            return _declared(index, condition.signal)
    return _chosen(DEFAULT)


def _declared(index: int, signal: str) -> StepDone:
    if problem := signal_problem(signal):
        return failed("InvalidSignal", f"router.conditions[{index}].signal: {problem}")
    if signal == ERROR:
        return failed("RoutedToError", f"router.conditions[{index}] is true")
    return _chosen(signal)


def _chosen(signal: str) -> StepDone:
    return StepDone(signal=signal, writes={}, output={"signal": signal})
