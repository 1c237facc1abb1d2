"""What every request passes: a valid token and a bound on its size before anything is read, headers and counts after.

Plain ASGI, so that nobody who has no token reaches what parses.
"""

import time
from typing import Any

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pilothouse_console.access import Access
from pilothouse_console.metrics import Metrics
from pilothouse_console.problems import Problem

LONGEST_BODY_BYTES = 128 * 1024
GUARDED = "/api/"
"""What is below needs a token."""
_SAFE_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}

log = structlog.get_logger()


class Gate:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, access: Access, metrics: Metrics) -> None:
        self._app = app
        self._access = access
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _SAFE_HEADERS.items():
                    headers.setdefault(name, value)
                self._metrics.request_seconds.labels(_route(scope)).observe(time.monotonic() - started)
            await send(message)

        try:
            await self._pass(scope, receive, send_marked)
        except Problem as problem:
            await problem.response()(scope, receive, send_marked)
        except Exception:
            # A fault of ours: it is shown in the log, and the caller gets no traceback.
            log.exception("api.fault", route=_route(scope))
            if status:
                raise
            await Problem(500, "the operator API has a fault", "see its log").response()(scope, receive, send_marked)
        finally:
            self._metrics.requests.labels(_route(scope), str(status)).inc()

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if scope["path"].startswith(GUARDED):
            token = bearer_token(headers.get("authorization"))
            caller = await self._access.identify(token) if token else None
            if caller is None:
                raise _not_authenticated(is_sent=token is not None)
            scope.setdefault("state", {}).update(caller=caller, token=token)
        await self._app(scope, _bounded(headers, receive), send)


def bearer_token(header: str | None) -> str | None:
    """Return the token of an Authorization header, None where there is none."""
    kind, _, token = (header or "").partition(" ")
    return token.strip() or None if kind.lower() == "bearer" else None


def _not_authenticated(*, is_sent: bool) -> Problem:
    what = "this token is not valid, or no longer" if is_sent else "a bearer token is needed"
    next_step = "Authorization: Bearer $(kubectl create token NAME)"
    return Problem(401, what, next_step, headers={"WWW-Authenticate": "Bearer"})


def _bounded(headers: Headers, receive: Receive) -> Receive:
    """Return what receives a body up to the bound; raises Problem for a longer one."""
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length) > LONGEST_BODY_BYTES:
        raise _too_large()
    size = 0

    async def receive_bounded() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > LONGEST_BODY_BYTES:
            raise _too_large()
        return message

    return receive_bounded


def _too_large() -> Problem:
    return Problem(413, f"the body has more than {LONGEST_BODY_BYTES} bytes", "send less")


def _route(scope: Scope) -> str:
    """Return the path with its parameters unfilled, so that metrics name no run."""
    route: Any = scope.get("route")
    return getattr(route, "path", "") or "other"
