"""The Structs that the runner reads in place of models: the same fields, by the same names, with the same defaults."""

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from codegen.structs import ROOTS, collect

from pilothouse_api import structs
from pilothouse_api.v1alpha1 import agentrun
from pilothouse_api.v1alpha1.base import Model, StatusModel
from pilothouse_api.wake import decision_digest

MODELS: list[Any] = []
for root in ROOTS:
    collect(root, MODELS, set(MODELS))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_struct_has_the_fields_of_its_model(model: Any) -> None:
    struct = getattr(structs, model.__name__)
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    assert {name: field.encode_name for name, field in fields.items()} == {
        name: info.alias for name, info in model.model_fields.items()
    }
    assert {name for name, field in fields.items() if field.required} == {
        name for name, info in model.model_fields.items() if info.is_required()
    }


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_what_a_struct_writes_is_read_again_and_has_its_models_defaults(model: Any) -> None:
    struct = a_value_of(getattr(structs, model.__name__))
    raw = msgspec.json.decode(msgspec.json.encode(struct))

    assert struct.to_raw() == raw
    assert None not in raw.values()
    assert getattr(structs, model.__name__).read(raw) == struct
    optional = {name: info for name, info in model.model_fields.items() if not info.is_required()}
    for name, info in optional.items():
        default = info.get_default(call_default_factory=True)
        if not isinstance(default, Model):
            assert getattr(struct, name) == default
        is_made = isinstance(default, Model) or bool(isinstance(default, list) and default)
        assert (info.alias in raw) is (default is not None if issubclass(model, StatusModel) else is_made)


def a_value_of(form: Any) -> Any:
    """Return a value of a type, of a Struct one of which only is given what must be."""
    origin, arguments = get_origin(form), get_args(form)
    if origin in (Union, UnionType):
        return a_value_of(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin is list:
        return [a_value_of(arguments[0])]
    if isinstance(form, type) and issubclass(form, msgspec.Struct):
        hints = get_type_hints(form)
        fields = msgspec.structs.fields(form)
        return form(**{field.name: a_value_of(hints[field.name]) for field in fields if field.required})
    return {str: "x", int: 1, float: 1.5, bool: True}.get(form, {})


def test_unknown_fields_are_refused_of_what_people_write_and_ignored_of_what_is_reported() -> None:
    with pytest.raises(ValueError, match=r"this is no Control: .*unknown field `more`"):
        structs.Control.read({"mode": "Run", "more": 1})
    assert structs.Snapshot.read({"attempt": 2, "more": 1}).attempt == 2


@pytest.mark.parametrize("raw", [None, [], "x", {"attempt": "one"}, {"attempt": 1, "steps": {}}, {}])
def test_what_is_no_snapshot_is_told_by_its_place(raw: Any) -> None:
    with pytest.raises(ValueError, match="this is no Snapshot: "):
        structs.Snapshot.read(raw)


@pytest.mark.parametrize(
    "raw",
    [
        {"decision": "Approve"},
        {"decision": "Approve", "arguments": {"amount": 40, "note": None}, "remove": ["iban"], "by": "jo"},
        {"decision": "Deny", "reason": "closed", "remove": []},
        {"decision": "Deny", "arguments": {}, "by": None},
    ],
)
def test_operator_and_runner_know_a_decision_by_the_same_digest(raw: dict[str, Any]) -> None:
    """One has a model of it and the other a Struct: a decision that one of them does not know wakes a run for ever."""
    model, struct = agentrun.ApprovalDecision.model_validate(raw), structs.ApprovalDecision.read(raw)
    assert decision_digest(model) == decision_digest(struct)
