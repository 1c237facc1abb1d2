"""Every rule: what makes it fire, and the nearest thing that does not."""

from typing import Any

import pytest

from pilothouse_api.observation import Observation, Spend
from pilothouse_api.v1alpha1.supervisor import SupervisorRule
from pilothouse_control.supervision.rules.expression import RuleFailed
from pilothouse_control.supervision.rules.registry import RULES, evaluate
from unit.control.supervision.observations import an_observation


def a_rule(when: str, **parameters: Any) -> SupervisorRule:
    field = f"{when[0].lower()}{when[1:]}"
    raw = {"name": "r", "when": when} | ({field: parameters} if parameters else {})
    return SupervisorRule.model_validate(raw)


def visit(**spend: Any) -> Observation:
    return an_observation(spend=Spend(), visit_spend=Spend(**spend))


def run(**spend: Any) -> Observation:
    return an_observation(spend=Spend(**spend), visit_spend=Spend())


CALLS = an_observation(tool_calls={"pay": 3, "look": 2})

ROWS = [
    (a_rule("ToolRepeated"), CALLS, "tool pay was called 3 times; the rule allows fewer than 3"),
    (a_rule("ToolRepeated", count=4), CALLS, None),
    (a_rule("ToolRepeated", tool="look", count=2), CALLS, "tool look was called 2 times"),
    (a_rule("ToolRepeated", tool="look"), CALLS, None),
    (a_rule("ToolRepeated", tool="other", count=1), CALLS, None),
    (a_rule("ToolRepeated", count=1), an_observation(tool_calls={}), None),
    (a_rule("BudgetFraction"), run(used=801, budget=1000), "801 of 1000 tokens of the run are used, more than 80 %"),
    (a_rule("BudgetFraction"), run(used=800, budget=1000), None),
    (a_rule("BudgetFraction"), run(used=10**9), None),
    (a_rule("BudgetFraction"), visit(used=9, budget=10), "9 of 10 tokens of the visit"),
    (a_rule("BudgetFraction"), visit(used_usd="0.81", budget_usd="1"), "0.81 of 1 US dollars of the visit"),
    (a_rule("BudgetFraction"), run(used_usd="0.80", budget_usd="1"), None),
    (a_rule("BudgetFraction"), run(used_usd="0.8000000001", budget_usd="1"), "US dollars of the run"),
    (a_rule("BudgetFraction", percent=0), run(used=0, budget=10), None),
    (a_rule("BudgetFraction", percent=0), run(used=1, budget=10), "more than 0 %"),
    (a_rule("BudgetFraction", percent=100), run(used=10, budget=10), None),
    (a_rule("BudgetFraction", percent=100), run(used=11, budget=10), "more than 100 %"),
    (a_rule("BudgetFraction"), run(used=0, budget=0), None),
    (a_rule("BudgetFraction"), run(used=1, budget=0), "1 of 0 tokens"),
    (a_rule("IterationReached"), an_observation(iteration=1), "iteration 1 of 8"),
    (a_rule("IterationReached"), an_observation(iteration=0), None),
    (a_rule("IterationReached", count=5), an_observation(iteration=4), None),
    (a_rule("IterationReached", count=5), an_observation(iteration=6), "iteration 6 of 8"),
    (a_rule("IdenticalCallRepeated"), an_observation(identical_calls=3), "asked for 3 times in a row"),
    (a_rule("IdenticalCallRepeated"), an_observation(identical_calls=2), None),
    (a_rule("UndeclaredToolCalled"), an_observation(undeclared_tool_calls=1), "1 calls name a tool"),
    (a_rule("UndeclaredToolCalled"), an_observation(), None),
    (a_rule("NoProgressFor", seconds=60), an_observation(idle_seconds=60), "no progress for 60 s"),
    (a_rule("NoProgressFor", seconds=61), an_observation(idle_seconds=60), None),
    (a_rule("Expression", cel="run.toolErrors > 2"), an_observation(tool_errors=3), "the expression of the rule holds"),
    (a_rule("Expression", cel="run.toolErrors > 2"), an_observation(tool_errors=2), None),
]


@pytest.mark.parametrize(("rule", "observation", "says"), ROWS)
def test_a_rule_fires_only_where_something_is_wrong(
    rule: SupervisorRule, observation: Observation, says: str | None
) -> None:
    verdict = evaluate(rule, observation)
    assert (verdict is None) if says is None else (verdict is not None and says in verdict.reason)


def test_every_rule_of_the_table_fires_in_a_row_and_stays_silent_in_another() -> None:
    fires = {rule.when for rule, _, says in ROWS if says is not None}
    silent = {rule.when for rule, _, says in ROWS if says is None}
    assert fires == silent == set(RULES)


def test_every_kind_of_the_api_has_its_rule() -> None:
    annotation = SupervisorRule.model_fields["when"].annotation
    assert annotation is not None
    assert set(RULES) == set(annotation.__args__)


@pytest.mark.parametrize(
    ("cel", "says"),
    [
        ("run.toolCalls['other'] > 2", "other"),
        ("run.spend.used", "it gives 400; a rule must give true or false"),
        ("run.visitSpend.budget > 2", "budget"),
    ],
)
def test_an_expression_that_cannot_be_judged_does_not_fire_and_says_why(cel: str, says: str) -> None:
    with pytest.raises(RuleFailed, match=says):
        evaluate(a_rule("Expression", cel=cel), an_observation())
