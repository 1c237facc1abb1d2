"""A stub model server on loopback, in a thread of its own, that remembers what it was asked."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pilothouse_cli.authoring.stub_model import build_app
from pilothouse_engine.script import Script


@dataclass
class StubServer:
    """Where it listens and what it has seen."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    clients: list[Any] = field(default_factory=list)
    """Address and port that each request came from."""
    arrived: threading.Event = field(default_factory=threading.Event)
    """Set when a request has arrived in full."""
    left: threading.Event = field(default_factory=threading.Event)
    """Set when a client left before it had its reply."""


class _Recorder:
    def __init__(self, app: ASGIApp, server: StubServer) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""

        async def recording_receive() -> Message:
            nonlocal body
            message = await receive()
            if message["type"] == "http.disconnect":
                self._server.left.set()
            else:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    self._server.requests.append(json.loads(body))
                    self._server.arrived.set()
            return message

        self._server.clients.append(scope["client"])
        self._server.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        await self._app(scope, recording_receive, send)


@contextmanager
def serving(app: ASGIApp, **config: Any) -> Iterator[int]:
    """Serve an ASGI application on a free loopback port; yields the port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        uvicorn_config = uvicorn.Config(
            app,
            http="h11",
            lifespan="off",
            log_config=None,
            log_level="critical",
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=0,
            **config,
        )
        server = uvicorn.Server(uvicorn_config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(timeout=60)
            assert not thread.is_alive(), "the stub server does not stop"


@contextmanager
def stub_server(script: Script) -> Iterator[StubServer]:
    """Play a script over HTTP."""
    server = StubServer(url="")
    with serving(_Recorder(build_app(script), server)) as port:
        server.url = f"http://127.0.0.1:{port}/v1"
        yield server
