"""Which changes are made: mutmut's, less those that no behaviour can follow from."""

from collections.abc import Callable, Iterable
from typing import Any

import libcst as cst
import libcst.matchers as m
from mutmut.mutation import mutators

CODECS = frozenset({"utf-8"})
"""Names that Python reads in any case."""


def narrow() -> None:
    """Replace mutmut's operators on strings and matches by narrower ones; call it before any mutant is made."""
    narrower: dict[Callable[..., Any], Callable[..., Any]] = {
        mutators.operator_string: change_word,
        mutators.operator_match: drop_case,
        mutators.operator_arg_removal: replace_argument,
    }
    kept = [(kind, narrower.get(operator, operator)) for kind, operator in mutators.mutation_operators]
    mutators.mutation_operators[:] = kept  # type: ignore[index]


def change_word(node: cst.BaseString) -> Iterable[cst.BaseString]:
    """Change a literal once, unless it is prose (it holds a space) or the name of a codec."""
    if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
        text = node.evaluated_value
        if " " in text or text in CODECS:
            return
    yield from list(mutators.operator_string(node))[:1]


def replace_argument(node: cst.Call) -> Iterable[cst.Call]:
    """Replace each argument by None once; leaving it out as well would nearly always fail for the number of them."""
    for changed in mutators.operator_arg_removal(node):
        if len(changed.args) == len(node.args):
            yield changed


def drop_case(node: cst.Match) -> Iterable[cst.CSTNode]:
    """Drop one case, unless it is the one that only tells the type checker that there is no other."""
    never = m.Call(func=m.Name("assert_never"))
    for index, case in enumerate(node.cases):
        if not m.findall(case, never):
            yield node.with_changes(cases=[*node.cases[:index], *node.cases[index + 1 :]])
