"""The run's object on a Kubernetes API server: directives in, fenced snapshots out.

It knows one object and three requests: get it, patch its status, watch it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlencode

import httpcore

from pilothouse_api import names
from pilothouse_api.structs import ChildReport, Control, RunLimits, Snapshot
from pilothouse_engine.ports import Directives, StoreFailure, read_supervision, supervision_key
from pilothouse_engine.values import Value
from pilothouse_runner.adapters.api_server import ApiConnection, ApiServer, read_body, retry_after
from pilothouse_runner.adapters.connections import HTTP_ERRORS, Reply

MAX_RESPONSE_BYTES = 8 * 1024 * 1024
"""Most that is read of one answer or one watch event; etcd keeps no object over 1.5 MiB."""

READ_DEADLINE_SECONDS = 5.0
PUBLISH_DEADLINE_SECONDS = 10.0
REQUEST_TIMEOUT_SECONDS = 4.0
WATCH_SECONDS = 30
"""A watch is renewed so often: one that a broken network keeps silent is found out after this time."""

FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 2.0

UNKNOWN_LENGTH = -1
"""Of the journal, by the stored snapshot, before an attempt has looked; None where there is no snapshot."""

_JSON_PATCH = "application/json-patch+json"


class _Answer(Value):
    status: int
    body: Mapping[str, Any]
    retry_after: float | None = None

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))[:500] or f"status {self.status}"

    @property
    def is_transient(self) -> bool:
        return self.status == 429 or self.status >= 500


class KubernetesRunStore:
    """One attempt's view of its AgentRun; a `RunStore`.

    Every write is fenced by the API server itself: the patch tests the object's uid, `status.attempt`, that the run is
    not reported as ended, and which snapshot it replaces.
    """

    def __init__(self, server: ApiServer, namespace: str, name: str, uid: str, attempt: int) -> None:
        self._api = ApiConnection(server)
        self._uid = uid
        self._attempt = attempt
        self._name = name
        self._collection = f"/apis/{names.API_VERSION}/namespaces/{namespace}/agentruns"
        self._publishing = asyncio.Lock()
        self._waiting: Snapshot | None = None
        self._published: StoreFailure | None = None
        self._seen: tuple[Any, ...] | None = None
        self._version: str | None = None
        self._length: int | None = UNKNOWN_LENGTH
        self._broken_watches = 0

    async def aclose(self) -> None:
        """Close the connections."""
        await self._api.aclose()

    async def read(self) -> Directives | StoreFailure:
        """Return the newest directives, read now; retried for a few seconds."""
        answer = await self._request("GET", f"{self._collection}/{self._name}", READ_DEADLINE_SECONDS)
        if isinstance(answer, StoreFailure):
            return answer
        failure = self._check(answer)
        if failure is not None:
            return failure
        self._seen, self._version = _fingerprint(answer.body), _metadata(answer.body).get("resourceVersion")
        self._length = _journal_length(answer.body)
        return _directives(answer.body)

    async def publish(self, snapshot: Snapshot) -> StoreFailure | None:
        """Replace the snapshot; None when it, or a newer one, is stored. An older one never follows a newer one."""
        self._waiting = snapshot
        async with self._publishing:
            if self._waiting is not None:
                newest, self._waiting = self._waiting, None
                self._published = await self._publish(newest)
            return self._published

    async def wait(self, timeout: float) -> None:
        """Return when spec, attempt or supervision may have changed since the last read, or after `timeout` seconds.

        A watch that breaks returns early too, after a growing pause: whoever waits reads and finds out.
        """
        try:
            async with asyncio.timeout(timeout):
                while self._version is not None:
                    began = asyncio.get_running_loop().time()
                    if await self._watch(timeout):
                        return
                    if asyncio.get_running_loop().time() - began < 1:
                        await asyncio.sleep(self._pause_after_broken_watch())
                await asyncio.sleep(self._pause_after_broken_watch())
        except TimeoutError:
            return

    async def _publish(self, snapshot: Snapshot) -> StoreFailure | None:
        path = f"{self._collection}/{self._name}/status?fieldManager={names.FIELD_MANAGER_RUNNER}"
        while True:
            answer = await self._request("PATCH", path, PUBLISH_DEADLINE_SECONDS, self._build_patch(snapshot))
            if isinstance(answer, StoreFailure):
                return answer
            if answer.status != 422:
                failure = self._check(answer)
                if failure is None:
                    self._length = snapshot.journal_length
                return failure
            # A lost fence is told from an object that the server does not take by looking, never by the words.
            stored = await self._request("GET", f"{self._collection}/{self._name}", READ_DEADLINE_SECONDS)
            failure = stored if isinstance(stored, StoreFailure) else self._check(stored)
            if isinstance(stored, StoreFailure) or failure is not None:
                return failure
            before, self._length = self._length, _journal_length(stored.body)
            if self._length == before:
                return StoreFailure("Refused", f"the snapshot was refused: {answer.message}")
            if self._length is not None and self._length > snapshot.journal_length:
                return None

    def _build_patch(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        """Return the write, with what must be so that it is made at all.

        The snapshot that it replaces is the one that this attempt knows: a write that hung on its way and was given up
        must not replace a newer one, by this attempt or by another pod that had its number. Nothing is written to a run
        that the operator has reported as ended.
        """
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": self._uid},
            {"op": "test", "path": "/status/attempt", "value": self._attempt},
            {"op": "test", "path": "/status/exit", "value": None},
        ]
        if self._length is None:
            patch.append({"op": "test", "path": "/status/run", "value": None})
        elif self._length > 0:
            patch.append({"op": "test", "path": "/status/run/journalLength", "value": self._length})
        return [*patch, {"op": "add", "path": "/status/run", "value": snapshot.to_raw()}]

    def _check(self, answer: _Answer) -> StoreFailure | None:
        """Return what an answer means for this attempt, or None when the object is there and is this attempt's."""
        if answer.status == 404:
            return StoreFailure("Gone", f"the AgentRun {self._name} does not exist")
        if answer.status in (401, 403):
            return StoreFailure("Forbidden", answer.message)
        if answer.is_transient or answer.status == 409:
            return StoreFailure("Unavailable", answer.message)
        if answer.status >= 300:
            return StoreFailure("Refused", answer.message)
        uid = _metadata(answer.body).get("uid")
        if uid != self._uid:
            return StoreFailure("Gone", f"the AgentRun {self._name} is another one now, with the uid {uid}")
        attempt = (answer.body.get("status") or {}).get("attempt")
        if attempt != self._attempt:
            return StoreFailure("Fenced", f"the run is at attempt {attempt}, this is attempt {self._attempt}")
        if (answer.body.get("status") or {}).get("exit") is not None:
            return StoreFailure("Fenced", "the run was reported as ended while this attempt went on")
        return None

    async def _request(self, method: str, path: str, deadline: float, patch: object = None) -> _Answer | StoreFailure:
        """Send until there is an answer that another try would not change, or the deadline has passed."""
        ends = asyncio.get_running_loop().time() + deadline
        pause = FIRST_RETRY_SECONDS
        while True:
            answer = await self._send(method, path, patch)
            if isinstance(answer, _Answer) and not answer.is_transient and answer.status not in (401, 409):
                return answer
            wait = pause if isinstance(answer, StoreFailure) else max(pause, answer.retry_after or 0.0)
            if asyncio.get_running_loop().time() + wait >= ends:
                return answer
            await asyncio.sleep(wait)
            pause = min(pause * 2, LONGEST_RETRY_SECONDS)

    async def _send(self, method: str, path: str, patch: object) -> _Answer | StoreFailure:
        content = None if patch is None else json.dumps(patch).encode()
        headers = {"Content-Type": _JSON_PATCH} if patch is not None else {}
        try:
            async with (
                asyncio.timeout(REQUEST_TIMEOUT_SECONDS),
                self._api.stream(method, path, headers, content) as reply,
            ):
                return await _read_answer(reply)
        except TimeoutError:
            return self._unavailable(f"no answer within {REQUEST_TIMEOUT_SECONDS:g} s")
        except (*HTTP_ERRORS, OSError, ValueError) as error:
            if isinstance(error, httpcore.ConnectError):
                # A new client reads the CA anew, in case it was renewed.
                await self.aclose()
            return self._unavailable(f"{type(error).__name__}: {error}"[:300])

    async def _watch(self, timeout: float) -> bool:
        """Watch once; return whether the object may have changed. Forgets the version where the watch broke."""
        seconds = max(1, min(WATCH_SECONDS, int(timeout) + 1))
        query = urlencode(
            {
                "watch": "true",
                "fieldSelector": f"metadata.name={self._name}",
                "resourceVersion": self._version or "",
                "timeoutSeconds": seconds,
            }
        )
        try:
            async with (
                asyncio.timeout(seconds + REQUEST_TIMEOUT_SECONDS),
                self._api.stream("GET", f"{self._collection}?{query}", {}, None) as reply,
            ):
                if reply.status != 200:
                    self._version = None
                    return False
                async for line in _bounded_lines(reply):
                    if self._is_change(json.loads(line)):
                        return True
                    self._broken_watches = 0
        except (*HTTP_ERRORS, OSError, ValueError):
            self._version = None
        return False

    def _is_change(self, event: Mapping[str, Any]) -> bool:
        body = event.get("object") or {}
        if event.get("type") == "ERROR":
            self._version = None
            return True
        if event.get("type") == "DELETED" or _fingerprint(body) != self._seen:
            return True
        self._version = _metadata(body).get("resourceVersion", self._version)
        return False

    def _pause_after_broken_watch(self) -> float:
        self._broken_watches += 1
        return float(min(0.1 * 2**self._broken_watches, LONGEST_RETRY_SECONDS))

    def _unavailable(self, why: str) -> StoreFailure:
        return StoreFailure("Unavailable", f"the API server at {self._api.url} does not answer: {why}")


async def _read_answer(reply: Reply) -> _Answer:
    data = await read_body(reply, MAX_RESPONSE_BYTES)
    body = _json_object(data) if reply.status < 300 else _error_body(data)
    return _Answer(reply.status, body, retry_after(reply))


def _json_object(data: bytes) -> Mapping[str, Any]:
    body = json.loads(data)
    if not isinstance(body, dict):
        raise ValueError("the answer is not a JSON object")
    return body


def _error_body(data: bytes) -> Mapping[str, Any]:
    try:
        return _json_object(data)
    except ValueError:
        return {"message": data[:200].decode(errors="replace")}


async def _bounded_lines(reply: Reply) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in reply.pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > MAX_RESPONSE_BYTES:
            raise ValueError(f"a watch event of more than {MAX_RESPONSE_BYTES} bytes")


def _metadata(body: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = body.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _fingerprint(body: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what wakes a waiting run: not its own snapshots, and not the operator's conditions and tallies."""
    metadata, status = _metadata(body), body.get("status") or {}
    return (
        metadata.get("uid"),
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        status.get("attempt"),
        supervision_key(status.get("supervision")),
        json.dumps(status.get("children"), sort_keys=True),
    )


def _journal_length(body: Mapping[str, Any]) -> int | None:
    """Return the length of the journal by the stored snapshot, 0 where that says none; None without a snapshot."""
    stored = (body.get("status") or {}).get("run")
    if stored is None:
        return None
    length = stored.get("journalLength")
    return length if isinstance(length, int) else 0


def _directives(body: Mapping[str, Any]) -> Directives | StoreFailure:
    metadata, spec, status = _metadata(body), body.get("spec") or {}, body.get("status") or {}
    try:
        return Directives(
            uid=str(metadata["uid"]),
            generation=int(metadata["generation"]),
            control=Control.read(spec["control"]) if spec.get("control") is not None else None,
            limits=RunLimits.read(spec["limits"]) if spec.get("limits") is not None else None,
            deleting=metadata.get("deletionTimestamp") is not None,
            snapshot=status.get("run"),
            children={raw["callId"]: ChildReport.read(raw) for raw in status.get("children") or ()},
            **read_supervision(status.get("supervision")),
        )
    except (KeyError, ValueError) as error:
        what = f"spec.control, spec.limits, status.children or status.supervision cannot be understood: {error}"
        return StoreFailure("Refused", what[:500])
