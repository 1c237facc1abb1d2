"""MCP servers over HTTP on loopback, in a thread of their own, that remember what they were asked."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from support.mcp_servers.sdk_server import ServerState, build_server


@dataclass
class Asked:
    """One HTTP request."""

    verb: str
    headers: dict[str, str]
    message: dict[str, Any]

    @property
    def method(self) -> str:
        return str(self.message.get("method", ""))


@dataclass
class HttpServer:
    """Where it listens, what it has seen, and what it asks of its callers."""

    url: str = ""
    state: ServerState = field(default_factory=ServerState)
    asked: list[Asked] = field(default_factory=list)
    wanted: str | None = None
    """The Authorization that it takes; everything else is answered 401."""
    lost_sessions: int = 0
    """So many requests are answered as if their session had ended."""

    def methods(self) -> list[str]:
        return [asked.method for asked in self.asked if asked.method]

    def last(self, method: str) -> Asked:
        return [asked for asked in self.asked if asked.method == method][-1]


class _Gate:
    def __init__(self, app: ASGIApp, server: HttpServer) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        asked = Asked(scope["method"], headers, json.loads(body) if body else {})
        self._server.asked.append(asked)
        if self._server.wanted is not None and headers.get("authorization") != self._server.wanted:
            await answer(send, 401, b"who are you?", "text/plain")
            return
        if self._server.lost_sessions and asked.method == "tools/call":
            self._server.lost_sessions -= 1
            await answer(send, 404, b"{}", "application/json")
            return
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)


async def answer(send: Send, status: int, body: bytes, media_type: str, **headers: str) -> None:
    pairs = {"content-type": media_type, "content-length": str(len(body)), **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in pairs.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(app: ASGIApp, port: int = 0, **more: Any) -> Iterator[int]:
    """Serve an ASGI application, lifespan included, on a loopback port, a free one by default; yields the port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        config = uvicorn.Config(
            app, http="h11", log_config=None, log_level="critical", timeout_graceful_shutdown=0, **more
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(timeout=60)
            assert not thread.is_alive(), "the server does not stop"


@contextmanager
def sdk_http_server(port: int = 0, **options: Any) -> Iterator[HttpServer]:
    """Serve the SDK's server over StreamableHTTP; `options` are the SDK's."""
    server = HttpServer()
    app = build_server(server.state).streamable_http_app(**options)
    with serving(_Gate(app, server), port) as served_at:
        server.url = f"http://127.0.0.1:{served_at}/mcp"
        yield server
