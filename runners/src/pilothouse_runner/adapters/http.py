"""HTTP of tools over httpx: one connection for each request, to an address that was checked.

A kept connection that the server has just closed would leave the fate of a POST unknown; the handshake that is saved
is not worth that. The address is checked after the name was resolved, and then connected to by number, so that a name
that resolves to something else a moment later changes nothing.
"""

import asyncio
import ssl
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from pilothouse_api import __version__
from pilothouse_engine.ports import HttpFailure, HttpRequest, HttpResponse
from pilothouse_runner.adapters.addresses import Address, Network, is_refused, resolve
from pilothouse_runner.telemetry import trace_headers

if TYPE_CHECKING:
    import httpx

MAX_REDIRECTS = 5
MAX_ADDRESSES_TRIED = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})


class HttpxHttp:
    """Sends requests; `allowed` are networks that may be reached although they are refused by default."""

    def __init__(self, *, allowed: Sequence[Network] = (), ssl_context: ssl.SSLContext | None = None) -> None:
        self._allowed = tuple(allowed)
        self._ssl_context = ssl_context

    async def send(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        """Return the response or why there is none; cancellation closes the connection."""
        attempt = _Attempt()
        try:
            async with asyncio.timeout(request.timeout):
                return await self._follow(request, attempt)
        except TimeoutError:
            return HttpFailure("Timeout", f"no complete answer within {request.timeout:g} s", sent=attempt.sent)

    async def _follow(self, request: HttpRequest, attempt: "_Attempt") -> HttpResponse | HttpFailure:
        import httpx

        try:
            url = _parse(request.url)
        except httpx.InvalidURL as error:
            return HttpFailure("Invalid", f"the address cannot be used: {error}", sent=False)
        for _ in range(MAX_REDIRECTS):
            got = await self._send_once(request, url, attempt)
            target = _redirect_target(request.method, url, got)
            if target is None:
                return got
            url = target
        return await self._send_once(request, url, attempt)

    async def _send_once(
        self, request: HttpRequest, url: "httpx.URL", attempt: "_Attempt"
    ) -> HttpResponse | HttpFailure:
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            addresses = await resolve(url.host, port)
        except (OSError, UnicodeError) as error:
            return HttpFailure("Connection", f"{url.host} cannot be resolved: {_reason(error)}", sent=attempt.sent)
        if any(is_refused(address, self._allowed) for address in addresses):
            # One bad address among good ones is how a name is made to lead elsewhere: none of them is used.
            return HttpFailure(
                "Blocked",
                f"{url.host} leads to a link-local, metadata or reserved address; the platform must allow it",
                sent=attempt.sent,
            )
        failure = HttpFailure("Connection", f"{url.host} has no address", sent=attempt.sent)
        for address in addresses[:MAX_ADDRESSES_TRIED]:
            got = await self._exchange(request, url, address, attempt)
            if not isinstance(got, HttpFailure) or got.kind != "Connection" or got.sent:
                return got
            failure = got
        return failure

    async def _exchange(
        self, request: HttpRequest, url: "httpx.URL", address: Address, attempt: "_Attempt"
    ) -> HttpResponse | HttpFailure:
        import httpx

        try:
            raw_request = _build(request, url, address, attempt)
        except (UnicodeError, ValueError, TypeError) as error:
            return HttpFailure("Invalid", f"the request cannot be sent: {type(error).__name__}", sent=attempt.sent)
        transport = httpx.AsyncHTTPTransport(
            verify=self._trust() if url.scheme == "https" else False,
            trust_env=False,
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=0),
        )
        try:
            async with transport:
                response = await transport.handle_async_request(raw_request)
                return await _read(response, request, attempt)
        except httpx.LocalProtocolError as error:
            return HttpFailure("Invalid", f"the request cannot be sent: {error}", sent=attempt.sent)
        except httpx.TransportError as error:
            return HttpFailure("Connection", f"{url.host}: {_reason(error)}", sent=attempt.sent)

    def _trust(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            import httpx

            self._ssl_context = httpx.create_ssl_context()
        return self._ssl_context


class _Attempt:
    """Whether bytes of a request may have left: heard from the connection itself, not guessed from the error."""

    def __init__(self) -> None:
        self.sent = False

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        """Take an event of httpcore's `trace` extension."""
        if event.endswith(".send_request_headers.started"):
            self.sent = True


def _parse(text: str) -> "httpx.URL":
    import httpx

    url = httpx.URL(text)
    if url.scheme not in ("http", "https") or not url.host:
        raise httpx.InvalidURL("it does not begin with http:// or https:// and a host")
    if url.port is not None and not 0 < url.port < 65536:
        raise httpx.InvalidURL(f"port {url.port} is not between 1 and 65535")
    if url.userinfo:
        raise httpx.InvalidURL("credentials belong into a header, from a Secret")
    return url


def _build(request: HttpRequest, url: "httpx.URL", address: Address, attempt: _Attempt) -> "httpx.Request":
    import httpx

    headers = [
        ("Host", url.netloc.decode("ascii")),
        ("User-Agent", f"pilothouse/{__version__}"),
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
    ]
    headers += trace_headers().items()
    given = {name.lower() for name, _ in request.headers}
    own = [(name.encode("ascii"), value.encode()) for name, value in headers if name.lower() not in given]
    return httpx.Request(
        request.method,
        url.copy_with(host=str(address)),
        headers=own + [(name.encode("ascii"), value.encode()) for name, value in request.headers],
        content=request.body,
        extensions={"trace": attempt.trace, "sni_hostname": url.host},
    )


def _redirect_target(method: str, url: "httpx.URL", got: HttpResponse | HttpFailure) -> "httpx.URL | None":
    """Return where to go next, or None: only GET and HEAD are sent on, and only to the same host.

    Headers may hold credentials of that host: another port is another server, and http is no place for them once
    https was.
    """
    import httpx

    if isinstance(got, HttpFailure) or got.status not in REDIRECTS or method not in ("GET", "HEAD"):
        return None
    location = next((value for name, value in got.headers if name.lower() == "location"), None)
    if location is None:
        return None
    try:
        target = _parse(urljoin(str(url), location))
    except (httpx.InvalidURL, ValueError):
        return None
    upgraded = (url.scheme, url.port, target.scheme, target.port) == ("http", None, "https", None)
    same_server = (target.scheme, target.port) == (url.scheme, url.port)
    return target if target.host == url.host and (same_server or upgraded) else None


async def _read(response: "httpx.Response", request: HttpRequest, attempt: _Attempt) -> HttpResponse | HttpFailure:
    too_large = HttpFailure("TooLarge", f"the answer is larger than {request.max_bytes:,} bytes", sent=attempt.sent)
    declared = response.headers.get("content-length", "")
    if request.method != "HEAD" and declared.isdigit() and int(declared[:18]) > request.max_bytes:
        return too_large
    raw = bytearray()
    async for chunk in response.aiter_raw():
        raw += chunk
        if len(raw) > request.max_bytes:
            return too_large
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    body = bytes(raw)
    if body and encoding != "identity":
        decoded = decode_body(body, encoding, request.max_bytes)
        if isinstance(decoded, str):
            return HttpFailure("Invalid", decoded, sent=attempt.sent)
        if len(decoded) > request.max_bytes:
            return too_large
        body = decoded
    return HttpResponse(response.status_code, tuple(response.headers.multi_items()), body)


def decode_body(body: bytes, encoding: str, max_bytes: int) -> bytes | str:
    """Return the decoded body, at most one byte more than is allowed, or why it cannot be decoded.

    Servers send gzip although none was asked for; a few kilobytes of it can unfold to gigabytes.
    """
    if encoding not in ("gzip", "x-gzip", "deflate"):
        return f"the answer is encoded as {encoding[:40]!r}, which was not asked for"
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, max_bytes + 1)
    except zlib.error:
        return f"the answer says that it is {encoding}, but it is not"


def _reason(error: Exception) -> str:
    """Return what a person is told of a library's error: its text, else its kind."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (text or type(error).__name__)[:300]
