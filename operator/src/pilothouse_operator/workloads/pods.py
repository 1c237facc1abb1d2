"""What a pod's object says about an attempt: one pure reading of a raw pod."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pilothouse_api import names
from pilothouse_operator.workloads.failures import (
    Failure,
    explain_end,
    find_disruption,
    has_runner_started,
    parse,
    runner_status,
)
from pilothouse_operator.workloads.start_problems import StartProblem, read_problem

DELETION_SLACK = timedelta(seconds=10)
"""How long after its deletion grace a pod that is still there counts as gone (its node does not answer)."""


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of a run.

    `started` and `ended` are when the runner's container did so, `exit_code` how. `failure` is why it ended, were it
    without a result; `disruption` is what was being done to a pod that has not ended.
    """

    name: str
    uid: str
    owner_uid: str
    attempt: int
    created: datetime
    phase: str
    node: str | None = None
    deletion: datetime | None = None
    has_started: bool = False
    started: datetime | None = None
    ended: datetime | None = None
    exit_code: int | None = None
    problem: StartProblem | None = None
    failure: Failure | None = None
    disruption: Failure | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether its containers have ended for good."""
        return self.phase in ("Succeeded", "Failed")

    def is_over(self, now: datetime) -> bool:
        """Whether it runs nothing of the run: its runner has ended, or it is past its deletion grace."""
        if self.is_terminal or self.exit_code is not None:
            return True
        return self.deletion is not None and now > self.deletion + DELETION_SLACK


def read_pod(raw_pod: Mapping[str, Any]) -> PodView:
    """Return the view of a raw pod. Its runner is never restarted: containers beside it may outlive it."""
    metadata, status = raw_pod["metadata"], raw_pod.get("status", {})
    phase = status.get("phase", "Pending")
    state = runner_status(status).get("state", {})
    ended = state.get("terminated", {})
    has_started = has_runner_started(raw_pod)
    is_over = phase in ("Succeeded", "Failed") or bool(ended)
    return PodView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        owner_uid=_owner_uid(metadata),
        attempt=_attempt(metadata),
        created=parse(metadata.get("creationTimestamp")) or datetime.fromtimestamp(0).astimezone(),
        phase=phase,
        node=raw_pod.get("spec", {}).get("nodeName"),
        deletion=parse(metadata.get("deletionTimestamp")),
        has_started=has_started,
        started=parse(ended.get("startedAt") or state.get("running", {}).get("startedAt")),
        ended=parse(ended.get("finishedAt")),
        exit_code=ended.get("exitCode", 0) if ended else None,
        problem=read_problem(raw_pod) if phase == "Pending" else None,
        failure=explain_end(raw_pod, has_started) if is_over else None,
        disruption=None if is_over else find_disruption(raw_pod),
    )


def _owner_uid(metadata: Mapping[str, Any]) -> str:
    for reference in metadata.get("ownerReferences", ()):
        if reference.get("controller"):
            return str(reference["uid"])
    return ""


def _attempt(metadata: Mapping[str, Any]) -> int:
    text = metadata.get("labels", {}).get(names.LABEL_ATTEMPT, "")
    return int(text) if text.isdigit() else 0
