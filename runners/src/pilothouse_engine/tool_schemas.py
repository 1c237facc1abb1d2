"""Tools as they are offered to the model, and the arguments that it sends (engine.md §3 "Schemas", step 7)."""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from pilothouse_api.structs import AgentSpec, APICall, InlineStep, Plan, ResourceCall, Step, Tool
from pilothouse_api.templates import placeholders, placeholders_of
from pilothouse_engine.ports import ToolSpec
from pilothouse_engine.strict_json import JsonError, parse_json, path_text, printable
from pilothouse_engine.values import Value

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

_TASK_CLAUSE = (
    "Starts this in the background and returns the id of the task at once; a message brings its result before a later"
    " turn. A task that is under way when you give your final answer"
)
_TASK_ENDS = {True: "goes on; its result comes when this conversation does.", False: "is aborted."}
"""Whether the run is one of a session, and what becomes of its tasks."""

MAX_ARGUMENTS_CHARS = 262_144
MAX_ERRORS_SHOWN = 4
MAX_ERROR_CHARS = 300
LARGEST_EXACT_FLOAT = 2.0**53

# Keywords that look at the same object as `properties` does: beside them additionalProperties would refuse what they
# allow, unevaluatedProperties does not.
_IN_PLACE = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "dependencies"}
)
_OPENNESS = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties"})


class Arguments(Value):
    """Arguments that may be used."""

    value: dict[str, Any]


class InvalidArguments(Value):
    """What is wrong with the arguments, for the model."""

    message: str


def build_tool_specs(plan: Plan, agent: AgentSpec) -> tuple[ToolSpec, ...]:
    """Return the tools that are offered to the model, in the order of the agent's list.

    Tools of MCP servers are not among them: they are known once the servers were asked (`mcp.tools`).
    """
    return tuple(spec for tool in agent.tools if tool.mcp is None for spec in _specs_of(plan, tool))


def task_name(tool: str) -> str:
    """Return the name of the engine's tool that starts a delegate in the background."""
    return f"start_{tool}_task"


def check_arguments(tool: Tool, arguments_text: str) -> Arguments | InvalidArguments:
    """Return the arguments of a call, or what is wrong with them.

    An empty text and `null` are no arguments (models send both for a tool that takes none). Keys that begin with `_`
    are dropped. Declared parameters are validated, whole floats narrowed to integers; derived ones only shape the
    offer.
    """
    if len(arguments_text) > MAX_ARGUMENTS_CHARS:
        return InvalidArguments(
            f"the arguments have {len(arguments_text):,} characters; the limit is {MAX_ARGUMENTS_CHARS:,}"
        )
    try:
        parsed = parse_json(arguments_text) if arguments_text.strip() else {}
    except JsonError as error:
        return InvalidArguments(f"the arguments are not valid JSON: {error}")
    if parsed is None:
        parsed = {}
    if not isinstance(parsed, dict):
        return InvalidArguments(f"the arguments must be a JSON object, but they are {_kind_of(parsed)}")
    value = {key: item for key, item in parsed.items() if not key.startswith("_")}
    if tool.parameters is None:
        return Arguments(value)
    problem = _problem_of(tool, tool.parameters, value)
    return InvalidArguments(problem) if problem else Arguments(_narrow(value))


# ---------------------------------------------------------------- the offer


def _specs_of(plan: Plan, tool: Tool) -> Iterator[ToolSpec]:
    step = tool.inline_step or (plan.step(tool.step) if tool.step is not None else None)
    description = tool.description or (step.description if isinstance(step, Step) else None) or ""
    parameters = _derive(plan, step) if tool.parameters is None else _as_object(close_schema(tool.parameters))
    yield ToolSpec(name=tool.name, description=description, parameters=parameters)
    if tool.background and tool.agent_ref is not None:
        ends = _TASK_ENDS[plan.session is not None]
        yield ToolSpec(task_name(tool.name), f"{_TASK_CLAUSE} {ends} {description}", parameters)


def _as_object(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that says `type: object`: providers refuse parameters without it."""
    return schema if "type" in schema else {"type": "object", **schema}


def _derive(plan: Plan, step: Step | InlineStep | None) -> dict[str, Any]:
    if step is None:
        return {"type": "object", "properties": {}, "additionalProperties": True}
    if step.api_call is not None:
        return _derive_from_templates(step.api_call, _known_keys(plan))
    if step.mcp is not None:
        return _derive_from_paths((), placeholders_of(step.mcp.arguments), _known_keys(plan))
    if step.resource is not None:
        return _derive_from_resource(step.resource, _known_keys(plan))
    return {"type": "object", "properties": {}, "additionalProperties": True}


def _derive_from_templates(call: APICall, known: frozenset[str]) -> dict[str, Any]:
    """Return the public placeholders of a call as properties; what the context already has is not required."""
    in_text = [
        *placeholders(call.url),
        *(path for text in call.query.values() for path in placeholders(text)),
        *(path for header in call.headers for path in placeholders(header.value or "")),
    ]
    return _derive_from_paths(in_text, placeholders_of(call.body), known)


def _derive_from_resource(call: ResourceCall, known: frozenset[str]) -> dict[str, Any]:
    """Return the placeholders of a call; `payload`, where its body names it, is an object."""
    in_text = [path for text in (call.name, call.namespace, call.label_selector) for path in placeholders(text or "")]
    schema = _derive_from_paths(in_text, placeholders_of(call.body), known)
    if "payload" in schema["properties"]:
        schema["properties"]["payload"].setdefault("type", "object")
    return schema


def _derive_from_paths(in_text: Iterable[str], in_json: Iterable[str], known: frozenset[str]) -> dict[str, Any]:
    """Return paths as properties: what stands in a text is one, what stands in JSON may be any value."""
    properties: dict[str, Any] = {}
    for path in in_text:
        _add_path(properties, path.split("."), {"type": "string"})
    for path in in_json:
        _add_path(properties, path.split("."), {})
    required = [name for name in properties if name not in known]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _add_path(properties: dict[str, Any], parts: list[str], leaf: Mapping[str, Any]) -> None:
    """Add the property that a path names; a list index ends it, for what stands beside it is not known."""
    head, rest = parts[0], parts[1:]
    if head.startswith("_"):
        return
    if not rest or rest[0].isdigit():
        properties.setdefault(head, {} if rest else dict(leaf))
        return
    known = properties.setdefault(head, {})
    if known.setdefault("type", "object") != "object":  # named as a text elsewhere: leave its form open
        known.pop("type")
        return
    _add_path(known.setdefault("properties", {}), rest, leaf)


def _known_keys(plan: Plan) -> frozenset[str]:
    """Return the context keys that the run has or gets without the model: its input, and what steps write."""
    declared = (plan.spec.input.schema_ or {}).get("properties", {}) if plan.spec.input else {}
    keys = {*plan.input, *(declared if isinstance(declared, dict) else {})}
    for step in plan.spec.steps:
        if step.tool_only:
            continue
        keys.add(f"{step.id}_result")
        if step.api_call is not None:
            keys.update(part.as_ for part in step.api_call.extract)
        branch = step.api_call or step.mcp or step.resource or step.function
        if branch is not None and branch.output:
            keys.add(branch.output)
        if step.kind == "Agent" and (write := plan.agent_of(step).outcome.write):
            keys.add(write)
    return frozenset(keys)


# ---------------------------------------------------------------- validation


def close_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a declared schema with what it leaves open closed: `additionalProperties` is false by default.

    Closed is every object that names its properties, at the root, in properties and in items; what stands below
    `$ref`, `allOf` and their like is left as it is, since it may describe only a part of an object. An object
    without `properties` stays open.
    """
    closed = dict(schema)
    properties = closed.get("properties")
    if isinstance(properties, dict):
        closed["properties"] = {
            key: close_schema(item) if isinstance(item, dict) else item for key, item in properties.items()
        }
        if not _OPENNESS & closed.keys():
            closed["unevaluatedProperties" if _IN_PLACE & closed.keys() else "additionalProperties"] = False
    if isinstance(closed.get("items"), dict):
        closed["items"] = close_schema(closed["items"])
    return closed


class _Declared:
    """A schema as a key, by identity: plans are frozen, and a digest of it would cost more than the validation."""

    __slots__ = ("schema",)

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return id(self.schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Declared) and other.schema is self.schema


@lru_cache(maxsize=256)
def _validator_of(declared: _Declared) -> "Validator | str":
    """Return the validator of a schema, or what is wrong with the schema."""
    return _compile(json.dumps(declared.schema))


@lru_cache(maxsize=256)
def _compile(schema_json: str) -> "Validator | str":
    from jsonschema_rs import ReferencingError, ValidationError, validator_for

    try:
        # offline: a `$ref` in a manifest must not make the runner fetch an address or open a file.
        return validator_for(close_schema(json.loads(schema_json)), offline=True)
    except (ValidationError, ReferencingError, ValueError) as error:
        return printable(str(getattr(error, "message", error)), MAX_ERROR_CHARS)


def _problem_of(tool: Tool, parameters: Mapping[str, Any], value: dict[str, Any]) -> str | None:
    validator = _validator_of(_Declared(parameters))
    if isinstance(validator, str):
        return f"the parameters that tool {tool.name} declares are no valid JSON Schema ({validator}); use another tool"
    if validator.is_valid(value):
        return None
    errors = list(islice(validator.iter_errors(value), MAX_ERRORS_SHOWN + 1))
    lines = [_say(error) for error in errors[:MAX_ERRORS_SHOWN]]
    if len(errors) > MAX_ERRORS_SHOWN:
        lines.append("and more")
    return "the arguments do not fit the tool's parameters: " + "; ".join(_once(lines))


def _say(error: "ValidationError") -> str:
    where = path_text(list(error.instance_path))
    return printable(f"{where}: {error.message}" if where else error.message, MAX_ERROR_CHARS)


def _once(lines: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(lines)


def _narrow(value: Any) -> Any:
    """Return a JSON value with whole floats as integers: for JSON 3.0 is 3, and so it is for a schema."""
    if isinstance(value, dict):
        return {key: _narrow(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_narrow(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST_EXACT_FLOAT:
        return int(value)
    return value


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "a number"
