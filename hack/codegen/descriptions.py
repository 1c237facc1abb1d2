"""Reads the attribute docstrings of models from their source: the descriptions of the fields.

At generation time only: pydantic could read them at import, but then every process would pay for it.
"""

import ast
import inspect
import sys
from functools import cache

from pydantic import BaseModel


class UndescribedError(Exception):
    """A model or a field has no docstring."""


@cache
def _attribute_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Docstrings by class and attribute: the string that follows an annotated assignment in a class body."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    found: dict[str, dict[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {
                statement.target.id: inspect.cleandoc(following.value.value)
                for statement, following in zip(node.body, node.body[1:], strict=False)
                if isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            }
    return found


def of_model(model: type[BaseModel]) -> str:
    """Return the description of a model: its own docstring, on one line a paragraph."""
    if not model.__doc__:
        raise UndescribedError(f"{model.__module__}.{model.__name__} has no docstring")
    return _flow(inspect.cleandoc(model.__doc__))


def of_field(model: type[BaseModel], name: str) -> str:
    """Return the description of a field: the docstring under it, in the class that declares it."""
    for base in model.__mro__:
        if base.__module__ in sys.modules and issubclass(base, BaseModel):
            text = _attribute_docstrings(base.__module__).get(base.__name__, {}).get(name)
            if text:
                return _flow(text)
    raise UndescribedError(f"{model.__module__}.{model.__name__}.{name} has no docstring below it")


def _flow(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
