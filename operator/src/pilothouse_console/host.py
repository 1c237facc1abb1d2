"""The process: its parts, the order in which they begin and end, its probes."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import structlog
import uvicorn
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp

from pilothouse_api.names import FIELD_MANAGER_API
from pilothouse_console.access import Access
from pilothouse_console.api import Services, build_app
from pilothouse_console.gate import Gate
from pilothouse_console.metrics import Metrics
from pilothouse_console.picture import Picture
from pilothouse_console.rights import Guard
from pilothouse_console.settings import ApiSettings
from pilothouse_console.steering import Steering
from pilothouse_console.watching import Watching
from pilothouse_kubernetes.client import KubernetesClient
from pilothouse_kubernetes.connection import CONNECTION_LIMIT, Connection, Credentials

EXIT_FAULT = 1

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Parts:
    """What one process is made of."""

    connection: Connection
    services: Services
    app: ASGIApp


def build_parts(settings: ApiSettings, credentials: Credentials) -> Parts:
    """Put a process together; nothing runs yet."""
    metrics = Metrics()
    # A watch holds its connection: those of many namespaces must leave room for requests.
    limit = CONNECTION_LIMIT + len(settings.watch_namespaces)
    connection = Connection(credentials, limit=limit, user_agent="pilothouse-api")
    client = KubernetesClient(connection, field_manager=FIELD_MANAGER_API)
    picture = Picture()
    access = Access(client)
    services = Services(
        picture=picture,
        watching=Watching(client, picture, settings.watch_namespaces, metrics),
        guard=Guard(access, picture, client),
        steering=Steering(client, picture),
        metrics=metrics,
    )
    return Parts(connection, services, Gate(build_app(services), access, metrics))


class _Server(uvicorn.Server):
    """A server that leaves signals to the process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Host:
    """One process of the operator API."""

    def __init__(self, settings: ApiSettings, credentials: Credentials) -> None:
        self._settings = settings
        self._parts = build_parts(settings, credentials)
        self._server = _Server(_config(settings, self._parts.app))

    @property
    def services(self) -> Services:
        """What the calls work with, for the mirror of a fleet and for tests."""
        return self._parts.services

    @property
    def port(self) -> int:
        """The port of the API, once it listens."""
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    @property
    def is_listening(self) -> bool:
        """Whether it listens."""
        return self._server.started

    def stop(self) -> None:
        """Ask the process to end in good order."""
        self._server.should_exit = True

    async def run(self) -> int:
        """Serve until told to stop; return the exit code."""
        self._catch_signals()
        watching = asyncio.create_task(self._parts.services.watching.run(), name="watching")
        try:
            async with self._probes():
                serving = asyncio.create_task(self._server.serve(), name="serving")
                await asyncio.wait({watching, serving}, return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    return EXIT_FAULT if serving.exception() or not self._server.started else 0
                log.error("api.task_ended", task="watching", error=repr(watching.exception()))
                self.stop()
                await serving
                return EXIT_FAULT
        finally:
            watching.cancel()
            await asyncio.wait({watching})
            await self._parts.connection.close()

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self.stop)
            except (RuntimeError, ValueError):
                return  # not the main thread (a test): nobody sends it signals

    @asynccontextmanager
    async def _probes(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/livez", self._serve_livez)
        app.router.add_get("/readyz", self._serve_readyz)
        app.router.add_get("/metrics", self._serve_metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, self._settings.host, self._settings.probe_port).start()
        try:
            yield
        finally:
            await runner.cleanup()

    async def _serve_livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")  # it answers: the event loop turns

    async def _serve_readyz(self, request: web.Request) -> web.Response:
        problem = self._find_problem()
        return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)

    def _find_problem(self) -> str | None:
        if self._server.should_exit or not self._server.started:
            return "it is starting or ending"
        # Once listed it stays ready: an old picture says that it is old, and a broken one would end all replicas.
        return None if self._parts.services.watching.is_synced else "runs have not been listed yet"

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        services = self._parts.services
        services.metrics.runs.set(len(services.picture))
        services.metrics.is_live.set(services.watching.is_live)
        body = generate_latest(services.metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _config(settings: ApiSettings, app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=settings.stop_seconds,
    )
