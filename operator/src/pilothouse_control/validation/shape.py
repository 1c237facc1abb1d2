"""The shape of one object: what the API server refuses at admission, judged from the same models."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from pilothouse_api.expressions import ExpressionError, compile_expression
from pilothouse_api.names import API_VERSION, GROUP, MAX_RUN_NAME, is_dns_label
from pilothouse_api.v1alpha1 import KINDS, Agent, AgentRun, Supervisor, Workflow
from pilothouse_api.v1alpha1.base import Rule
from pilothouse_control.documents import Document
from pilothouse_control.findings import FieldPath, Finding
from pilothouse_control.tree import FieldShape, fields_of, walk_raw, without_nulls
from pilothouse_control.validation.sentences import describe, did_you_mean, show

Known = Agent | Workflow | Supervisor | AgentRun

GENERATED_SUFFIX = 5
"""Characters that the API server adds to generateName."""

REFINED_RULES = frozenset({"a route leads to a step that does not exist"})
"""Messages of rules that a check of the table says better, with the place of the very route."""


def is_ours(document: Document) -> bool:
    """Tell whether a document is, or wants to be, an object of this project."""
    version = document.raw.get("apiVersion")
    is_group = isinstance(version, str) and version.split("/")[0] == GROUP
    return is_group or (document.kind in KINDS and not isinstance(version, str))


def parse(document: Document) -> tuple[Known | None, list[Finding]]:
    """Return the object of a document and what its shape violates; no object where the models refuse it."""
    model = KINDS.get(document.kind)
    if model is None:
        what = f"{document.kind or 'a missing kind'} is no kind of {API_VERSION}"
        hint = did_you_mean(document.kind, KINDS) or f"the kinds are {', '.join(KINDS)}"
        return None, [document.find("Error", "UnknownKind", ("kind",), what, hint)]
    if "apiVersion" not in document.raw:
        hint = f"write apiVersion: {API_VERSION}"
        return None, [document.find("Error", "Schema", ("apiVersion",), "it is required and missing", hint)]
    raw = without_nulls(model, {key: value for key, value in document.raw.items() if key != "status"})
    findings = [*_unknown_fields(document, model, raw), *_duplicates(document, model, raw), *_names(document, raw)]
    try:
        obj = model.model_validate(raw, strict=True)
    except ValidationError as error:
        return None, [*findings, *_violations(document, error)]
    return obj, [*findings, *_rules(document, model, raw)]


def _violations(document: Document, error: ValidationError) -> Iterator[Finding]:
    for item in error.errors(include_url=False):
        if item["type"] == "extra_forbidden":
            continue
        path = tuple(part for part in item["loc"] if part != "[key]")
        what, hint = describe(item, document.written.get(path))
        yield document.find("Error", "Schema", path, what, hint)


def _unknown_fields(document: Document, model: type[BaseModel], raw: dict[str, Any]) -> Iterator[Finding]:
    for path, node_model, node in walk_raw(model, raw):
        if not isinstance(node, dict) or node_model.model_config.get("extra") == "ignore":
            continue
        fields = fields_of(node_model)
        for key in node.keys() - fields.keys():
            hint = did_you_mean(str(key), fields) or f"the fields here are {', '.join(fields)}"
            yield document.find("Error", "UnknownField", (*path, key), "there is no such field", hint)


def _duplicates(document: Document, model: type[BaseModel], raw: dict[str, Any]) -> Iterator[Finding]:
    for path, node_model, node in walk_raw(model, raw):
        for wire, shape in fields_of(node_model).items():
            entries = node.get(wire) if isinstance(node, dict) else None
            if isinstance(entries, list):
                yield from _duplicates_of(document, (*path, wire), shape, entries)


def _duplicates_of(document: Document, path: FieldPath, shape: FieldShape, entries: list[Any]) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        if shape.list_keys and isinstance(entry, dict):
            key = repr([entry.get(name) for name in shape.list_keys])
            words = " and ".join(f"{name} {show(entry.get(name))}" for name in shape.list_keys)
        elif shape.is_set:
            key, words = repr(entry), f"the value {show(entry)}"
        else:
            continue
        if key in seen:
            what = (
                f"another entry of the list has the same {words}" if shape.list_keys else f"{words} stands here twice"
            )
            yield document.find("Error", "Duplicate", (*path, index), what, "rename or remove one of them")
        seen.add(key)


def _names(document: Document, raw: Mapping[str, Any]) -> Iterator[Finding]:
    metadata = raw.get("metadata")
    fields = metadata if isinstance(metadata, dict) else {}
    name, prefix = fields.get("name"), fields.get("generateName")
    if isinstance(name, str) and name:
        if not is_dns_label(name):
            what = f"{show(name)} is no DNS label: at most 63 small letters, digits and -, ending in none"
            yield document.find("Error", "Name", ("metadata", "name"), what)
    elif document.kind != "AgentRun" or not isinstance(prefix, str) or not prefix:
        also = " (or metadata.generateName, for kubectl create)" if document.kind == "AgentRun" else ""
        yield document.find("Error", "Name", ("metadata", "name"), f"it is required and missing{also}")
    elif len(prefix) + GENERATED_SUFFIX > MAX_RUN_NAME or not is_dns_label(f"{prefix[:50]}x"):
        limit = MAX_RUN_NAME - GENERATED_SUFFIX
        what = f"{show(prefix)} must be at most {limit} small letters, digits and -"
        yield document.find("Error", "Name", ("metadata", "generateName"), what)


def _rules(document: Document, model: type[BaseModel], raw: dict[str, Any]) -> Iterator[Finding]:
    for path, node_model, node in walk_raw(model, raw):
        rules: tuple[Rule, ...] = getattr(node_model, "RULES", ())
        for rule in rules:
            if "oldSelf" in rule.rule or rule.message in REFINED_RULES:
                continue
            if not path and "metadata.name" in rule.rule and "name" not in (node.get("metadata") or {}):
                continue  # the API server makes a name before it judges
            if (problem := _broken(rule, node)) is not None:
                place = (*path, *(part for part in rule.field_path.split(".") if part))
                yield document.find("Error", "Rule", place, problem)


def first_broken_rule(model: type[BaseModel], raw: dict[str, Any]) -> str | None:
    """Return what the rules of a model and of what it holds refuse in a raw value, None where they hold."""
    for path, node_model, node in walk_raw(model, raw):
        for rule in getattr(node_model, "RULES", ()):
            if (problem := _broken(rule, node)) is not None:
                return f"{'.'.join(str(part) for part in path)}: {problem}" if path else problem
    return None


def _broken(rule: Rule, node: Any) -> str | None:
    try:
        holds = compile_expression(rule.rule, ("self",)).evaluate({"self": node})
    except ExpressionError as error:
        return f"{rule.message} (the rule cannot be judged: {error})"
    return None if holds is True else rule.message
