"""A policy server in OPA's shape on loopback: it decides by what it is asked, and misbehaves by path."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


def decide(data: dict[str, Any]) -> dict[str, Any]:
    """Decide as a Rego package would: small refunds are fine, large ones need a person, prod is closed."""
    asked = data["input"]
    if asked["namespace"] == "prod":
        return {"result": {"verdict": "Deny", "message": "prod is closed"}}
    if asked["tool"] == "refund":
        is_large = asked["args"].get("amount", 0) > 50
        return {"result": {"verdict": "RequireApproval", "message": "large"} if is_large else True}
    return {} if asked["tool"] == "unknown_to_the_policy" else {"result": False}


@dataclass
class OpaServer:
    """Where it listens and what it was asked."""

    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@asynccontextmanager
async def serve_opa() -> AsyncIterator[OpaServer]:
    server = OpaServer()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
            )
            body = await reader.readexactly(length)
            server.asked.append(json.loads(body))
            server.headers.append(head)
            await _answer(server, head.split(" ")[1], server.asked[-1], writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        try:
            yield server
        finally:
            server.released.set()


def _head(status: str, length: int, *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {length}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _answer(server: OpaServer, path: str, data: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    allowed = b'{"result": true}'
    match path:
        case "/v1/data/agents/decision":
            body = json.dumps(decide(data)).encode()
            writer.write(_head("200 OK", len(body)) + body)
        case "/silent":
            await server.released.wait()
        case "/slow":
            writer.write(_head("200 OK", len(allowed)))
            for byte in allowed:
                writer.write(bytes([byte]))
                await writer.drain()
                try:
                    await asyncio.wait_for(server.released.wait(), 0.5)
                except TimeoutError:
                    continue
                return
        case "/garbage":
            writer.write(b"\x00\x01not http at all\r\n\r\n")
        case "/html":
            writer.write(_head("200 OK", 15) + b"<html>OK</html>")
        case "/cut":
            writer.write(_head("200 OK", 1000) + allowed)
        case "/error":
            writer.write(_head("500 Internal Server Error", len(allowed)) + allowed)
        case "/redirect":
            writer.write(_head("302 Found", 0, f"Location: {server.url('/allow')}"))
        case "/see-other":
            writer.write(_head("307 Temporary Redirect", 0, "Location: http://example.invalid/allow"))
        case "/allow":
            writer.write(_head("200 OK", len(allowed)) + allowed)
        case "/largest" | "/one-byte-more":
            size = 65_536 + (path == "/one-byte-more")
            writer.write(_head("200 OK", size) + allowed.ljust(size))
        case "/huge":
            writer.write(_head("200 OK", 50_000_000))
            for _ in range(500):
                writer.write(b"x" * 100_000)
                await writer.drain()
        case "/endless":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while not server.released.is_set():
                writer.write(b"400\r\n" + b" " * 0x400 + b"\r\n")
                await writer.drain()
        case "/bomb":
            body = b'{"result": true, "x": ' + b"[" * 30_000 + b"]" * 30_000 + b"}"
            writer.write(_head("200 OK", len(body)) + body)
        case _:
            writer.write(_head("404 Not Found", 2) + b"{}")
