"""The Resources port: the fake by the contract, the client by an API server that answers whatever a test wants.

The same contract is held against a real API server in `tests/integration/runner/test_kubernetes_resources.py`.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pilothouse_engine.ports import Resources
from pilothouse_engine.testing.resources import MemoryResources
from pilothouse_runner.adapters import kubernetes_resources
from pilothouse_runner.adapters.api_server import ApiServer
from pilothouse_runner.adapters.kubernetes_resources import KubernetesResources
from support.resource_contract import ResourceContract, an_object, ask, failure_of, value_of


class TestMemoryResources(ResourceContract):
    @pytest.fixture
    def resources(self) -> Resources:
        return MemoryResources()


DISCOVERY = {
    "kind": "APIResourceList",
    "resources": [
        {"name": "configmaps", "kind": "ConfigMap", "namespaced": True, "verbs": [*"x", "get", "list", "create"]},
        {"name": "secrets", "kind": "Secret", "namespaced": True, "verbs": ["create", "patch", "delete", "get"]},
        {"name": "secrets/status", "kind": "Node", "namespaced": True, "verbs": ["get"]},
        {"name": "nodes", "kind": "Node", "namespaced": False, "verbs": ["get", "delete"]},
    ],
}


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


Reply = bytes | None
"""Bytes to send; None closes the connection without a word."""


def status(code: int, reason: str = "", message: str = "", headers: str = "", **details: Any) -> bytes:
    body = {"kind": "Status", "reason": reason, "message": message, "details": {"name": "a", **details}}
    return with_body(json.dumps(body).encode(), f"{code} X", headers)


def gives(value: Any) -> bytes:
    return with_body(json.dumps(value).encode())


def with_body(body: bytes, line: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {line}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


@dataclass
class StubServer:
    """Plays its answers in order, the last one again; discovery is answered by itself."""

    answers: list[Reply | float] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    discoveries: int = 0
    discovery: bytes = gives(DISCOVERY)
    port: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                reply = await self._reply(reader)
                if isinstance(reply, float):
                    await asyncio.sleep(reply)
                if not isinstance(reply, bytes):
                    return
                writer.write(reply)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _reply(self, reader: asyncio.StreamReader) -> Reply | float:
        head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines if line)
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        method, target, _ = head.split(" ")
        parts = urlsplit(target)
        if parts.path.count("/") <= 3 and "namespaces" not in target and not parts.path.startswith("/api/v1/n"):
            self.discoveries += 1
            return self.discovery
        self.asked.append(Asked(method, parts.path, parse_qs(parts.query), headers, body))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


Serve = Callable[..., Any]


@asynccontextmanager
async def api(token: Path, *answers: Reply | float) -> AsyncIterator[tuple[StubServer, KubernetesResources]]:
    stub = StubServer(list(answers))
    listener = await asyncio.start_server(stub.handle, "127.0.0.1", 0)
    stub.port = listener.sockets[0].getsockname()[1]
    resources = KubernetesResources(ApiServer(f"http://127.0.0.1:{stub.port}", token), "own")
    async with listener:
        try:
            yield stub, resources
        finally:
            await resources.aclose()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("t-1\n")
    return path


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_resources, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(kubernetes_resources, "LONGEST_RETRY_SECONDS", 0.02)


pytestmark = pytest.mark.anyio
BODY = an_object("ConfigMap", "a")


async def test_requests_are_what_the_api_server_expects(token: Path) -> None:
    async with api(token, gives(BODY)) as (stub, resources):
        await value_of(resources, ask("Create", "a", body=BODY))
        token.write_text("t-2")
        await value_of(resources, ask("Patch", "a:b", kind="Secret", namespace="other", body={"data": None}))
        await value_of(resources, ask("Delete", "n", kind="Node"))
        await value_of(resources, ask("Get", "a"))
    create, patch, delete, _ = stub.asked
    want_query = {"fieldManager": ["pilothouse-runner"], "fieldValidation": ["Strict"]}
    assert (create.method, create.path, create.query) == ("POST", "/api/v1/namespaces/own/configmaps", want_query)
    assert json.loads(create.body) == BODY
    assert (patch.method, patch.path) == ("PATCH", "/api/v1/namespaces/other/secrets/a%3Ab")
    assert (patch.headers["content-type"], patch.body) == ("application/merge-patch+json", b'{"data":null}')
    assert (delete.method, delete.path) == ("DELETE", "/api/v1/nodes/n")
    assert delete.query == {"propagationPolicy": ["Background"]}
    assert [asked.headers["authorization"] for asked in stub.asked] == ["Bearer t-1", *["Bearer t-2"] * 3]
    assert stub.discoveries == 3  # one for each kind, however often it is asked


async def test_a_kind_that_comes_later_is_found(token: Path) -> None:
    async with api(token, gives(BODY)) as (stub, resources):
        stub.discovery = gives({"resources": []})
        assert (await failure_of(resources, ask("Get", "a"))).kind == "UnknownKind"
        stub.discovery = gives(DISCOVERY)
        assert await value_of(resources, ask("Get", "a")) == BODY


async def test_a_kind_that_is_gone_is_said_and_looked_for_again(token: Path) -> None:
    gone = with_body(b'{"kind": "Status", "reason": "NotFound", "details": {}}', "404 Not Found")
    async with api(token, gives(BODY), gone, gives(BODY)) as (stub, resources):
        await value_of(resources, ask("Get", "a"))
        assert (await failure_of(resources, ask("Get", "a"))).kind == "UnknownKind"
        await value_of(resources, ask("Get", "a"))
    assert stub.discoveries == 2


@pytest.mark.parametrize(
    ("request_of", "says"),
    [
        ({"kind": "Node", "namespace": "other"}, "Node has no namespaces"),
        ({"kind": "ConfigMap", "operation": "Delete"}, "ConfigMap does not know delete; it knows x, get, list, create"),
    ],
)
async def test_what_a_kind_cannot_do_is_not_asked(request_of: dict[str, Any], says: str, token: Path) -> None:
    async with api(token, gives(BODY)) as (stub, resources):
        failure = await failure_of(resources, ask(**{"operation": "Get", "name": "a", **request_of}))
    assert (failure.kind, failure.message[: len(says)], stub.asked) == ("Invalid", says, [])


@pytest.mark.parametrize(
    ("answer", "kind", "is_sent"),
    [
        (status(401, "Unauthorized"), "Unauthorized", False),
        (status(403, "Forbidden"), "Forbidden", False),
        (status(404, "NotFound"), "NotFound", False),
        (status(409, "AlreadyExists"), "AlreadyExists", False),
        (status(409, "Conflict"), "Conflict", False),
        (status(400, "BadRequest"), "Invalid", False),
        (status(422, "Invalid"), "Invalid", False),
        (status(302, "Found"), "Invalid", False),
        (status(500, "InternalError"), "Unavailable", True),
        (status(504, "Timeout"), "Unavailable", True),
        (with_body(b"<html>", "502 Bad Gateway"), "Unavailable", True),
        (with_body(b"<html>"), "Unavailable", True),
        (with_body(b"[1]"), "Unavailable", True),
        (with_body(b"[" * 400 + b"]" * 400), "Unavailable", True),
        (with_body(b'"' + b"x" * 5000 + b'"'), "TooLarge", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "Timeout", True),
        (b"not HTTP at all\r\n\r\n", "Connection", True),
        (None, "Connection", True),
        (90.0, "Timeout", True),
    ],
)
async def test_a_write_that_may_have_been_done_says_so(
    answer: Reply | float, kind: str, is_sent: bool, token: Path
) -> None:
    async with api(token, answer) as (stub, resources):
        request = ask("Create", "a", body=BODY, timeout=1.5 if kind == "Timeout" else 30.0, max_bytes=1000)
        failure = await failure_of(resources, request)
    assert (failure.kind, failure.sent, len(stub.asked)) == (kind, is_sent, 1)


@pytest.mark.parametrize("answer", [status(429, "TooManyRequests", headers="Retry-After: 0\r\n"), status(503), None])
async def test_a_read_is_tried_until_it_succeeds(answer: Reply, token: Path) -> None:
    async with api(token, answer, answer, gives(BODY)) as (stub, resources):
        assert await value_of(resources, ask("Get", "a")) == BODY
    assert len(stub.asked) == 3


async def test_a_write_that_was_put_off_is_sent_again(token: Path) -> None:
    async with api(token, status(429), gives(BODY)) as (stub, resources):
        assert await value_of(resources, ask("Create", "a", body=BODY)) == BODY
    assert len(stub.asked) == 2


async def test_a_wait_that_is_longer_than_there_is_time_is_not_begun(token: Path) -> None:
    async with api(token, status(429, headers="Retry-After: 100\r\n")) as (stub, resources):
        began = time.monotonic()
        assert (await failure_of(resources, ask("Get", "a", timeout=60))).kind == "Throttled"
    assert time.monotonic() - began < 40
    assert len(stub.asked) == 1


async def test_where_nobody_listens_nothing_was_sent(token: Path) -> None:
    async with api(token, gives(BODY)) as (stub, _):
        pass
    lonely = KubernetesResources(ApiServer(f"http://127.0.0.1:{stub.port}", token), "own")
    failure = await failure_of(lonely, ask("Create", "a", body=BODY, timeout=1.5))
    assert (failure.kind, failure.sent) == ("Connection", False)


async def test_a_token_that_cannot_be_read_sends_nothing(token: Path) -> None:
    async with api(token, gives(BODY)) as (stub, resources):
        token.unlink()
        failure = await failure_of(resources, ask("Create", "a", body=BODY, timeout=1.5))
    assert (failure.kind, failure.sent, stub.asked, stub.discoveries) == ("Connection", False, [], 0)


async def test_a_list_is_read_page_by_page(token: Path) -> None:
    first = {"kind": "ConfigMapList", "metadata": {"continue": "c1 &"}, "items": [{"n": 1}]}
    last = {"kind": "ConfigMapList", "metadata": {"resourceVersion": "7"}, "items": [{"n": 2}]}
    async with api(token, gives(first), gives(last)) as (stub, resources):
        listed = await value_of(resources, ask("List", label_selector="a=b,c"))
    assert listed == {"kind": "ConfigMapList", "metadata": {"resourceVersion": "7"}, "items": [{"n": 1}, {"n": 2}]}
    assert stub.asked[0].query == {"limit": ["200"], "labelSelector": ["a=b,c"]}
    assert stub.asked[1].query == {"limit": ["200"], "labelSelector": ["a=b,c"], "continue": ["c1 &"]}


async def test_pages_are_no_larger_together_than_one_answer_may_be(token: Path) -> None:
    page = {"kind": "ConfigMapList", "metadata": {"continue": "again"}, "items": ["x" * 300]}
    async with api(token, gives(page)) as (stub, resources):
        failure = await failure_of(resources, ask("List", max_bytes=1000))
    assert (failure.kind, failure.sent) == ("TooLarge", False)
    assert failure.message == "the list is larger than 1,000 bytes: narrow it with labelSelector"
    assert len(stub.asked) == 3


@pytest.mark.parametrize("odd", [{"items": 7}, {"items": [1, None]}, {"items": [], "metadata": "x"}])
async def test_an_odd_list_is_a_list_of_its_objects(odd: dict[str, Any], token: Path) -> None:
    async with api(token, gives(odd)) as (stub, resources):
        listed = await value_of(resources, ask("List"))
        assert listed["items"] == []
        stub.discovery = gives({"resources": [1, {"name": 2}, {"kind": "ConfigMap"}]})
        assert (await failure_of(resources, ask("Get", "a", kind="Pod"))).kind == "UnknownKind"


async def test_forbidden_says_what_a_role_must_allow(token: Path) -> None:
    async with api(token, status(403, "Forbidden", "User cannot get")) as (_, resources):
        failure = await failure_of(resources, ask("Get", "a"))
        elsewhere = await failure_of(resources, ask("Get", "a", namespace="from-the-context"))
    assert "unless a Role allows get configmaps of apiGroup '' in namespace own" in failure.message
    assert failure.detail == "User cannot get"
    assert "from-the-context" not in elsewhere.message


async def test_what_is_said_of_a_secret_names_fields_and_quotes_nothing(token: Path) -> None:
    refusal = status(
        422, "Invalid", "data[p]: Invalid value: hidden", causes=[{"field": "data[p]", "message": "hidden"}]
    )
    async with api(token, refusal) as (_, resources):
        failure = await failure_of(resources, ask("Create", "a", kind="Secret", body=BODY))
    assert failure.detail == "data[p]"
    assert "hidden" not in failure.message
