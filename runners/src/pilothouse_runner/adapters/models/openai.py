"""Calls OpenAI-compatible endpoints over httpcore: the fast path, without a provider's library."""

import asyncio
import ipaddress
import json
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import httpcore
from msgspec.structs import replace

from pilothouse_api import __version__
from pilothouse_api.structs import ModelEndpoint
from pilothouse_engine.ports import ModelFailure, ModelReply, ModelRequest, Secrets, SecretUnavailable
from pilothouse_engine.values import Value
from pilothouse_runner.adapters.connections import (
    HTTP_ERRORS,
    Connections,
    environment_proxy,
    open_proxy,
    trusted_authorities,
)
from pilothouse_runner.adapters.models import price_table
from pilothouse_runner.adapters.models.chat import encode_messages, encode_tools, parse_reply, stated_failure
from pilothouse_runner.adapters.models.failures import Problem, retry_after, stated_problem
from pilothouse_runner.adapters.models.redaction import Redaction, shortened
from pilothouse_runner.telemetry import trace_headers

PREFIX = "openai/"
DEFAULT_BASE = "https://api.openai.com/v1"
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
MAX_REPLY_BYTES = 8 * 1024 * 1024
KEEPALIVE_SECONDS = 30.0

_HEADER_SAFE = re.compile(r"[!-~]+")
_HOST_UNSAFE = re.compile(r"[^\w.:%-]")
_URL_SAFE = "/%:@!$&'()*+,;=~?"
_TITLE = re.compile(r"<title[^>]*>([^<]{0,200})", re.I)


class _Prepared(Value):
    """One HTTP request, ready to be sent."""

    url: str
    headers: dict[str, str]
    body: bytes
    redaction: Redaction


class _Answer(Value):
    """What came back; `body` is None when it was larger than MAX_REPLY_BYTES."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None


class _Unusable(Exception):
    """What the environment says about proxies or certificates cannot be used."""


class _Undecodable(Exception):
    """The body is encoded in a way that was not asked for, or not as it says."""


class OpenAIModel:
    """Port `Model` for `openai/<name>`, with or without `apiBase`.

    One connection pool serves the process. Without `apiKeySecretRef` the key comes from OPENAI_API_KEY, but only
    for OpenAI itself: an `apiBase` never gets a key that was not meant for it.
    """

    def __init__(self, secrets: Secrets, environ: Mapping[str, str] = os.environ) -> None:
        self._secrets = secrets
        self._environ = environ
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pools: dict[tuple[bool, str | None], Connections] = {}

    async def call(self, request: ModelRequest) -> ModelReply | ModelFailure:
        """Make one attempt, without streaming; ends within the endpoint's `timeoutSeconds`."""
        prepared = self._prepare(request)
        if isinstance(prepared, ModelFailure):
            return prepared
        host = urlsplit(prepared.url).netloc
        seconds = request.endpoint.timeout_seconds
        try:
            async with asyncio.timeout(seconds) as deadline:
                answer = await self._send(prepared)
        except TimeoutError as error:
            if not deadline.expired():
                return ModelFailure("Connection", f"{host}: {type(error).__name__}", sent=True)
            message = f"{host} sent no whole reply within {seconds} s (model.timeoutSeconds)"
            return ModelFailure("Timeout", shortened(message), sent=True)
        except _Unusable as error:
            return ModelFailure("InvalidRequest", shortened(prepared.redaction.excerpt(str(error))))
        except _Undecodable as error:
            return ModelFailure("Garbage", shortened(f"{host}: {error}"), sent=True)
        except HTTP_ERRORS as error:
            return _transport_failure(error, host, prepared.redaction)
        return read_answer(answer, host, request, prepared.redaction)

    def price(self, endpoint: ModelEndpoint) -> tuple[float, float] | None:
        """Return US dollars per million (input, output) tokens, or None."""
        return price_table.price(endpoint)

    def context_window(self, endpoint: ModelEndpoint) -> int | None:
        """Return the context window in tokens, or None."""
        return price_table.context_window(endpoint)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._loop is asyncio.get_running_loop():
            for pool in self._pools.values():
                await pool.aclose()
        self._pools = {}

    def _prepare(self, request: ModelRequest) -> _Prepared | ModelFailure:
        endpoint = request.endpoint
        url = chat_url(endpoint.api_base or DEFAULT_BASE)
        if isinstance(url, ModelFailure):
            return url
        key = self._key(endpoint)
        if isinstance(key, ModelFailure):
            return key
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "user-agent": f"pilothouse/{__version__}",
            **trace_headers(),
        }
        if key:
            headers["authorization"] = f"Bearer {key}"
        try:
            body = json.dumps(encode_body(request, urlsplit(url).hostname or ""), ensure_ascii=False, allow_nan=False)
        except ValueError:
            return ModelFailure("InvalidRequest", "the parameters of a tool hold a number that JSON cannot express")
        return _Prepared(url, headers, body.encode("utf-8", "replace"), Redaction(key, request))

    def _key(self, endpoint: ModelEndpoint) -> str | ModelFailure:
        ref = endpoint.api_key_secret_ref
        if ref is None and endpoint.api_base:
            return ""
        if ref is None:
            where, key = DEFAULT_KEY_VARIABLE, self._environ.get(DEFAULT_KEY_VARIABLE, "").strip()
        else:
            try:
                where, key = f"key {ref.key} of Secret {ref.name}", self._secrets.read(ref.name, ref.key).strip()
            except SecretUnavailable as error:
                return ModelFailure("Authentication", shortened(f"{error}; see model.apiKeySecretRef"))
        if not key:
            return ModelFailure("Authentication", f"{where} is empty; see model.apiKeySecretRef")
        if not _HEADER_SAFE.fullmatch(key):
            message = (
                f"{where} holds white space or characters that no HTTP header can carry; see model.apiKeySecretRef"
            )
            return ModelFailure("Authentication", message)
        return key

    async def _send(self, prepared: _Prepared) -> _Answer:
        pool = self._pool(prepared.url)
        chunks: list[bytes] = []
        size = 0
        async with pool.stream("POST", prepared.url, prepared.headers, prepared.body) as reply:
            async for chunk in reply.pieces:
                size += len(chunk)
                if size > MAX_REPLY_BYTES:
                    return _Answer(reply.status, reply.headers, None)
                chunks.append(chunk)
        return _Answer(reply.status, reply.headers, _decoded(b"".join(chunks), reply.headers))

    def _pool(self, url: str) -> Connections:
        """Return the pool for this kind of address; a pool belongs to the loop that it was opened in."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._pools = loop, {}
        parts = urlsplit(url)
        is_tls, proxy = parts.scheme == "https", None if _is_loopback(parts.hostname or "") else environment_proxy(url)
        pool = self._pools.get((is_tls, proxy))
        if pool is None:
            pool = self._pools[is_tls, proxy] = _open_pool(is_tls=is_tls, proxy=proxy)
        return pool


def _open_pool(*, is_tls: bool, proxy: str | None) -> Connections:
    try:
        return Connections(
            max_connections=64,
            keepalive_seconds=KEEPALIVE_SECONDS,
            # Reading the certificate authorities costs up to half a second: not for plain HTTP.
            ssl_context=trusted_authorities() if is_tls else None,
            proxy=open_proxy(proxy) if proxy else None,
        )
    except (OSError, ValueError, TypeError) as error:
        raise _Unusable(f"HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or SSL_CERT_FILE cannot be used: {error}") from error


def _decoded(body: bytes, headers: Mapping[str, str]) -> bytes | None:
    """Return the body as JSON is read from it, None when it is too large then; raises _Undecodable."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if not body or encoding == "identity":
        return body
    from pilothouse_runner.adapters.http import decode_body  # some send gzip although identity was asked for

    decoded = decode_body(body, encoding, MAX_REPLY_BYTES)
    if isinstance(decoded, str):
        raise _Undecodable(decoded)
    return decoded if len(decoded) <= MAX_REPLY_BYTES else None


def chat_url(base: str) -> str | ModelFailure:
    """Return the address that chat completions are posted to, or why `base` has none."""
    try:
        parts = urlsplit(base)
        host = _ascii_host(parts.hostname or "")
    except ValueError:
        return ModelFailure("InvalidRequest", "model.apiBase is no URL")
    try:
        port = parts.port
    except ValueError:
        return ModelFailure("InvalidRequest", "model.apiBase names a port that is not between 0 and 65535")
    if not base.isprintable():
        return ModelFailure("InvalidRequest", "model.apiBase holds control characters")
    if parts.scheme not in ("http", "https") or not host:
        return ModelFailure("InvalidRequest", "model.apiBase must begin with http:// or https:// and name a host")
    if "@" in parts.netloc:
        return ModelFailure("InvalidRequest", "model.apiBase carries a password; use model.apiKeySecretRef")
    host = f"[{host}]" if ":" in host else host
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return parts._replace(
        netloc=host if port is None else f"{host}:{port}",
        path=quote(f"{path}/chat/completions", safe=_URL_SAFE),
        query=quote(parts.query, safe=_URL_SAFE),
        fragment="",
    ).geturl()


def _ascii_host(host: str) -> str:
    """Return a host as it is looked up; raises ValueError."""
    if host.isascii() and "xn--" not in host:
        if _HOST_UNSAFE.search(host):
            raise ValueError("a host has other characters")
        return host
    import idna

    return idna.encode(host, uts46=True).decode("ascii")


def encode_body(request: ModelRequest, host: str) -> dict[str, Any]:
    """Return the JSON body of a call to `host`."""
    endpoint = request.endpoint
    body: dict[str, Any] = {"model": endpoint.name.removeprefix(PREFIX), "messages": encode_messages(request)}
    if request.tools:
        body["tools"] = encode_tools(request.tools)
    if request.response_format is not None:
        body["response_format"] = request.response_format
    if endpoint.temperature is not None:
        body["temperature"] = endpoint.temperature
    if endpoint.max_output_tokens is not None:
        # OpenAI's reasoning models refuse max_tokens, its other models take both; most other servers know only it.
        is_openai = host == "api.openai.com" or host.endswith(".openai.azure.com")
        body["max_completion_tokens" if is_openai else "max_tokens"] = endpoint.max_output_tokens
    return body


def read_answer(answer: _Answer, host: str, request: ModelRequest, redaction: Redaction) -> ModelReply | ModelFailure:
    """Say what an HTTP response means."""
    body = _json(answer.body)
    if not 200 <= answer.status <= 299:
        problem = stated_problem(body, answer.status) or Problem(answer.status, message=_page_title(answer))
        if 300 <= answer.status <= 399:
            problem = Problem(answer.status, message="redirects are not followed; see model.apiBase")
        failure = stated_failure(problem, redaction, f"{host} answered {answer.status}")
        return replace(failure, retry_after=retry_after(answer.headers))
    if answer.body is None:
        return ModelFailure("Garbage", f"{host} sent more than {MAX_REPLY_BYTES} bytes", answer.status, sent=True)
    if body is None:
        return ModelFailure("Garbage", _garbage_message(answer, host, redaction), answer.status, sent=True)
    result = parse_reply(body, request, redaction)
    if isinstance(result, ModelReply):
        return result
    message = shortened(f"{host}: {result.message}")
    return replace(result, message=message, retry_after=retry_after(answer.headers))


def _json(body: bytes | None) -> Any:
    try:
        # NaN and Infinity are no JSON, but some servers write them: they mean "not known".
        return json.loads((body or b"").decode("utf-8-sig"), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def _garbage_message(answer: _Answer, host: str, redaction: Redaction) -> str:
    size = len(answer.body or b"")
    if (answer.body or b"").lstrip().startswith(b"data:"):
        return f"{host} streams although it was not asked to"
    stated = answer.headers.get("content-type", "no content-type")
    title = redaction.excerpt(_page_title(answer))
    named = f", titled {title!r}" if title else ""
    return shortened(
        f"{host} answered 200 with {size} bytes that are no JSON ({redaction.excerpt(stated)[:80]}{named})"
    )


def _page_title(answer: _Answer) -> str:
    found = _TITLE.search((answer.body or b"")[:20_000].decode("utf-8", "replace"))
    return found.group(1) if found else ""


def _transport_failure(error: Exception, host: str, redaction: Redaction) -> ModelFailure:
    said = redaction.excerpt(str(error)) or type(error).__name__
    if isinstance(error, httpcore.UnsupportedProtocol | httpcore.LocalProtocolError):
        return ModelFailure("InvalidRequest", shortened(f"{host}: {said}; see model.apiBase"))
    is_unsent = isinstance(
        error, httpcore.ConnectError | httpcore.ConnectTimeout | httpcore.PoolTimeout | httpcore.WriteError
    )
    return ModelFailure("Connection", shortened(f"{host}: {said}"), sent=not is_unsent)


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
