"""What of CEL a rule may use: nothing that fills the memory or holds up the process that judges everybody's rules."""

import pytest

from pilothouse_api.expressions import ExpressionError
from pilothouse_control.supervision.rules.language import MAX_COST, compile_rule
from unit.control.supervision.observations import an_observation


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("run.turn > 3", True),
        ("run.iteration >= run.maxIterations - 1", False),
        ("run.toolCalls.exists(t, t.startsWith('pay') && run.toolCalls[t] > 2)", True),
        ("'pay' in run.toolCalls && run.toolCalls['pay'] == 3", True),
        ("run.step in ['triage', 'answer']", True),
        ("size(run.toolCalls.filter(t, run.toolCalls[t] > 0)) == 2", True),
        ("run.spend.used * 2 > run.spend.budget", False),
        ("has(run.visitSpend.budget) ? run.visitSpend.used > 10 : run.spend.used > 10", True),
        ("double(run.spend.usedUSD) > 0.25", True),
        ("timestamp(run.now) - timestamp(run.lastProgressTime) > duration('5s')", True),
        ("run.step.matches('^tri.*$') || run.?lastProgressTime.hasValue()", True),
        ('run.step == "triage" && !(run.toolErrors > 0)', True),
        ("[1, -2, 3].all(n, n < run.turn)", True),
    ],
)
def test_a_rule_says_what_it_says(text: str, want: bool) -> None:
    assert compile_rule(text).evaluate(an_observation()) is want


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("size(['aaaaaaaa'].map(x, x + x).map(x, x + x)) > 1", "cannot call map"),
        ("'aa'.replace('a', 'bbbb').size() > 1", "cannot call replace"),
        ("['a'].join('b') == 'a'", "cannot call join"),
        ("'a,b'.split(',').size() == 2", "cannot call split"),
        ("[run.turn].exists(a, [a].exists(b, b == 1))", "holds run"),
        ("run.toolCalls.exists(t, [[t, t]] == [[t, t]])", "holds ["),
        ("{'a': run.toolCalls} == {'a': run.toolCalls}", "cannot hold {"),
        ("'''a''' == run.step", "cannot hold '''"),
        ("run.step == r'a' ", "cannot hold r'"),
        ("run.turn > 1 // 'x'", "cannot hold //"),
        ("run.turns > 1", "run has no field turns"),
        ("run.spend.usd > 1", "run has no field usd"),
        ("run.?visitSpend.?left.orValue(1) > 1", "run has no field left"),
        ("runs.turn > 1", "runs"),
        ("run.turn >", "Syntax error"),
    ],
)
def test_what_could_grow_or_is_not_there_is_refused(text: str, says: str) -> None:
    with pytest.raises(ExpressionError) as error:
        compile_rule(text)
    assert says in str(error.value)


def test_a_rule_over_many_tools_is_stopped_before_it_is_evaluated() -> None:
    nested = "run.toolCalls.all(a, run.toolCalls.all(b, a != b || run.toolCalls[a] < 1000))"
    many = an_observation(tool_calls={f"gh__tool_{n}": 1 for n in range(400)})
    with pytest.raises(ExpressionError, match=f"over 400 tools; the limit is {MAX_COST:,}"):
        compile_rule(nested).evaluate(many)
    assert compile_rule(nested).evaluate(an_observation()) is True


def test_a_list_counts_like_the_tools_that_a_macro_goes_through() -> None:
    numbers = ", ".join(str(n) for n in range(400))
    with pytest.raises(ExpressionError, match="nest fewer macros"):
        compile_rule(f"[{numbers}].all(a, [{numbers}].all(b, a + b >= 0))").evaluate(an_observation())


def test_a_bracket_in_a_text_is_no_list_and_a_quote_in_a_text_ends_nothing() -> None:
    assert compile_rule(r"run.step != '[it\'s (not' && run.step != 'map('").evaluate(an_observation()) is True
