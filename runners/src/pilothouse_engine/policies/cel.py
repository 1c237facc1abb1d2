"""Rules that are CEL expressions; compiled once, evaluated for each question."""

from collections.abc import Mapping
from typing import Any

from pilothouse_api.expressions import Expression, ExpressionError, compile_policy_expression
from pilothouse_api.v1alpha1.common import PolicyRule

MAX_REASON_CHARS = 300


class CelFailed(Exception):
    """An expression does not compile, cannot be evaluated, or gives neither true nor false."""


def compile_rule(rule: PolicyRule) -> Expression | str:
    """Return the compiled expression of a rule, or why there is none."""
    try:
        return compile_policy_expression(rule.cel or "")
    except ExpressionError as error:
        return str(error)[:MAX_REASON_CHARS]


def is_matched(compiled: Expression | str, variables: Mapping[str, Any]) -> bool:
    """Tell whether a rule matches; raises CelFailed."""
    if isinstance(compiled, str):
        raise CelFailed(f"it does not compile: {compiled}")
    try:
        value = compiled.evaluate(variables)
    except ExpressionError as error:
        raise CelFailed(str(error)[:MAX_REASON_CHARS]) from None
    if not isinstance(value, bool):
        raise CelFailed(f"it gives {type(value).__name__}, not true or false")
    return value
