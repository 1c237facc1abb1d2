"""The input of a run: defaults filled in, size and schema checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilothouse_api.digests import canonical_json
from pilothouse_api.expressions import MAX_DEPTH, is_deeper
from pilothouse_api.schemas import SchemaError, compile_schema
from pilothouse_api.v1alpha1.workflow import InputSpec
from pilothouse_control.findings import FieldPath

MAX_INPUT_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class InputRefused:
    """Why a run cannot have this input; `path` is below `spec.input`."""

    reason: str
    message: str
    path: FieldPath = ()


def resolve_input(raw_input: Mapping[str, Any], spec: InputSpec) -> dict[str, Any] | InputRefused:
    """Return the input of a run with the defaults of keys that it leaves out, or why it is refused."""
    merged = {**spec.defaults, **raw_input}
    try:
        size = len(canonical_json(merged).encode())
    except (TypeError, ValueError, RecursionError) as error:  # a lone surrogate is a ValueError too
        return InputRefused("InputInvalid", f"it is no JSON: {error}")
    if is_deeper(merged, MAX_DEPTH):
        return InputRefused("InputInvalid", f"it is nested deeper than {MAX_DEPTH} levels: write it flatter")
    if size > MAX_INPUT_BYTES:
        what = f"it has {size} bytes with its defaults; the limit is {MAX_INPUT_BYTES}"
        return InputRefused("InputTooLarge", f"{what}: store what is large elsewhere and hand in where it is")
    for key in merged:
        if key.startswith("_"):
            return InputRefused("InputInvalid", "keys that begin with _ are the engine's own: rename it", (key,))
    if spec.schema_ is None:
        return merged
    try:
        problems = compile_schema(spec.schema_).problems(merged)
    except SchemaError as error:
        return InputRefused("InvalidPlan", f"spec.input.schema of the workflow is no JSON Schema: {error}")
    if problems:
        return InputRefused("InputInvalid", f"{'; '.join(problems)} (by spec.input.schema of the workflow)")
    return merged
