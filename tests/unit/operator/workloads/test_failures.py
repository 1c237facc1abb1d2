"""Every way in which the pod of an attempt ends without a result: its reason, and whether it counts."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse_operator.workloads.failures import COUNTED_FAILURES, Failure
from pilothouse_operator.workloads.pods import read_pod
from unit.operator.run_views import ago, containers, ended_pod, raw_pod, running_pod, text

Raw = dict[str, Any]


def terminated(code: int = 137, reason: str = "Error", seconds_ago: float = 0, message: str = "") -> Raw:
    finished = text(ago(seconds_ago))
    return containers({"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": finished}})


def disrupted(reason: str, seconds_ago: float = 0) -> Raw:
    since = text(ago(seconds_ago))
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m"}
    return {"conditions": [{**condition, "lastTransitionTime": since}]}


def deleted(grace: int = 30, seconds_ago: float = 5) -> Raw:
    """Metadata of a pod whose deletion was asked for so many seconds ago."""
    return {"deletionTimestamp": text(ago(seconds_ago - grace)), "deletionGracePeriodSeconds": grace}


def failed(reason: str = "", message: str = "", **more: Any) -> Raw:
    return {"phase": "Failed", **({"reason": reason, "message": message} if reason else {}), **more}


def init(code: int) -> Raw:
    ended = {"exitCode": code, "reason": "Error", "message": "no route\n"}
    return {"initContainerStatuses": [{"name": "istio-init", "state": {"terminated": ended}}]}


WAITING = containers({"waiting": {"reason": "PodInitializing"}})
OWN_DISK = 'Usage of EmptyDir volume "tmp" exceeds the limit "256Mi". '
NODE_DISK = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 500Mi. "


@pytest.mark.parametrize(
    ("status", "metadata", "want_kind", "want_words", "want_started"),
    [
        # the runner itself
        (failed(**terminated(1, message="Traceback\nValueError: x\n")), {}, "Crashed", "code 1 and no result: V", True),
        ({"phase": "Succeeded", **terminated(0, "Completed")}, {}, "Crashed", "exit code 0 and no result", True),
        (failed(**terminated(137)), {}, "Crashed", "137 (killed by SIGKILL)", True),
        (failed(**terminated(139)), {}, "Crashed", "139 (a fault in native code)", True),
        (failed(**terminated(137, "OOMKilled")), {}, "OutOfMemory", "resources.limits.memory", True),
        (failed("Evicted", OWN_DISK, **terminated()), {}, "OutOfStorage", 'volume "tmp" exceeds', True),
        (
            failed("Evicted", "Container runner exceeded its local ephemeral storage limit", **terminated()),
            *({}, "OutOfStorage", "ephemeral storage limit", True),
        ),
        (
            failed(**terminated(128, "StartError", message='exec: "python3": executable file not found')),
            *({}, "StartError", "executable file not found", False),
        ),
        (failed(**terminated(127, "ContainerCannotRun")), {}, "StartError", "cannot be started", False),
        (failed(**init(1), **WAITING), {}, "InitFailed", "istio-init ended with exit code 1: no route", False),
        # the kubelet
        (failed("Evicted", NODE_DISK, **terminated()), {}, "Evicted", "low on resource", True),
        (
            failed("Evicted", NODE_DISK, **terminated(), **disrupted("TerminationByKubelet")),
            *({}, "Evicted", "low on resource", True),
        ),
        (failed("Preempting", "Preempted in order to admit critical pod"), {}, "Preempted", "critical pod", False),
        (failed("Terminated", "Pod was terminated in response to …"), {}, "NodeLost", "in response", False),
        (failed("NodeLost", **terminated()), {}, "NodeLost", "NodeLost", True),
        (failed(**terminated(137, "ContainerStatusUnknown")), {}, "NodeLost", "node was restarted", True),
        (failed(**terminated(255, "Unknown")), {}, "NodeLost", "node was restarted", True),
        (failed("OutOfcpu", "Node didn't have enough"), {}, "PodRefusedByNode", "OutOfcpu: Node didn't", False),
        (failed("UnexpectedAdmissionError"), {}, "PodRefusedByNode", "UnexpectedAdmissionError", False),
        (
            failed("DeadlineExceeded", "Pod was active on the node longer than the specified deadline", **terminated()),
            *({}, "PodDeadline", "longer than the specified deadline", True),
        ),
        # the control plane
        (failed(**terminated(), **disrupted("EvictionByEvictionAPI")), deleted(), "Evicted", "EvictionByEvict", True),
        (failed(**terminated(), **disrupted("PreemptionByScheduler")), deleted(), "Preempted", "PreemptionBySch", True),
        (failed(**terminated(), **disrupted("DeletionByTaintManager")), {}, "Disrupted", "DeletionByTaint", True),
        (failed(**disrupted("DeletionByPodGC")), {}, "NodeLost", "DeletionByPodGC", False),
        (failed(**terminated(143)), deleted(), "PodDeleted", "the pod was deleted", True),
        ({"phase": "Succeeded", **terminated(0, "Completed")}, deleted(), "PodDeleted", "was deleted", True),
        (failed(**terminated(137, "OOMKilled")), deleted(), "PodDeleted", "was deleted", True),
        # what was done to a pod that had ended by itself before changes nothing
        (failed(**terminated(1, seconds_ago=60)), deleted(seconds_ago=30), "Crashed", "exit code 1", True),
        (
            failed(**terminated(1, seconds_ago=60), **disrupted("EvictionByEvictionAPI", 30)),
            *({}, "Crashed", "exit code 1", True),
        ),
        (failed(**terminated(137, "OOMKilled", 60)), deleted(seconds_ago=30), "OutOfMemory", "memory", True),
        # containers beside the runner neither hide its end nor lend it theirs
        (
            {"phase": "Running", "containerStatuses": [
                {"name": "mesh", "state": {"running": {}}},
                {"name": "runner", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}},
            ]},
            *({}, "Crashed", "exit code 1", True),
        ),
        (
            failed(containerStatuses=[
                {"name": "mesh", "state": {"terminated": {"exitCode": 9, "reason": "OOMKilled"}}},
                {"name": "runner", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
            ]),
            *({}, "Crashed", "exit code 0", True),
        ),
    ],
)  # fmt: skip
def test_an_end_without_a_result_has_a_reason(
    status: Raw, metadata: Raw, want_kind: str, want_words: str, want_started: bool
) -> None:
    failure = read_pod(raw_pod(status, metadata=metadata)).failure

    assert failure is not None
    assert (failure.kind, failure.has_started) == (want_kind, want_started)
    assert want_words in failure.message


def test_only_what_the_runner_did_itself_counts() -> None:
    counted = {"Crashed", "OutOfMemory", "OutOfStorage", "StartError", "InitFailed"}

    assert counted == COUNTED_FAILURES
    assert all(Failure(kind, "m", True).is_counted for kind in COUNTED_FAILURES)
    assert not Failure("Evicted", "m", True).is_counted


def test_a_crash_is_told_with_its_exit_code_and_last_words() -> None:
    pod = ended_pod(1, last_words="Traceback (most recent call last):\n  File x\nModuleNotFoundError: no module x\n\n")

    assert pod.failure is not None
    assert pod.failure.message == "the runner ended with exit code 1 and no result: ModuleNotFoundError: no module x"


def test_last_words_are_bounded() -> None:
    pod = ended_pod(1, last_words="x" * 4096)

    assert pod.failure is not None
    assert len(pod.failure.message) == 400


def test_a_pod_that_still_runs_says_what_is_being_done_to_it() -> None:
    running = {"phase": "Running", **containers({"running": {}})}

    evicted = read_pod(raw_pod({**running, **disrupted("EvictionByEvictionAPI")}, metadata=deleted()))
    plain = read_pod(raw_pod(running, metadata=deleted()))

    assert evicted.failure is None
    assert evicted.disruption == Failure("Evicted", "EvictionByEvictionAPI: m", True)
    assert plain.disruption == Failure("PodDeleted", "the pod was deleted", True)
    assert running_pod().disruption is None


def test_a_condition_that_is_not_true_disrupts_nothing() -> None:
    condition = {"type": "DisruptionTarget", "status": "False", "reason": "PreemptionByScheduler"}

    failure = read_pod(raw_pod(failed(**terminated(1), conditions=[condition]))).failure

    assert failure is not None and failure.kind == "Crashed"
