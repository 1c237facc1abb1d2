"""What is counted: one registry of Prometheus metrics, no label that names a run."""

import time
from functools import partial
from types import SimpleNamespace

import aiohttp
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "pilothouse_operator"


class Metrics:
    """All metrics of the process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        gauge = partial(Gauge, namespace=PREFIX, registry=self.registry)
        counter = partial(Counter, namespace=PREFIX, registry=self.registry)
        histogram = partial(Histogram, namespace=PREFIX, registry=self.registry)
        self.is_leader = gauge("is_leader", "1 while this process holds the Lease.")
        self.queue_depth = gauge("queue_depth", "Keys that wait for a reconciler.")
        self.cached_objects = gauge("cached_objects", "Objects in the operator's picture.", ["kind"])
        self.reconciles = counter("reconciles", "Reconciles by result.", ["kind", "result"])
        self.reconcile_seconds = histogram("reconcile_seconds", "Time of one reconcile.", ["kind"])
        self.sweep_drift = counter("sweep_drift", "Objects that the watches missed; should stay 0.", ["kind"])
        self.runs_ended = counter("runs_ended", "Runs that ended.", ["phase"])
        self.attempts_failed = counter("attempts_failed", "Attempts that ended badly.", ["kind"])
        self.requests = counter("api_requests", "Requests to the API server.", ["method", "code"])
        self.request_seconds = histogram("api_request_seconds", "Time until the answer's head.", ["method"])
        self.events_dropped = counter("events_dropped", "Events that found the queue full.")
        # Like those of runners: of what happens in a run. The rule's name stands in the Event and in the log; as a
        # label each author of a Supervisor would add series.
        agent = partial(Counter, namespace="pilothouse_agent", registry=self.registry)
        self.supervisor_actions = agent("supervisor_actions", "What supervision did.", ["action", "source"])
        self.judge_failures = agent("judge_failures", "Verdicts that were not given.", ["type"])
        self.last_contact_at = time.monotonic()

    def tracing(self) -> aiohttp.TraceConfig:
        """Return a trace of the shared session, which counts Kopf's requests as well."""
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._on_start)
        trace.on_request_end.append(self._on_end)
        trace.on_request_exception.append(self._on_exception)
        return trace

    async def _on_start(
        self, session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestStartParams
    ) -> None:
        context.started = time.monotonic()

    async def _on_end(
        self, session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
    ) -> None:
        now = time.monotonic()
        self.requests.labels(params.method, str(params.response.status)).inc()
        self.request_seconds.labels(params.method).observe(now - context.started)
        if params.response.status < 500:
            self.last_contact_at = now

    async def _on_exception(
        self, session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams
    ) -> None:
        self.requests.labels(params.method, type(params.exception).__name__).inc()
