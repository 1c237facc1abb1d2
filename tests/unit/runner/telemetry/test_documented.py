"""docs/observability.md names what there is, and nothing else."""

import re
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from pilothouse_api.hooks import PAYLOAD_KEYS
from pilothouse_runner.adapters.telemetry import metrics, models, spans
from pilothouse_runner.adapters.telemetry.metrics import MetricObserver
from pilothouse_runner.log_events import EXIT_EVENTS
from unit.engine.scenarios import agent_step, build_plan

PAGE = (Path(__file__).parents[4] / "docs" / "observability.md").read_text()


def metric_names() -> set[str]:
    observer = MetricObserver(MeterProvider().get_meter("test"), build_plan(agent_step()))
    return {instrument.name for instrument in vars(observer).values() if hasattr(instrument, "name")}


def test_every_metric_has_a_row_and_every_row_a_metric() -> None:
    rows = set(re.findall(r"^\| `((?:pilothouse_|gen_ai\.client)[a-z_.]+)` \|", PAGE, re.MULTILINE))
    assert rows == metric_names()


@pytest.mark.parametrize("module", [models, spans])
def test_every_attribute_is_named(module: object) -> None:
    source = Path(str(module.__file__)).read_text()  # type: ignore[attr-defined]
    named = set(re.findall(r'"((?:gen_ai|server|error|http)\.[a-z_.]+)"', source))
    own = {f".{name}" for name in re.findall(r'"pilothouse\.([a-z_.]+)"', source)}
    assert {name for name in named if f"`{name}`" not in PAGE} == set()
    assert {name for name in own if f"{name}`" not in PAGE and f"`pilothouse{name}`" not in PAGE} == set()


def test_every_event_of_the_log_has_a_row() -> None:
    events = {*EXIT_EVENTS.values(), "agent.turn", "agent.tool_call", "agent.tool_timeout", "agent.llm_error", "hook"}
    assert {event for event in events if f"`{event}`" not in PAGE} == set()


def test_every_key_of_a_payload_is_named() -> None:
    assert {key for key in PAYLOAD_KEYS if f"`{key}`" not in PAGE and f"`{key}." not in PAGE} == set()


def test_no_label_is_a_runs() -> None:
    assert "self._plan.run" not in Path(metrics.__file__).read_text()
