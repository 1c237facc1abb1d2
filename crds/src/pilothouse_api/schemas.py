"""JSON Schema: compiled without network, with regular expressions of linear time, and messages for people.

Used for the input of a workflow, outcomes and arguments of tools; a schema is the author's, a value may be anyone's.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pilothouse_api.digests import canonical_json

if TYPE_CHECKING:
    from jsonschema_rs import Validator

_MAX_PROBLEMS = 5
_MAX_PROBLEM_CHARS = 200


class SchemaError(Exception):
    """A JSON value is no usable JSON Schema."""


class Schema(Struct, frozen=True):
    """A compiled JSON Schema."""

    _validator: "Validator"

    def problems(self, value: Any) -> list[str]:
        """Return what is wrong with a JSON value, at most five sentences of `path: message`; empty when it fits."""
        try:
            errors = list(islice(self._validator.iter_errors(value), _MAX_PROBLEMS))
        except (ValueError, RecursionError) as error:  # no JSON: a lone surrogate, an integer past 64 bits, a depth
            return [f"the value cannot be judged: {_cut(str(error))}"]
        return [_sentence(list(error.instance_path), error.message) for error in errors]

    def broken_rules(self, value: Any) -> list[str]:
        """Return which rules of the schema a JSON value breaks, by their place in it: nothing of the value."""
        try:
            errors = list(islice(self._validator.iter_errors(value), _MAX_PROBLEMS))
        except (ValueError, RecursionError):
            return ["the value cannot be judged"]
        return list(dict.fromkeys("/".join(map(str, error.schema_path)) for error in errors))


def compile_schema(schema: Mapping[str, Any]) -> Schema:
    """Return the compiled form of a JSON Schema (draft by `$schema`, else 2020-12); raises SchemaError."""
    try:
        return _compile(canonical_json(dict(schema)))
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(_cut(str(error))) from None


@lru_cache(maxsize=256)
def _compile(schema: str) -> Schema:
    from jsonschema_rs import RegexOptions, ValidationError, validator_for

    try:
        return Schema(validator_for(json.loads(schema), offline=True, pattern_options=RegexOptions()))
    except ValidationError as error:
        place = "/".join(str(part) for part in error.instance_path)
        raise SchemaError(f"{place}: {_cut(error.message)}" if place else _cut(error.message)) from None


def _sentence(path: list[str | int], message: str) -> str:
    place = ".".join(str(part) for part in path)
    return f"{place}: {_cut(message)}" if place else _cut(message)


def _cut(message: str) -> str:
    line = message.splitlines()[0] if message else "unknown"
    return line if len(line) <= _MAX_PROBLEM_CHARS else f"{line[: _MAX_PROBLEM_CHARS - 1]}…"
