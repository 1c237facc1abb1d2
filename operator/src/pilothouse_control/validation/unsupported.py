"""Fields whose behaviour is not built yet: refused, so that nothing is accepted and ignored.

The table shrinks as behaviour comes; a test proves that every field of Agent, Workflow and AgentRun is either here
or in the list of what is honoured, and by which module.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from pilothouse_api.v1alpha1.workflow import WorkflowSpec
from pilothouse_control.tree import fields_of, walk
from pilothouse_control.validation.scene import Check, Problem, Scene, SpecSubject


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One field of a model that is refused when it is set, or when it is set to one of `values`."""

    model: type[BaseModel]
    field: str
    values: frozenset[Any] | None = None
    hint: str = "remove it"


UNSUPPORTED: tuple[Unsupported, ...] = (Unsupported(WorkflowSpec, "supervisorRefs"),)
"""Nested fields of a refused one are not listed: they cannot be set without it."""

UNSUPPORTED_KINDS = frozenset({"Supervisor"})


def is_refused(row: Unsupported, value: Any) -> bool:
    """Tell whether a value of a listed field asks for what is not built."""
    return bool(value) if row.values is None else value in row.values


def judge_not_supported(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A field, a value or a kind that is not built yet."""
    if subject.kind in UNSUPPORTED_KINDS:
        yield Problem(("kind",), f"not supported yet: kind {subject.kind}", "remove the object")
        return
    for path, node in walk(subject.spec, subject.path):
        rows = (row for row in UNSUPPORTED if type(node) is row.model)
        for row in rows:
            attribute = fields_of(row.model)[row.field].attribute
            value = getattr(node, attribute)
            if attribute in node.model_fields_set and is_refused(row, value):
                shown = row.field if row.values is None else f"{row.field}: {value}"
                yield Problem((*path, row.field), f"not supported yet: {shown}", row.hint)


NOT_SUPPORTED: Check[SpecSubject] = Check("NotSupportedYet", "Error", judge_not_supported)
