"""Every field is honoured by a module that is named, or refused: nothing is accepted and ignored."""

import importlib.util
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from pilothouse_api.v1alpha1.agent import AgentSpec
from pilothouse_api.v1alpha1.agentrun import AgentRunSpec
from pilothouse_api.v1alpha1.workflow import WorkflowSpec
from pilothouse_control.tree import fields_of
from pilothouse_control.validation.unsupported import UNSUPPORTED
from unit.control.honoured_fields import HANDED_ON, honoured

REFUSED = {(row.model, row.field) for row in UNSUPPORTED if row.values is None}
PARTLY_REFUSED = {(row.model, row.field) for row in UNSUPPORTED if row.values is not None}


HONOURED_ROWS = list(honoured())


def reachable_fields() -> set[tuple[type[BaseModel], str]]:
    """Fields of the three specs and of what they hold, without what stands below a refused field."""
    pending: list[type[BaseModel]] = [AgentSpec, WorkflowSpec, AgentRunSpec]
    found: set[tuple[type[BaseModel], str]] = set()
    seen: set[type[BaseModel]] = set()
    while pending:
        model = pending.pop()
        if model in seen:
            continue
        seen.add(model)
        for wire, shape in fields_of(model).items():
            found.add((model, wire))
            if shape.model is not None and (model, wire) not in REFUSED:
                pending.append(shape.model)
    return found


def named(fields: set[tuple[type[BaseModel], str]]) -> list[str]:
    return sorted(f"{model.__name__}.{field}" for model, field in fields)


def test_every_field_is_honoured_or_refused() -> None:
    listed = {(model, field) for model, field, _ in HONOURED_ROWS}
    handed_on = {(model, field) for model, fields in HANDED_ON.items() for field in fields.split()}
    assert named(reachable_fields() - listed - handed_on - REFUSED - PARTLY_REFUSED) == []


def test_no_field_is_both_honoured_and_refused() -> None:
    listed = {(model, field) for model, field, _ in HONOURED_ROWS}
    assert named(listed & REFUSED) == []


def test_no_field_is_listed_that_does_not_exist() -> None:
    listed = {(model, field) for model, field, _ in HONOURED_ROWS}
    assert named((listed | REFUSED | PARTLY_REFUSED) - reachable_fields()) == []


@pytest.mark.parametrize(("model", "field", "module"), HONOURED_ROWS)
def test_the_module_that_honours_a_field_reads_it(model: type[BaseModel], field: str, module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"{module} does not exist"
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    attribute = fields_of(model)[field].attribute
    assert re.search(rf'(\.{attribute}\b|"{attribute}"|"{field}")', source), f"{module} does not read {field}"
