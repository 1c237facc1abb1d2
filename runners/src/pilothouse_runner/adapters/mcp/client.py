"""The engine's MCP port: sessions by server, opened when they are needed, kept for the visit."""

import asyncio
import importlib
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pilothouse_api import names
from pilothouse_api.digests import canonical_json
from pilothouse_api.structs import McpServer
from pilothouse_engine.ports import McpFailure, McpListing, McpResult, Secrets
from pilothouse_runner.adapters.addresses import Network
from pilothouse_runner.adapters.mcp.credentials import CredentialReader
from pilothouse_runner.adapters.mcp.exchange import Exchange

if TYPE_CHECKING:
    from pilothouse_runner.adapters.mcp.session import Session
    from pilothouse_runner.adapters.mcp.transport import Transport

T = TypeVar("T")

MAX_LISTING_BYTES = 1_048_576

_BASE_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp"}
_OURS = "PILOTHOUSE_"
_PACKAGE = "pilothouse_runner.adapters.mcp"


class SdkMcp:
    """Speaks to servers over the official SDK.

    `tokens` is the folder of projected tokens, None where there are none. `environment` is all that a program (Stdio)
    gets besides a PATH, `folder` where it starts; `is_confined` keeps it from the runner's files. `allowed` are
    networks that may be reached although they are refused by default; `ssl_context` says which certificates are
    trusted.
    """

    def __init__(
        self,
        secrets: Secrets,
        *,
        tokens: Path | None = Path(names.AUDIENCE_TOKENS_PATH),
        environment: Mapping[str, str] | None = None,
        folder: str = "/",
        is_confined: bool = False,
        allowed: Sequence[Network] = (),
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._credentials = CredentialReader(secrets, tokens)
        named = {name: value for name, value in (environment or {}).items() if not name.startswith(_OURS)}
        self._environment = {**_BASE_ENVIRONMENT, **named}
        self._folder = folder
        self._is_confined = is_confined
        self._allowed = tuple(allowed)
        self._ssl_context = ssl_context
        self._sessions: dict[str, Session] = {}
        self._retired: set[Session] = set()
        self._locks: dict[str, asyncio.Lock] = {}

    async def list_tools(self, server: McpServer, deadline: float) -> McpListing | McpFailure:
        """Return all tools of a server or why they cannot be told."""
        return await self._ask(
            server,
            Exchange(MAX_LISTING_BYTES, deadline),
            deadline,
            lambda session, e, left: session.list_tools(e, left),
        )

    async def call_tool(
        self,
        server: McpServer,
        tool: str,
        arguments: Mapping[str, Any],
        idempotency_key: str | None,
        timeout: float,
        max_bytes: int,
    ) -> McpResult | McpFailure:
        """Return what a tool gave or why it gave nothing."""
        plain = dict(arguments)
        return await self._ask(
            server,
            Exchange(max_bytes, timeout, idempotency_key),
            timeout,
            lambda session, exchange, left: session.call_tool(tool, plain, exchange, left),
        )

    async def end_visit(self) -> None:
        """Close all sessions."""
        sessions = {*self._sessions.values(), *self._retired}
        self._sessions.clear()
        self._retired.clear()
        if sessions:
            await asyncio.gather(*(session.close() for session in sessions))

    async def aclose(self) -> None:
        """Close all sessions, at the end of the attempt."""
        await self.end_visit()

    async def _ask(
        self,
        server: McpServer,
        exchange: Exchange,
        timeout: float,
        work: "Callable[[Session, Exchange, float], Awaitable[T | McpFailure]]",
    ) -> T | McpFailure:
        """Ask in the session that is open, or in a new one; once more where the old one died before it was asked."""
        missing = await self._load(server)
        if missing is not None:
            return missing
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        key = canonical_json(server.to_raw())
        for _ in range(2):
            session, is_new = await self._session(server, key, until, timeout)
            if isinstance(session, McpFailure):
                return session
            got = await work(session, exchange, max(until - loop.time(), 0.0))
            if is_new or not isinstance(got, McpFailure) or got.kind != "Connection" or got.sent:
                return got
            self._retire(key, session)
            exchange = Exchange(exchange.max_bytes, timeout, exchange.idempotency_key)
        return got

    async def _load(self, server: McpServer) -> McpFailure | None:
        """Import the SDK, which is no server's fault and not counted in its time.

        In a thread: it takes longer than the run may be deaf to what it is asked.
        """
        modules = ("session", "stdio_transport" if server.transport == "Stdio" else "http_transport")
        try:
            for module in modules:
                if f"{_PACKAGE}.{module}" not in sys.modules:
                    await asyncio.to_thread(importlib.import_module, f"{_PACKAGE}.{module}")
        except ModuleNotFoundError as missing:
            return McpFailure("Unavailable", f"the package {missing.name} is not installed: use the runner's image")
        return None

    async def _session(
        self, server: McpServer, key: str, until: float, seconds: float
    ) -> "tuple[Session | McpFailure, bool]":
        """Return a session that is usable, and whether it is new."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            async with asyncio.timeout_at(until):
                await lock.acquire()
        except TimeoutError:  # another call is opening it, and may have more time
            return McpFailure("Timeout", f"it did not open a session within {seconds:g} s"), True
        try:
            session = self._sessions.get(key)
            if session is not None and session.is_usable:
                return session, False
            if session is not None:
                self._retire(key, session)
            opened = await self._open(server, until, seconds)
            if not isinstance(opened, McpFailure):
                self._sessions[key] = opened
            return opened, True
        finally:
            lock.release()

    async def _open(self, server: McpServer, until: float, seconds: float) -> "Session | McpFailure":
        from pilothouse_runner.adapters.mcp.session import Session

        session = Session(self._transport(server))
        self._retired.add(session)  # until it is open: it may have started a process that must end
        failure = await session.open(max(until - asyncio.get_running_loop().time(), 0.0), seconds)
        if failure is not None:
            return failure
        self._retired.discard(session)
        return session

    def _transport(self, server: McpServer) -> "Transport":
        if server.transport == "Stdio":
            from pilothouse_runner.adapters.mcp.stdio_transport import StdioTransport

            return StdioTransport(server, self._environment, self._folder, is_confined=self._is_confined)
        from pilothouse_runner.adapters.mcp.http_transport import HttpTransport

        return HttpTransport(server, self._credentials, self._allowed, self._ssl_context)

    def _retire(self, key: str, session: "Session") -> None:
        """Let no new request in; what is under way ends it, and the visit at the latest."""
        session.retire()
        self._retired.add(session)
        if self._sessions.get(key) is session:
            del self._sessions[key]
