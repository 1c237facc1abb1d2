"""/metrics, /livez, /readyz: served beside Kopf, so that they answer while it starts and while it hangs.

Standby is ready. A leader is alive while its event loop turns, its Lease is renewed, and the API server has answered
something lately.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from pilothouse_operator.metrics import Metrics

LONGEST_SILENCE_SECONDS = 120.0
LONGEST_LAG_SECONDS = 5.0


@dataclass(slots=True)
class Health:
    """What the probes look at; written by the host."""

    not_ready: str | None = "starting"
    is_leader: bool = False
    lag_seconds: float = 0.0


class Server:
    """The HTTP server of one process."""

    def __init__(self, metrics: Metrics, health: Health, refresh: Callable[[], None], host: str, port: int) -> None:
        self._metrics = metrics
        self._health = health
        self._refresh = refresh
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None
        self._heartbeat: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._runner is not None
        return int(self._runner.addresses[0][1])

    async def start(self) -> None:
        """Begin to serve."""
        app = web.Application()
        app.router.add_get("/metrics", self._serve_metrics)
        app.router.add_get("/livez", self._serve_livez)
        app.router.add_get("/readyz", self._serve_readyz)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        self._heartbeat = asyncio.create_task(self._beat(), name="heartbeat")

    async def stop(self) -> None:
        """Serve no more."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(1.0)
            self._health.lag_seconds = loop.time() - before - 1.0

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        self._refresh()
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _serve_livez(self, request: web.Request) -> web.Response:
        problem = self._find_problem()
        return web.Response(text=f"{problem or 'ok'}\n", status=500 if problem else 200)

    def _find_problem(self) -> str | None:
        if self._health.lag_seconds > LONGEST_LAG_SECONDS:
            return f"the event loop lags {self._health.lag_seconds:.1f} s (limit {LONGEST_LAG_SECONDS:.0f})"
        silence = time.monotonic() - self._metrics.last_contact_at
        if self._health.is_leader and silence > LONGEST_SILENCE_SECONDS:
            return f"the API server has not answered for {silence:.0f} s (limit {LONGEST_SILENCE_SECONDS:.0f})"
        return None

    async def _serve_readyz(self, request: web.Request) -> web.Response:
        problem = self._health.not_ready
        return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)
