"""The contract of JSON Schemas: messages, no network, no slow pattern."""

from typing import Any

import pytest

from pilothouse_api.schemas import SchemaError, compile_schema


@pytest.mark.parametrize(
    ("schema", "value", "want"),
    [
        ({"type": "object", "required": ["a"]}, {"a": 1}, []),
        ({"type": "object", "required": ["a"]}, {}, ['"a" is a required property']),
        ({"properties": {"a": {"type": "string"}}}, {"a": 1}, ['a: 1 is not of type "string"']),
        ({"items": {"type": "string"}}, list(range(9)), [f'{i}: {i} is not of type "string"' for i in range(5)]),
        ({"pattern": "^(a+)+$"}, "a" * 50 + "!", [f'"{"a" * 50}!" does not match "^(a+)+$"']),
    ],
)
def test_a_value_is_judged(schema: dict[str, Any], value: object, want: list[str]) -> None:
    assert compile_schema(schema).problems(value) == want


@pytest.mark.parametrize("value", ["\ud800", {"a": object()}])
def test_a_value_that_is_no_json_is_a_problem_and_no_traceback(value: object) -> None:
    assert len(compile_schema({"type": "integer"}).problems(value)) == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objct"},
        {"required": "a"},
        {"pattern": "("},
        {"$ref": "#/definitions/missing"},
        {"$ref": "http://127.0.0.1:1/schema"},
        {"$ref": "file:///etc/passwd"},
        {"const": float("nan")},
    ],
)
def test_what_is_no_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        compile_schema(schema)
