"""Every field is honoured by a module that is named: nothing is accepted and ignored."""

import importlib.util
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from pilothouse_api.v1alpha1.agent import AgentSpec
from pilothouse_api.v1alpha1.agentrun import AgentRunSpec
from pilothouse_api.v1alpha1.supervisor import SupervisorSpec
from pilothouse_api.v1alpha1.workflow import WorkflowSpec
from pilothouse_control.tree import fields_of
from unit.control.honoured_fields import HANDED_ON, honoured

HONOURED_ROWS = list(honoured())


def reachable_fields() -> set[tuple[type[BaseModel], str]]:
    """Fields of the four specs and of what they hold."""
    pending: list[type[BaseModel]] = [AgentSpec, WorkflowSpec, SupervisorSpec, AgentRunSpec]
    found: set[tuple[type[BaseModel], str]] = set()
    seen: set[type[BaseModel]] = set()
    while pending:
        model = pending.pop()
        if model in seen:
            continue
        seen.add(model)
        for wire, shape in fields_of(model).items():
            found.add((model, wire))
            if shape.model is not None:
                pending.append(shape.model)
    return found


def named(fields: set[tuple[type[BaseModel], str]]) -> list[str]:
    return sorted(f"{model.__name__}.{field}" for model, field in fields)


def test_every_field_is_honoured() -> None:
    listed = {(model, field) for model, field, _ in HONOURED_ROWS}
    handed_on = {(model, field) for model, fields in HANDED_ON.items() for field in fields.split()}
    assert named(reachable_fields() - listed - handed_on) == []


def test_no_field_is_listed_that_does_not_exist() -> None:
    listed = {(model, field) for model, field, _ in HONOURED_ROWS}
    assert named(listed - reachable_fields()) == []


@pytest.mark.parametrize(("model", "field", "module"), HONOURED_ROWS)
def test_the_module_that_honours_a_field_reads_it(model: type[BaseModel], field: str, module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"{module} does not exist"
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    attribute = fields_of(model)[field].attribute
    assert re.search(rf'(\.{attribute}\b|"{attribute}"|"{field}")', source), f"{module} does not read {field}"
