"""The gate of telemetry: OpenTelemetry is loaded where an endpoint is set, and nowhere else (engine.md §17).

What the rest of the runner knows of it stands here too: the W3C `traceparent` that requests carry.
"""

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pilothouse_api.structs import Plan

if TYPE_CHECKING:
    from pilothouse_runner.adapters.telemetry.sending import Telemetry

ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)

TRACEPARENT: ContextVar[str] = ContextVar("pilothouse_traceparent", default="")
"""Of the span that is current in this task, ids and nothing else; empty where nothing is traced."""

_log = logging.getLogger(__name__)


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Tell whether the environment names an endpoint and does not switch the SDK off."""
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not is_disabled and any(environment.get(name) for name in ENDPOINTS)


def open_telemetry(plan: Plan, attempt: int, environment: Mapping[str, str]) -> "Telemetry | None":
    """Return the telemetry of an attempt, None where none is wanted or it cannot be had: a run never fails for it."""
    if not is_wanted(environment):
        return None
    try:
        from pilothouse_runner.adapters.telemetry.sending import Telemetry

        return Telemetry.over_otlp(plan, attempt, environment)
    except ImportError as error:
        _log.warning("no telemetry: %s; install pilothouse[telemetry]", error)
    except Exception as error:  # of settings that the SDK refuses: the run goes on without
        _log.warning("no telemetry: %s: %s", type(error).__name__, error)
    return None


def trace_headers() -> dict[str, str]:
    """Return the header that a request of this task carries; none where nothing is traced."""
    traceparent = TRACEPARENT.get()
    return {"traceparent": traceparent} if traceparent else {}
