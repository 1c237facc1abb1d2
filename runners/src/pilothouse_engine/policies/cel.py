"""Rules that are CEL expressions; compiled once, evaluated for each question."""

import re

from pilothouse_api.expressions import Expression, ExpressionError, compile_policy_expression
from pilothouse_api.structs import PolicyRule
from pilothouse_engine.policies.questions import Question, build_variables

MAX_REASON_CHARS = 300

_ONE_TOOL = re.compile(r"""\s*tool\s*==\s*(?:'([\w-]+)'|"([\w-]+)")\s*(?:&&.*)?""", re.DOTALL)


class CelFailed(Exception):
    """An expression does not compile, cannot be evaluated, or gives neither true nor false."""


def compile_rule(rule: PolicyRule) -> Expression | str:
    """Return the compiled expression of a rule, or why there is none."""
    try:
        return compile_policy_expression(rule.cel or "")
    except ExpressionError as error:
        return str(error)[:MAX_REASON_CHARS]


def only_tool(cel: str) -> str | None:
    """Return the one tool that an expression can be true for (`tool == 'refund' && …`), None where it may be any.

    For every other tool it is false, whatever the rest would say: in CEL false && error is false. An alternative or a
    condition could undo that, so an expression that holds one, if only in a text, is not looked into.
    """
    match = _ONE_TOOL.fullmatch(cel)
    if match is None or "||" in cel or "?" in cel:
        return None
    return match.group(1) or match.group(2)


def is_matched(compiled: Expression | str, question: Question) -> bool:
    """Tell whether a rule matches; raises CelFailed."""
    if isinstance(compiled, str):
        raise CelFailed(f"it does not compile: {compiled}")
    try:
        value = compiled.evaluate(build_variables(question, compiled.names or ()))
    except ExpressionError as error:
        raise CelFailed(str(error)[:MAX_REASON_CHARS]) from None
    if not isinstance(value, bool):
        raise CelFailed(f"it gives {type(value).__name__}, not true or false")
    return value
