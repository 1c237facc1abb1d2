import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse_api.structs import AgentSpec, Plan, Tool
from pilothouse_engine.ports import ToolSpec
from pilothouse_engine.tool_schemas import Arguments, InvalidArguments, build_tool_specs, check_arguments, close_schema

ANY_OBJECT = {"type": "object", "properties": {}, "additionalProperties": True}


def plan_of(steps: list[dict[str, Any]], **more: Any) -> Plan:
    return Plan.read(
        {
            "run": {"namespace": "default", "name": "r1", "uid": "u1"},
            "workflow": {"name": "w", "digest": "d"},
            "spec": {"steps": steps, **more.pop("spec", {})},
            **more,
        }
    )


def api_step(step_id: str = "look-up", **call: Any) -> dict[str, Any]:
    return {"id": step_id, "kind": "APICall", "toolOnly": True, "description": "Of the step.", "apiCall": call}


def specs_of(plan: Plan, *tools: dict[str, Any]) -> tuple[ToolSpec, ...]:
    agent = AgentSpec.read({"mode": "Autonomous", "model": {"name": "m"}, "tools": list(tools)})
    return build_tool_specs(plan, agent)


def tool(parameters: Any = None) -> Tool:
    raw = {"name": "t", "step": "look-up", **({} if parameters is None else {"parameters": parameters})}
    return Tool.read(raw)


PLAN = plan_of([api_step(url="https://crm.example/{{ customer }}")])


# ---------------------------------------------------------------- the offer


def test_the_tools_description_wins_over_the_steps() -> None:
    own, steps, inline = specs_of(
        PLAN,
        {"name": "a", "step": "look-up", "description": "Of the tool."},
        {"name": "b", "step": "look-up"},
        {"name": "c", "description": "Inline.", "inlineStep": {"kind": "Router", "router": {"match": "x"}}},
    )

    assert [(spec.name, spec.description) for spec in (own, steps, inline)] == [
        ("a", "Of the tool."),
        ("b", "Of the step."),
        ("c", "Inline."),
    ]


def test_parameters_of_an_api_call_are_its_public_placeholders() -> None:
    step = api_step(
        url="https://crm.example/{{ customer.id }}/{{ kind }}?page={{ page }}",
        query={"sort": "{{ sort }}"},
        headers=[{"name": "X-Trace", "value": "{{ _trace }} {{ customer.name }}"}],
        body={
            "amount": "{{ amount }}",
            "rows": ["{{ rows.0.id }}"],
            "ticket": "{{ ticket }}",
            "s": "{{ found_result }}",
        },
        method="POST",
    )
    plan = plan_of(
        [step, {"id": "found", "kind": "Response", "response": {"mapping": {"a": "b"}}}],
        input={"ticket": {}},
        spec={"input": {"schema": {"properties": {"kind": {}}}}},
    )

    (spec,) = specs_of(plan, {"name": "a", "step": "look-up"})

    assert spec.parameters == {
        "type": "object",
        "properties": {
            "customer": {"type": "object", "properties": {"id": {"type": "string"}, "name": {"type": "string"}}},
            "kind": {"type": "string"},
            "page": {"type": "string"},
            "sort": {"type": "string"},
            "amount": {},
            "rows": {},
            "ticket": {},
            "found_result": {},
        },
        "required": ["customer", "page", "sort", "amount", "rows"],
    }


def test_a_placeholder_that_is_a_text_here_and_an_object_there_leaves_its_form_open() -> None:
    plan = plan_of([api_step(url="https://x/{{ a }}/{{ a.b }}")])

    (spec,) = specs_of(plan, {"name": "a", "step": "look-up"})

    assert spec.parameters == {"type": "object", "properties": {"a": {}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("inline", "want"),
    [
        ({"kind": "Function", "function": {"callable": "m:f"}}, ANY_OBJECT),
        ({"kind": "Router", "router": {"match": "x"}}, ANY_OBJECT),
        (
            {"kind": "Resource", "resource": {"operation": "List", "apiVersion": "v1", "kind": "Pod"}},
            {"type": "object", "properties": {}},
        ),
        (
            {
                "kind": "Resource",
                "resource": {
                    "operation": "Patch",
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "name": "limits-{{ team }}",
                    "body": {"data": "{{ payload }}", "metadata": {"labels": {"n": "{{ n }}"}}},
                },
            },
            {
                "type": "object",
                "properties": {"team": {"type": "string"}, "payload": {"type": "object"}, "n": {}},
                "required": ["team", "payload", "n"],
            },
        ),
        ({"kind": "APICall", "apiCall": {"url": "https://x/"}}, {"type": "object", "properties": {}}),
    ],
)
def test_parameters_are_derived_where_none_are_declared(inline: dict[str, Any], want: dict[str, Any]) -> None:
    (spec,) = specs_of(PLAN, {"name": "a", "description": "x", "inlineStep": inline})

    assert spec.parameters == want


def test_a_declared_schema_is_offered_closed_and_as_an_object() -> None:
    declared = {"properties": {"a": {"type": "string"}}}

    (spec,) = specs_of(PLAN, {"name": "a", "step": "look-up", "parameters": declared})

    assert spec.parameters == {"type": "object", **declared, "additionalProperties": False}


def test_a_delegate_takes_any_object_where_it_declares_nothing() -> None:
    delegate = {"name": "a", "description": "x", "agentRef": {"name": "other"}}
    (spec,) = specs_of(PLAN, delegate)
    assert (spec.name, spec.description, spec.parameters) == ("a", "x", ANY_OBJECT)


def test_a_delegate_in_the_background_is_offered_a_second_time_with_the_same_parameters() -> None:
    declared = {"type": "object", "properties": {"topic": {"type": "string"}}, "additionalProperties": False}
    delegate = {"name": "a", "description": "x", "agentRef": {"name": "other"}, "parameters": declared}
    waits, starts = specs_of(PLAN, delegate | {"background": True})
    assert (waits.name, starts.name) == ("a", "start_a_task")
    assert waits.parameters == starts.parameters == declared


def test_tools_of_servers_are_not_known_before_the_servers_were_asked() -> None:
    assert specs_of(PLAN, {"name": "a", "mcp": {"server": "s", "allow": ["*"]}}) == ()


# ---------------------------------------------------------------- arguments


DECLARED = {
    "type": "object",
    "properties": {
        "customer": {"type": "string"},
        "count": {"type": "integer"},
        "rows": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"}}}},
    },
    "required": ["customer"],
}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ('{"customer": "c-17"}', {"customer": "c-17"}),
        ('{"customer": "c", "count": 3.0}', {"customer": "c", "count": 3}),
        ('{"customer": "c", "rows": [{"id": 1e3}]}', {"customer": "c", "rows": [{"id": 1000}]}),
        ('{"customer": "\\ud83d\\ude00"}', {"customer": "😀"}),
        ('{"customer": "c", "_idempotency": 1, "_": 2}', {"customer": "c"}),
    ],
)
def test_arguments_that_fit_are_narrowed_and_freed_of_engine_keys(text: str, want: dict[str, Any]) -> None:
    got = check_arguments(tool(DECLARED), text)

    assert got == Arguments(want)
    assert isinstance(got, Arguments)
    assert repr(got.value) == repr(want)  # 3 and 3.0 are equal, but not the same


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("{", "not valid JSON: Expecting property name"),
        ("[1]", "must be a JSON object, but they are an array"),
        ('"x"', "a string"),
        ("true", "a boolean"),
        ("12", "a number"),
        ("{}", '"customer" is a required property'),
        ("", '"customer" is a required property'),
        ("null", '"customer" is a required property'),
        ('{"customer": 5}', 'customer: 5 is not of type "string"'),
        ('{"customer": "c", "count": true}', 'count: true is not of type "integer"'),
        ('{"customer": "c", "count": 3.5}', 'count: 3.5 is not of type "integer"'),
        ('{"customer": "c", "other": 1}', "'other' was unexpected"),
        ('{"customer": "c", "rows": [{}, {"id": "x"}]}', 'rows[1].id: "x" is not of type "integer"'),
        ('{"customer": "c", "rows": [{"more": 1}]}', "rows[0]: Additional properties are not allowed"),
        ('{"customer": "a", "customer": "b"}', 'the key "customer" stands twice'),
        ('{"customer": "c", "count": NaN}', "NaN is not JSON"),
        ('{"customer": "c", "count": -Infinity}', "-Infinity is not JSON"),
        ('{"customer": "c", "count": 1e999}', "a number is out of range at count"),
        ('{"customer": "c", "count": ' + "9" * 400 + "}", "a number is out of range at count"),
        ('{"customer": "c", "count": ' + "9" * 5000 + "}", "too many digits"),
        ('{"customer": "\\ud800"}', "half of a surrogate pair stands in a text at customer"),
        ('{"customer": "\ud800"}', "half of a surrogate pair stands in a text at customer"),
        ('{"\\udfff": 1}', "half of a surrogate pair stands in a text at ?"),
        ('{"customer": ' + "[" * 64 + "]" * 64 + "}", "nested deeper than 64 levels"),
        ('{"customer": ' + "[" * 100_000, "nested deeper than 64 levels"),
        ('{"customer": "' + "x" * 1_000_000 + '"}', "the limit is 262,144"),
        ("\x00", "not valid JSON"),
    ],
)
def test_arguments_that_do_not_fit_are_answered_with_what_is_wrong_and_where(text: str, want: str) -> None:
    got = check_arguments(tool(DECLARED), text)

    assert isinstance(got, InvalidArguments)
    assert want in got.message
    assert len(got.message) < 1500
    got.message.encode()


def test_a_message_names_a_few_errors_and_says_that_there_are_more() -> None:
    text = json.dumps({"customer": "c", "rows": [{"id": "x" * 10_000} for _ in range(20)]})

    got = check_arguments(tool(DECLARED), text)

    assert isinstance(got, InvalidArguments)
    assert "rows[0].id" in got.message and "rows[3].id" in got.message and "rows[4]" not in got.message
    assert got.message.endswith("and more") and len(got.message) < 1500


def test_derived_parameters_only_shape_the_offer() -> None:
    got = check_arguments(tool(), '{"anything": 3.0, "_x": 1}')

    assert got == Arguments({"anything": 3.0})
    assert check_arguments(tool(), "") == Arguments({})
    assert check_arguments(tool(), "null") == Arguments({})
    assert isinstance(check_arguments(tool(), "[]"), InvalidArguments)


OPEN = {"type": "object", "properties": {"a": {}}, "additionalProperties": True}
PARTS = {"type": "object", "properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]}
PATTERNS = {"type": "object", "properties": {"a": {}}, "patternProperties": {"^x-": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        (OPEN, {"a": 1, "b": 1}, True),
        ({**OPEN, "additionalProperties": {"type": "string"}}, {"a": 1, "b": 1}, False),
        ({"type": "object"}, {"b": 1}, True),
        ({"type": "object", "properties": {}}, {"b": 1}, False),
        (PARTS, {"a": 1, "b": 1}, True),
        (PARTS, {"a": 1, "c": 1}, False),
        (PATTERNS, {"a": 1, "x-b": "1"}, True),
        ({"$defs": {"o": OPEN}, "type": "object", "properties": {"o": {"$ref": "#/$defs/o"}}}, {"o": {"b": 1}}, True),
        ({"type": "object", "properties": {"o": {"type": "object"}}}, {"o": {"b": 1}}, True),
        ({"type": "object", "properties": {"properties": {"type": "integer"}}}, {"properties": 1}, True),
    ],
)
def test_additional_properties_are_honoured_and_false_by_default(schema: Any, value: Any, fits: bool) -> None:
    got = check_arguments(tool(schema), json.dumps(value))

    assert isinstance(got, Arguments) == fits


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"$ref": "#/$defs/nothing"},
        {"$ref": "http://127.0.0.1:9/schema"},
        {"$ref": "file:///etc/passwd"},
        {"properties": []},
        {"pattern": "("},
        {"properties": {"a": 7}},
    ],
)
def test_a_schema_that_is_none_makes_the_tool_unusable_and_nothing_is_fetched(schema: Any) -> None:
    got = check_arguments(tool(schema), '{"a": "x"}')

    assert isinstance(got, InvalidArguments)
    assert "no valid JSON Schema" in got.message and "use another tool" in got.message


def test_a_pattern_that_backtracks_forever_ends() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a|a)*$(?<!b)"}}}
    started = time.process_time()

    check_arguments(tool(schema), json.dumps({"a": "a" * 200_000 + "!"}))

    assert time.process_time() - started < 10


def test_closing_a_schema_changes_nothing_of_the_original() -> None:
    schema = {"properties": {"o": {"properties": {"a": {}}}}, "items": {"properties": {"b": {}}}}
    before = json.dumps(schema)

    close_schema(schema)

    assert json.dumps(schema) == before


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.text() | JSON_LIKE.map(json.dumps) | st.dictionaries(st.text(), JSON_LIKE).map(json.dumps))
def test_whatever_a_model_sends_is_answered_and_what_passes_can_be_stored(text: str) -> None:
    for schema in (DECLARED, None):
        got = check_arguments(tool(schema), text)
        if isinstance(got, Arguments):
            json.dumps(got.value, allow_nan=False, ensure_ascii=False).encode()
        else:
            got.message.encode()
