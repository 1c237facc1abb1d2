"""Why an attempt ended without an exit and without a release: one ordered table over what Kubernetes reports. Pure.

Failures that count against `maxAttempts` are the runner's own: it crashed, it took more than it may, it cannot start.
What the cluster did to the pod (eviction, preemption, drain, a lost node, a deletion) never counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from pilothouse_api import names

FailureKind = Literal[
    "Crashed",
    "OutOfMemory",
    "OutOfStorage",
    "StartError",
    "InitFailed",
    "Evicted",
    "Preempted",
    "Disrupted",
    "NodeLost",
    "PodRefusedByNode",
    "PodDeadline",
    "PodDeleted",
    "NotStarted",
    "Released",
]
COUNTED_FAILURES: frozenset[FailureKind] = frozenset(
    {"Crashed", "OutOfMemory", "OutOfStorage", "StartError", "InitFailed"}
)
MAX_FAILURE_CHARS = 400

CLOCK_SLACK = timedelta(seconds=10)
"""A container that ended so long before something was done to its pod ended by itself; clocks of nodes differ."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt ended without an exit and without a release. `has_started`: author's work may have been done."""

    kind: FailureKind
    message: str
    has_started: bool

    @property
    def is_counted(self) -> bool:
        """Whether it counts against maxAttempts."""
        return self.kind in COUNTED_FAILURES


@dataclass(frozen=True, slots=True)
class PodEnd:
    """What a pod's object says about its end. `runner` is the `terminated` state of the runner's container."""

    reason: str
    message: str
    runner: Mapping[str, Any]
    disruption: Mapping[str, Any]
    init: Mapping[str, Any]
    deletion_asked: datetime | None
    has_started: bool


Row = Callable[[PodEnd], tuple[FailureKind, str] | None]


def explain_end(raw_pod: Mapping[str, Any], has_started: bool) -> Failure:
    """Return why a pod ended whose containers have ended, or that is gone."""
    end = _read_end(raw_pod, has_started)
    for row in ROWS:
        found = row(end)
        if found is not None:
            return Failure(found[0], shorten(found[1]), has_started)
    raise AssertionError("the last row takes every end")


def find_disruption(raw_pod: Mapping[str, Any]) -> Failure | None:
    """Return what is being done to a pod, or was done to it before it vanished, where its object says so."""
    has_started = has_runner_started(raw_pod)
    end = _read_end(raw_pod, has_started)
    found = _disrupted(end) or _deleted(end)
    return Failure(found[0], shorten(found[1]), has_started) if found else None


def has_runner_started(raw_pod: Mapping[str, Any]) -> bool:
    """Tell whether the runner has run code; a container that could not be started has not."""
    status = raw_pod.get("status", {})
    container = runner_status(status)
    states = (container.get("state", {}), container.get("lastState", {}))
    has_run = any("running" in state for state in states) or status.get("phase") == "Running"
    ended = container.get("state", {}).get("terminated")
    return has_run or (ended is not None and ended.get("reason", "") not in _START_ERRORS)


def runner_status(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of the runner's container: service meshes and webhooks put others beside it."""
    found = [c for c in status.get("containerStatuses", ()) if c.get("name") == names.RUNNER_CONTAINER]
    return found[0] if found else {}


def find_condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of a pod, empty where there is none."""
    return next((dict(one) for one in status.get("conditions", ()) if one.get("type") == kind), {})


def parse(text: str | None) -> datetime | None:
    """Return the moment of a time as Kubernetes writes it."""
    return datetime.fromisoformat(text) if text else None


def shorten(text: str) -> str:
    """Return a message of the cluster in one line that fits a status."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_FAILURE_CHARS else f"{text[: MAX_FAILURE_CHARS - 1]}…"


def _read_end(raw_pod: Mapping[str, Any], has_started: bool) -> PodEnd:
    status, metadata = raw_pod.get("status", {}), raw_pod["metadata"]
    disruption = find_condition(status, "DisruptionTarget")
    deletion = parse(metadata.get("deletionTimestamp"))
    grace = timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
    return PodEnd(
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        runner=runner_status(status).get("state", {}).get("terminated", {}),
        disruption=disruption if disruption.get("status") == "True" else {},
        init=_failed_init(status),
        deletion_asked=deletion - grace if deletion is not None else None,
        has_started=has_started,
    )


def _failed_init(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in status.get("initContainerStatuses", ()):
        ended = container.get("state", {}).get("terminated", {})
        if ended.get("exitCode", 0) != 0:
            return {**ended, "name": container.get("name", "")}
    return {}


# ---------------------------------------------------------------- the rows, in the order in which they win

_OWN_STORAGE = ("exceeds the limit", "exceeds the total limit", "exceeded its local ephemeral storage limit")

_BY_POD_REASON: Mapping[str, FailureKind] = {
    "Evicted": "Evicted",
    "Preempting": "Preempted",
    "NodeLost": "NodeLost",
    "NodeShutdown": "NodeLost",
    "Shutdown": "NodeLost",
    "Terminated": "NodeLost",
    "DeadlineExceeded": "PodDeadline",
}
_BY_DISRUPTION: Mapping[str, FailureKind] = {
    "PreemptionByScheduler": "Preempted",
    "EvictionByEvictionAPI": "Evicted",
    "DeletionByPodGC": "NodeLost",
}
_START_ERRORS = frozenset({"StartError", "ContainerCannotRun"})
_EXIT_CODES = {137: " (killed by SIGKILL)", 139: " (a fault in native code)", 143: " (ended by SIGTERM)"}


def _out_of_storage(end: PodEnd) -> tuple[FailureKind, str] | None:
    if end.reason == "Evicted" and any(text in end.message for text in _OWN_STORAGE):
        return "OutOfStorage", f"the runner wrote more to its disk than it may: {end.message}"
    return None


def _ended_by_kubelet(end: PodEnd) -> tuple[FailureKind, str] | None:
    kind = _BY_POD_REASON.get(end.reason)
    return (kind, end.message or end.reason) if kind is not None else None


def _disrupted(end: PodEnd) -> tuple[FailureKind, str] | None:
    if not end.disruption or _ended_before(end, parse(end.disruption.get("lastTransitionTime"))):
        return None
    reason = end.disruption.get("reason", "")
    return _BY_DISRUPTION.get(reason, "Disrupted"), f"{reason}: {end.disruption.get('message', '')}"


def _deleted(end: PodEnd) -> tuple[FailureKind, str] | None:
    if end.deletion_asked is None or _ended_before(end, end.deletion_asked):
        return None
    return "PodDeleted", "the pod was deleted"


def _ended_before(end: PodEnd, moment: datetime | None) -> bool:
    finished = parse(end.runner.get("finishedAt"))
    return finished is not None and moment is not None and finished < moment - CLOCK_SLACK


def _node_restarted(end: PodEnd) -> tuple[FailureKind, str] | None:
    reason, code = end.runner.get("reason"), end.runner.get("exitCode")
    if reason == "ContainerStatusUnknown" or (reason == "Unknown" and code == 255):
        return "NodeLost", "the node was restarted, or lost the container"
    return None


def _init_failed(end: PodEnd) -> tuple[FailureKind, str] | None:
    if end.has_started or not end.init:
        return None
    said = _last_line(end.init.get("message", ""))
    return "InitFailed", f"the init container {end.init['name']} ended with exit code {end.init['exitCode']}{said}"


def _never_started(end: PodEnd) -> tuple[FailureKind, str] | None:
    if end.has_started:
        return None
    if end.runner.get("reason") in _START_ERRORS:
        return "StartError", f"the container cannot be started: {end.runner.get('message', '')}"
    # The kubelet's own admission (OutOfcpu, NodeAffinity, UnexpectedAdmissionError, …): nothing ever ran.
    return "PodRefusedByNode", f"{end.reason or 'Failed'}: {end.message}"


def _out_of_memory(end: PodEnd) -> tuple[FailureKind, str] | None:
    if end.runner.get("reason") != "OOMKilled":
        return None
    return "OutOfMemory", "the runner took more memory than its limit; raise runTemplate.resources.limits.memory"


def _crashed(end: PodEnd) -> tuple[FailureKind, str]:
    if not end.runner:
        return "Crashed", "the runner ended without a result"
    code = end.runner.get("exitCode", 0)
    said = _last_line(end.runner.get("message", ""))
    return "Crashed", f"the runner ended with exit code {code}{_EXIT_CODES.get(code, '')} and no result{said}"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return f": {lines[-1].strip()}" if lines else ""


ROWS: tuple[Row, ...] = (
    _out_of_storage,
    _ended_by_kubelet,
    _disrupted,
    _deleted,
    _node_restarted,
    _init_failed,
    _never_started,
    _out_of_memory,
    _crashed,
)
