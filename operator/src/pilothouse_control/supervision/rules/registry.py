"""The table of all rules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pilothouse_api.observation import Observation
from pilothouse_api.v1alpha1.supervisor import (
    BudgetFraction,
    IdenticalCallRepeated,
    IterationReached,
    SupervisorRule,
    ToolRepeated,
)
from pilothouse_control.supervision.rules import (
    budget_fraction,
    expression,
    identical_call_repeated,
    iteration_reached,
    no_progress_for,
    tool_repeated,
    undeclared_tool_called,
)
from pilothouse_control.supervision.rules.verdict import Verdict


@dataclass(frozen=True, slots=True)
class RuleKind:
    """One row: the parameters of a rule, defaults applied, and the function that judges."""

    params: Callable[[SupervisorRule], Any]
    evaluate: Callable[[Observation, Any], Verdict | None]


RULES: Mapping[str, RuleKind] = {
    "ToolRepeated": RuleKind(lambda rule: rule.tool_repeated or ToolRepeated(), tool_repeated.evaluate),
    "BudgetFraction": RuleKind(lambda rule: rule.budget_fraction or BudgetFraction(), budget_fraction.evaluate),
    "IterationReached": RuleKind(lambda rule: rule.iteration_reached or IterationReached(), iteration_reached.evaluate),
    "IdenticalCallRepeated": RuleKind(
        lambda rule: rule.identical_call_repeated or IdenticalCallRepeated(), identical_call_repeated.evaluate
    ),
    "UndeclaredToolCalled": RuleKind(lambda rule: None, undeclared_tool_called.evaluate),
    "NoProgressFor": RuleKind(lambda rule: rule.no_progress_for, no_progress_for.evaluate),
    "Expression": RuleKind(lambda rule: rule.expression, expression.evaluate),
}


def evaluate(rule: SupervisorRule, observation: Observation) -> Verdict | None:
    """Return what a rule says of an Observation; raises `RuleFailed` for an expression that cannot be evaluated."""
    kind = RULES[rule.when]
    return kind.evaluate(observation, kind.params(rule))
