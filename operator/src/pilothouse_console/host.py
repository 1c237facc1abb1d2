"""The process: its parts, the order in which they begin and end, its probes."""

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
import uvicorn
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp

from pilothouse_api.names import FIELD_MANAGER_API
from pilothouse_console.access import Access
from pilothouse_console.api import Services, build_app
from pilothouse_console.connections import PunctualProtocol
from pilothouse_console.fleet import Fleet, Office
from pilothouse_console.gate import Gate
from pilothouse_console.letters import FleetKey, WrongKey
from pilothouse_console.metrics import Metrics
from pilothouse_console.picture import Picture
from pilothouse_console.redis_store import RedisStore, connect
from pilothouse_console.rights import Guard
from pilothouse_console.settings import ApiSettings
from pilothouse_console.steering import Steering
from pilothouse_console.streams import Streams
from pilothouse_console.watching import Watching
from pilothouse_kubernetes.client import KubernetesClient
from pilothouse_kubernetes.connection import CONNECTION_LIMIT, Connection, Credentials

EXIT_FAULT = 1
UNTAKEN_SECONDS = 60
CERTIFICATE_SECONDS = 60.0
"""How often the certificate's files are looked at: whatever renews it does so days before it ends."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Parts:
    """What one process is made of."""

    connection: Connection
    services: Services
    app: ASGIApp
    fleet: Fleet | None = None

    async def close(self) -> None:
        """Close what is connected."""
        if self.services.store is not None:
            await self.services.store.close()
        await self.connection.close()


def build_parts(settings: ApiSettings, credentials: Credentials) -> Parts:
    """Put a process together; nothing runs yet."""
    metrics = Metrics()
    # A watch holds its connection: those of many namespaces must leave room for requests.
    limit = CONNECTION_LIMIT + len(settings.watch_namespaces)
    connection = Connection(credentials, limit=limit, user_agent="pilothouse-api")
    client = KubernetesClient(connection, field_manager=FIELD_MANAGER_API)
    picture = Picture()
    access = Access(client)
    store = None
    if settings.redis_url:
        store = RedisStore(connect(settings.redis_url, settings.redis_login), metrics)
    office = Office(
        picture=picture,
        watching=Watching(client, picture, settings.watch_namespaces, metrics),
        guard=Guard(access, picture, client),
        steering=Steering(client, picture),
        metrics=metrics,
    )
    fleet = _build_fleet(settings, office)
    services = Services(
        picture=picture,
        watching=office.watching,
        guard=office.guard,
        steering=office.steering,
        metrics=metrics,
        access=access,
        streams=Streams(picture, store, metrics, settings.most_streams, settings.most_streams_per_user),
        store=store,
        heartbeat_seconds=settings.heartbeat_seconds,
        fleet=fleet,
    )
    return Parts(connection, services, Gate(build_app(services), access, metrics), fleet)


def _build_fleet(settings: ApiSettings, office: Office) -> Fleet | None:
    """Return this cluster's place in its fleet; raises WrongKey."""
    if not settings.fleet_redis_url or settings.fleet_key is None:
        return None
    try:
        key = FleetKey.read(settings.fleet_key.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise WrongKey(f"the keys of the fleet cannot be read: {error}") from None
    redis = connect(settings.fleet_redis_url, settings.fleet_redis_login, is_bounded=False)
    return Fleet(settings.fleet_cluster, key, redis, office)


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
        self._parts.services.streams.close()

    async def run(self) -> int:
        """Serve until told to stop; return the exit code."""
        self._catch_signals()
        following = asyncio.create_task(self._follow(), name="following")
        try:
            async with self._probes():
                serving = asyncio.create_task(self._serve(), name="serving")
                await asyncio.wait({following, serving}, return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    return EXIT_FAULT if serving.exception() or not self._server.started else 0
                log.error("api.task_ended", task="following", error=repr(following.exception()))
                self.stop()
                await serving
                return EXIT_FAULT
        finally:
            following.cancel()
            await asyncio.wait({following})
            await self._parts.close()

    async def _follow(self) -> None:
        """Feed the picture and the streams, and the mirror of a fleet, for ever."""
        async with asyncio.TaskGroup() as group:
            if self._parts.fleet is not None:
                group.create_task(self._parts.fleet.run())
            group.create_task(self._parts.services.watching.run())
            group.create_task(self._parts.services.streams.run())
            group.create_task(self._follow_certificate())

    async def _follow_certificate(self) -> None:
        """Serve a certificate that was replaced on disk to who connects from then on."""
        certificate, key = self._settings.tls_certificate, self._settings.tls_key
        if certificate is None:
            return
        served = _texts(certificate, key)
        while True:
            await asyncio.sleep(CERTIFICATE_SECONDS)
            found = _texts(certificate, key)
            context = self._server.config.ssl
            if found == served or found is None or context is None:
                continue
            try:
                # Tried on another context first: else what is served could be half new.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
                context.load_cert_chain(certificate, key)
            except (OSError, ssl.SSLError) as error:  # half of it is there: the other half comes in moments
                log.warning("api.certificate_unreadable", error=str(error))
                continue
            served = found
            log.info("api.certificate_replaced")

    async def _serve(self) -> None:
        family = socket.AF_INET6 if ":" in self._settings.host else socket.AF_INET
        address = (self._settings.host, self._settings.port)
        with socket.create_server(address, family=family, backlog=2048) as listening:
            # Connections inherit it: what a viewer does not take in so long ends, even where the viewer stays.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNTAKEN_SECONDS * 1000)
            await self._server.serve(sockets=[listening])

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


def _texts(*paths: Path | None) -> tuple[bytes, ...] | None:
    try:
        return tuple(path.read_bytes() for path in paths if path is not None)
    except OSError:
        return None


def _config(settings: ApiSettings, app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=PunctualProtocol,
        ws="none",
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=settings.stop_seconds,
    )
