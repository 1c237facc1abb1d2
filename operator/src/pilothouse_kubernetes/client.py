"""The thin client of the API server: raw dictionaries in and out, one exception a kind of refusal.

Bodies stay plain dictionaries because typed clients refuse legal pods (fields that are newer than the client).
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from pilothouse_api.names import FIELD_MANAGER_OPERATOR, GROUP, VERSION
from pilothouse_kubernetes.connection import Connection

Raw = dict[str, Any]
REQUEST_TIMEOUT_SECONDS = 30.0
PAGE_SIZE = 250
WATCH_SILENCE_SECONDS = 150.0
"""How long a watch may say nothing: the API server sends a bookmark about every minute."""
LONGEST_EVENT_BYTES = 8 * 1024 * 1024
"""Longest line of a watch: objects have 3 MiB at most."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind as the API server serves it; `prefix` is `api/v1` or `apis/<group>/<version>`."""

    prefix: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """The value of `apiVersion`."""
        return self.prefix.split("/", 1)[1]


_OWN = f"apis/{GROUP}/{VERSION}"
AGENTRUNS = Resource(_OWN, "agentruns", "AgentRun")
WORKFLOWS = Resource(_OWN, "workflows", "Workflow")
AGENTS = Resource(_OWN, "agents", "Agent")
SUPERVISORS = Resource(_OWN, "supervisors", "Supervisor")
PODS = Resource("api/v1", "pods", "Pod")
CONFIGMAPS = Resource("api/v1", "configmaps", "ConfigMap")
EVENTS = Resource("api/v1", "events", "Event")
TOKEN_REVIEWS = Resource("apis/authentication.k8s.io/v1", "tokenreviews", "TokenReview")
SUBJECT_ACCESS_REVIEWS = Resource("apis/authorization.k8s.io/v1", "subjectaccessreviews", "SubjectAccessReview")
NAMESPACES = Resource("api/v1", "namespaces", "Namespace")
LEASES = Resource("apis/coordination.k8s.io/v1", "leases", "Lease")


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list; `version` is that of the whole list, from which a watch goes on."""

    items: list[Raw]
    version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """What a watch tells: `type` is ADDED, MODIFIED, DELETED or BOOKMARK (of which only the version counts)."""

    type: str
    raw: Raw


class ApiError(Exception):
    """The API server refused or did not answer; `status` is 0 where nothing came back."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Conflict(ApiError):
    """The object has changed since it was read."""


class AlreadyExists(ApiError):
    """An object of that name exists."""


class NotFound(ApiError):
    """The object (or its kind) does not exist."""


class Gone(ApiError):
    """A list's continue token or a watch's version is too old."""


class Invalid(ApiError):
    """The object was refused: schema, CEL, admission policy, or a failed test of a JSON patch."""


class Forbidden(ApiError):
    """No right to do so, or an admission plug-in (quota, Pod Security) refused."""


class Throttled(ApiError):
    """The API server asks for patience; `retry_after` in seconds where it said how much."""


class Unavailable(ApiError):
    """No answer, or an error of the server's own: the request may or may not have been done."""


def to_error(status: int, body: str, retry_after: str | None = None) -> ApiError:
    """Return the exception of a failed answer. `body` is a Status object where the API server made it."""
    message, reason = _read_status(body)
    wait = float(retry_after) if retry_after and retry_after.isdigit() else None
    if status == 409:
        return (AlreadyExists if reason == "AlreadyExists" else Conflict)(status, message)
    if status == 429:
        return Throttled(status, message, wait)
    kinds: Mapping[int, type[ApiError]] = {400: Invalid, 403: Forbidden, 404: NotFound, 410: Gone, 422: Invalid}
    if status in kinds:
        return kinds[status](status, message)
    return (Unavailable if status >= 500 or status == 401 else ApiError)(status, message, wait)


def _read_status(body: str) -> tuple[str, str]:
    try:
        raw_status = json.loads(body)
        return str(raw_status["message"]), str(raw_status.get("reason", ""))
    except (ValueError, KeyError, TypeError):
        return body[:500], ""


class KubernetesClient:
    """Requests to the API server, each with a deadline."""

    def __init__(
        self,
        connection: Connection,
        timeout: float = REQUEST_TIMEOUT_SECONDS,
        field_manager: str = FIELD_MANAGER_OPERATOR,
    ) -> None:
        self._connection = connection
        self._managed = {"fieldManager": field_manager}
        self._timeout = aiohttp.ClientTimeout(total=timeout)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Raw:
        """Return one object, read now."""
        return await self._request("GET", _path(resource, namespace, name))

    async def list_pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        label_selector: str = "",
        metadata_only: bool = False,
        limit: int = PAGE_SIZE,
        field_selector: str = "",
    ) -> AsyncIterator[list[Raw]]:
        """Yield the objects page by page; raises Gone when the listing took too long for the server's history."""
        async for page in self.pages(resource, namespace, label_selector, metadata_only, limit, field_selector):
            yield page.items

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        label_selector: str = "",
        metadata_only: bool = False,
        limit: int = PAGE_SIZE,
        field_selector: str = "",
    ) -> AsyncIterator[Page]:
        """Yield as `list_pages` does, with the version of the list."""
        accept = "application/json"
        if metadata_only:
            accept = f"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{accept}"
        query = {"limit": str(limit), "labelSelector": label_selector, "fieldSelector": field_selector}
        while True:
            page = await self._request("GET", _path(resource, namespace), query=query, headers={"Accept": accept})
            # Items of a list carry neither kind nor apiVersion; an empty list of metadata is null.
            items = page.get("items") or ()
            named = [{**item, "kind": resource.kind, "apiVersion": resource.api_version} for item in items]
            yield Page(named, page["metadata"].get("resourceVersion", ""))
            token = page["metadata"].get("continue")
            if not token:
                return
            query["continue"] = token

    async def watch(
        self, resource: Resource, namespace: str | None, version: str, seconds: int
    ) -> AsyncIterator[WatchEvent]:
        """Yield what happens after a version, until the server ends the watch, after `seconds` at the latest.

        Raises Gone where the server's history does not reach back so far, and Unavailable for a connection that breaks
        or falls silent.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        url = f"{self._connection.credentials.server}/{_path(resource, namespace)}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=WATCH_SILENCE_SECONDS)
        try:
            async with self._connection.session().get(url, params=query, timeout=timeout) as response:
                if response.status >= 400:
                    raise to_error(response.status, await response.text(), response.headers.get("Retry-After"))
                async for line in _lines(response.content):
                    yield _read_event(line)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unavailable(0, f"watch {resource.plural}: {type(error).__name__}: {error}") from error

    async def create(self, resource: Resource, namespace: str | None, body: Mapping[str, Any]) -> Raw:
        """Create an object (without a namespace: a cluster-wide one); raises AlreadyExists."""
        return await self._request("POST", _path(resource, namespace), body=body, query=self._managed)

    async def replace(self, resource: Resource, namespace: str | None, name: str, body: Mapping[str, Any]) -> Raw:
        """Replace an object whole; raises Conflict when it carries an old resourceVersion."""
        return await self._request("PUT", _path(resource, namespace, name), body=body, query=self._managed)

    async def json_patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        operations: Sequence[Mapping[str, Any]],
        subresource: str = "",
    ) -> Raw:
        """Apply a JSON patch (RFC 6902), to the status where `subresource` says so."""
        headers = {"Content-Type": "application/json-patch+json"}
        path = _path(resource, namespace, name, subresource)
        return await self._request("PATCH", path, body=operations, query=self._managed, headers=headers)

    async def merge_patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        subresource: str = "",
        field_manager: str = "",
    ) -> Raw:
        """Apply a JSON merge-patch (RFC 7386), in the name of another field manager where one is given."""
        headers = {"Content-Type": "application/merge-patch+json"}
        path = _path(resource, namespace, name, subresource)
        managed = {"fieldManager": field_manager} if field_manager else self._managed
        return await self._request("PATCH", path, body=patch, query=managed, headers=headers)

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, uid: str = "", propagation: str = "Background"
    ) -> None:
        """Delete an object, of that uid only where one is given; an object that is gone is what was wanted."""
        body: Raw = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self._request("DELETE", _path(resource, namespace, name), body=body)
        except NotFound:
            return
        except Conflict:
            if not uid:
                raise
            # Another object has the name by now: the one that was meant is gone.

    async def get_path(self, path: str) -> Raw:
        """Return what is served at a path, for discovery documents."""
        return await self._request("GET", path)

    async def _request(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Raw:
        url = f"{self._connection.credentials.server}/{path}"
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        sent = {"Accept": "application/json", "Content-Type": "application/json", **(headers or {})}
        try:
            async with self._connection.session().request(
                method, url, params=query, data=data, headers=sent, timeout=self._timeout
            ) as response:
                text = await response.text()
                if response.status >= 400:
                    raise to_error(response.status, text, response.headers.get("Retry-After"))
                answer: Raw = json.loads(text)
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(0, f"{method} {path}: {type(error).__name__}: {error}") from error


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines of any length up to the bound; aiohttp's own reader knows a much lower one."""
    pieces: list[bytes] = []
    size = 0
    async for chunk in content.iter_any():
        first, *rest = chunk.split(b"\n")
        pieces.append(first)
        size += len(first)
        for piece in rest:
            yield b"".join(pieces)
            pieces, size = [piece], len(piece)
        if size > LONGEST_EVENT_BYTES:
            raise ValueError(f"a line of more than {LONGEST_EVENT_BYTES} bytes")


def _read_event(line: bytes) -> WatchEvent:
    event = json.loads(line)
    raw: Raw = event["object"]
    if event["type"] == "ERROR":
        raise to_error(int(raw.get("code", 500)), json.dumps(raw))
    return WatchEvent(event["type"], raw)


def _path(resource: Resource, namespace: str | None, name: str = "", subresource: str = "") -> str:
    parts = [resource.prefix]
    if namespace is not None:
        parts += ["namespaces", namespace]
    parts += [resource.plural, name, subresource]
    return "/".join(part for part in parts if part)
