"""The process: probes, election, Kopf, workers, sweep; and the order in which they begin and end."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import kopf
import structlog

from pilothouse_kubernetes.client import ApiError, Forbidden, KubernetesClient
from pilothouse_kubernetes.connection import CONNECTION_LIMIT, Connection, Credentials
from pilothouse_operator.metrics import Metrics
from pilothouse_operator.process.contact import keep_in_touch
from pilothouse_operator.process.contract import check_contract, check_served
from pilothouse_operator.process.lease import Elector, LeaseTerms
from pilothouse_operator.process.serving import Health, Server
from pilothouse_operator.process.sweep import Sweeper, load
from pilothouse_operator.reconcile.desk import Desk
from pilothouse_operator.reconcile.registry import Reconciler, build_reconcilers
from pilothouse_operator.settings import OperatorSettings, process_identity
from pilothouse_operator.status.event_poster import EventPoster
from pilothouse_operator.supervision.judge_client import open_judge
from pilothouse_operator.supervision.judges import Judges
from pilothouse_operator.watching.cache import Cache, Key
from pilothouse_operator.watching.informer import SELECTORS, build_registry, build_settings
from pilothouse_operator.watching.queue import WorkQueue
from pilothouse_operator.workloads.plans import PlanStore

CHECK_SECONDS = 5.0
DRAIN_SECONDS = 10.0
STOP_SECONDS = 10.0
EXIT_FAULT = 1

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Flags:
    """What stops the process, and what other tasks wait for."""

    stop: asyncio.Event
    is_watching: asyncio.Event


class Host:
    """One operator process."""

    def __init__(self, settings: OperatorSettings, credentials: Credentials) -> None:
        self._settings = settings
        self._credentials = credentials
        self._metrics = Metrics()
        self._health = Health()
        # A watch holds its connection: those of many namespaces must leave room for requests.
        watches = len(SELECTORS) * max(len(settings.watch_namespaces), 1)
        self._connection = Connection(credentials, self._metrics.tracing(), CONNECTION_LIMIT + watches)
        client = KubernetesClient(self._connection)
        self._judge = open_judge(settings.judge_url, settings.judge_token_path)
        queue: WorkQueue[Key] = WorkQueue()
        self._desk = Desk(
            client=client,
            cache=Cache(),
            queue=queue,
            settings=settings,
            metrics=self._metrics,
            events=EventPoster(client, self._metrics),
            plans=PlanStore(client),
            judges=Judges(self._judge, queue.add),
        )
        self._namespaces: list[str | None] = list(settings.watch_namespaces) or [None]
        self._reconcilers: Mapping[str, Reconciler] = build_reconcilers(self._desk)
        self._flags = Flags(asyncio.Event(), asyncio.Event())

    @property
    def desk(self) -> Desk:
        """What the reconcilers work with, for tests and benches."""
        return self._desk

    def stop(self) -> None:
        """Ask the process to end in good order."""
        self._flags.stop.set()

    async def run(self) -> int:
        """Serve, wait for the Lease, lead until told to stop; return the exit code."""
        self._catch_signals()
        server = Server(self._metrics, self._health, self._refresh, self._settings.http_host, self._settings.http_port)
        await server.start()
        log.info("operator.serving", port=server.port)
        try:
            if not await self._wait_for_contract():
                return 0
            return await self._stand_and_lead()
        finally:
            await server.stop()
            if self._judge is not None:
                await self._judge.close()
            await self._connection.close()

    async def _stand_and_lead(self) -> int:
        terms = LeaseTerms(
            self._settings.namespace,
            self._settings.lease_name,
            process_identity(self._settings),
            self._settings.lease_seconds,
            self._settings.renew_seconds,
            self._settings.retry_seconds,
        )
        elector = Elector(self._credentials, terms)
        elector.start()
        try:
            if not await elector.wait_acquired(self._flags.stop):
                return 0
            log.info("operator.leading", identity=terms.identity)
            self._health.is_leader = True
            self._metrics.is_leader.set(1)
            self._metrics.last_contact_at = time.monotonic()
            return await self.lead()
        finally:
            await elector.release()  # last: whoever leads next may write from this moment on

    async def lead(self) -> int:
        """Watch and reconcile until told to stop; return the exit code."""
        # Tasks that are made after Kopf's start are cancelled by it when it ends, hence workers come first.
        workers = [asyncio.create_task(self._work(), name=f"worker-{n}") for n in range(self._settings.workers)]
        others = [
            asyncio.create_task(self._desk.events.run(), name="events"),
            asyncio.create_task(self._repeat(self._sweep), name="sweep"),
            asyncio.create_task(self._desk.judges.run(self._look_at_judged), name="judges"),
            asyncio.create_task(keep_in_touch(self._desk), name="contact"),
        ]
        stop_kopf = asyncio.Event()
        watching = asyncio.create_task(self._watch(stop_kopf), name="kopf")
        stopping = asyncio.create_task(self._flags.stop.wait(), name="stop")
        try:
            ended, _ = await asyncio.wait({watching, stopping, *others}, return_when=asyncio.FIRST_COMPLETED)
            if self._flags.stop.is_set():
                return 0
            return _report_end(ended)
        finally:
            for task in others:
                task.cancel()
            self._flags.is_watching.set()  # workers that still wait for the first listing must end too
            await self._drain(workers)
            self._desk.judges.close()
            stop_kopf.set()
            await asyncio.wait({watching, *others}, timeout=STOP_SECONDS)
            stopping.cancel()

    async def _watch(self, stop: asyncio.Event) -> None:
        ready = asyncio.Event()
        namespaces = self._settings.watch_namespaces
        waiting = asyncio.create_task(self._retake_signals(ready), name="signals")
        try:
            await kopf.operator(
                registry=build_registry(self._connection, self._desk.notice),
                settings=build_settings(),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=list(namespaces),
                stop_flag=stop,
                ready_flag=ready,
            )
        finally:
            waiting.cancel()

    async def _retake_signals(self, ready: asyncio.Event) -> None:
        """Kopf takes SIGTERM for itself at its start and would end before the workers have drained."""
        await ready.wait()
        self._catch_signals()

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self.stop)
            except (RuntimeError, ValueError):
                return  # not the main thread (a test): nobody sends it signals

    async def _load(self) -> None:
        pause = 1.0
        while True:
            try:
                await load(self._desk, self._namespaces, self._desk.notice)
                self._flags.is_watching.set()
                log.info("operator.loaded", objects=len(self._desk.cache))
                return
            except ApiError as error:
                log.warning("operator.not_loaded", error=str(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, 30.0)

    # ------------------------------------------------------------ work

    async def _work(self) -> None:
        await self._flags.is_watching.wait()
        queue = self._desk.queue
        while (key := await queue.get()) is not None:
            try:
                await self._look(key)
            finally:
                queue.done(key)

    async def _look(self, key: Key) -> None:
        queue, started = self._desk.queue, time.monotonic()
        try:
            pause = await self._reconcilers[key.kind].reconcile(key)
        except ApiError as error:
            self._count(key, type(error).__name__, started)
            wait = queue.retry(key, error.retry_after or 0.0)
            log.warning("reconcile.refused", **_named(key), error=str(error), retry_seconds=round(wait, 1))
            return
        except Exception:
            # A fault of ours must not end the loop for everybody else: it is shown, and tried again with backoff.
            self._count(key, "Fault", started)
            log.exception("reconcile.fault", **_named(key), retry_seconds=round(queue.retry(key), 1))
            return
        self._count(key, "Done", started)
        queue.forget(key)
        if pause is not None and pause <= 0:
            queue.add(key)
        elif pause is not None:
            queue.add_after(key, pause)

    def _count(self, key: Key, result: str, started: float) -> None:
        self._metrics.reconciles.labels(key.kind, result).inc()
        self._metrics.reconcile_seconds.labels(key.kind).observe(time.monotonic() - started)

    async def _drain(self, workers: list[asyncio.Task[None]]) -> None:
        """Let reconciles that have begun come to their end, then end the workers."""
        self._desk.queue.close()
        _, late = await asyncio.wait(workers, timeout=DRAIN_SECONDS)
        for worker in late:
            worker.cancel()
        if late:
            await asyncio.wait(late, timeout=STOP_SECONDS)

    def _look_at_judged(self) -> None:
        """Have everybody look who waits for what the platform's table of models says."""
        cache = self._desk.cache
        runs = [key for key in cache.keys("AgentRun") if "supervision" in (cache.get(key) or {}).get("status", {})]
        for key in (*cache.keys("Supervisor"), *runs):
            self._desk.queue.add(key)

    async def _sweep(self) -> None:
        if not self._flags.is_watching.is_set():
            await self._load()
        await Sweeper(self._desk, self._namespaces, self._desk.notice).run()

    async def _repeat(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task for ever, again after a refusal of the API server."""
        while True:
            try:
                await task()
            except ApiError as error:
                log.warning("sweep.refused", error=str(error))
                await asyncio.sleep(CHECK_SECONDS)

    # ------------------------------------------------------------ probes

    async def _wait_for_contract(self) -> bool:
        """Return True when the installed CRDs have what is needed; until then the process is not ready."""
        while not self._flags.stop.is_set():
            problem = await self._find_contract_problem()
            if problem is None:
                self._health.not_ready = None
                return True
            if problem != self._health.not_ready:
                log.error("operator.not_ready", problem=problem)
            self._health.not_ready = problem
            try:
                await asyncio.wait_for(self._flags.stop.wait(), CHECK_SECONDS)
            except TimeoutError:
                continue
        return False

    async def _find_contract_problem(self) -> str | None:
        try:
            try:
                return await check_contract(self._desk.client)
            except Forbidden:
                return await check_served(self._desk.client)
        except ApiError as error:
            return f"the API server cannot be asked for its CRDs: {error}"

    def _refresh(self) -> None:
        self._metrics.queue_depth.set(len(self._desk.queue))
        for resource in SELECTORS:
            self._metrics.cached_objects.labels(resource.kind).set(self._desk.cache.count(resource.kind))


def _report_end(ended: Iterable[asyncio.Task[Any]]) -> int:
    """Say which task of the leader ended by itself, which none may; return the exit code."""
    for task in ended:
        error = None if task.cancelled() else task.exception()
        log.error("operator.task_ended", task=task.get_name(), error=repr(error), exc_info=error)
    return EXIT_FAULT


def _named(key: Key) -> dict[str, str]:
    return {"kind": key.kind, "namespace": key.namespace, "name": key.name}
