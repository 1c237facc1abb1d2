"""CEL expressions: Router conditions, policy, supervisor rules, and the API's own rules when they are judged locally.

The work of an expression is bounded: text of at most 4,096 characters, 32 levels of nesting and 10,000 iterations
of all its loops together (the library's own budget), regular expressions of linear time (RE2), scalar results.
The library is loaded at the first use: a process that meets no expression does not pay for it.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cel_expr_python import cel

MAX_EXPRESSION_CHARS = 4096
MAX_DEPTH = 128
_CONTAINERS = (dict, list, Mapping)
"""Dicts first: the test for any other mapping is slow."""
_FLAT = frozenset({str, int, float, bool, type(None), datetime})
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCALARS = frozenset({"BOOL", "INT", "UINT", "DOUBLE", "STRING", "NULL"})

POLICY_VARIABLES = (
    "tool",
    "args",
    "effect",
    "step",
    "agent",
    "workflow",
    "__namespace__",
    "turn",
    "iteration",
    "usage",
    "now",
    "labels",
)
"""What the expression of a policy rule may name; `namespace` is reserved in CEL and escaped as Kubernetes does."""


class ExpressionError(Exception):
    """An expression does not compile, or cannot be evaluated with the values that it was given."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression; may be evaluated many times, with other values each time.

    `names` are the declared variables that its text names: the others are not converted, which costs more than most
    expressions do. None where nothing was declared. `_is_bool`: it can give nothing but true, false or an error.
    """

    text: str
    _compiled: "cel.Expression"
    names: tuple[str, ...] | None = None
    _is_bool: bool = False

    def evaluate(self, variables: Mapping[str, Any]) -> Any:
        """Return the scalar (bool, int, float, str or None) that the expression gives for JSON-like variables.

        Raises ExpressionError for a name that is missing, a type that does not fit, too many iterations, values
        nested deeper than 128 levels, and a result that is no scalar.
        """
        data = dict(variables) if self.names is None else {n: variables[n] for n in self.names if n in variables}
        nested = [value for value in data.values() if type(value) not in _FLAT and isinstance(value, _CONTAINERS)]
        # The library recurses on the C stack: 10,000 levels kill the process.
        if nested and is_deeper(nested, MAX_DEPTH):
            raise ExpressionError(f"{_shorten(self.text)}: the values are nested deeper than {MAX_DEPTH} levels")
        try:
            value = self._compiled.eval(data=data)
            if self._is_bool and isinstance(verdict := value.plain_value(), bool):
                return verdict
            kind = value.type().name()
            if kind not in _SCALARS and kind != "ERROR":  # converting a large list could fill the memory
                raise ExpressionError(f"{_shorten(self.text)} gives a {kind.lower()}; it must give a scalar")
            result = value.plain_value()
        except TypeError:  # the one value that the library cannot convert is an optional
            raise ExpressionError(
                f"{_shorten(self.text)} gives an optional; it must give a scalar: end it with .orValue(…)"
            ) from None
        except (RuntimeError, ValueError) as error:  # RecursionError is a RuntimeError
            raise ExpressionError(f"{_shorten(self.text)}: {_tidy(str(error))}") from None
        if kind == "ERROR":
            raise ExpressionError(f"{_shorten(self.text)}: {_tidy(str(result))}")
        if isinstance(result, float) and not math.isfinite(result):
            raise ExpressionError(f"{_shorten(self.text)} gives {result}, which is no JSON number")
        return result


@lru_cache(maxsize=512)
def _compile(text: str, variables: frozenset[str] | None, times: frozenset[str]) -> Expression:
    try:
        environment = _environment(variables or frozenset(), times)
        names = None if variables is None else tuple(variables.intersection(_IDENTIFIER.findall(text)))
        compiled = environment.compile(text, disable_check=variables is None)
        return Expression(text, compiled, names, compiled.return_type().name() == "BOOL")
    except (RuntimeError, TypeError, ValueError) as error:
        raise ExpressionError(f"{_shorten(text)}: {_tidy(str(error))}") from None


@lru_cache(maxsize=32)
def _environment(variables: frozenset[str], times: frozenset[str]) -> "cel.Env":
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_optional, ext_strings

    return cel.NewEnv(
        # The library takes a datetime only for a variable that is declared as a timestamp.
        variables={name: cel.Type.TIMESTAMP if name in times else cel.Type.DYN for name in sorted(variables)},
        extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings()],
    )


def compile_policy_expression(text: str) -> Expression:
    """Return the compiled form of a policy rule's expression; `now` is given as an aware datetime.

    Raises ExpressionError for one that does not compile.
    """
    try:
        return compile_expression(text, POLICY_VARIABLES, times=("now",))
    except ExpressionError as error:
        if "reserved identifier: namespace" not in str(error):
            raise
        raise ExpressionError(f"{_shorten(text)}: namespace is a reserved word of CEL, write __namespace__") from None


def compile_expression(
    text: str, variables: Collection[str] | None = None, *, times: Collection[str] = ()
) -> Expression:
    """Return the compiled form of a CEL expression; raises ExpressionError for one that does not compile.

    With `variables`, the names that the expression may use, names and types are checked too; without, only the
    grammar is, and an unknown name is an error of each evaluation. `times` are those whose values are datetimes.
    """
    if len(text) > MAX_EXPRESSION_CHARS:
        raise ExpressionError(f"the expression has {len(text)} characters; the limit is {MAX_EXPRESSION_CHARS}")
    return _compile(text, None if variables is None else frozenset(variables), frozenset(times))


def is_deeper(value: Any, limit: int) -> bool:
    """Tell whether a JSON-like value nests deeper than `limit`, without recursion."""
    level = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            for child in (parent if isinstance(parent, list) else parent.values())
            if isinstance(child, _CONTAINERS)
        ]
        if not level:
            return False
    return True


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}…"


def _tidy(message: str) -> str:
    """Return what a person needs of a message of the library: one line, without status names and pictures."""
    line = message.strip().splitlines()[0] if message.strip() else "cannot be evaluated"
    for noise in ("INVALID_ARGUMENT: ", "INTERNAL: ", "CANCELLED: ", "NOT_FOUND: ", "UNKNOWN: ", "ERROR: <input>:"):
        line = line.removeprefix(noise)
    return line.split(" [")[0]
