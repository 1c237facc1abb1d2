"""What a pod's status says about an attempt: one pure reading of a raw pod, and why a pod ended.

Failures that count against `maxAttempts` are the runner's own (it crashed, it took too much memory). What the
cluster did to the pod (eviction, preemption, drain, a lost node, a deletion) never counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from pilothouse_api import names

FailureKind = Literal["Crashed", "OutOfMemory", "Evicted", "Disrupted", "NodeLost", "PodRefusedByNode", "PodDeleted"]
COUNTED_FAILURES: frozenset[FailureKind] = frozenset({"Crashed", "OutOfMemory"})
MAX_FAILURE_CHARS = 400

DELETION_SLACK = timedelta(seconds=10)
"""How long after its deletion grace a pod that is still there counts as gone (its node does not answer)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt ended without an exit and without a release."""

    kind: FailureKind
    message: str
    has_started: bool

    @property
    def is_counted(self) -> bool:
        """Whether it counts against maxAttempts."""
        return self.kind in COUNTED_FAILURES


@dataclass(frozen=True, slots=True)
class StartProblem:
    """Why a pod does not start yet: a PascalCase reason, and whether it waits for its turn (a gate)."""

    reason: str
    message: str
    is_queued: bool = False


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of a run."""

    name: str
    uid: str
    owner_uid: str
    attempt: int
    created: datetime
    phase: str
    node: str | None = None
    deletion: datetime | None = None
    has_started: bool = False
    problem: StartProblem | None = None
    failure: Failure | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether its containers have ended for good."""
        return self.phase in ("Succeeded", "Failed")

    def is_over(self, now: datetime) -> bool:
        """Whether it runs nothing: it is terminal, or past its deletion grace."""
        return self.is_terminal or (self.deletion is not None and now > self.deletion + DELETION_SLACK)


def read_pod(raw_pod: Mapping[str, Any]) -> PodView:
    """Return the view of a raw pod."""
    metadata, status = raw_pod["metadata"], raw_pod.get("status", {})
    has_started = any(_has_started(container) for container in status.get("containerStatuses", ()))
    phase = status.get("phase", "Pending")
    return PodView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        owner_uid=_owner_uid(metadata),
        attempt=_attempt(metadata),
        created=_time(metadata.get("creationTimestamp")) or datetime.fromtimestamp(0).astimezone(),
        phase=phase,
        node=raw_pod.get("spec", {}).get("nodeName"),
        deletion=_time(metadata.get("deletionTimestamp")),
        has_started=has_started or phase == "Running",
        problem=_read_problem(raw_pod) if phase == "Pending" else None,
        failure=_read_failure(status, has_started) if phase in ("Succeeded", "Failed") else None,
    )


def _owner_uid(metadata: Mapping[str, Any]) -> str:
    for reference in metadata.get("ownerReferences", ()):
        if reference.get("controller"):
            return str(reference["uid"])
    return ""


def _attempt(metadata: Mapping[str, Any]) -> int:
    text = metadata.get("labels", {}).get(names.LABEL_ATTEMPT, "")
    return int(text) if text.isdigit() else 0


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _has_started(container: Mapping[str, Any]) -> bool:
    states = (container.get("state", {}), container.get("lastState", {}))
    return any("running" in state or "terminated" in state for state in states)


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    for condition in status.get("conditions", ()):
        if condition.get("type") == kind:
            return dict(condition)
    return {}


_ORDINARY_WAITS = frozenset({"ContainerCreating", "PodInitializing", ""})


def _read_problem(raw_pod: Mapping[str, Any]) -> StartProblem | None:
    status = raw_pod.get("status", {})
    if raw_pod.get("spec", {}).get("schedulingGates"):
        gates = ", ".join(str(gate.get("name")) for gate in raw_pod["spec"]["schedulingGates"])
        return StartProblem("Queued", f"waits behind the scheduling gate {gates}", is_queued=True)
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason", "") not in _ORDINARY_WAITS:
            return StartProblem(waiting["reason"], _cut(waiting.get("message") or "the container does not start"))
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        reason = scheduled.get("reason") or "Unschedulable"
        return StartProblem(reason, _cut(scheduled.get("message") or "no node takes the pod"))
    return None


def _read_failure(status: Mapping[str, Any], has_started: bool) -> Failure:
    reason, message = status.get("reason", ""), status.get("message", "")
    disruption = _condition(status, "DisruptionTarget")
    kind: FailureKind
    if disruption.get("status") == "True" and reason != "Evicted":
        kind, message = "Disrupted", f"{disruption.get('reason', '')}: {disruption.get('message', '')}"
    elif reason == "Evicted":
        kind = "Evicted"
    elif reason in ("NodeLost", "NodeShutdown", "Terminated", "Shutdown"):
        kind = "NodeLost"
    elif not has_started:
        # The kubelet's own admission (OutOfcpu, NodeAffinity, UnexpectedAdmissionError, …): nothing ever ran.
        kind, message = "PodRefusedByNode", f"{reason or 'Failed'}: {message}"
    else:
        return _read_container_failure(status)
    return Failure(kind, _cut(message or reason), has_started)


def _read_container_failure(status: Mapping[str, Any]) -> Failure:
    for container in status.get("containerStatuses", ()):
        ended = container.get("state", {}).get("terminated")
        if not ended:
            continue
        code, reason = ended.get("exitCode", 0), ended.get("reason", "")
        last_words = _last_line(ended.get("message", ""))
        if reason == "OOMKilled":
            text = "the runner took more memory than its limit; raise runTemplate.resources.limits.memory"
            return Failure("OutOfMemory", text, True)
        return Failure("Crashed", _cut(f"the runner ended with exit code {code} and no result{last_words}"), True)
    return Failure("Crashed", "the runner ended without a result", True)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return f": {lines[-1].strip()}" if lines else ""


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_FAILURE_CHARS else f"{text[: MAX_FAILURE_CHARS - 1]}…"
