"""StreamableHTTP below the SDK: one connection for each request, to an address that was checked, with credentials read
anew and everything that comes counted.

What fails is written to the request's exchange and never raised: an exception in one request would end the SDK's
session and with it the requests beside it.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from pilothouse_api import __version__
from pilothouse_api.structs import McpServer
from pilothouse_runner.adapters.addresses import Address, Network, is_refused, resolve
from pilothouse_runner.adapters.mcp.credentials import CredentialReader, CredentialsUnavailable
from pilothouse_runner.adapters.mcp.exchange import CANCELLED, CURRENT, Exchange
from pilothouse_runner.adapters.mcp.transport import Streams, TransportUnusable

MAX_ADDRESSES_TRIED = 3
MAX_RESUMPTIONS = 8
MAX_ANSWERS_TO_SERVER = 64
MAX_ERROR_BODY_BYTES = 65_536
SIDE_REQUEST_SECONDS = 2.0
"""Deadline of what nobody waits for: notifications, answers to the server's own requests, the end of a session."""

_NO_TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP, which never uses it: the library would make one for each request, in 10 ms."""

_JSON = "application/json"
_SSE = "text/event-stream"


class HttpTransport:
    """One server over HTTP; `allowed` are networks that may be reached although they are refused by default."""

    def __init__(
        self,
        server: McpServer,
        credentials: CredentialReader,
        allowed: Sequence[Network],
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._server = server
        self._guard = _Guard(server, credentials, allowed, ssl_context)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Streams]:
        """Give the streams of a session; leaving ends it at the server too."""
        url = parse_url(self._server.url or "")
        client = httpx2.AsyncClient(transport=self._guard, trust_env=False, timeout=None, follow_redirects=False)
        async with (
            client,
            # No bound for one event: the guard counts the whole answer.
            streamable_http_client(url, http_client=client, max_sse_event_size=None) as streams,
        ):
            yield streams

    def begin(self, exchange: Exchange) -> None:
        """Nothing is read before it is asked for."""

    def end(self, exchange: Exchange) -> None:
        """Nothing to do."""

    def last_words(self) -> str:
        """Return nothing: each request says for itself why it failed."""
        return ""


def parse_url(text: str) -> str:
    """Return an address that can be used; raises TransportUnusable."""
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise TransportUnusable(f"its address cannot be used: {error}") from None
    if url.scheme not in ("http", "https") or not url.host or "{{" in text:
        raise TransportUnusable("its address does not begin with http:// or https:// and a host")
    if url.port is not None and not 0 < url.port < 65536:
        raise TransportUnusable(f"port {url.port} of its address is not between 1 and 65535")
    if url.userinfo:
        raise TransportUnusable("its address holds credentials; they belong into a header, from a Secret")
    return text


class _Guard(httpx2.AsyncBaseTransport):
    """Sends the SDK's requests; answers in the server's place where one must not or cannot be sent."""

    def __init__(
        self,
        server: McpServer,
        credentials: CredentialReader,
        allowed: Sequence[Network],
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self._server = server
        self._credentials = credentials
        self._allowed = tuple(allowed)
        self._answers = 0
        self._ssl_context = ssl_context

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the server's answer, or one that makes the SDK give up on this request alone."""
        await request.aread()  # a request that follows a redirect has not been read
        message = json.loads(request.content) if request.method == "POST" else {}
        if "method" in message and "id" in message:
            return await self._ask(request, message["method"])
        if message.get("method") == CANCELLED:
            try:
                return await self._tell(request)
            finally:
                CURRENT.get().told.set()
        if request.method == "POST" and "method" not in message:  # an answer to a request of the server
            self._answers += 1
            return await self._tell(request) if self._answers <= MAX_ANSWERS_TO_SERVER else httpx2.Response(202)
        if request.method == "GET":
            return await self._resume(request)
        return await self._tell(request)

    async def _ask(self, request: httpx2.Request, method: str) -> httpx2.Response:
        exchange = CURRENT.get()
        if method == "tools/call" and exchange.idempotency_key is not None:
            request.headers["Idempotency-Key"] = exchange.idempotency_key
        try:
            return await self._send(request, exchange)
        except asyncio.CancelledError:
            exchange.told.set()
            raise

    async def _resume(self, request: httpx2.Request) -> httpx2.Response:
        """Go on with an answer that the server interrupted; no stream is opened for what nobody asked for."""
        exchange = CURRENT.get()
        if "last-event-id" not in request.headers or exchange.kind or exchange.resumptions >= MAX_RESUMPTIONS:
            return httpx2.Response(405)
        exchange.resumptions += 1
        return await self._send(request, exchange)

    async def _tell(self, request: httpx2.Request) -> httpx2.Response:
        """Send what needs no answer; whether it arrives changes nothing here."""
        aside = Exchange(MAX_ERROR_BODY_BYTES, SIDE_REQUEST_SECONDS)
        try:
            async with asyncio.timeout(SIDE_REQUEST_SECONDS):
                response = await self._send(request, aside)
                await response.aclose()
        except TimeoutError:
            pass  # the server is slow or hangs; nobody waits for this
        return httpx2.Response(202)

    async def _send(self, request: httpx2.Request, exchange: Exchange) -> httpx2.Response:
        try:
            credentials = self._credentials.read(self._server)
        except CredentialsUnavailable as unavailable:
            exchange.fail("Credentials", str(unavailable))
            return _give_up(request)
        exchange.credentials |= credentials.secrets
        for name, value in credentials.headers:
            request.headers[name] = value
        response = await self._connect(request, exchange)
        return await self._receive(request, response, exchange) if response is not None else _give_up(request)

    # ------------------------------------------------------------ out

    async def _connect(self, request: httpx2.Request, exchange: Exchange) -> httpx2.Response | None:
        host, url = request.url.host, request.url
        try:
            addresses = await resolve(host, url.port or (443 if url.scheme == "https" else 80))
        except (OSError, UnicodeError) as error:
            exchange.fail("Connection", f"{host} cannot be resolved: {_reason(error)}")
            return None
        if any(is_refused(address, self._allowed) for address in addresses):
            # One bad address among good ones is how a name is made to lead elsewhere: none of them is used.
            what = f"{host} leads to a link-local, metadata or reserved address; the platform must allow it"
            exchange.fail("Unavailable", what)
            return None
        message = f"{host} has no address"
        for address in addresses[:MAX_ADDRESSES_TRIED]:
            was_sent = exchange.sent
            got = await self._exchange(request, address, exchange)
            if isinstance(got, httpx2.Response):
                return got
            message = got
            if exchange.sent and not was_sent:
                break
        exchange.fail("Connection", message)
        return None

    async def _exchange(self, request: httpx2.Request, address: Address, exchange: Exchange) -> httpx2.Response | str:
        """Return the beginning of the answer, or why there is none."""
        transport = httpx2.AsyncHTTPTransport(
            verify=self._trust() if request.url.scheme == "https" else _NO_TRUST,
            trust_env=False,
            limits=httpx2.Limits(max_connections=1, max_keepalive_connections=0),
        )
        try:
            try:
                response = await transport.handle_async_request(_addressed(request, address, exchange))
            except BaseException:
                await transport.aclose()
                raise
        except httpx2.TransportError as error:
            return f"{request.url.host}: {_reason(error)}"
        response.stream = _Counted(response.stream, transport, exchange)
        return response

    def _trust(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = httpx2.create_ssl_context()
        return self._ssl_context

    # ------------------------------------------------------------ in

    async def _receive(self, request: httpx2.Request, response: httpx2.Response, exchange: Exchange) -> httpx2.Response:
        """Return what the SDK may read: a stream of events as it comes, anything else whole."""
        exchange.status = response.status_code
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            await response.aclose()
            exchange.fail("Protocol", "its answer is compressed, which was not asked for")
            return _give_up(request)
        if response.status_code < 300 and media_type == _SSE:
            return response
        try:
            body = b"".join([chunk async for chunk in response.stream])  # type: ignore[union-attr]
        except httpx2.TransportError as error:
            exchange.fail("Connection", f"the answer broke off: {_reason(error)}")
            return _give_up(request)
        finally:
            await response.aclose()
        _judge(request, response.status_code, media_type, body, exchange)
        if exchange.kind is not None:
            return _give_up(request)
        return httpx2.Response(response.status_code, headers=response.headers, content=body)


def _judge(request: httpx2.Request, status: int, media_type: str, body: bytes, exchange: Exchange) -> None:
    """Note why an answer is none."""
    if status in (401, 403):
        exchange.fail("Credentials", f"it answered HTTP {status}: it does not take the credentials", is_refused=True)
    elif status == 404 and "mcp-session-id" in request.headers:
        exchange.fail("Connection", "it does not know the session any more", is_refused=True)
    elif status >= 400 and not _is_json_rpc(media_type, body):
        exchange.fail("Unavailable", f"it answered HTTP {status}", is_refused=status < 500)
    elif status < 300 and status != 202 and media_type != _JSON:
        what = f"it answered with {media_type[:60]!r}" if media_type.isprintable() and media_type else "its answer"
        exchange.fail("Protocol", f"{what} instead of JSON: is this the address of an MCP server?")


def _is_json_rpc(media_type: str, body: bytes) -> bool:
    if media_type != _JSON or len(body) > MAX_ERROR_BODY_BYTES:
        return False
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and isinstance(value.get("error"), dict)


def _give_up(request: httpx2.Request) -> httpx2.Response:
    """Return what makes the SDK end a request with an error of its own, which the exchange explains."""
    return httpx2.Response(400 if request.method == "POST" else 405)


def _addressed(request: httpx2.Request, address: Address, exchange: Exchange) -> httpx2.Request:
    """Return a request to a number instead of a name, so that the name cannot lead elsewhere a moment later."""

    async def trace(event: str, info: dict[str, Any]) -> None:
        if event.endswith(".send_request_headers.started"):
            exchange.sent = True

    url = request.url
    request.headers["Accept-Encoding"] = "identity"
    request.headers["Connection"] = "close"
    request.headers["Host"] = url.netloc.decode("ascii")
    request.headers["User-Agent"] = f"pilothouse/{__version__}"
    return httpx2.Request(
        request.method,
        url.copy_with(host=str(address)),
        headers=request.headers,
        content=request.content,
        extensions={"trace": trace, "sni_hostname": url.host},
    )


class _Counted(httpx2.AsyncByteStream):
    """An answer that is counted while it is read, and whose connection ends with it."""

    def __init__(self, stream: Any, transport: httpx2.AsyncHTTPTransport, exchange: Exchange) -> None:
        self._stream = stream
        self._transport = transport
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            if not self._exchange.take(len(chunk)):
                raise httpx2.ReadError(self._exchange.message)
            yield chunk

    async def aclose(self) -> None:
        """Close the connection."""
        self._exchange.told.set()
        try:
            await self._stream.aclose()
        finally:
            await self._transport.aclose()


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (text or type(error).__name__)[:300]
