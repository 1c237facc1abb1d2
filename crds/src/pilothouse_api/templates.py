"""Templates: `{{ a.b.0.c }}` is a path in the context, never code (api.md "Templates").

Both the validation of manifests and the engine use these functions, so that they agree on what resolves.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_PLACEHOLDER = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # json.dumps would make one for each call
_MAPPINGS = (dict, Mapping)
"""Dicts first: the test for any other mapping is slow."""
_PATH = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$")


class MissingPath(Exception):
    """A template or path names something that the context does not have."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is not in the context")
        self.path = path


def is_path(path: str) -> bool:
    """Tell whether a text is a well-formed path."""
    return _PATH.fullmatch(path) is not None


def lookup(context: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path (`a.b.0.c`, numbers index lists); raises MissingPath."""
    value: Any = context
    for part in path.split("."):
        if isinstance(value, _MAPPINGS) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise MissingPath(path)
    return value


def placeholders(template: str) -> Iterator[str]:
    """Yield the paths that a template names, in order, as they are written."""
    for match in _PLACEHOLDER.finditer(template):
        yield match.group(1)


def text_of(value: Any) -> str:
    """Return a value as text: a string as it is, all else as compact JSON."""
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else _COMPACT.encode(value)


def render(template: str, context: Mapping[str, Any], escape: Callable[[str], str] = str) -> str:
    """Return a template with its placeholders filled in, each passed through `escape`; raises MissingPath."""
    return _PLACEHOLDER.sub(lambda m: escape(text_of(lookup(context, m.group(1)))), template)


def render_value(value: Any, context: Mapping[str, Any]) -> Any:
    """Return a JSON value with templates in its strings filled in; raises MissingPath.

    A string that is one placeholder and nothing else becomes the value itself (a number stays a number).
    """
    if isinstance(value, str):
        whole = _PLACEHOLDER.fullmatch(value.strip())
        return lookup(context, whole.group(1)) if whole else render(value, context)
    if isinstance(value, Mapping):
        return {key: render_value(item, context) for key, item in value.items()}
    if isinstance(value, list):
        return [render_value(item, context) for item in value]
    return value


def placeholders_of(value: Any) -> Iterator[str]:
    """Yield the paths that the templates in a JSON value name."""
    if isinstance(value, str):
        yield from placeholders(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from placeholders_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from placeholders_of(item)
