"""Finished runs: what is remembered of them, and counted once."""

from __future__ import annotations

from typing import Any

from pilothouse_api import names
from pilothouse_api.v1alpha1 import Workflow
from pilothouse_control.judgement import ConditionDraft, Judgement
from pilothouse_control.triggers import TriggerDecision
from pilothouse_operator.reconcile.workflows import render_workflow_status
from pilothouse_operator.watching.cache import Key
from pilothouse_operator.watching.finished import FinishedRuns, read_finished
from unit.operator.run_views import NOW

FLOW = Key("Workflow", "ns", "flow")


def raw_run(name: str, second: int, phase: str = "Succeeded", uid: str = "", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": uid or f"u-{name}", "labels": labels},
        "spec": {"workflowRef": {"name": "flow"}, "overrides": {"ttlSecondsAfterFinished": 9}},
        "status": {"phase": phase, "attempt": 2, "completionTime": f"2026-03-01T12:00:{second:02}.500000Z"},
    }


def test_a_finished_run_is_read() -> None:
    record = read_finished(raw_run("a", 1, **{names.LABEL_TRIGGER: "OnChange"}))

    assert (record.workflow, record.phase, record.attempts, record.ttl_seconds) == ("flow", "Succeeded", 2, 9)
    assert record.is_triggered
    assert record.completion.microsecond == 500000


def test_an_end_is_counted_once_even_if_the_run_is_deleted_first() -> None:
    finished = FinishedRuns()
    record = read_finished(raw_run("a", 1))
    finished.add(record, is_fresh=True)
    finished.add(record, is_fresh=True)
    finished.drop(record.key)

    assert finished.uncounted(FLOW) == [record]
    finished.set_counted(FLOW, [record])
    assert finished.uncounted(FLOW) == []


def test_a_run_that_was_counted_before_a_restart_is_not_counted_again() -> None:
    finished = FinishedRuns()
    finished.add(read_finished(raw_run("a", 1)), is_fresh=False)

    assert finished.uncounted(FLOW) == []
    assert [record.name for record in finished.of_workflow(FLOW)] == ["a"]


def test_runs_of_a_workflow_are_listed_oldest_first() -> None:
    finished = FinishedRuns()
    for name, second in (("b", 2), ("c", 3), ("a", 1)):
        finished.add(read_finished(raw_run(name, second)), is_fresh=True)

    assert [record.name for record in finished.of_workflow(FLOW)] == ["a", "b", "c"]


def workflow(**status: Any) -> Workflow:
    return Workflow.model_validate(
        {
            "kind": "Workflow",
            "metadata": {"name": "flow", "namespace": "ns", "generation": 4},
            "spec": {"steps": [{"id": "a", "kind": "Agent", "agentRef": {"name": "w"}}]},
            "status": status,
        }
    )


READY = Judgement((ConditionDraft("Ready", "True", "Valid", "valid"),), ("pin it",))


def test_the_status_of_a_workflow_counts_ends_and_keeps_what_was_triggered() -> None:
    old = workflow(
        counts={"succeeded": 5, "failed": 1, "aborted": 0},
        lastTriggered={"generation": 3, "digest": "d"},
        nextScheduleTime="2026-01-01T00:00:00Z",
    )
    ends = [read_finished(raw_run("a", 1)), read_finished(raw_run("b", 2, "Aborted"))]

    status = render_workflow_status(old, READY, TriggerDecision(), 7, ends, NOW)

    assert status["counts"] == {"succeeded": 6, "failed": 1, "aborted": 1}
    assert status["lastRun"] == {"name": "b", "phase": "Aborted", "finishedAt": "2026-03-01T12:00:02.500000Z"}
    assert status["lastTriggered"] == {"generation": 3, "digest": "d"}
    assert (status["activeRuns"], status["observedGeneration"], status["warnings"]) == (7, 4, ["pin it"])
    assert "nextScheduleTime" not in status


def test_an_older_end_that_is_learned_late_is_not_the_last_run() -> None:
    last = {"name": "z", "phase": "Succeeded", "finishedAt": "2026-03-01T12:00:09.000000Z"}

    status = render_workflow_status(
        workflow(lastRun=last), READY, TriggerDecision(), 0, [read_finished(raw_run("a", 1))], NOW
    )

    assert status["lastRun"] == last
    assert status["counts"]["succeeded"] == 1
