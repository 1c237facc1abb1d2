"""Who asks slowly holds no connection: a server as the operator API has it, in front of an application that waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from pilothouse_console import connections, host
from pilothouse_console.settings import ApiSettings

pytestmark = pytest.mark.anyio
LIMIT = 0.3
"Within which a request must come."
ROOM = 1.5
"The same where it does come, on a machine that may be slow."


async def slow_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Take the whole body, and longer for the answer than a request may take to come."""
    assert scope["type"] == "http"
    message = await receive()
    while message.get("more_body"):
        message = await receive()
    if message["type"] == "http.disconnect":
        return
    await asyncio.sleep(connections.REQUEST_SECONDS * 1.2)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def connected(
    monkeypatch: pytest.MonkeyPatch, limit: float = LIMIT
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", limit)
    config = host._config(ApiSettings(host="127.0.0.1", port=0), slow_app)
    config.host, config.port, config.timeout_keep_alive = "127.0.0.1", 0, 1
    server = uvicorn.Server(config)
    monkeypatch.setattr(server, "install_signal_handlers", lambda: None, raising=False)
    running = asyncio.create_task(server._serve())
    while not server.started:
        assert not running.done()
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await running


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"G",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n123",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nG",
    ],
    ids=["nothing", "a letter", "half a head", "half a body", "a request and a letter"],
)
async def test_a_request_that_does_not_come_to_its_end_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    async with connected(monkeypatch) as (reader, writer):
        writer.write(sent)
        async with asyncio.timeout(60):
            await reader.read()


async def test_bytes_one_by_one_gain_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch) as (reader, writer):
        ended = asyncio.create_task(reader.read())
        async with asyncio.timeout(60):
            while not ended.done():
                writer.write(b"G")
                await asyncio.wait({ended}, timeout=LIMIT / 3)


@pytest.mark.slow
async def test_who_has_asked_is_answered_however_long_that_takes_and_may_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected(monkeypatch, ROOM) as (reader, writer):
        for _ in range(2):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n12")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(2) == b"ok"
