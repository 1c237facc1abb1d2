"""What sends spans and metrics: the SDK's own threads, with bounded queues; a collector that is away costs nothing.

All attempts of a run are one trace: its id follows from the run's uid. Metrics are deltas and name no run, so that
the sum over many short processes is right and its series are few (docs/adr/0016).
"""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import INVALID_TRACE_ID

from pilothouse_api import __version__
from pilothouse_api.structs import Plan
from pilothouse_engine.facts import Fact
from pilothouse_engine.observers import Observer
from pilothouse_runner.adapters.telemetry.metrics import MetricObserver
from pilothouse_runner.adapters.telemetry.spans import SpanObserver

SCOPE = "pilothouse"
SERVICE = "pilothouse-runner"
CLOSING_SECONDS = 3.0
"""How long the end of a process waits for what was not sent yet."""

DELTAS: dict[type, AggregationTemporality] = {
    Counter: AggregationTemporality.DELTA,
    Histogram: AggregationTemporality.DELTA,
}
TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"


class RunIds(RandomIdGenerator):
    """Gives every root span of a run the same trace, whichever attempt it is of."""

    def __init__(self, uid: str) -> None:
        self._trace_id = int.from_bytes(hashlib.sha256(f"pilothouse/{uid}".encode()).digest()[:16], "big")

    def generate_trace_id(self) -> int:
        """Return the run's trace."""
        return self._trace_id if self._trace_id != INVALID_TRACE_ID else super().generate_trace_id()


class Telemetry:
    """Traces and metrics of one attempt; either may be missing."""

    def __init__(
        self, plan: Plan, attempt: int, resource: Resource, spans: SpanProcessor | None, reader: MetricReader | None
    ) -> None:
        self._shutdowns: list[Callable[[], None]] = []
        self._spans: SpanObserver | None = None
        observers: list[Observer] = []
        if spans is not None:
            tracers = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=RunIds(plan.run.uid))
            tracers.add_span_processor(spans)
            self._tracers = tracers
            self._spans = SpanObserver(tracers.get_tracer(SCOPE, __version__), plan, attempt)
            self._shutdowns.append(tracers.shutdown)
            observers.append(self._spans)
        if reader is not None:
            meters = MeterProvider([reader], resource, shutdown_on_exit=False)
            self._shutdowns.append(meters.shutdown)
            observers.append(MetricObserver(meters.get_meter(SCOPE, __version__), plan))
        self.observers = tuple(observers)

    @staticmethod
    def over_otlp(plan: Plan, attempt: int, environment: Mapping[str, str]) -> "Telemetry":
        """Return telemetry that is sent as the OTEL_ variables say, over OTLP/HTTP."""
        general = "OTEL_EXPORTER_OTLP_ENDPOINT"

        def has(signal: str) -> bool:
            named = environment.get(general) or environment.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
            return bool(named) and environment.get(f"OTEL_{signal}_EXPORTER", "otlp").strip().lower() != "none"

        deltas = None if environment.get(TEMPORALITY) else DELTAS
        telemetry = Telemetry(
            plan,
            attempt,
            build_resource(plan, environment),
            BatchSpanProcessor(OTLPSpanExporter()) if has("TRACES") else None,
            PeriodicExportingMetricReader(OTLPMetricExporter(preferred_temporality=deltas)) if has("METRICS") else None,
        )
        if telemetry._spans is not None:
            trace.set_tracer_provider(telemetry._tracers)  # libraries that make spans of their own (mcp) find it here
        return telemetry

    def span_ids(self, fact: Fact) -> tuple[str, str] | None:
        """Return trace and span id of the open span that a fact is about, as hex, None where there is none."""
        span = self._spans.span_of(fact) if self._spans is not None else None
        if span is None:
            return None
        context = span.get_span_context()
        return f"{context.trace_id:032x}", f"{context.span_id:016x}"

    def close(self, end: str, seconds: float = CLOSING_SECONDS) -> None:
        """End what is open and send what waits, for so many seconds at most; what is not sent then is lost."""
        if self._spans is not None:
            self._spans.finish(end)
        threads = [threading.Thread(target=shut, name="telemetry-close", daemon=True) for shut in self._shutdowns]
        for thread in threads:
            thread.start()
        until = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


def build_resource(plan: Plan, environment: Mapping[str, str]) -> Resource:
    """Return what all of a runner's telemetry says of itself; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win."""
    own = {"service.version": __version__, "k8s.namespace.name": plan.run.namespace}
    given = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not environment.get("OTEL_SERVICE_NAME") and "service.name=" not in given:
        own["service.name"] = SERVICE
    return Resource.create({key: value for key, value in own.items() if f"{key}=" not in given})
