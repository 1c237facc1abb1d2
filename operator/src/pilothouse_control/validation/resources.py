"""Checks of Resource steps: what they name, and what they say of their effect."""

from collections.abc import Iterator, Mapping
from typing import Any

from pilothouse_api.v1alpha1.agent import InlineStep, Tool
from pilothouse_api.v1alpha1.steps import ResourceCall
from pilothouse_api.v1alpha1.workflow import Step
from pilothouse_control.findings import FieldPath
from pilothouse_control.tree import walk
from pilothouse_control.validation.scene import Check, Problem, Scene, SpecSubject, WorkflowSubject

_READS = ("Get", "List")


def _calls(subject: SpecSubject) -> Iterator[tuple[FieldPath, ResourceCall]]:
    for place, node in walk(subject.spec, subject.path):
        if isinstance(node, Step | InlineStep) and node.resource is not None:
            yield (*place, "resource"), node.resource


def judge_unused_fields(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A field that the operation does not read."""
    for place, call in _calls(subject):
        if call.operation == "List" and call.name is not None:
            what = "operation List has no name: it gives all objects that labelSelector selects"
            yield Problem((*place, "name"), what, "remove it, or set operation: Get")
        if call.operation != "List" and call.label_selector is not None:
            what = f"only operation List reads a labelSelector, and this is {call.operation}"
            yield Problem((*place, "labelSelector"), what, "remove it, or set operation: List")


def judge_new_objects(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A new object without a name, or with two, or of another kind than the call."""
    for place, call in _calls(subject):
        if call.operation != "Create" or call.body is None:
            continue
        metadata = call.body.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        if call.name is None and not (metadata.get("name") or metadata.get("generateName")):
            yield Problem((*place, "name"), "a new object needs a name", "set name, or body.metadata.generateName")
        rows: list[tuple[FieldPath, Mapping[str, Any], str, str | None]] = [
            ((), call.body, "apiVersion", call.api_version),
            ((), call.body, "kind", call.kind),
            (("metadata",), metadata, "namespace", call.namespace),
        ]
        if call.name is not None:
            rows.append((("metadata",), metadata, "name", call.name))
        for below, given, key, want in rows:
            if key in given and given[key] != want:
                what = f"resource.{key} says {want or 'the namespace of the run'}, and this says {given[key]}"
                yield Problem((*place, "body", *below, key), what, f"write it in resource.{key} alone")


def _is_understated(call: ResourceCall | None, effect: str | None) -> bool:
    return call is not None and effect == "ReadOnly" and call.operation not in _READS


def judge_effects(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A write that is said to change nothing: it would be repeated, and run beside others."""
    for place, node in walk(subject.spec, subject.path):
        if isinstance(node, Step):
            call, effect = node.resource, node.effect
        elif isinstance(node, Tool):
            call, effect = node.inline_step.resource if node.inline_step is not None else None, node.effect
        else:
            continue
        if call is not None and _is_understated(call, effect):
            yield _understated((*place, "effect"), call)


def judge_effects_of_tools(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A tool that says of a writing step that it changes nothing."""
    calls = {step.id: step.resource for step in subject.spec.steps}
    for used in subject.used:
        for index, tool in enumerate(used.spec.tools):
            call = calls.get(tool.step) if tool.step is not None else None
            if call is not None and _is_understated(call, tool.effect):
                path = (*used.path, "tools", index, "effect") if used.is_inline else used.path
                yield _understated(path, call)


def _understated(path: FieldPath, call: ResourceCall) -> Problem:
    what = f"operation {call.operation} changes the cluster, and effect: ReadOnly says that it does not"
    return Problem(path, what, "set Once, or Idempotent where it may be repeated")


RESOURCE_CHECKS: tuple[Check[SpecSubject], ...] = (
    Check("ResourceFieldUnused", "Error", judge_unused_fields),
    Check("ResourceObjectInvalid", "Error", judge_new_objects),
    Check("ResourceEffectUnderstated", "Error", judge_effects),
)
RESOURCE_TOOL_CHECKS: tuple[Check[WorkflowSubject], ...] = (
    Check("ResourceToolEffectUnderstated", "Error", judge_effects_of_tools),
)
