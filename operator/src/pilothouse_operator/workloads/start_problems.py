"""Why a pod does not start yet, and why no pod can be made: words of the cluster, with what to do about them. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pilothouse_api import names
from pilothouse_operator.workloads.failures import find_condition, shorten


@dataclass(frozen=True, slots=True)
class StartProblem:
    """Why a pod does not start yet: a PascalCase reason, and whether it waits for its turn (a gate)."""

    reason: str
    message: str
    is_queued: bool = False


_ORDINARY_WAITS = frozenset({"ContainerCreating", "PodInitializing", ""})

_SAME_AS = {"ErrImagePull": "ImagePullBackOff"}
"""The kubelet alternates between these, once a try: as two reasons each try would cost two writes."""

_IMAGE = "see runTemplate.image and the pull secrets of the run's ServiceAccount"
HINTS = {
    "ImagePullBackOff": _IMAGE,
    "InvalidImageName": _IMAGE,
    "ErrImageNeverPull": _IMAGE,
    "RegistryUnavailable": _IMAGE,
    "CreateContainerConfigError": "see runTemplate.env and envFrom: what they name must exist in the run's namespace",
    "Unschedulable": "see runTemplate.resources, nodeSelector and tolerations",
    "FailedMount": "what the pod mounts must exist in the run's namespace",
}


def read_problem(raw_pod: Mapping[str, Any]) -> StartProblem | None:
    """Return why a pending pod does not start, as far as its own object says."""
    gates = raw_pod.get("spec", {}).get("schedulingGates")
    if gates:
        named = ", ".join(str(gate.get("name")) for gate in gates)
        return StartProblem("Queued", f"waits behind the scheduling gate {named}", is_queued=True)
    status = raw_pod.get("status", {})
    for container in _containers(status):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason", "") not in _ORDINARY_WAITS:
            return _container_problem(container.get("name", ""), waiting)
    scheduled = find_condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        reason = scheduled.get("reason") or "Unschedulable"
        return StartProblem(reason, _hinted(reason, scheduled.get("message") or "no node takes the pod"))
    return None


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses", ())
    yield from status.get("containerStatuses", ())


def _container_problem(container: str, waiting: Mapping[str, Any]) -> StartProblem:
    reason = _SAME_AS.get(waiting["reason"], waiting["reason"])
    # While it waits the kubelet says "Back-off pulling image …: ErrImagePull: <what it said when it tried>".
    said = (waiting.get("message") or "the container does not start").rpartition("ErrImagePull: ")[2]
    whose = "" if container == names.RUNNER_CONTAINER else f"container {container}: "
    return StartProblem(reason, _hinted(reason, whose + said))


def _hinted(reason: str, message: str) -> str:
    hint = HINTS.get(reason)
    return f"{shorten(message)}; {hint}" if hint else shorten(message)


# ---------------------------------------------------------------- what only events tell

_TELLING_EVENTS = frozenset(
    {"FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox", "FailedPreStartHook"}
)


def problem_of_events(raw_events: Iterable[Mapping[str, Any]]) -> StartProblem | None:
    """Return what the newest telling event of a pod says: a volume that cannot be mounted shows nowhere else."""
    telling = [event for event in raw_events if event.get("reason") in _TELLING_EVENTS]
    newest = max(
        telling, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""), default=None
    )
    if newest is None:
        return None
    reason = str(newest["reason"])
    return StartProblem(reason, _hinted(reason, str(newest.get("message", ""))))


# ---------------------------------------------------------------- refusals of the API server

WEBHOOK_UNAVAILABLE = "WebhookUnavailable"

REFUSALS: tuple[tuple[str, str, bool, str], ...] = (
    ("exceeded quota", "QuotaExceeded", True, "wait for other pods to end, or raise the ResourceQuota"),
    ("failed quota", "QuotaExceeded", True, "the ResourceQuota wants runTemplate.resources to be set"),
    ("is being terminated", "NamespaceTerminating", True, ""),
    ("failed calling webhook", WEBHOOK_UNAVAILABLE, True, "the webhook's own service must answer"),
    ("admission webhook", "AdmissionDenied", False, ""),
    ("ValidatingAdmissionPolicy", "AdmissionDenied", False, ""),
    ("service account", "ServiceAccountNotFound", True, "install the chart's runner account there"),
    ("RuntimeClass", "RuntimeClassNotFound", True, "see runTemplate.runtimeClassName"),
    ("violates PodSecurity", "PodSecurityViolated", False, "see the namespace's pod-security labels"),
    ("per Container is", "LimitRangeViolated", False, "see runTemplate.resources and the namespace's LimitRange"),
    ("per Pod is", "LimitRangeViolated", False, "see runTemplate.resources and the namespace's LimitRange"),
)
"""Words of a refusal, its reason, whether it may come right by itself, and what to do; the first row that fits."""


def explain_refusal(message: str) -> tuple[str, str, bool]:
    """Return reason, message, and whether it may come right by itself, of a pod that the API server did not take."""
    for words, reason, is_waiting, hint in REFUSALS:
        if words in message:
            return reason, f"{shorten(message)}; {hint}" if hint else shorten(message), is_waiting
    return "PodRefused", shorten(message), False
