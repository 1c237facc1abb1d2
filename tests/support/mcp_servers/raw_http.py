"""A server over HTTP that breaks the rules on the wire: an ASGI application of which a test says how."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Receive, Scope, Send

from support.mcp_servers.http_servers import Asked, answer, serving

Behaviour = Callable[["Exchange"], Awaitable[None]]


@dataclass
class Exchange:
    """One request and the way to answer it."""

    asked: Asked
    send: Send
    receive: Receive

    async def result(self, value: Any, **headers: str) -> None:
        await self.body({"jsonrpc": "2.0", "id": self.asked.message.get("id"), "result": value}, **headers)

    async def body(self, value: Any, status: int = 200, **headers: str) -> None:
        await answer(self.send, status, json.dumps(value).encode(), "application/json", **headers)

    async def raw(self, status: int, body: bytes, media_type: str, **headers: str) -> None:
        await answer(self.send, status, body, media_type, **headers)

    async def events(self) -> Callable[[str], Awaitable[None]]:
        """Begin a stream of events; returns what sends a part of it."""
        headers = [(b"content-type", b"text/event-stream")]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

        async def part(text: str) -> None:
            await self.send({"type": "http.response.body", "body": text.encode(), "more_body": True})

        return part

    async def gone(self) -> None:
        """Return when the client has left."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


@dataclass
class RawServer:
    """Where it listens, what it does for each JSON-RPC method, and what it has seen."""

    url: str = ""
    on: dict[str, Behaviour] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    called: threading.Event = field(default_factory=threading.Event)
    """Set when a tool was called."""

    def methods(self) -> list[str]:
        return [asked.method for asked in self.asked if asked.method]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        asked = Asked(scope["method"], headers, json.loads(body) if body else {})
        self.asked.append(asked)
        if asked.method == "tools/call":
            self.called.set()
        exchange = Exchange(asked, send, receive)
        behaviour = self.on.get(asked.method or asked.verb, self.on.get("*", _ordinary))
        await behaviour(exchange)


async def _ordinary(exchange: Exchange) -> None:
    about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
    message = exchange.asked.message
    match exchange.asked.method:
        case "initialize":
            await exchange.result({"protocolVersion": message["params"]["protocolVersion"], **about})
        case "tools/list":
            await exchange.result({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
        case "tools/call":
            await exchange.result({"content": [{"type": "text", "text": "done"}]})
        case _:
            await exchange.raw(202, b"", "text/plain")


async def hang(exchange: Exchange) -> None:
    """Answer never; end when the client leaves."""
    await exchange.gone()
    await asyncio.sleep(0)


@contextmanager
def raw_http_server(**on: Behaviour) -> Iterator[RawServer]:
    """Serve; `on` names methods with `_` for `/`, `any` is for all of them."""
    server = RawServer(on={"*" if name == "any" else name.replace("_", "/", 1): what for name, what in on.items()})
    with serving(server) as port:
        server.url = f"http://127.0.0.1:{port}/mcp"
        yield server
