"""The generated schemas are structural, and the check that says so sees what it should."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
from codegen.crds import COLUMNS, definition, object_schema
from codegen.structure import faults

from pilothouse_api.v1alpha1 import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_of_a_kind_is_structural(kind: str) -> None:
    assert faults(object_schema(kind)) == []


@cache
def _run_schema() -> dict[str, Any]:
    return object_schema("AgentRun")


def _planted(path: tuple[str, ...], **keys: Any) -> dict[str, Any]:
    schema = copy.deepcopy(_run_schema())
    node = schema["properties"]
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = {**node.get(path[-1], {}), **keys}
    return schema


SPEC = ("spec", "properties")
PLANTED = (
    (_planted((*SPEC, "session"), anyOf=[{"minLength": 1}]), ".spec.session: anyOf is not allowed"),
    (_planted((*SPEC, "session"), default="x"), ".spec.session: a default here would change what stands in Git"),
    (_planted((*SPEC, "added"), type="string", description="x"), ".spec.added: no maxLength"),
    (_planted((*SPEC, "added"), type="string", maxLength=3), ".spec.added: no description"),
    (_planted((*SPEC, "added"), type="integer", description="x"), ".spec.added: no minimum or no maximum"),
    (_planted((*SPEC, "added"), description="x"), ".spec.added: no type"),
    (_planted((*SPEC, "added"), type="array", description="x", maxItems=3), ".spec.added: a list without items"),
    (
        _planted((*SPEC, "added"), type="array", description="x", items={"type": "boolean"}),
        ".spec.added: a list without maxItems",
    ),
    (
        _planted((*SPEC, "added"), type="object", description="x", additionalProperties={"type": "boolean"}),
        ".spec.added: a map without maxProperties",
    ),
    (
        _planted((*SPEC, "added"), type="object", description="x", **{"x-kubernetes-preserve-unknown-fields": True}),
        ".spec.added: free-form JSON must be atomic",
    ),
    (_planted((*SPEC, "control"), additionalProperties={"type": "boolean"}), "exclude each other"),
    (_planted((*SPEC, "control"), required=["mood"]), "required names ['mood'], which do not exist"),
    (_planted(("status", "properties", "phase"), enum=["Running"]), ".status.phase: status has no enums"),
    (
        _planted(("status", "properties", "conditions"), **{"x-kubernetes-list-map-keys": ["observedGeneration"]}),
        "the keys of a list-map must be required in its items",
    ),
    (_planted(("metadata",), properties={}), ".metadata: only its type may be said"),
)


@pytest.mark.parametrize(("schema", "want"), PLANTED, ids=[want for _, want in PLANTED])
def test_the_check_names_a_fault_and_its_path(schema: dict[str, Any], want: str) -> None:
    found = faults(schema)

    assert len(found) >= 1
    assert any(want in fault for fault in found), found


@pytest.mark.parametrize("kind", KINDS)
def test_kubectl_shows_columns_that_exist(kind: str) -> None:
    """Those of `.status.run` are free-form; every other one names a field of the schema, and has its type."""
    schema = object_schema(kind)
    assert set(COLUMNS) == set(KINDS)
    for column in COLUMNS[kind]:
        parts = column.json_path.removeprefix(".").split(".")
        if parts[0] == "metadata" or parts[:2] == ["status", "run"] or "conditions" in column.json_path:
            continue
        node = schema
        for part in parts:
            node = node["properties"][part]
        assert node["type"] == column.type, column


@pytest.mark.parametrize("kind", KINDS)
def test_a_definition_is_small_enough_for_a_plain_kubectl_apply(kind: str) -> None:
    """It keeps the whole object in an annotation, of 256 KiB at most."""
    assert len(str(definition(kind))) < 200_000


def test_runs_can_be_selected_by_phase() -> None:
    assert definition("AgentRun")["spec"]["versions"][0]["selectableFields"] == [{"jsonPath": ".status.phase"}]


def test_names_categories_and_the_status_subresource_are_as_people_type_them() -> None:
    short_names = {"Workflow": "pwf", "Agent": "pagent", "Supervisor": "psup", "AgentRun": "prun"}
    for kind, short in short_names.items():
        spec = definition(kind)["spec"]
        assert spec["names"]["shortNames"] == [short]
        assert spec["names"]["categories"] == ["pilothouse"]
        assert spec["versions"][0]["subresources"] == {"status": {}}
        assert spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["default"] == {
            "observedGeneration": -1
        }
