"""BudgetFraction: a budget is nearly spent."""

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

from pilothouse_api.observation import Observation, Spend
from pilothouse_api.v1alpha1.supervisor import BudgetFraction
from pilothouse_control.supervision.rules.verdict import Verdict


def evaluate(observation: Observation, params: BudgetFraction) -> Verdict | None:
    """Fire where strictly more than `percent` of a budget is used: of tokens or money, of the visit or the run."""
    for what, used, budget in _budgets(observation):
        if Fraction(used) * 100 > params.percent * Fraction(budget):
            return Verdict(f"{used} of {budget} {what} are used, more than {params.percent} %")
    return None


def _budgets(observation: Observation) -> Iterator[tuple[str, Decimal | int, Decimal | int]]:
    spends: tuple[tuple[str, Spend], ...] = (("visit", observation.visit_spend), ("run", observation.spend))
    for whose, spend in spends:
        if spend.budget is not None:
            yield f"tokens of the {whose}", spend.used, spend.budget
        if spend.budget_usd is not None:
            yield f"US dollars of the {whose}", Decimal(spend.used_usd), Decimal(spend.budget_usd)
