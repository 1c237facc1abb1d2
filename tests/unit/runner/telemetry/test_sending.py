"""What leaves the process: to a real receiver on loopback, to one that hangs, and to none at all (engine.md §17)."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pilothouse_runner.telemetry import is_wanted, open_telemetry
from support.otlp import Receiver, receiver, texts
from unit.engine.scenarios import agent_step, build_plan

SCRIPT = """
turns:
- {toolCalls: [{name: note, arguments: {text: hidden-argument}}], usage: {input: 30, output: 4}}
- {text: '{"outcome": "done", "result": "hidden-result"}', usage: {input: 40, output: 5}}
"""
NOTE = {
    "name": "note",
    "description": "Notes.",
    "effect": "ReadOnly",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    "inlineStep": {"kind": "Router", "router": {"match": "ticket"}},
}
WORKFLOW = {
    "apiVersion": "pilothouse.dev/v1alpha1",
    "kind": "Workflow",
    "metadata": {"name": "triage"},
    "spec": {
        "hooks": [{"event": "AfterStep", "action": "Metric"}],
        "steps": [
            {
                "id": "work",
                "kind": "Agent",
                "agent": {
                    "mode": "Autonomous",
                    "model": {"name": "scripted", "script": {"inline": SCRIPT}, "maxOutputTokens": 64},
                    "steering": {"inline": "Be brief."},
                    "tools": [NOTE],
                    "outcome": {"enum": ["done"]},
                },
                "routes": dict.fromkeys(
                    ("done", "max_iterations", "budget_exceeded", "aborted", "unrecoverable", "error"), "end"
                ),
            }
        ],
        "input": {"defaults": {"ticket": "late"}},
    },
}


def run_here(folder: Path, *, timeout: float = 100, **environment: str) -> tuple[dict[str, Any], float, str]:
    """Run the workflow in a process of its own; return its object, how long that took, and what it said."""
    (folder / "w.json").write_text(json.dumps(WORKFLOW))
    command = [sys.executable, "-m", "pilothouse_cli", "run", "w.json", "-o", "json"]
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), time.monotonic() - began, done.stderr


def span_names(kept: Receiver) -> set[str]:
    return {span.name for span in kept.spans()}


def test_spans_and_metrics_reach_a_collector_when_the_process_ends(tmp_path: Path) -> None:
    with receiver() as kept:
        run, _, said = run_here(
            tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=kept.address,
            OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer t0ken",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test",
        )
    assert run["status"]["phase"] == "Succeeded"
    assert span_names(kept) == {
        *("pilothouse.run", "step.Agent", "agent.iteration", "chat scripted", "agent.tool_call", "step.Router"),
    }
    resource = kept.resource()
    assert (resource["service.name"], resource["deployment.environment"]) == ("pilothouse-runner", "test")
    assert {headers["authorization"] for headers in kept.headers} == {"Bearer t0ken"}
    assert {metric.name for metric in kept.all_metrics()} >= {
        "pilothouse_agent_iterations_total",
        "pilothouse_agent_tool_calls_total",
        "pilothouse_agent_tokens_total",
        "pilothouse_agent_turn_seconds",
        "pilothouse_hook_events_total",
        "gen_ai.client.operation.duration",
    }
    [iterations] = [metric for metric in kept.all_metrics() if metric.name == "pilothouse_agent_iterations_total"]
    [point] = iterations.sum.data_points
    assert point.as_int == 2
    assert iterations.sum.aggregation_temporality == 1, "deltas: each attempt is a process of its own"
    assert texts(list(point.attributes)) == {"workflow": "triage", "step": "work", "model": "scripted"}
    sent = f"{kept.traces}{kept.metrics}"
    assert "hidden" not in sent
    assert "Notes" not in sent
    assert said == ""


@pytest.mark.slow
@pytest.mark.parametrize("status", [500, 401])
def test_a_collector_that_refuses_changes_nothing(tmp_path: Path, status: int) -> None:
    with receiver() as kept:
        kept.status = status
        run, took, _ = run_here(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=kept.address)
    assert run["status"]["phase"] == "Succeeded"
    assert took < 50


@pytest.mark.slow
def test_a_collector_that_hangs_holds_nobody_for_long(tmp_path: Path) -> None:
    with receiver() as kept:
        kept.may_answer.clear()
        run, took, _ = run_here(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=kept.address)
    assert run["status"]["phase"] == "Succeeded"
    assert took < 50


@pytest.mark.slow
def test_a_collector_that_is_not_there_is_told_of_without_a_traceback(tmp_path: Path) -> None:
    run, took, said = run_here(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert run["status"]["phase"] == "Succeeded"
    assert took < 50
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("environment", "want"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "True"}, False),
    ],
)
def test_telemetry_is_wanted_where_an_endpoint_is_set(environment: dict[str, str], want: bool) -> None:
    assert is_wanted(environment) is want


def test_without_an_endpoint_nothing_of_opentelemetry_is_loaded(tmp_path: Path) -> None:
    program = (
        "import sys, runpy\n"
        "sys.argv = ['pilothouse', 'run', 'w.json', '-o', 'json']\n"
        "try: runpy.run_module('pilothouse_cli', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "import pilothouse_runner.process\n"
        "print('loaded', sorted(name for name in sys.modules if name.partition('.')[0] == 'opentelemetry'))\n"
    )
    (tmp_path / "w.json").write_text(json.dumps(WORKFLOW))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.splitlines()[-1] == "loaded []", done.stderr


def test_a_package_that_is_not_installed_is_named(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setitem(sys.modules, "pilothouse_runner.adapters.telemetry.sending", None)
    plan = build_plan(agent_step())
    assert open_telemetry(plan, 1, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}) is None
    assert "install pilothouse[telemetry]" in caplog.text


def test_settings_that_cannot_be_used_cost_the_telemetry_and_not_the_run(monkeypatch: Any, caplog: Any) -> None:
    from pilothouse_runner.adapters.telemetry.sending import Telemetry

    def refuse(*arguments: Any) -> Telemetry:
        raise ValueError("no such sampler")

    monkeypatch.setattr(Telemetry, "over_otlp", refuse)
    assert open_telemetry(build_plan(agent_step()), 1, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}) is None
    assert "no telemetry: ValueError: no such sampler" in caplog.text
