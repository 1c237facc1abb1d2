"""Objects of the cluster, under the run's own ServiceAccount."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, assert_never
from urllib.parse import quote, urlencode

import httpcore
from msgspec.structs import replace

from pilothouse_api import names
from pilothouse_engine.ports import ResourceFailure, ResourceOperation, ResourceReply, ResourceRequest
from pilothouse_engine.resource_masks import mask_answer
from pilothouse_engine.strict_json import JsonError, parse_json, printable
from pilothouse_engine.values import Value
from pilothouse_runner.adapters.api_server import AnswerTooLarge, ApiConnection, ApiServer, read_body, retry_after
from pilothouse_runner.adapters.connections import HTTP_ERRORS, Reply

PAGE_SIZE = 200
MAX_DISCOVERY_BYTES = 4 * 1024 * 1024
MAX_DETAIL_CHARS = 2000
FIRST_RETRY_SECONDS = 0.1
LONGEST_RETRY_SECONDS = 5.0

_METHODS: Mapping[ResourceOperation, tuple[str, str]] = {
    "Get": ("GET", "get"),
    "List": ("GET", "list"),
    "Create": ("POST", "create"),
    "Patch": ("PATCH", "patch"),
    "Delete": ("DELETE", "delete"),
}
"""HTTP method and RBAC verb."""


class ServedKind(Value):
    """A kind as the API server serves it."""

    path: str
    """Of its group and version, `/api/v1` or `/apis/apps/v1`."""
    plural: str
    is_namespaced: bool
    verbs: tuple[str, ...]

    @property
    def is_secret(self) -> bool:
        """Whether its objects are Secrets."""
        return (self.path, self.plural) == ("/api/v1", "secrets")


class _Answer(Value):
    status: int
    body: dict[str, Any]
    size: int
    retry_after: float | None


class _Call(Value):
    """One HTTP request, ready to be sent."""

    method: str
    path: str
    content: bytes | None = None
    content_type: str = "application/json"

    @property
    def is_read(self) -> bool:
        return self.method == "GET"


class _Attempt:
    """How long there is time, and whether bytes of a request may have left: heard from the connection, not guessed.

    `last` is why the try before this one failed: it says more than that there was no time for another.
    """

    def __init__(self, seconds: float) -> None:
        self.ends = asyncio.get_running_loop().time() + seconds
        self.has_begun = False
        self.last: ResourceFailure | None = None

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """Take an event of httpcore's `trace` extension."""
        if event.endswith(".send_request_headers.started"):
            self.has_begun = True


class KubernetesResources:
    """A `Resources` over one API server; `namespace` is the run's own. Kinds are found out once and kept."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self._api = ApiConnection(server)
        self._namespace = namespace
        self._kinds: dict[tuple[str, str], ServedKind] = {}

    async def aclose(self) -> None:
        """Close the connections."""
        await self._api.aclose()

    async def call(self, request: ResourceRequest) -> ResourceReply | ResourceFailure:
        """Return what the API server gave or why it gave nothing, within `timeout` seconds."""
        attempt = _Attempt(request.timeout)
        try:
            async with asyncio.timeout(request.timeout):
                kind = await self._find_kind(request, attempt)
                if isinstance(kind, ResourceFailure):
                    return kind
                attempt.has_begun = False
                ask = self._list if request.operation == "List" else self._call_one
                return await ask(request, kind, attempt)
        except TimeoutError:
            if attempt.last is not None and not attempt.has_begun:
                return attempt.last
            is_sent = attempt.has_begun and _METHODS[request.operation][0] != "GET"
            return ResourceFailure("Timeout", f"no answer within {request.timeout:g} s", sent=is_sent)

    # ------------------------------------------------------------ kinds

    async def _find_kind(self, request: ResourceRequest, attempt: _Attempt) -> ServedKind | ResourceFailure:
        key = (request.api_version, request.kind)
        if key not in self._kinds:
            found = await self._discover(request, attempt)
            if isinstance(found, ResourceFailure):
                return replace(found, sent=False)
            self._kinds[key] = found
        return _unfit(request, self._kinds[key]) or self._kinds[key]

    async def _discover(self, request: ResourceRequest, attempt: _Attempt) -> ServedKind | ResourceFailure:
        """Ask which kinds a version of a group has; what is not there may come later, and is asked for anew."""
        path = f"/apis/{request.api_version}" if "/" in request.api_version else f"/api/{request.api_version}"
        got = await self._send(_Call("GET", path), attempt, MAX_DISCOVERY_BYTES)
        if isinstance(got, ResourceFailure):
            return got
        if got.status >= 300 and got.status != 404:
            return _refusal(got, "not ask which kinds there are", is_secret=False, is_read=True)
        for entry in _objects(got.body.get("resources")):
            plural = str(entry.get("name"))
            if entry.get("kind") == request.kind and "/" not in plural:
                verbs = tuple(map(str, entry.get("verbs") or ()))
                return ServedKind(path, plural, bool(entry.get("namespaced")), verbs)
        return ResourceFailure("UnknownKind", f"the API server serves no {request.kind} of {request.api_version}")

    # ------------------------------------------------------------ calls

    async def _call_one(
        self, request: ResourceRequest, kind: ServedKind, attempt: _Attempt
    ) -> ResourceReply | ResourceFailure:
        call = _build_call(request, self._collection(request, kind))
        got = await self._send(call, attempt, request.max_bytes)
        if isinstance(got, ResourceFailure):
            return got
        if got.status < 300:
            return ResourceReply(mask_answer(got.body, is_secret=kind.is_secret))
        if got.status == 404 and not _names_what_is_missing(got.body):
            del self._kinds[request.api_version, request.kind]  # the kind itself is gone
            message = f"the API server serves no {request.kind} of {request.api_version} any more"
            return ResourceFailure("UnknownKind", message)
        return _refusal(got, self._may_not(request, kind), is_secret=kind.is_secret, is_read=call.is_read)

    async def _list(
        self, request: ResourceRequest, kind: ServedKind, attempt: _Attempt
    ) -> ResourceReply | ResourceFailure:
        """Read a list page by page; together the pages are no larger than one answer may be."""
        query = {"limit": str(PAGE_SIZE)}
        if request.label_selector:
            query["labelSelector"] = request.label_selector
        items: list[Any] = []
        left = request.max_bytes
        while True:
            path = f"{self._collection(request, kind)}?{urlencode(query)}"
            got = await self._send(_Call("GET", path), attempt, left)
            if isinstance(got, ResourceFailure):
                what = f"the list is larger than {request.max_bytes:,} bytes: narrow it with labelSelector"
                return replace(got, message=what) if got.kind == "TooLarge" else got
            if got.status >= 300:
                return _refusal(got, self._may_not(request, kind), is_secret=kind.is_secret, is_read=True)
            items += _objects(got.body.get("items"))
            left -= got.size
            metadata = got.body.get("metadata")
            if not isinstance(metadata, dict) or not metadata.get("continue"):
                return ResourceReply(mask_answer({**got.body, "items": items}, is_secret=kind.is_secret))
            query["continue"] = str(metadata["continue"])

    def _collection(self, request: ResourceRequest, kind: ServedKind) -> str:
        if not kind.is_namespaced:
            return f"{kind.path}/{kind.plural}"
        return f"{kind.path}/namespaces/{quote(self._namespace_of(request), safe='')}/{kind.plural}"

    def _namespace_of(self, request: ResourceRequest) -> str:
        return request.namespace or self._namespace

    def _may_not(self, request: ResourceRequest, kind: ServedKind) -> str:
        """Return what a Role must allow, in the words that a Role has."""
        group = kind.path.split("/")[2] if kind.path.startswith("/apis/") else ""
        # Only the run's own namespace is named: another may have come out of the context.
        where = f" in namespace {self._namespace}" if kind.is_namespaced and request.namespace is None else ""
        return f"{_METHODS[request.operation][1]} {kind.plural} of apiGroup {group!r}{where}"

    # ------------------------------------------------------------ requests

    async def _send(self, call: _Call, attempt: _Attempt, max_bytes: int) -> _Answer | ResourceFailure:
        """Send until there is an answer that another try would not change, or no time is left for one."""
        pause = FIRST_RETRY_SECONDS
        while True:
            got = await self._send_once(call, attempt, max_bytes)
            asked = got.retry_after or 0.0 if isinstance(got, _Answer) else 0.0
            wait = max(pause, asked)
            if not _is_worth_repeating(got, call) or asyncio.get_running_loop().time() + wait >= attempt.ends:
                return got
            attempt.has_begun, attempt.last = False, got if isinstance(got, ResourceFailure) else None
            await asyncio.sleep(wait)
            pause = min(pause * 2, LONGEST_RETRY_SECONDS)

    async def _send_once(self, call: _Call, attempt: _Attempt, max_bytes: int) -> _Answer | ResourceFailure:
        headers = {"Content-Type": call.content_type} if call.content is not None else {}
        is_write = not call.is_read
        try:
            async with self._api.stream(
                call.method, call.path, headers, call.content, {"trace": attempt.trace}
            ) as reply:
                return await _read_answer(reply, max_bytes)
        except AnswerTooLarge as error:
            return ResourceFailure("TooLarge", f"the API server gave {error}", sent=is_write)
        except JsonError as error:
            return ResourceFailure("Unavailable", f"the API server gave no JSON object: {error}", sent=is_write)
        except httpcore.ConnectError as error:
            await self._api.aclose()  # a new client reads the CA anew, in case it was renewed
            return ResourceFailure("Connection", f"the API server cannot be reached: {_reason(error)}")
        except (*HTTP_ERRORS, OSError) as error:
            is_sent = is_write and attempt.has_begun
            return ResourceFailure("Connection", f"the API server gave no answer: {_reason(error)}", sent=is_sent)


# ---------------------------------------------------------------- the request


def _unfit(request: ResourceRequest, kind: ServedKind) -> ResourceFailure | None:
    """Return why a kind cannot be asked so, or None."""
    if request.namespace is not None and not kind.is_namespaced:
        return ResourceFailure("Invalid", f"{request.kind} has no namespaces: remove resource.namespace")
    verb = _METHODS[request.operation][1]
    if verb not in kind.verbs:
        return ResourceFailure("Invalid", f"{request.kind} does not know {verb}; it knows {', '.join(kind.verbs)}")
    return None


def _build_call(request: ResourceRequest, collection: str) -> _Call:
    """Return the request for one object; fields that the API server would not keep are refused, not dropped."""
    assert request.name, "an empty name would address the whole collection"
    item = f"{collection}/{quote(request.name, safe='')}"
    written = urlencode({"fieldManager": names.FIELD_MANAGER_RUNNER, "fieldValidation": "Strict"})
    match request.operation:
        case "Get" | "List":
            return _Call("GET", item)
        case "Create":
            return _Call("POST", f"{collection}?{written}", _encode(request.body))
        case "Patch":
            return _Call("PATCH", f"{item}?{written}", _encode(request.body), "application/merge-patch+json")
        case "Delete":
            # Said, because the default of Jobs leaves their pods running.
            return _Call("DELETE", f"{item}?propagationPolicy=Background")
        case _:
            assert_never(request.operation)


def _encode(body: Mapping[str, Any] | None) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


# ---------------------------------------------------------------- the answer


async def _read_answer(reply: Reply, max_bytes: int) -> _Answer:
    """Return an answer; a refusal's body may be anything. Raises AnswerTooLarge and JsonError."""
    data = await read_body(reply, max_bytes)
    asked = retry_after(reply)
    try:
        body = parse_json(data.decode("utf-8", "replace"))
        if not isinstance(body, dict):
            raise JsonError("it is no object")
    except JsonError:
        if reply.status < 300:
            raise
        body = {}
    return _Answer(reply.status, body, len(data), asked)


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list: extension servers are others' programs, and may answer anything."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _is_worth_repeating(got: _Answer | ResourceFailure, call: _Call) -> bool:
    """Tell whether another try may change an answer, and whether the first certainly changed nothing."""
    if isinstance(got, ResourceFailure):
        return got.kind == "Connection" and not got.sent
    return got.status == 429 or (call.is_read and got.status >= 500)


def _names_what_is_missing(body: Mapping[str, Any]) -> bool:
    details = body.get("details")
    return isinstance(details, dict) and bool(details.get("name"))


def _refusal(got: _Answer, may_not: str, *, is_secret: bool, is_read: bool) -> ResourceFailure:
    """Return what a status means."""
    detail = _detail(got.body, is_secret)
    match got.status:
        case 401:
            return ResourceFailure("Unauthorized", "the API server does not know the token", detail=detail)
        case 403:
            what = f"it is forbidden; by RBAC, unless a Role allows {may_not}, or by an admission policy or a quota"
            return ResourceFailure("Forbidden", what, detail=detail)
        case 404:
            return ResourceFailure("NotFound", "there is no such object", detail=detail)
        case 409 if got.body.get("reason") == "AlreadyExists":
            return ResourceFailure("AlreadyExists", "an object of this name exists already", detail=detail)
        case 409 | 410 | 412:
            return ResourceFailure("Conflict", "the object was changed meanwhile: read it again", detail=detail)
        case 429:
            return ResourceFailure("Throttled", "the API server has too much to do", detail=detail)
        case status if status >= 500:
            # Behind such an answer a write may have been done: a time limit of etcd is one of them.
            return ResourceFailure("Unavailable", f"the API server answered {status}", sent=not is_read, detail=detail)
        case status:
            return ResourceFailure("Invalid", f"the API server refused it with {status}", detail=detail)


def _detail(body: Mapping[str, Any], is_secret: bool) -> str:
    """Return the server's own words; of Secrets only which fields it names, since the words could quote their data."""
    if not is_secret:
        return printable(str(body.get("message") or ""), MAX_DETAIL_CHARS)
    details = body.get("details")
    causes = _objects(details.get("causes")) if isinstance(details, dict) else []
    fields = [str(cause.get("field")) for cause in causes]
    return printable(", ".join(dict.fromkeys(fields)), MAX_DETAIL_CHARS)


def _reason(error: Exception) -> str:
    return printable(str(error) or type(error).__name__, 200)
