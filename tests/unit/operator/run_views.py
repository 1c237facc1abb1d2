"""Views of runs and raw pods, built short."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pilothouse_api import names
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import PlanReport, Snapshot
from pilothouse_operator.runs.view import Obstacle, RunView, Seen, Terms
from pilothouse_operator.workloads.pods import PodView, read_pod

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
PLAN = PlanReport(name="r1-plan", digest="d1")
DURABLE = Terms(is_journal_durable=True)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def run(status: dict[str, Any] | None = None, generation: int = 1, **spec: Any) -> AgentRun:
    return AgentRun.model_validate(
        {
            "apiVersion": names.API_VERSION,
            "kind": "AgentRun",
            "metadata": {
                "name": "r1",
                "namespace": "ns",
                "uid": "u1",
                "generation": generation,
                "creationTimestamp": text(ago(100)),
            },
            "spec": {"workflowRef": {"name": "flow"}, **spec},
            "status": status or {},
        }
    )


def attempt_status(attempt: int = 1, node: str | None = None, **more: Any) -> dict[str, Any]:
    pod: dict[str, Any] = {"name": f"r1-{attempt}"}
    if node:
        pod["node"] = node
    plan = {"name": "r1-plan", "digest": "d1"}
    return {"attempt": attempt, "pod": pod, "plan": plan, "startTime": text(ago(100)), **more}


def condition(
    kind: str, status: str = "True", reason: str = "Because", since: datetime | None = None
) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "m",
        "lastTransitionTime": text(since or ago(50)),
    }


def view(
    status: dict[str, Any] | None = None,
    *,
    pod: PodView | None = None,
    ghost: PodView | None = None,
    snapshot: dict[str, Any] | None = None,
    plan: PlanReport | None = PLAN,
    obstacle: Obstacle | None = None,
    terms: Terms | None = None,
    seen: Seen | None = None,
    generation: int = 1,
    **spec: Any,
) -> RunView:
    raw_status = dict(status or {})
    if snapshot is not None:
        raw_status["run"] = snapshot
    return RunView(
        run=run(raw_status, generation, **spec),
        now=NOW,
        snapshot=Snapshot.model_validate(snapshot) if snapshot is not None else None,
        pod=pod,
        ghost=ghost,
        plan=plan,
        obstacle=obstacle,
        terms=terms or Terms(),
        seen=seen or Seen(),
    )


def raw_pod(status: dict[str, Any], attempt: int = 1, created: datetime | None = None, **more: Any) -> dict[str, Any]:
    metadata = {
        "name": f"r1-{attempt}",
        "namespace": "ns",
        "uid": f"pod-{attempt}",
        "creationTimestamp": text(created or ago(80)),
        "labels": {names.LABEL_ATTEMPT: str(attempt)},
        "ownerReferences": [{"uid": "u1", "controller": True}],
        **more.pop("metadata", {}),
    }
    return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1", **more.pop("spec", {})}, "status": status}


def containers(state: dict[str, Any]) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "runner", "state": state}]}


def pending_pod(attempt: int = 1, created: datetime | None = None, **status: Any) -> PodView:
    return read_pod(raw_pod({"phase": "Pending", **status}, attempt, created))


def running_pod(attempt: int = 1, created: datetime | None = None, **metadata: Any) -> PodView:
    status = {"phase": "Running", **containers({"running": {}})}
    return read_pod(raw_pod(status, attempt, created, metadata=metadata))


def ended_pod(code: int = 1, attempt: int = 1, reason: str = "Error", **status: Any) -> PodView:
    ended = {"terminated": {"exitCode": code, "reason": reason, "message": status.pop("last_words", "")}}
    phase = "Succeeded" if code == 0 else "Failed"
    return read_pod(raw_pod({"phase": phase, **containers(ended), **status}, attempt))


def parked(reason: str = "Paused", turn: int = 3, released: bool = False, **more: Any) -> dict[str, Any]:
    return {"reason": reason, "turn": turn, "since": text(ago(30)), "released": released, **more}


def an_exit(reason: str = "Complete", signal: str = "default", message: str = "done") -> dict[str, Any]:
    return {"signal": signal, "reason": reason, "message": message}
