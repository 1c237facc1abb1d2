"""Every CEL rule of the CRDs, on a real API server: one object that passes, one that is refused with its message."""

from __future__ import annotations

from typing import Any

import pytest

from integration.crds.contract_world import World
from integration.crds.kube_callers import Answer, must
from integration.crds.rule_cases import CASES, RuleCase
from pilothouse_api.v1alpha1 import KINDS
from pilothouse_api.v1alpha1.base import Model


def _models(model: type[Model], found: set[type[Model]]) -> set[type[Model]]:
    """Every model that an object of a kind is made of."""
    if model not in found:
        found.add(model)
        model.model_rebuild()
        for info in model.model_fields.values():
            for part in _classes(info.annotation):
                _models(part, found)
    return found


def _classes(annotation: Any) -> list[type[Model]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return [annotation]
    return [found for part in getattr(annotation, "__args__", ()) for found in _classes(part)]


def _rules() -> set[tuple[str, str]]:
    found: set[type[Model]] = set()
    for kind in KINDS.values():
        _models(kind, found)
    return {(model.__name__, rule.message) for model in found for rule in model.RULES}


def test_every_rule_has_a_case_and_every_case_a_rule() -> None:
    rules = _rules()
    named = {(case.model, rule) for case in CASES for model, rule in rules if _is_of(case, model, rule)}

    assert len(rules) > 50
    assert rules - named == set(), "rules without a case"
    assert [case for case in CASES if not any(_is_of(case, *rule) for rule in rules)] == [], "cases without a rule"


def _is_of(case: RuleCase, model: str, message: str) -> bool:
    return case.model == model and message.startswith(case.message)


def _submit(world: World, case: RuleCase, spec: dict[str, Any], name: str) -> Answer:
    if case.before is None:
        return world.admin.create(world.namespace, _manifest(case.kind, name or world.name(), spec), dry_run=True)
    run = world.name()
    control = case.before.get("control", {})
    approvals = {"control": {"approvals": control["approvals"]}} if "approvals" in control else {}
    before = {**case.before, "control": {**control, "approvals": {}}} if approvals else case.before
    must(world.admin.create(world.namespace, _manifest("AgentRun", run, before)))
    if case.status:
        world.report(run, case.status)
    if approvals:
        must(world.admin.patch(world.namespace, "AgentRun", run, {"spec": approvals}))
    return world.admin.patch(world.namespace, "AgentRun", run, {"spec": spec})


def _manifest(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "pilothouse.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model}: {case.message}")
def test_a_rule_lets_a_good_object_pass_and_refuses_a_bad_one_in_words(world: World, case: RuleCase) -> None:
    good = _submit(world, case, case.good, case.good_name)
    bad = _submit(world, case, case.bad, case.bad_name)

    assert good.is_accepted, good.message
    assert bad.status == 422
    assert case.message in bad.message


def test_a_signal_that_yaml_made_a_boolean_is_refused_although_its_key_became_a_string(world: World) -> None:
    answer = world.admin.create(
        world.namespace,
        _manifest("Agent", "booleans", {"mode": "Completion", "model": {"name": "m"}, "outcome": {"enum": [True]}}),
        dry_run=True,
    )

    assert answer.status == 422
    assert 'spec.outcome.enum[0] in body must be of type string: "boolean"' in answer.message


def test_an_unknown_field_is_refused_by_name(world: World) -> None:
    answer = world.admin.create(
        world.namespace,
        _manifest("AgentRun", "typo", {"workflowRef": {"name": "w"}, "control": {"mod": "Abort"}}),
        dry_run=True,
    )

    assert answer.status == 400
    assert 'unknown field "spec.control.mod"' in answer.message
