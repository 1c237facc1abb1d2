"""What is counted: one registry of Prometheus metrics; no label names a run, a user or a namespace."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "pilothouse_api"


class Metrics:
    """All metrics of the process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        gauge = partial(Gauge, namespace=PREFIX, registry=self.registry)
        counter = partial(Counter, namespace=PREFIX, registry=self.registry)
        histogram = partial(Histogram, namespace=PREFIX, registry=self.registry)
        self.requests = counter("requests", "Requests by route and status.", ["route", "code"])
        self.request_seconds = histogram("request_seconds", "Time until the answer's head.", ["route"])
        self.directives = counter("directives", "Directives written.", ["kind"])
        self.runs = gauge("runs", "Runs in the picture.")
        self.is_live = gauge("is_live", "1 while the picture follows the API server.")
        self.watch_failures = counter("watch_failures", "Watches and lists that broke.")
        self.streams = gauge("streams", "Event streams that are open.")
        self.streams_ended = counter("streams_ended", "Event streams that ended.", ["cause"])
        self.fleet_refused = counter("fleet_letters_refused", "Letters of the fleet that were not taken.", ["cause"])
        self.fleet_directives = counter("fleet_directives", "Directives of other clusters.", ["outcome"])
        self.redis_failures = counter("redis_failures", "Requests to Redis that failed.")
