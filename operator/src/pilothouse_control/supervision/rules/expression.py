"""Expression: what an author says in CEL over the Observation."""

from pilothouse_api.expressions import ExpressionError
from pilothouse_api.observation import Observation
from pilothouse_api.v1alpha1.supervisor import ExpressionRule
from pilothouse_control.supervision.rules.language import compile_rule
from pilothouse_control.supervision.rules.verdict import Verdict


class RuleFailed(Exception):
    """A rule cannot say anything: it does not fire, and the log tells why."""


def evaluate(observation: Observation, params: ExpressionRule) -> Verdict | None:
    """Fire where the expression is true; raises RuleFailed where it cannot be evaluated or gives no truth value."""
    try:
        value = compile_rule(params.cel).evaluate(observation)
    except ExpressionError as error:
        raise RuleFailed(str(error)) from None
    if not isinstance(value, bool):
        raise RuleFailed(f"it gives {value!r:.60}; a rule must give true or false")
    return Verdict("the expression of the rule holds") if value else None
