"""Resource: one call to the Kubernetes API, as a step of the graph or as a tool of an agent."""

import re
from collections.abc import Mapping
from typing import Any, assert_never

from msgspec.structs import replace

from pilothouse_api.names import ANNOTATION_IDEMPOTENCY_KEY, is_dns_label
from pilothouse_api.signals import DEFAULT, ERROR
from pilothouse_api.structs import ResourceCall
from pilothouse_api.templates import MissingPath, placeholders, render, render_value
from pilothouse_engine.ports import Ports, ResourceFailure, ResourceReply, ResourceRequest
from pilothouse_engine.steps.contract import StepCall, StepDone, StepEnd, StepUnknown
from pilothouse_engine.steps.outcomes import failed
from pilothouse_engine.strict_json import JsonError, check_json, printable

SIGNALS = {"NotFound": "not_found", "Forbidden": "forbidden"}
"""What a step ends with when a call fails, by the failure's kind; any other is an error."""

_ERROR_TYPES = {"Invalid": "InvalidRequest", "TooLarge": "ResponseTooLarge", "Unavailable": "ServerError"}

KEY_CHARS = 10
GENERATED_BASE_CHARS = 52
"""Of a generated name: the rest of a DNS label is its end."""

_PATH_SEGMENT = re.compile(r"(?!\.{1,2}$)[^/%\x00-\x1f\x7f]{1,253}")
_SELECTOR_PART = re.compile(r"[-_./A-Za-z0-9]*")


class _Unfit(Exception):
    """The request cannot be built; nothing is sent. The message holds no value of the context."""


async def execute_resource(call: StepCall, ports: Ports) -> StepEnd:
    """Return what the API server gave. `not_found` and `forbidden` are signals of their own."""
    params = call.params
    assert isinstance(params, ResourceCall)
    try:
        request = build_request(call, params)
    except _Unfit as unfit:
        return failed("InvalidRequest", f"resource.{unfit}")
    except MissingPath as missing:
        return failed("MissingContext", f"resource: {missing}")
    got = await ports.resources.call(request)
    if isinstance(got, ResourceFailure) and got.kind == "AlreadyExists" and call.may_repeat:
        got = await _find_own(ports, request, got)
    match got:
        case ResourceReply(value):
            return StepDone(DEFAULT, {params.output or f"{call.step_id}_result": value}, value)
        case ResourceFailure():
            return _failure_of(call, params, got)
        case _:
            assert_never(got)


def build_request(call: StepCall, params: ResourceCall) -> ResourceRequest:
    """Return the request with its templates filled in; raises _Unfit and MissingPath."""
    body = _body_of(call, params)
    name = "" if params.name is None else _segment("name", render(params.name, call.context))
    if params.operation == "Create":
        assert body is not None, "the schema asks for it"
        name = _name_created(call, name, body)
        body = _object_created(call, params, name, body)
    return ResourceRequest(
        operation=params.operation,
        api_version=params.api_version,
        kind=params.kind,
        name=name,
        namespace=_namespace_of(call, params),
        label_selector=_selector_of(call, params),
        body=body,
        timeout=float(params.timeout_seconds),
        max_bytes=call.settings.max_response_bytes,
    )


# ---------------------------------------------------------------- the request


def _segment(field: str, text: str) -> str:
    """Return a part of an address: an empty one would address the whole collection, `..` another place."""
    if _PATH_SEGMENT.fullmatch(text) is None or printable(text, len(text)) != text:
        raise _Unfit(
            f"{field} is no name of an object once its templates are filled in: 1 to 253 characters, no /, no %"
        )
    return text


def _namespace_of(call: StepCall, params: ResourceCall) -> str | None:
    if params.namespace is None:
        return None
    namespace = render(params.namespace, call.context)
    if not is_dns_label(namespace):
        raise _Unfit("namespace is no name of a namespace once its templates are filled in")
    return namespace


def _selector_of(call: StepCall, params: ResourceCall) -> str:
    """Return the selector; a value that fills in a part of it cannot add a clause, nor an empty one take all away."""
    if params.label_selector is None:
        return ""
    template = params.label_selector.strip()
    paths = list(placeholders(template))
    is_whole = len(paths) == 1 and template.startswith("{{") and template.endswith("}}")
    selector = render(template, call.context, str if is_whole else _selector_part).strip()
    if not selector:
        raise _Unfit("labelSelector is empty once its templates are filled in: it would select everything")
    return selector


def _selector_part(text: str) -> str:
    if _SELECTOR_PART.fullmatch(text) is None:
        raise _Unfit("labelSelector: a value that fills in a part of it may hold letters, digits, -, _, . and / only")
    return text


def _body_of(call: StepCall, params: ResourceCall) -> dict[str, Any] | None:
    if params.body is None:
        return None
    body: dict[str, Any] = render_value(params.body, call.context)
    try:
        check_json(body)
    except JsonError as error:
        raise _Unfit(f"body: {error}") from None
    return body


def _name_created(call: StepCall, name: str, body: Mapping[str, Any]) -> str:
    """Return the name of a new object: always a fixed one, so that a create that is repeated meets its own object."""
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    own = metadata.get("name")
    if name and own not in (None, name):
        raise _Unfit("name and body.metadata.name differ: remove one of them")
    if name or isinstance(own, str):
        return name or _segment("body.metadata.name", str(own))
    base = metadata.get("generateName")
    if not isinstance(base, str) or not base or call.idempotency_key is None:
        raise _Unfit("name is not set, and neither is body.metadata.name or generateName: set one of them")
    return _segment("body.metadata.generateName", base[:GENERATED_BASE_CHARS] + call.idempotency_key[:KEY_CHARS])


def _object_created(call: StepCall, params: ResourceCall, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object as it is sent: complete, and marked with the key of the call that makes it."""
    for field, want in (("apiVersion", params.api_version), ("kind", params.kind)):
        if body.get(field, want) != want:
            raise _Unfit(f"body.{field} differs from resource.{field} ({want}): remove it from the body")
    given = body.get("metadata") or {}
    annotations = given.get("annotations") or {} if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(annotations, Mapping):
        raise _Unfit("body.metadata and body.metadata.annotations are objects")
    metadata = {key: value for key, value in given.items() if key != "generateName"} | {"name": name}
    if call.idempotency_key is not None:
        metadata["annotations"] = {**annotations, ANNOTATION_IDEMPOTENCY_KEY: call.idempotency_key}
    return {**body, "apiVersion": params.api_version, "kind": params.kind, "metadata": metadata}


# ---------------------------------------------------------------- the answer


async def _find_own(
    ports: Ports, request: ResourceRequest, refusal: ResourceFailure
) -> ResourceReply | ResourceFailure:
    """Return the object that stands in the way where an earlier try of this very call made it, else the refusal."""
    assert request.body is not None
    own = request.body["metadata"].get("annotations", {}).get(ANNOTATION_IDEMPOTENCY_KEY)
    got = await ports.resources.call(replace(request, operation="Get", body=None))
    if own is None or not isinstance(got, ResourceReply):
        return refusal
    annotations = got.value.get("metadata", {}).get("annotations", {}) if isinstance(got.value, Mapping) else {}
    return got if annotations.get(ANNOTATION_IDEMPOTENCY_KEY) == own else refusal


def _failure_of(call: StepCall, params: ResourceCall, failure: ResourceFailure) -> StepEnd:
    message = f"{_label(params)}: {failure.message}"
    if failure.sent and not call.may_repeat:
        return StepUnknown(printable(message, 500))
    done = failed(_ERROR_TYPES.get(failure.kind, failure.kind), message, output=failure.detail or None)
    return replace(done, signal=SIGNALS.get(failure.kind, ERROR))


def _label(params: ResourceCall) -> str:
    """Return what may be shown of a call: its templates as they are written, never what fills them in."""
    what = f"{params.operation} {params.kind}"
    return f"{what} {params.name}" if params.name is not None else what
