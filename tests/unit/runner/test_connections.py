"""Kept connections: what httpcore is told that httpx would have told it."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import certifi
import pytest

from pilothouse_runner.adapters.connections import (
    HTTP_ERRORS,
    Connections,
    environment_proxy,
    open_proxy,
    trusted_authorities,
)

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Part: a\r\nX-PART: b\r\n\r\nok"


@asynccontextmanager
async def server(heads: list[bytes]) -> AsyncIterator[int]:
    """Answer requests without a body; `heads` gets what was sent."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(ANSWER)
        except asyncio.IncompleteReadError:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1]


async def get(connections: Connections, url: str) -> tuple[int, str, bytes]:
    async with connections.stream("GET", url, {"X-Own": "1"}) as reply:
        return reply.status, reply.headers["x-part"], b"".join([piece async for piece in reply.pieces])


@pytest.mark.anyio
async def test_a_request_names_its_host_and_asks_for_a_plain_body() -> None:
    heads: list[bytes] = []
    connections = Connections(max_connections=2, keepalive_seconds=5)
    async with server(heads) as port:
        got = await get(connections, f"http://127.0.0.1:{port}/a?b=c")
        await connections.aclose()

    assert got == (200, "a, b", b"ok")
    lines = heads[0].decode().lower().splitlines()
    assert lines[0] == "get /a?b=c http/1.1"
    assert {f"host: 127.0.0.1:{port}", "accept-encoding: identity", "x-own: 1"} <= set(lines)


@pytest.mark.anyio
async def test_a_proxy_is_asked_with_its_credentials() -> None:
    heads: list[bytes] = []
    async with server(heads) as port:
        proxy = open_proxy(f"http://me:p%40ss@127.0.0.1:{port}")
        connections = Connections(max_connections=2, keepalive_seconds=5, proxy=proxy)
        assert (await get(connections, "http://model.invalid/v1"))[0] == 200
        await connections.aclose()

    lines = heads[0].decode().splitlines()
    assert lines[0] == "GET http://model.invalid/v1 HTTP/1.1"
    assert "Proxy-Authorization: Basic bWU6cEBzcw==" in lines
    assert "Host: model.invalid" in lines


@pytest.mark.anyio
async def test_the_host_of_an_ipv6_address_has_its_brackets() -> None:
    heads: list[bytes] = []
    async with server(heads) as port:
        # Through a proxy, so that no machine needs IPv6.
        connections = Connections(max_connections=1, keepalive_seconds=5, proxy=open_proxy(f"http://127.0.0.1:{port}"))
        await get(connections, "http://[fd00::1]:8000/")
        await connections.aclose()

    assert b"\r\nHost: [fd00::1]:8000\r\n" in heads[0]


@pytest.mark.anyio
async def test_a_closed_port_is_an_http_error() -> None:
    async with server([]) as port:
        pass
    connections = Connections(max_connections=1, keepalive_seconds=5)
    with pytest.raises(HTTP_ERRORS):
        await get(connections, f"http://127.0.0.1:{port}/")
    await connections.aclose()


@pytest.mark.parametrize(
    ("environment", "url", "want"),
    [
        ({}, "http://h/v1", None),
        ({"HTTP_PROXY": "p:3128"}, "http://h/v1", "http://p:3128"),
        ({"HTTP_PROXY": "p:3128"}, "https://h/v1", None),
        ({"https_proxy": "http://p:3128"}, "https://h/v1", "http://p:3128"),
        ({"ALL_PROXY": "http://p"}, "https://h/v1", "http://p"),
        ({"ALL_PROXY": "http://p", "NO_PROXY": "h"}, "https://h/v1", None),
        ({"ALL_PROXY": "http://p", "NO_PROXY": ".cluster.local,other"}, "http://m.ns.svc.cluster.local:8/v1", None),
        ({"ALL_PROXY": "http://p", "NO_PROXY": "*"}, "http://h/v1", None),
        ({"ALL_PROXY": "http://p", "NO_PROXY": "other"}, "http://h/v1", "http://p"),
    ],
)
def test_the_environment_names_the_proxy(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, want: str | None
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert environment_proxy(url) == want


@pytest.mark.parametrize("address", ["socks5://127.0.0.1:1", "nonsense://x", "http://", "http://h:port"])
def test_a_proxy_that_cannot_be_asked_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"proxy|[Pp]ort"):
        open_proxy(address)


def test_the_environment_may_name_the_authorities(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    every = trusted_authorities()
    own = tmp_path / "own.pem"
    own.write_text(Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----")[0] + END)
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    one = trusted_authorities()

    assert len(every.get_ca_certs()) > len(one.get_ca_certs()) == 1
    assert {every.verify_mode, one.verify_mode} == {ssl.CERT_REQUIRED}
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "absent.pem"))
    with pytest.raises(OSError, match="No such file"):
        trusted_authorities()


END = "-----END CERTIFICATE-----\n"
