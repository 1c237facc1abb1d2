"""JSON Schemas of MCP servers: bounded, freed of references, and refused where they are bombs. Pure.

A listed schema is shown to a provider and compiled by a validator, and either may unfold it; so it is unfolded here,
under a budget, and what is offered holds no `$ref` and only keywords that are known.
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from pilothouse_engine.strict_json import JsonError, check_json, printable

MAX_SCHEMA_DEPTH = 24
MAX_SCHEMA_NODES = 4_000
MAX_SCHEMA_CHARS = 32_768
MAX_ENUM_VALUES = 512
MAX_PATTERN_CHARS = 512
MAX_PROPERTY_CHARS = 128
MAX_NOTE_CHARS = 512

_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SINGLES = frozenset(
    {
        "items",
        "additionalProperties",
        "additionalItems",
        "unevaluatedItems",
        "unevaluatedProperties",
        "contains",
        "propertyNames",
        "not",
        "if",
        "then",
        "else",
    }
)
_NOTES = frozenset({"title", "description"})
_PLAIN = frozenset(
    {
        *("type", "format", "const", "default", "required", "dependentRequired", "uniqueItems", "deprecated"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"),
        *("minItems", "maxItems", "minContains", "maxContains", "minProperties", "maxProperties"),
    }
)
# What the engine itself puts between its delimiters (prompts.py); a server must not write them.
_FRAME = re.compile(r"<(?=\s*/?\s*(?:guidance|material)\b)", re.IGNORECASE)


class SchemaRefused(Exception):
    """A listed schema is not offered; the message says why."""


def clean_text(text: str, limit: int) -> str:
    """Return a text of a server in one line: no control or invisible characters, no delimiters of ours, bounded."""
    head = text[: 4 * limit]  # what is invisible may be most of it, but not endlessly
    visible = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in head)
    return printable(_FRAME.sub("&lt;", " ".join(visible.split())), limit)


def normalise_schema(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments as it is offered; raises SchemaRefused."""
    try:
        check_json(dict(raw))
    except JsonError as error:
        raise SchemaRefused(f"its schema is {error}") from None
    schema = _Unfolding(raw).unfold(raw, 0, ("#",))
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise SchemaRefused("its schema does not describe an object")
    schema = {"type": "object", "properties": {}, **schema}
    size = len(json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
    if size > MAX_SCHEMA_CHARS:
        raise SchemaRefused(f"its schema has {size:,} characters; the limit is {MAX_SCHEMA_CHARS:,}")
    _check_compiles(schema)
    return schema


def open_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that says of each object that it is open, where nothing else is said.

    Declared schemas are closed by default, listed ones are not; this keeps the one validator for both.
    """
    opened = {key: _open_value(key, value) for key, value in schema.items()}
    if "properties" in opened:
        opened.setdefault("additionalProperties", True)
    return opened


def _open_value(key: str, value: Any) -> Any:
    if key in _MAPS and isinstance(value, dict):
        return {name: open_schema(item) if isinstance(item, dict) else item for name, item in value.items()}
    if key in _LISTS and isinstance(value, list):
        return [open_schema(item) if isinstance(item, dict) else item for item in value]
    return open_schema(value) if key in _SINGLES and isinstance(value, dict) else value


def _check_compiles(schema: dict[str, Any]) -> None:
    from jsonschema_rs import ReferencingError, ValidationError, validator_for

    try:
        validator_for(schema, offline=True)
    except (ValidationError, ReferencingError, ValueError) as error:
        raise SchemaRefused(f"its schema is no JSON Schema: {clean_text(str(error), 120)}") from None


class _Unfolding:
    """Copies one schema, references resolved, under one budget."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._nodes = 0

    def unfold(self, schema: Any, depth: int, open_refs: tuple[str, ...]) -> Any:
        """Return a copy of a schema; `open_refs` are the references that it stands in."""
        self._count(depth)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise SchemaRefused("its schema holds a value where a schema belongs")
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            raise SchemaRefused("its schema uses $dynamicRef or $recursiveRef")
        copy = {
            key: new for key, value in schema.items() if (new := self._copy(key, value, depth, open_refs)) is not None
        }
        ref = schema.get("$ref")
        if ref is None:
            return copy
        target = self._follow(ref, depth, open_refs)
        return {**target, **copy} if isinstance(target, dict) else (copy or target)

    def _copy(self, key: str, value: Any, depth: int, open_refs: tuple[str, ...]) -> Any:
        """Return what stays of one keyword, None for nothing."""
        if key in _MAPS:
            if not isinstance(value, Mapping):
                raise SchemaRefused(f"{key} of its schema is no object")
            return {_property(name): self.unfold(item, depth + 1, open_refs) for name, item in value.items()}
        if key in _LISTS or (key in _SINGLES and isinstance(value, list)):
            if not isinstance(value, list):
                raise SchemaRefused(f"{key} of its schema is no list")
            return [self.unfold(item, depth + 1, open_refs) for item in value]
        if key in _SINGLES:
            return self.unfold(value, depth + 1, open_refs)
        return self._copy_value(key, value, depth)

    def _copy_value(self, key: str, value: Any, depth: int) -> Any:
        if key in _NOTES:
            return clean_text(value, MAX_NOTE_CHARS) if isinstance(value, str) else None
        if key == "enum":
            if not isinstance(value, list) or len(value) > MAX_ENUM_VALUES:
                raise SchemaRefused(f"an enum of its schema has more than {MAX_ENUM_VALUES} values")
            return value
        if key == "pattern":
            if not isinstance(value, str) or len(value) > MAX_PATTERN_CHARS:
                raise SchemaRefused(f"a pattern of its schema has more than {MAX_PATTERN_CHARS} characters")
            return value
        return value if key in _PLAIN else None

    def _follow(self, ref: Any, depth: int, open_refs: tuple[str, ...]) -> Any:
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise SchemaRefused("its schema refers to another document")
        if ref in open_refs:
            return {}  # a tree refers to itself: below this point its server alone knows what fits
        return self.unfold(self._resolve(ref), depth + 1, (*open_refs, ref))

    def _resolve(self, ref: str) -> Any:
        value: Any = self._root
        for part in ref[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, Mapping) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name[:6]) < len(value):
                value = value[int(name[:6])]
            else:
                raise SchemaRefused("its schema refers to a part that it does not have")
        return value

    def _count(self, depth: int) -> None:
        self._nodes += 1
        if depth > MAX_SCHEMA_DEPTH:
            raise SchemaRefused(f"its schema is nested deeper than {MAX_SCHEMA_DEPTH} levels")
        if self._nodes > MAX_SCHEMA_NODES:
            raise SchemaRefused(f"its schema unfolds to more than {MAX_SCHEMA_NODES:,} parts")


def _property(name: str) -> str:
    if len(name) > MAX_PROPERTY_CHARS or not name.isprintable():
        raise SchemaRefused(f"a property of its schema has a name that is no {MAX_PROPERTY_CHARS} printable characters")
    return name
