"""What the adapter over httpcore promises beyond the contract that all models share."""

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

from contract.models.conftest import KEY, MESSAGES, OneSecret, check_shows_nothing
from pilothouse_api.structs import ModelEndpoint
from pilothouse_engine.ports import ModelFailure, ModelReply, ModelRequest, SecretUnavailable
from pilothouse_engine.script import Entry, Raw, Script
from pilothouse_runner.adapters.models.openai import MAX_REPLY_BYTES, OpenAIModel, chat_url, encode_body
from pilothouse_runner.telemetry import TRACEPARENT
from support.stub_models import stub_server

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@contextmanager
def socket_server(*pieces: bytes, gap: float = 0.0) -> Iterator[str]:
    """Answer every connection with raw bytes, piece by piece, whatever HTTP thinks of them."""

    def answer(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                try:
                    for piece in pieces:
                        connection.sendall(piece)
                        time.sleep(gap)  # in the server's thread: this is the fault under test
                except OSError:
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=answer, args=(listener,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(timeout=30)
    assert not thread.is_alive()


async def call(base: str, **changes: Any) -> ModelReply | ModelFailure:
    endpoint = ModelEndpoint.read({"name": "openai/m", "apiBase": base, "timeoutSeconds": 10} | changes)
    model = OpenAIModel(OneSecret(), environ={})
    try:
        result = await model.call(ModelRequest(endpoint, MESSAGES, turn=1))
    finally:
        await model.aclose()
    if isinstance(result, ModelFailure):
        check_shows_nothing(result.message)
    return result


async def failure(base: str, **changes: Any) -> ModelFailure:
    result = await call(base, **changes)
    assert isinstance(result, ModelFailure), result
    return result


async def test_a_reply_that_drips_ends_at_the_deadline() -> None:
    drips = [HEAD + b"content-length: 100000\r\n\r\n", *[b" "] * 2000]
    with socket_server(*drips, gap=0.05) as base:
        begin = time.monotonic()
        late = await failure(base, timeoutSeconds=1)
    assert late.kind == "Timeout"
    assert late.message.endswith("sent no whole reply within 1 s (model.timeoutSeconds)")
    assert time.monotonic() - begin < 50


@pytest.mark.parametrize(
    ("pieces", "want"),
    [
        ([b"nonsense\r\n\r\n"], "Connection"),
        ([b""], "Connection"),
        ([HEAD + b"transfer-encoding: chunked\r\n\r\nZZ\r\n"], "Connection"),
        ([HEAD + b"content-encoding: gzip\r\ncontent-length: 4\r\n\r\nabcd"], "Garbage"),
        ([HEAD + b"x: " + b"a" * 200_000 + b"\r\n\r\n"], "Connection"),
        ([HEAD + b'content-length: 20\r\n\r\ndata: {"choices": [] '], "Garbage"),
        ([HEAD + b"content-length: 4\r\n\r\n[[[["], "Garbage"),
    ],
)
async def test_broken_http_is_a_failure_with_a_kind(pieces: list[bytes], want: str) -> None:
    with socket_server(*pieces) as base:
        assert (await failure(base)).kind == want


@pytest.mark.parametrize(
    "body",
    ["[" * 100_000, '{"choices": ' + "9" * 5000 + "}", '{"usage": NaN, "choices": [{"message": 1}]}', "\ufeffnull"],
)
async def test_hostile_json_is_garbage(body: str) -> None:
    script = Script(turns=[Entry(raw=Raw(headers={"content-type": "application/json"}, body=body))])
    with stub_server(script) as server:
        assert (await failure(server.url)).kind == "Garbage"


async def test_a_body_without_end_is_cut_off_and_garbage() -> None:
    script = Script(turns=[Entry(raw=Raw(body=b" " * (MAX_REPLY_BYTES + 1)))])
    with stub_server(script) as server:
        huge = await failure(server.url)
    assert (huge.kind, huge.message.partition(" ")[2]) == ("Garbage", f"sent more than {MAX_REPLY_BYTES} bytes")


async def test_redirects_are_not_followed() -> None:
    script = Script(turns=[Entry(raw=Raw(status=307, headers={"location": "http://127.0.0.1:1/"}))], repeat="Last")
    with stub_server(script) as server:
        moved = await failure(server.url, apiKeySecretRef={"name": "model", "key": "token"})
        assert len(server.requests) == 1
    assert (moved.kind, moved.status) == ("InvalidRequest", 307)
    assert "redirects are not followed; see model.apiBase" in moved.message


async def test_nan_in_a_reply_is_unknown() -> None:
    body = '{"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": NaN, "completion_tokens": 3}}'
    with stub_server(Script(turns=[Entry(raw=Raw(body=body))])) as server:
        reply = await call(server.url)
    assert isinstance(reply, ModelReply)
    assert (reply.text, reply.usage.input, reply.usage.output) == ("a", None, 3)


async def test_connections_are_kept_and_a_proxy_is_not_asked_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    model = OpenAIModel(OneSecret(), environ={})
    with stub_server(Script(turns=[Entry(text="a")], repeat="Last")) as server:
        endpoint = ModelEndpoint.read({"name": "openai/m", "apiBase": server.url})
        for _ in range(3):
            assert isinstance(await model.call(ModelRequest(endpoint, MESSAGES)), ModelReply)
        assert len(set(server.clients)) == 1
        await model.aclose()


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "nonsense://x", "http://127.0.0.1:1"])
async def test_a_proxy_that_cannot_be_used_is_a_failure(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    monkeypatch.setenv("NO_PROXY", "")
    refused = await failure("http://model.invalid/v1")
    assert refused.kind == ("Connection" if proxy.startswith("http:") else "InvalidRequest")


def test_one_adapter_serves_loops_one_after_another() -> None:
    model = OpenAIModel(OneSecret(), environ={})
    with stub_server(Script(turns=[Entry(text="a")], repeat="Last")) as server:
        endpoint = ModelEndpoint.read({"name": "openai/m", "apiBase": server.url})
        for _ in range(2):
            assert isinstance(asyncio.run(model.call(ModelRequest(endpoint, MESSAGES))), ModelReply)


async def test_plain_http_never_pays_for_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> ssl.SSLContext:
        raise AssertionError("certificate authorities were read")

    monkeypatch.setattr("ssl.create_default_context", refuse)
    with stub_server(Script(turns=[Entry(text="a")])) as server:
        assert isinstance(await call(server.url), ModelReply)


# ---------------------------------------------------------------- keys


class Unreadable:
    def read(self, name: str, key: str) -> str:
        raise SecretUnavailable(f"Secret {name} has no key {key}")


class Holding:
    def __init__(self, value: str) -> None:
        self._value = value

    def read(self, name: str, key: str) -> str:
        return self._value


@pytest.mark.parametrize(
    ("secrets", "want"),
    [
        (Unreadable(), "Secret model has no key token; see model.apiKeySecretRef"),
        (Holding(" \n"), "key token of Secret model is empty; see model.apiKeySecretRef"),
        (
            Holding("one\ntwo"),
            "key token of Secret model holds white space or characters that no HTTP header can carry; "
            "see model.apiKeySecretRef",
        ),
        (
            Holding("schlüssel"),
            "key token of Secret model holds white space or characters that no HTTP header can carry; "
            "see model.apiKeySecretRef",
        ),
    ],
)
async def test_a_key_that_cannot_be_used_is_named_and_nothing_is_sent(secrets: Any, want: str) -> None:
    endpoint = ModelEndpoint.read(
        {"name": "openai/m", "apiBase": "http://127.0.0.1:1", "apiKeySecretRef": {"name": "model", "key": "token"}}
    )
    result = await OpenAIModel(secrets).call(ModelRequest(endpoint, MESSAGES))
    assert result == ModelFailure("Authentication", want)


async def test_a_request_says_which_span_it_belongs_to_where_there_is_one() -> None:
    script = Script(turns=[Entry(text="a")], repeat="Last")
    with stub_server(script) as server:
        endpoint = ModelEndpoint.read({"name": "openai/m", "apiBase": server.url})
        await OpenAIModel(OneSecret(), {}).call(ModelRequest(endpoint, MESSAGES))
        token = TRACEPARENT.set("00-abc-def-01")
        await OpenAIModel(OneSecret(), {}).call(ModelRequest(endpoint, MESSAGES))
        TRACEPARENT.reset(token)
        assert [headers.get("traceparent") for headers in server.headers] == [None, "00-abc-def-01"]


async def test_without_a_reference_the_environments_key_is_for_openai_alone() -> None:
    environ = {"OPENAI_API_KEY": KEY}
    with stub_server(Script(turns=[Entry(text="a")])) as server:
        endpoint = ModelEndpoint.read({"name": "openai/m", "apiBase": server.url})
        await OpenAIModel(OneSecret(), environ).call(ModelRequest(endpoint, MESSAGES))
        assert "authorization" not in server.headers[0]
    missing = await OpenAIModel(OneSecret(), {}).call(ModelRequest(ModelEndpoint.read({"name": "openai/m"}), MESSAGES))
    assert missing == ModelFailure("Authentication", "OPENAI_API_KEY is empty; see model.apiKeySecretRef")


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("base", "want"),
    [
        ("http://h/v1", "http://h/v1/chat/completions"),
        ("http://h/v1/", "http://h/v1/chat/completions"),
        ("http://h", "http://h/chat/completions"),
        ("https://h/v1/chat/completions", "https://h/v1/chat/completions"),
        ("https://h/openai?api-version=1#x", "https://h/openai/chat/completions?api-version=1"),
        ("http://[::1]:8080/v1", "http://[::1]:8080/v1/chat/completions"),
    ],
)
async def test_the_address_is_made_from_api_base(base: str, want: str) -> None:
    assert str(chat_url(base)) == want


@pytest.mark.parametrize(
    "base", ["ftp://h/v1", "h/v1", "http://", "http://user:secret@h/v1", "http://h:99999999", "http://xn--/", ""]
)
async def test_an_address_that_cannot_be_called_says_so(base: str) -> None:
    refused = chat_url(base)
    assert isinstance(refused, ModelFailure)
    assert (refused.kind, refused.message.startswith("model.apiBase ")) == ("InvalidRequest", True)
    assert "secret" not in refused.message


@pytest.mark.parametrize(
    ("host", "want"),
    [
        ("api.openai.com", "max_completion_tokens"),
        ("mine.openai.azure.com", "max_completion_tokens"),
        ("localhost", "max_tokens"),
        ("openrouter.ai", "max_tokens"),
    ],
)
async def test_the_output_limit_goes_by_the_name_that_the_host_knows(host: str, want: str) -> None:
    endpoint = ModelEndpoint.read({"name": "openai/gpt-x", "maxOutputTokens": 7})
    body = encode_body(ModelRequest(endpoint, MESSAGES), host)
    assert {key for key in body if "token" in key} == {want}
    assert (body["model"], body[want]) == ("gpt-x", 7)


async def test_choosing_an_adapter_loads_neither_httpcore_nor_litellm() -> None:
    code = (
        "import sys, json; import pilothouse_runner.adapters.models; "
        "print(json.dumps(sorted({'httpcore', 'httpx', 'litellm', 'openai', 'ssl'} & set(sys.modules))))"
    )
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
    loaded = json.loads(done.stdout)
    assert "httpcore" not in loaded
    assert "httpx" not in loaded
    assert "litellm" not in loaded
