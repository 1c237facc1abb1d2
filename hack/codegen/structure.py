"""Checks what the API server demands of a structural schema, and what this project demands besides.

Returns what is wrong as sentences that begin with the path. The API server is the judge (the integration tests ask
it); this check needs no server and names the field.
"""

from collections.abc import Iterator
from typing import Any

Node = dict[str, Any]

FORBIDDEN = (
    "$ref",
    "$defs",
    "definitions",
    "dependencies",
    "patternProperties",
    "propertyNames",
    "deprecated",
    "discriminator",
    "id",
    "uniqueItems",
    "const",
    "title",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "nullable",
    "examples",
)
DEFAULT_ALLOWED = ".status"
"""The one node that may have a default: a fresh object must not be judged Current."""
FREE_FORM = "x-kubernetes-preserve-unknown-fields"


def faults(root: Node) -> list[str]:
    """Return what is wrong with the schema of a kind."""
    found = [] if root.get("type") == "object" else [". : the root is not an object"]
    if set(root["properties"]["metadata"]) != {"type"}:
        found.append(".metadata: only its type may be said")
    for name in ("spec", "status"):
        found.extend(_faults(root["properties"][name], f".{name}", in_status=name == "status"))
    return found


def _faults(node: Node, path: str, in_status: bool) -> Iterator[str]:
    for key in FORBIDDEN:
        if key in node:
            yield f"{path}: {key} is not allowed in a structural schema"
    if "default" in node and path != DEFAULT_ALLOWED:
        yield f"{path}: a default here would change what stands in Git"
    if in_status and ("enum" in node or "pattern" in node):
        yield f"{path}: status has no enums and no patterns, an older CRD must take a newer operator's report"
    if not node.get("description") and not path.endswith(("[]", "{}")):
        yield f"{path}: no description"
    if "properties" in node and "additionalProperties" in node:
        yield f"{path}: properties and additionalProperties exclude each other"
    match node.get("type"):
        case "object":
            yield from _object_faults(node, path, in_status)
        case "array":
            yield from _array_faults(node, path, in_status)
        case "string":
            if "maxLength" not in node and "enum" not in node:
                yield f"{path}: no maxLength; the cost of rules, and of an object, must have a bound"
        case "integer" | "number":
            if not in_status and not {"minimum", "maximum"} <= node.keys():
                yield f"{path}: no minimum or no maximum"
        case "boolean":
            pass
        case None:
            if not node.get(FREE_FORM) and not node.get("x-kubernetes-int-or-string"):
                yield f"{path}: no type"
        case other:
            yield f"{path}: unknown type {other}"


def _object_faults(node: Node, path: str, in_status: bool) -> Iterator[str]:
    if missing := set(node.get("required", [])) - node.get("properties", {}).keys() - {""}:
        yield f"{path}: required names {sorted(missing)}, which do not exist"
    if node.get(FREE_FORM) and node.get("x-kubernetes-map-type") != "atomic":
        yield f"{path}: free-form JSON must be atomic, else managedFields outgrow the data"
    for name, child in node.get("properties", {}).items():
        yield from _faults(child, f"{path}.{name}", in_status)
    if "additionalProperties" in node:
        if "maxProperties" not in node:
            yield f"{path}: a map without maxProperties"
        yield from _faults(node["additionalProperties"], f"{path}{{}}", in_status)


def _array_faults(node: Node, path: str, in_status: bool) -> Iterator[str]:
    if "maxItems" not in node:
        yield f"{path}: a list without maxItems"
    item = node.get("items")
    if item is None:
        yield f"{path}: a list without items"
        return
    if node.get("x-kubernetes-list-type") == "map":
        keys = node.get("x-kubernetes-list-map-keys", [])
        if not keys or not set(keys) <= set(item.get("required", [])):
            yield f"{path}: the keys of a list-map must be required in its items"
    yield from _faults(item, f"{path}[]", in_status)
