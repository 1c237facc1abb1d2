"""The check of the installed CRDs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pilothouse_api.v1alpha1 import KINDS
from pilothouse_operator.process.contract import NEEDED_FIELDS, find_missing_fields

CRDS = Path(__file__).parents[4] / "crds"


def crd(kind: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CRDS / f"{KINDS[kind].PLURAL}.pilothouse.dev.yaml").read_text())
    return loaded


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_crds_of_this_version_have_what_this_version_needs(kind: str) -> None:
    assert find_missing_fields(crd(kind), kind) == []
    assert NEEDED_FIELDS[kind]


def test_a_field_that_would_be_pruned_is_named() -> None:
    raw = crd("AgentRun")
    properties = raw["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del properties["spec"]["properties"]["control"]["properties"]["mode"]
    del properties["status"]["properties"]["attempt"]

    assert find_missing_fields(raw, "AgentRun") == ["spec.control.mode", "status.attempt"]


def test_a_version_that_is_not_served_is_missing() -> None:
    raw = crd("Agent")
    raw["spec"]["versions"][0]["served"] = False

    assert find_missing_fields(raw, "Agent") == ["version v1alpha1"]
