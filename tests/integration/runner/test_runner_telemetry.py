"""A runner's process with a collector: two attempts are one trace, and log lines name its spans (engine.md §17)."""

import signal
from collections.abc import Callable
from typing import Any

from support.agentruns import Administrator
from support.otlp import receiver
from support.runner_process import RunnerPod, finish, napping_plan, read_frames_until

StartPod = Callable[[dict[str, Any]], RunnerPod]


def test_the_attempts_of_a_run_are_one_trace_and_its_log_lines_name_their_spans(
    administrator: Administrator, pod_of: StartPod
) -> None:
    pod = pod_of(napping_plan(4, delay=0.3))
    with receiver() as kept:
        first = pod.start(OTEL_EXPORTER_OTLP_ENDPOINT=kept.address)
        lines = read_frames_until(first, "Iteration", iteration=2)
        first.send_signal(signal.SIGTERM)
        code, rest = finish(first)
        assert code == 0
        administrator.set_status(pod.run.name, attempt=2)
        code, again = finish(pod.start(attempt=2, OTEL_EXPORTER_OTLP_ENDPOINT=kept.address))
        assert code == 0

    spans = {span.span_id.hex(): span for span in kept.spans()}
    assert len({span.trace_id for span in spans.values()}) == 1
    assert [span.name for span in spans.values()].count("pilothouse.run") == 2
    told = [line for line in (*lines, *rest, *again) if line["event"].startswith("agent.")]
    assert {line["event"] for line in told} == {"agent.turn", "agent.tool_call"}
    assert {(line["event"], spans[line["spanId"]].name) for line in told} == {
        ("agent.turn", "agent.iteration"),
        ("agent.tool_call", "agent.tool_call"),
    }
    assert {line["traceId"] for line in told} == {span.trace_id.hex() for span in spans.values()}
    turns = sorted(line["turn"] for line in told if line["event"] == "agent.turn")
    assert turns == [1, 2, 3, 4, 5], "no turn is told twice"
