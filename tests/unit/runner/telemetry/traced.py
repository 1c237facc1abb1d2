"""Runs of the engine in memory whose telemetry is kept in memory too."""

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pilothouse_engine.run import AttemptEnd
from pilothouse_runner.adapters.telemetry.sending import DELTAS, Telemetry
from unit.engine.scenarios import Scenario

Labels = Mapping[str, Any]


class Traced:
    """One scenario and what its attempts send."""

    def __init__(self, run: Scenario) -> None:
        self.run = run
        self._finished: list[ReadableSpan] = []
        self.telemetry: Telemetry

    async def attempt(self) -> AttemptEnd:
        """Run the next attempt with telemetry of its own, as a process would."""
        reader, exporter = InMemoryMetricReader(preferred_temporality=DELTAS), InMemorySpanExporter()
        number = self.run.attempts + 1
        processor = SimpleSpanProcessor(exporter)
        self.telemetry = Telemetry(self.run.plan, number, Resource({}), processor, reader)
        self.run.observers = (*self.run.observers, *self.telemetry.observers)
        end = await self.run.attempt()
        self._metrics = reader.get_metrics_data()
        self.telemetry.close(type(end).__name__)
        self._finished += exporter.get_finished_spans()
        self.run.observers = ()
        return end

    @property
    def spans(self) -> list[ReadableSpan]:
        """All spans, in the order in which they began, those of one moment as they ended."""
        return sorted(self._finished, key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of one name."""
        return [span for span in self.spans if span.name == name]

    def tree(self) -> list[str]:
        """Each span as the path of names from its root."""
        by_id = {span.context.span_id: span for span in self.spans}

        def path(span: ReadableSpan) -> str:
            return span.name if span.parent is None else f"{path(by_id[span.parent.span_id])} > {span.name}"

        return sorted(path(span) for span in self.spans)

    def points(self, name: str) -> list[tuple[Labels, float]]:
        """Labels and value (of a histogram: the sum) of a metric's points in the newest attempt."""
        if self._metrics is None:
            return []
        metrics = [
            metric
            for resource in self._metrics.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ]
        return [
            (dict(point.attributes or {}), getattr(point, "sum", getattr(point, "value", 0)))
            for metric in metrics
            for point in metric.data.data_points
        ]

    def metric_names(self) -> set[str]:
        """The metrics that the newest attempt has points of."""
        assert self._metrics is not None
        return {
            metric.name
            for resource in self._metrics.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def all_labels(self) -> list[Labels]:
        """The labels of every point of the newest attempt."""
        return [labels for name in self.metric_names() for labels, _ in self.points(name)]
