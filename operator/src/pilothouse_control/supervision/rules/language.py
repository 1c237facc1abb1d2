"""What of CEL a supervisor's rule may use: such that its cost is known before it is evaluated.

Rules of all tenants are judged in one process of the platform. Whole CEL can fill its memory (`replace` and `map` grow
texts and lists without iterating much) or hold it up (lists of lists compare in exponential time). Here values cannot
grow: lists hold literals alone, nothing builds maps, and the functions are those that give no more than they get. What
is left costs its number of words, those in a macro times what it goes through.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pilothouse_api.expressions import Expression, ExpressionError, compile_expression
from pilothouse_api.observation import Observation, Spend

MAX_COST = 100_000
"""Most words that are evaluated in one rule: some milliseconds."""
_MATCHES_COST = 200
"""A regular expression in words: it is compiled for each evaluation."""

MACROS = ("all", "exists", "exists_one", "filter")
FUNCTIONS = (
    *("has", "size", "int", "uint", "double", "string", "bool", "type", "duration", "timestamp"),
    *("contains", "startsWith", "endsWith", "matches", "orValue", "hasValue", "value"),
    *("getHours", "getMinutes", "getSeconds", "getMilliseconds", "getDayOfWeek", "getFullYear", "getMonth"),
)
_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+)"
    r"|(?P<refused>'''|\"\"\"|//|[A-Za-z]+['\"])"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>0[xX][0-9a-fA-F]+|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)[uU]?"
    r"|(?P<text>'(?:[^'\\\r\n]|\\.)*'|\"(?:[^\"\\\r\n]|\\.)*\")"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[-<>!+*/%?:.,()\[\]])"
)
_LITERALS = frozenset({"true", "false"})


@dataclass(frozen=True, slots=True)
class RuleExpression:
    """A compiled rule. `words` are how many of its words stand in no macro, in one, in one within one, and so on.

    `longest` is the length of its longest list.
    """

    expression: Expression
    words: tuple[int, ...]
    longest: int

    def evaluate(self, observation: Observation) -> Any:
        """Return the scalar that it gives; raises ExpressionError where it cannot, or would cost too much."""
        many = max(1, self.longest, len(observation.tool_calls))
        cost = sum(count * many**depth for depth, count in enumerate(self.words))
        if cost > MAX_COST:
            what = f"it would evaluate {cost:,} words over {many} tools; the limit is {MAX_COST:,}"
            raise ExpressionError(f"{what}: nest fewer macros")
        return self.expression.evaluate({"run": observation.model_dump(by_alias=True, exclude_none=True)})


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


@lru_cache(maxsize=512)
def compile_rule(text: str) -> RuleExpression:
    """Return the compiled form of a rule; raises ExpressionError that says what it may not use."""
    expression = compile_expression(text, ("run",))
    tokens = tuple(_tokens(text))
    _check_fields(tokens)
    return RuleExpression(expression, _words(tokens), _check_lists(tokens))


def _tokens(text: str) -> Iterator[_Token]:
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None or found.lastgroup == "refused":
            what = found.group() if found is not None else text[place]
            raise ExpressionError(f"a rule cannot hold {what}: write texts as '…', and no maps and no comments")
        place = found.end()
        if found.lastgroup is not None and found.lastgroup != "space":
            yield _Token(found.lastgroup, found.group())


def _words(tokens: Sequence[_Token]) -> tuple[int, ...]:
    """Return the words by depth of macros; raises ExpressionError for a function that no rule may call."""
    words = [0]
    macros: list[bool] = []
    before = _Token("", "")
    for token in tokens:
        if token.text == "(" and token.kind == "sign":
            if before.kind == "name" and before.text not in FUNCTIONS and before.text not in MACROS:
                known = ", ".join((*MACROS, *FUNCTIONS))
                raise ExpressionError(f"a rule cannot call {before.text}; it can call {known}")
            macros.append(before.kind == "name" and before.text in MACROS)
        elif token.text == ")" and macros:
            macros.pop()
        depth = sum(macros)
        words.extend([0] * (depth + 1 - len(words)))
        words[depth] += _MATCHES_COST if token == _MATCHES else 1
        before = token
    return tuple(words)


def _check_lists(tokens: Sequence[_Token]) -> int:
    """Return the length of the longest list; raises ExpressionError for one that holds more than literals."""
    longest = length = 0
    is_open = False
    before = _Token("", "")
    for token in tokens:
        if is_open and token.text == "]":
            is_open = False
        elif is_open:
            if token.kind not in ("number", "text") and token.text not in (",", "-", *_LITERALS):
                raise ExpressionError(f"a list of a rule holds texts and numbers, and this one holds {token.text}")
            length += token.kind in ("number", "text", "name")
            longest = max(longest, length)
        elif token.text == "[":
            is_index = before.text in (")", "]") or (before.kind == "name" and before.text != "in")
            is_open, length = not is_index, 0
        before = token
    return longest


def _check_fields(tokens: Sequence[_Token]) -> None:
    """Refuse names after `run.` that an Observation does not have."""
    words = [token.text for token in tokens if token.text != "?"]
    for place, word in enumerate(words):
        fields, at = _FIELDS.get("run") if word == "run" and words[place - 1 : place] != ["."] else None, place
        while fields is not None and words[at + 1 : at + 2] == ["."]:
            name = words[at + 2] if len(words) > at + 2 else ""
            if name not in fields:
                raise ExpressionError(f"run has no field {name}; it has {', '.join(sorted(fields))}")
            fields, at = _FIELDS.get(name), at + 2


def _wire_names(model: type[Observation | Spend]) -> frozenset[str]:
    return frozenset(info.alias or name for name, info in model.model_fields.items())


_MATCHES = _Token("name", "matches")
_FIELDS = {"run": _wire_names(Observation), "spend": _wire_names(Spend), "visitSpend": _wire_names(Spend)}
"""Fields of what has some, by the name that it is reached by."""
