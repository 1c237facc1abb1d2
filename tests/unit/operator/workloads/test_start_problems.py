"""Why a pod does not start, or cannot be made: each in words that say what to do."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse_operator.workloads.start_problems import explain_refusal, problem_of_events, read_problem
from unit.operator.run_views import containers, raw_pod


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return containers({"waiting": {"reason": reason, "message": message}})


def init_waiting(reason: str, message: str) -> dict[str, Any]:
    return {"initContainerStatuses": [{"name": "mesh", "state": {"waiting": {"reason": reason, "message": message}}}]}


def unscheduled(message: str, reason: str = "Unschedulable") -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]}


PULL = 'failed to resolve reference "x": not found'


@pytest.mark.parametrize(
    ("status", "want_reason", "want_words"),
    [
        (waiting("ErrImagePull", PULL), "ImagePullBackOff", "not found; see runTemplate.image"),
        (
            waiting("ImagePullBackOff", f'Back-off pulling image "x": ErrImagePull: {PULL}'),
            *("ImagePullBackOff", "not found; see runTemplate.image"),
        ),
        (waiting("InvalidImageName", "couldn't parse image name"), "InvalidImageName", "see runTemplate.image"),
        (waiting("ErrImageNeverPull", "image is not present"), "ErrImageNeverPull", "not present; see"),
        (
            waiting("CreateContainerConfigError", 'secret "keys" not found'),
            *("CreateContainerConfigError", 'secret "keys" not found; see runTemplate.env'),
        ),
        (
            waiting("CreateContainerConfigError", "couldn't find key token in Secret ns/keys"),
            *("CreateContainerConfigError", "key token in Secret ns/keys"),
        ),
        (waiting("CreateContainerError"), "CreateContainerError", "the container does not start"),
        (
            init_waiting("ImagePullBackOff", f'Back-off pulling image "m": ErrImagePull: {PULL}'),
            *("ImagePullBackOff", "container mesh: failed to resolve"),
        ),
        (init_waiting("CrashLoopBackOff", "back-off 10s restarting"), "CrashLoopBackOff", "container mesh: back-off"),
        (unscheduled("0/1 nodes are available: 1 Insufficient cpu."), "Unschedulable", "see runTemplate.resources"),
        (unscheduled('persistentvolumeclaim "journals" not found'), "Unschedulable", '"journals" not found'),
    ],
)
def test_a_pod_that_does_not_start_says_why(status: dict[str, Any], want_reason: str, want_words: str) -> None:
    problem = read_problem(raw_pod({"phase": "Pending", **status}))

    assert problem is not None
    assert (problem.reason, problem.is_queued) == (want_reason, False)
    assert want_words in problem.message


def test_both_words_for_an_image_that_cannot_be_pulled_make_one_report() -> None:
    tried = read_problem(raw_pod(waiting("ErrImagePull", PULL)))
    waits = read_problem(raw_pod(waiting("ImagePullBackOff", f'Back-off pulling image "x": ErrImagePull: {PULL}')))

    assert tried == waits


@pytest.mark.parametrize("status", [{}, waiting("ContainerCreating"), waiting("PodInitializing")])
def test_a_pod_that_is_being_made_has_no_problem(status: dict[str, Any]) -> None:
    assert read_problem(raw_pod({"phase": "Pending", **status})) is None


def test_a_pod_behind_a_gate_is_queued() -> None:
    raw = raw_pod(unscheduled("gated", "SchedulingGated"), spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admit"}]})

    problem = read_problem(raw)

    assert problem is not None and problem.is_queued
    assert "kueue.x-k8s.io/admit" in problem.message


def event(reason: str, message: str, at: str) -> dict[str, Any]:
    return {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": at}


def test_what_a_silent_pod_waits_for_stands_in_its_newest_telling_event() -> None:
    old = event("FailedMount", 'MountVolume.SetUp failed for volume "secrets" : secret "keys" not found', "…T10:00:00Z")
    new = event("FailedCreatePodSandBox", 'no runtime for "gvisor" is configured', "…T10:01:00Z")
    noise = event("DNSConfigForming", "too many nameservers", "…T10:02:00Z")

    first, second = problem_of_events([noise, old]), problem_of_events([new, noise, old])

    assert first is not None and first.reason == "FailedMount"
    assert 'secret "keys" not found; what the pod mounts must exist' in first.message
    assert second is not None and second.reason == "FailedCreatePodSandBox"
    assert problem_of_events([noise]) is None


FORBIDDEN = 'pods "r1-1" is forbidden: '


@pytest.mark.parametrize(
    ("message", "want_reason", "want_waiting"),
    [
        (FORBIDDEN + "exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5", "QuotaExceeded", True),
        (FORBIDDEN + "failed quota: q: must specify limits.memory", "QuotaExceeded", True),
        (
            FORBIDDEN + 'error looking up service account ns/prun: serviceaccount "prun" not found',
            *("ServiceAccountNotFound", True),
        ),
        (FORBIDDEN + 'pod rejected: RuntimeClass "gvisor" not found', "RuntimeClassNotFound", True),
        (FORBIDDEN + 'violates PodSecurity "restricted:latest": x', "PodSecurityViolated", False),
        (
            FORBIDDEN + "maximum memory usage per Container is 64Mi, but limit is 512Mi",
            *("LimitRangeViolated", False),
        ),
        (FORBIDDEN + "maximum cpu usage per Pod is 1, but limit is 2", "LimitRangeViolated", False),
        (
            FORBIDDEN + "unable to create new content in namespace ns because it is being terminated",
            *("NamespaceTerminating", True),
        ),
        ('admission webhook "no.agents" denied the request: not here', "AdmissionDenied", False),
        (
            "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: service account may not",
            *("AdmissionDenied", False),
        ),
        (
            'Internal error occurred: failed calling webhook "w": failed to call webhook: connect: connection refused',
            *("WebhookUnavailable", True),
        ),
        ('Pod "r1-1" is invalid: spec.tolerations[0].key: Invalid value', "PodRefused", False),
    ],
)
def test_a_pod_that_is_not_taken_says_why(message: str, want_reason: str, want_waiting: bool) -> None:
    reason, said, is_waiting = explain_refusal(message)

    assert (reason, is_waiting) == (want_reason, want_waiting)
    assert said.startswith(message[:60])
