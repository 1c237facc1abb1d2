"""A proxy between an operator and the real API server that misbehaves where it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
from aiohttp import web

from pilothouse_kubernetes.connection import Credentials

Fault = Literal["Throttle", "Fail", "Hang", "Reset", "Lose", "Silence", "Expire"]
"""Throttle: 429 with Retry-After. Fail: 500. Hang: no answer. Reset: the connection is cut. Lose: it is cut once the
request was done. Silence: a watch stays open and says nothing. Expire: a watch says 410."""

Match = Callable[[web.Request], bool]


@dataclass
class FaultProxy:
    """Passes everything on, but for what `inject` says."""

    upstream: Credentials
    session: aiohttp.ClientSession
    url: str = ""
    faults: list[tuple[Match, Fault]] = field(default_factory=list)
    hits: list[str] = field(default_factory=list)

    def inject(self, fault: Fault, match: Match) -> None:
        self.faults.insert(0, (match, fault))

    def heal(self) -> None:
        self.faults.clear()

    def fault_of(self, request: web.Request) -> Fault | None:
        found = next((fault for match, fault in self.faults if match(request)), None)
        if found is not None:
            self.hits.append(f"{found} {request.method} {request.path}")
        return found

    async def serve(self, request: web.Request) -> web.StreamResponse:
        fault = None if is_watch(request) else self.fault_of(request)
        if fault == "Throttle":
            return web.json_response({"message": "slow down"}, status=429, headers={"Retry-After": "1"})
        if fault == "Fail":
            return web.json_response({"message": "something broke"}, status=500)
        if fault == "Hang":
            await asyncio.sleep(3600)
        if fault == "Reset":
            return cut(request)
        if fault == "Lose":
            await self.do(request)
            return cut(request)
        return await self.forward(request)

    async def do(self, request: web.Request) -> None:
        """Have a request done, and keep the answer."""
        kept = {name: request.headers[name] for name in ("Authorization", "Accept", "Content-Type")}
        url, body = f"{self.upstream.server}{request.path_qs}", await request.read()
        async with self.session.request(request.method, url, headers=kept, data=body) as answer:
            await answer.read()

    async def forward(self, request: web.Request) -> web.StreamResponse:
        kept = {
            name: request.headers[name]
            for name in ("Authorization", "Accept", "Content-Type")
            if name in request.headers
        }
        body = await request.read()
        async with self.session.request(
            request.method,
            f"{self.upstream.server}{request.path_qs}",
            headers=kept,
            data=body or None,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as answer:
            headers = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
            response = web.StreamResponse(status=answer.status, headers=headers)
            await response.prepare(request)
            async for line in answer.content:
                if is_watch(request) and not await self.pass_on(request, response):
                    return response
                await response.write(line)
            await response.write_eof()
            return response

    async def pass_on(self, request: web.Request, response: web.StreamResponse) -> bool:
        """Whether this event of a watch goes through; what was lost once is lost for good."""
        match self.fault_of(request):
            case "Silence":
                await asyncio.sleep(3600)
            case "Reset":
                cut(request)
                return False
            case "Expire":
                gone: dict[str, Any] = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
                await response.write_eof()
                return False
            case _:
                return True
        return False


def is_watch(request: web.Request) -> bool:
    return "watch" in request.query


def watches(plural: str) -> Match:
    return lambda request: is_watch(request) and request.path.endswith(f"/{plural}")


def writes(part: str) -> Match:
    return lambda request: request.method in ("POST", "PATCH") and part in request.path


def cut(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


@asynccontextmanager
async def fault_proxy(upstream: Credentials) -> AsyncIterator[FaultProxy]:
    connector = aiohttp.TCPConnector(ssl=upstream.ssl_context(), limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        proxy = FaultProxy(upstream, session)
        app = web.Application(client_max_size=16 * 2**20)
        app.router.add_route("*", "/{path:.*}", proxy.serve)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield proxy
        finally:
            await runner.cleanup()
