"""The contract of CEL expressions: what they give, what they refuse, and that their work is bounded."""

import subprocess
import sys
from typing import Any

import pytest

from pilothouse_api.expressions import MAX_EXPRESSION_CHARS, ExpressionError, compile_expression


def nested(levels: int) -> dict[str, Any]:
    root: dict[str, Any] = {}
    current = root
    for _ in range(levels):
        current["a"] = {}
        current = current["a"]
    return root


@pytest.mark.parametrize(
    ("text", "variables", "want"),
    [
        ("context.n > 50", {"context": {"n": 51}}, True),
        ("context.n > 50", {"context": {"n": 50.5}}, True),
        ("context.?a.?b.orValue('none')", {"context": {"a": {}}}, "none"),
        ("has(context.a) && context.a == null", {"context": {"a": None}}, True),
        ("context.l.filter(x, x > 1).size()", {"context": {"l": [1, 2, 3]}}, 2),
        ("context.s.trim().lowerAscii()", {"context": {"s": " A "}}, "a"),
        ("timestamp(context.t).getHours('UTC')", {"context": {"t": "2024-01-01T07:00:00Z"}}, 7),
        ("context.s.matches('^(a+)+$')", {"context": {"s": "a" * 10_000 + "!"}}, False),
        ("null", {}, None),
        ("1.5", {}, 1.5),
    ],
)
def test_an_expression_gives_a_scalar(text: str, variables: dict[str, Any], want: object) -> None:
    assert compile_expression(text).evaluate(variables) == want


@pytest.mark.parametrize(
    ("text", "variables", "want"),
    [
        ("context.missing == 1", {"context": {}}, "missing"),
        ("other == 1", {"context": {}}, "other"),
        ("context.n && true", {"context": {"n": 1}}, "overload"),
        ("1 / context.n", {"context": {"n": 0}}, "zero"),
        ("context.l", {"context": {"l": [1]}}, "it must give a scalar"),
        ("context.?a", {"context": {"a": 1}}, "it must give a scalar"),
        ("context.n", {"context": {"n": 2**70}}, "out of range"),
        ("context.n", {"context": {"n": float("nan")}}, "no JSON number"),
        ("context.s == 'a'", {"context": {"s": "\ud800"}}, "context.s"),
        ("context.l.all(x, context.l.all(y, x == y))", {"context": {"l": [1] * 1000}}, "budget"),
        ("context.l.all(x, true)", {"context": {"l": [1] * 10_001}}, "budget"),
        ("context == context", {"context": nested(20_000)}, "128 levels"),
    ],
)
def test_an_evaluation_that_fails_says_why(text: str, variables: dict[str, Any], want: str) -> None:
    with pytest.raises(ExpressionError) as error:
        compile_expression(text).evaluate(variables)
    assert want in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "variables", "want"),
    [
        ("(((", None, "Syntax error"),
        ("", None, "Syntax error"),
        ("nosuch == 1", ["context"], "undeclared reference to 'nosuch'"),
        ("context.a && 'text'", ["context"], "no matching overload"),
        ("nosuch(context)", ["context"], "undeclared reference to 'nosuch'"),
        ("'" + "a" * MAX_EXPRESSION_CHARS + "'", None, f"the limit is {MAX_EXPRESSION_CHARS}"),
    ],
)
def test_a_text_that_does_not_compile_says_why(text: str, variables: list[str] | None, want: str) -> None:
    with pytest.raises(ExpressionError) as error:
        compile_expression(text, variables)
    assert want in str(error.value)


def test_parentheses_without_end_are_refused_when_they_are_compiled_or_evaluated() -> None:
    with pytest.raises(ExpressionError):
        compile_expression("(" * 2000 + "1" + ")" * 2000).evaluate({})


def test_the_library_is_loaded_at_the_first_use_only() -> None:
    program = "import sys, pilothouse_api.expressions; sys.exit('cel_expr_python' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=200, check=False).returncode == 0
