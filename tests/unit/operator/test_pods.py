"""What a pod's status says about an attempt."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse_operator.pods import read_pod
from unit.operator.run_views import NOW, ago, containers, ended_pod, pending_pod, raw_pod, running_pod, text

DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "more urgent"}
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
TERMINATED = containers({"terminated": {"exitCode": 137, "reason": "Error"}})


@pytest.mark.parametrize(
    ("status", "want_kind", "want_counted", "want_started"),
    [
        ({"phase": "Failed", **TERMINATED}, "Crashed", True, True),
        ({"phase": "Succeeded", **containers({"terminated": {"exitCode": 0}})}, "Crashed", True, True),
        (
            {"phase": "Failed", **containers({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})},
            "OutOfMemory",
            True,
            True,
        ),
        ({**EVICTED, **TERMINATED}, "Evicted", False, True),
        ({**EVICTED, "conditions": [DISRUPTED], **TERMINATED}, "Evicted", False, True),
        ({"phase": "Failed", "conditions": [DISRUPTED], **TERMINATED}, "Disrupted", False, True),
        ({"phase": "Failed", "conditions": [DISRUPTED]}, "Disrupted", False, False),
        ({"phase": "Failed", "reason": "NodeLost", **TERMINATED}, "NodeLost", False, True),
        ({"phase": "Failed", "reason": "Terminated", "message": "node shutdown"}, "NodeLost", False, False),
        ({"phase": "Failed", "reason": "OutOfcpu", "message": "no cpu"}, "PodRefusedByNode", False, False),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "PodRefusedByNode", False, False),
    ],
)
def test_only_what_the_runner_did_itself_counts(
    status: dict[str, Any], want_kind: str, want_counted: bool, want_started: bool
) -> None:
    failure = read_pod(raw_pod(status)).failure

    assert failure is not None
    assert (failure.kind, failure.is_counted, failure.has_started) == (want_kind, want_counted, want_started)


def test_a_crash_is_told_with_its_exit_code_and_last_words() -> None:
    pod = ended_pod(1, last_words="Traceback (most recent call last):\n  File x\nModuleNotFoundError: no module x\n\n")

    assert pod.failure is not None
    assert pod.failure.message == "the runner ended with exit code 1 and no result: ModuleNotFoundError: no module x"


def test_last_words_are_bounded() -> None:
    pod = ended_pod(1, last_words="x" * 4096)

    assert pod.failure is not None
    assert len(pod.failure.message) == 400


@pytest.mark.parametrize(
    ("status", "want"),
    [
        ({}, None),
        (containers({"waiting": {"reason": "ContainerCreating"}}), None),
        (
            containers({"waiting": {"reason": "ErrImagePull", "message": "not found"}}),
            ("ErrImagePull", "not found", False),
        ),
        (
            containers({"waiting": {"reason": "CreateContainerConfigError"}}),
            ("CreateContainerConfigError", "the container does not start", False),
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"}]},
            ("Unschedulable", "full", False),
        ),
    ],
)
def test_a_pod_that_does_not_start_says_why(status: dict[str, Any], want: tuple[str, str, bool] | None) -> None:
    problem = pending_pod(**status).problem

    assert (None if problem is None else (problem.reason, problem.message, problem.is_queued)) == want


def test_a_pod_behind_a_gate_is_queued() -> None:
    raw = raw_pod({"phase": "Pending"}, spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]})

    problem = read_pod(raw).problem

    assert problem is not None and problem.is_queued
    assert "kueue.x-k8s.io/admission" in problem.message


def test_a_pod_runs_nothing_once_it_is_terminal_or_long_past_its_deletion() -> None:
    assert not running_pod().is_over(NOW)
    assert ended_pod().is_over(NOW)
    assert not running_pod(deletionTimestamp=text(ago(5))).is_over(NOW)
    assert running_pod(deletionTimestamp=text(ago(11))).is_over(NOW)


def test_the_owner_is_the_controller_and_nobody_else() -> None:
    raw = raw_pod({}, metadata={"ownerReferences": [{"uid": "x"}, {"uid": "u9", "controller": True}]})

    assert read_pod(raw).owner_uid == "u9"
    assert read_pod(raw_pod({}, metadata={"ownerReferences": []})).owner_uid == ""
