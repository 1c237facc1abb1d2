"""One session with one server, over the SDK.

The SDK's scopes must be left by the task that entered them, so a session is a task of its own; whoever asks hands its
requests to it and waits. Whatever a server makes the SDK raise is the server's fault and becomes a failure: a peer
must not be able to end the run.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

from mcp import types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError

from pilothouse_engine.mcp.schemas import clean_text
from pilothouse_engine.ports import McpFailure, McpListing, McpResult
from pilothouse_engine.strict_json import JsonError, printable
from pilothouse_runner.adapters.mcp.credentials import mask
from pilothouse_runner.adapters.mcp.exchange import CURRENT, Exchange
from pilothouse_runner.adapters.mcp.results import result_of, tools_of
from pilothouse_runner.adapters.mcp.transport import Transport, TransportUnusable

T = TypeVar("T")

MAX_TOOLS = 512
MAX_PAGES = 64
MAX_MESSAGE_CHARS = 400
MAX_DETAIL_CHARS = 2_000
COURTESY_SECONDS = 1.5
"""How long a request that is given up may take to say so to the server."""
CLOSE_SECONDS = 5.0
OPENING_BYTES = 262_144

IDEMPOTENCY_META = "pilothouse.dev/idempotency-key"

_CLIENT = types.Implementation(name="pilothouse", version="1")
_ANSWER: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
_MODERN_ONLY = frozenset({types.UNSUPPORTED_PROTOCOL_VERSION, types.METHOD_NOT_FOUND})

log = logging.getLogger(__name__)

# The SDK logs what servers send, with tracebacks, and whole addresses; what matters of it stands in a failure.
for _name in ("mcp", "client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)
logging.getLogger("httpx2").setLevel(logging.WARNING)


class _TooMany(Exception):
    """A listing passes its bounds; the message says which."""


class Session:
    """A session that is open, retired (it takes no new request and ends with its last one), or over."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._session: ClientSession | None = None
        self._opened = asyncio.Event()
        self._closing = asyncio.Event()
        self._error: Exception | None = None
        self._task: asyncio.Task[None] | None = None
        self._requests: set[asyncio.Task[Any]] = set()
        self.is_retired = False

    @property
    def is_usable(self) -> bool:
        """Whether a request may be tried."""
        return not self.is_retired and self._task is not None and not self._task.done()

    async def open(self, timeout: float, seconds: float) -> McpFailure | None:
        """Connect and shake hands in what is left of `seconds`; None when it is open."""
        exchange = Exchange(OPENING_BYTES, seconds)
        context = copy_context()
        context.run(CURRENT.set, exchange)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="pilothouse-mcp", context=context)
        self._transport.begin(exchange)
        try:
            await _first(timeout, self._opened.wait(), exchange.failed.wait(), beside=self._task)
            if self._opened.is_set():
                return None
            if exchange.kind is not None or self._task.done():
                # A handshake has no effect: what was asked for has not been sent.
                return replace(self._failure_of(self._error, exchange), sent=False)
            return McpFailure("Timeout", f"it did not open a session within {seconds:g} s")
        finally:
            self._transport.end(exchange)
            if not self._opened.is_set():
                self.retire()
                self._task.cancel()  # whoever waits for the listing need not wait for the end of a process as well

    async def list_tools(self, exchange: Exchange, timeout: float) -> McpListing | McpFailure:
        """Return all pages of the listing."""
        return await self._request(_list_tools, exchange, timeout)

    async def call_tool(
        self, tool: str, arguments: dict[str, Any], exchange: Exchange, timeout: float
    ) -> McpResult | McpFailure:
        """Return what a tool gave."""
        meta = {IDEMPOTENCY_META: exchange.idempotency_key} if exchange.idempotency_key is not None else None
        request = types.CallToolRequest(
            params=types.CallToolRequestParams.model_validate(
                {"name": tool, "arguments": arguments, **({"_meta": meta} if meta else {})}
            )
        )

        async def call(session: ClientSession) -> McpResult | McpFailure:
            # Not session.call_tool: that one lists the tools again and judges the result by a hostile schema.
            answer = await session.send_request(request, _ANSWER)
            if isinstance(answer, types.InputRequiredResult):
                return McpFailure("Protocol", "it asks a person for more input, which a run cannot give", sent=True)
            return result_of(answer, exchange.credentials)

        return await self._request(call, exchange, timeout)

    def retire(self) -> None:
        """Take no new request; end with the last one."""
        self.is_retired = True
        if not self._requests:
            self._closing.set()

    async def close(self) -> None:
        """End the session: within `CLOSE_SECONDS`, after that by force."""
        self.is_retired = True
        self._closing.set()
        for request in self._requests:
            request.cancel()
        if self._task is None:
            return
        await asyncio.wait({self._task, *self._requests}, timeout=CLOSE_SECONDS)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)

    # ------------------------------------------------------------ the session's own task

    async def _run(self) -> None:
        try:
            async with (
                self._transport.connect() as (read, write),
                ClientSession(read, write, client_info=_CLIENT) as session,
            ):
                await _shake_hands(session)
                self._session = session
                self._opened.set()
                await self._closing.wait()
        except Exception as error:  # whatever a peer makes the SDK raise ends this session and nothing else
            self._error = _first_leaf(error)
            if not isinstance(self._error, MCPError | TransportUnusable | ValidationError):
                log.warning("an MCP session ended: %s", type(self._error).__name__)

    async def _request(
        self, work: Callable[[ClientSession], Coroutine[Any, Any, T | McpFailure]], exchange: Exchange, timeout: float
    ) -> T | McpFailure:
        session = self._session
        assert session is not None and self._task is not None
        context = copy_context()
        context.run(CURRENT.set, exchange)
        task = asyncio.get_running_loop().create_task(work(session), name="pilothouse-mcp-request", context=context)
        self._requests.add(task)
        self._transport.begin(exchange)
        try:
            await _first(timeout, exchange.failed.wait(), beside=task)
            if not task.done():
                if exchange.kind is not None:
                    return self._failure_of(None, exchange)
                return McpFailure("Timeout", f"no answer within {exchange.seconds:g} s", sent=exchange.sent)
            error = task.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            return task.result() if error is None else self._failure_of(error, exchange)
        finally:
            await self._let_go(task, exchange)

    async def _let_go(self, task: asyncio.Task[Any], exchange: Exchange) -> None:
        """Forget a request; one that is given up is cancelled at the server, and its session ends with its last one."""
        try:
            if not task.done():
                self.is_retired = True
                task.cancel()
                await self._tell(task, exchange)
        finally:
            self._requests.discard(task)
            self._transport.end(exchange)
            if self.is_retired:
                self.retire()

    async def _tell(self, task: asyncio.Task[Any], exchange: Exchange) -> None:
        """Give the SDK the time to tell the server that nobody waits any more."""
        assert self._task is not None
        told = asyncio.ensure_future(exchange.told.wait())
        try:
            async with asyncio.timeout(COURTESY_SECONDS):
                await asyncio.wait({task})
                if exchange.sent and not self._task.done():
                    await asyncio.wait({told, self._task}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass  # the server hangs; the end of the session tells it
        finally:
            told.cancel()

    def _failure_of(self, error: BaseException | None, exchange: Exchange) -> McpFailure:
        sent = exchange.sent and not exchange.is_refused
        if exchange.kind is not None:
            return McpFailure(
                exchange.kind, clean_text(mask(exchange.message, exchange.credentials), MAX_MESSAGE_CHARS), sent
            )
        match error:
            case TransportUnusable():
                return McpFailure("Unavailable", clean_text(str(error), MAX_MESSAGE_CHARS))
            case _TooMany():
                return McpFailure("TooLarge", str(error), sent)
            case MCPError():
                return self._failure_of_answer(error, exchange)
            case ValidationError() | JsonError():
                return McpFailure("Protocol", "its answer is not what MCP says it must be", sent)
            case RuntimeError() if not self._opened.is_set():
                return McpFailure("Protocol", "it speaks no version of MCP that is spoken here", sent)
            case _:
                return McpFailure("Connection", self._transport.last_words() or "it ended the session", sent)

    def _failure_of_answer(self, error: MCPError, exchange: Exchange) -> McpFailure:
        status = exchange.status
        if status is not None and 300 <= status < 400:
            return McpFailure("Unavailable", "it redirects to another place, which is not followed")
        # The SDK gives its own errors codes that servers give theirs too; only the words tell them apart.
        if error.code == types.CONNECTION_CLOSED and error.message.startswith(("Connection closed", "SSE stream ")):
            words = self._transport.last_words() or "it ended the connection without an answer"
            return McpFailure("Connection", words, exchange.sent)
        is_unreadable = error.code == types.PARSE_ERROR and error.message.startswith("Failed to parse")
        if is_unreadable or status == 202:
            return McpFailure("Protocol", "its answer is not what MCP says it must be", exchange.sent)
        detail = mask(printable(error.message, MAX_DETAIL_CHARS), exchange.credentials)
        return McpFailure("JsonRpc", f"it answered with JSON-RPC error {error.code}", detail=detail)


async def _shake_hands(session: ClientSession) -> None:
    """Agree on a version: the handshake that nearly all servers know, then the one of those that know no other."""
    try:
        await session.initialize()
    except MCPError as error:
        if error.code not in _MODERN_ONLY:
            raise
        await session.discover()


async def _list_tools(session: ClientSession) -> McpListing:
    tools: list[types.Tool] = []
    cursors: set[str] = set()
    cursor: str | None = None
    while True:
        page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor) if cursor else None)
        tools += page.tools
        cursor = page.next_cursor
        if len(tools) > MAX_TOOLS:
            raise _TooMany(f"it lists more than {MAX_TOOLS} tools")
        if not cursor:
            return McpListing(tools_of(tools))
        if cursor in cursors or len(cursors) >= MAX_PAGES:
            raise _TooMany(f"its list of tools does not end: {len(cursors) + 1} pages hold {len(tools)} tools")
        cursors.add(cursor)


async def _first(timeout: float, *waits: Coroutine[Any, Any, Any], beside: "asyncio.Task[Any]") -> None:
    """Return when the first of these is over, or after `timeout` seconds; leaves the task alone."""
    watchers = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait({*watchers, beside}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for watcher in watchers:
            watcher.cancel()


def _first_leaf(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
