"""HTTP/1.1 connections that are kept: to the API server and to models, the two that a run's start waits for.

Over httpcore, which is what httpx itself sends with: without httpx on top (cookies, forms, redirects, the e-mail
package) a start loads 50 modules less. What httpx would add and these two need is here: the Host header of an IPv6
address, and what the environment says about proxies and certificate authorities.
"""

import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import certifi
import httpcore

from pilothouse_engine.values import Value

HTTP_ERRORS = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.TimeoutException,
    httpcore.UnsupportedProtocol,
)
"""What `Connections.stream` raises, and reading its reply; httpcore has no common base for them."""


class Reply(Value):
    """The head of a response, and its body as it arrives, not decoded; `headers` has lower-case names."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]


class Connections:
    """A pool of connections; it belongs to the loop that first used it. No time limits: callers set deadlines.

    `ssl_context` is needed for https alone, `proxy` where one is to be asked.
    """

    def __init__(
        self,
        *,
        max_connections: int,
        keepalive_seconds: float,
        ssl_context: ssl.SSLContext | None = None,
        proxy: httpcore.Proxy | None = None,
    ) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl_context,
            proxy=proxy,
            max_connections=max_connections,
            keepalive_expiry=keepalive_seconds,
        )

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes | None = None,
        extensions: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Reply]:
        """Send a request and give its reply; leaving gives the connection back, or closes it where more would come.

        `extensions` are httpcore's.
        """
        # Said here, since httpcore's own Host lacks the brackets of an IPv6 address.
        sent = {"Host": urlsplit(url).netloc, "Accept-Encoding": "identity", **headers}
        async with self._pool.stream(
            method, url, headers=list(sent.items()), content=content, extensions=dict(extensions or {})
        ) as response:
            yield Reply(response.status, _headers(response), response.aiter_stream())

    async def aclose(self) -> None:
        """Close the connections, those in use too."""
        await self._pool.aclose()


def environment_proxy(url: str) -> str | None:
    """Return the address of the proxy that the environment names for `url` (HTTP_PROXY, NO_PROXY and their kin)."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass  # 24 modules, for those alone who have a proxy

    parts, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def open_proxy(address: str) -> httpcore.Proxy:
    """Return a proxy that can be asked; raises ValueError."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"a proxy begins with http:// or https:// and a host, not with {parts.scheme}://")
    auth = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    return httpcore.Proxy(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(), auth=auth)


def trusted_authorities() -> ssl.SSLContext:
    """Return a context that trusts SSL_CERT_FILE, else SSL_CERT_DIR, else certifi's authorities; raises OSError."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file or folder:
        return ssl.create_default_context(cafile=file or None, capath=None if file else folder)
    return ssl.create_default_context(cafile=certifi.where())


def _headers(response: httpcore.Response) -> dict[str, str]:
    headers: dict[str, str] = {}
    for raw_name, raw_value in response.headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
