"""From models to structural schemas: what Kubernetes accepts in a CRD.

`described` is pydantic's JSON schema with the descriptions and CEL rules of the models in it; `structural` inlines
its references and leaves only what a structural schema may hold. A construct that has no counterpart is refused by
name and path, never dropped.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from codegen import descriptions
from pilothouse_api.v1alpha1.base import Model, Rule

Node = dict[str, Any]

DROPPED = {"title", "default", "additionalProperties", "propertyNames"}
"""Keys that say nothing here: titles repeat names, defaults stand in the plan, unknown fields are pruned, and the
length of a map's keys is the business of a CEL rule."""

KEPT = (
    "description",
    "type",
    "format",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-map-type",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)
"""Keys that are copied, in the order in which they are written."""


class UnstructuralError(Exception):
    """A model says something that a structural schema cannot."""


class _Described(GenerateJsonSchema):
    """pydantic's generator, with the descriptions from the source and the rules of each model."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        made["description"] = descriptions.of_model(model)
        for name, info in model.model_fields.items():
            made["properties"][info.alias or to_camel(name)]["description"] = descriptions.of_field(model, name)
        if issubclass(model, Model) and model.RULES:
            made["x-kubernetes-validations"] = [validation(rule) for rule in model.RULES]
        return made


def described(model: type[BaseModel]) -> Node:
    """Return the JSON schema of a model, with `$defs`, defaults, descriptions and rules."""
    return model.model_json_schema(by_alias=True, schema_generator=_Described)


def validation(rule: Rule) -> Node:
    """Return a rule as an entry of `x-kubernetes-validations`."""
    entry = {"rule": rule.rule, "message": rule.message}
    optional = {"messageExpression": rule.message_expression, "fieldPath": rule.field_path, "reason": rule.reason}
    return entry | {key: value for key, value in optional.items() if value}


def structural(node: Node, definitions: Mapping[str, Node], path: str = "") -> Node:
    """Return the structural schema of a node of `described`."""
    node = without_null(dereferenced(node, definitions, path), definitions, path)
    if "const" in node:
        node = {key: value for key, value in node.items() if key != "const"} | {"enum": [node["const"]]}
    handled = {*KEPT, *DROPPED, "properties", "required", "items", "x-kubernetes-validations"}
    if unknown := sorted(node.keys() - handled):
        raise UnstructuralError(f"{path or '.'}: {', '.join(unknown)} has no counterpart in a structural schema")
    made: Node = {key: node[key] for key in KEPT if key in node}
    if "description" in node and not path.startswith(".status"):
        made["description"] += _default_sentence(node.get("default"))
    if node.get("type") == "integer":
        made["format"] = "int64"
    if "properties" in node:
        made["properties"] = {
            name: structural(child, definitions, f"{path}.{name}") for name, child in node["properties"].items()
        }
    if node.get("required"):
        made["required"] = node["required"]
    if "items" in node:
        made["items"] = structural(node["items"], definitions, f"{path}[]")
    if isinstance(node.get("additionalProperties"), dict):
        made["additionalProperties"] = structural(node["additionalProperties"], definitions, f"{path}{{}}")
    if "x-kubernetes-validations" in node:
        made["x-kubernetes-validations"] = node["x-kubernetes-validations"]
    return made


def _default_sentence(value: Any) -> str:
    """What `kubectl explain` shows of a default that only the plan applies; empty where there is nothing to say."""
    if value is None or value == "" or (isinstance(value, dict | list) and not value):
        return ""
    return f" Default: {json.dumps(value, ensure_ascii=False).replace(chr(34), '')}."


def dereferenced(node: Node, definitions: Mapping[str, Node], path: str) -> Node:
    """Return the node with what its `$ref` refers to; what stands beside the reference wins."""
    while "$ref" in node:
        name = node["$ref"].removeprefix("#/$defs/")
        if path.count(".") > 40:
            raise UnstructuralError(f"{path}: {name} contains itself, which a CRD cannot say")
        node = {**definitions[name], **{key: value for key, value in node.items() if key != "$ref"}}
    return node


def without_null(node: Node, definitions: Mapping[str, Node], path: str) -> Node:
    """Return the node without `| None`: in a custom resource, unset means left out."""
    if "anyOf" not in node:
        return node
    choices = [choice for choice in node["anyOf"] if choice != {"type": "null"}]
    if len(choices) != 1:
        raise UnstructuralError(f"{path}: a union of {len(choices)} types; use fields that name themselves")
    beside = {key: value for key, value in node.items() if key != "anyOf"}
    return {**dereferenced(choices[0], definitions, path), **beside}
