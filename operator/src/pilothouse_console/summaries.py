"""A run in one line: what a list shows of it. Pure, and total: whatever a runner wrote, there is a line."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import FINISHED_PHASES, Snapshot
from pilothouse_control.directives import snapshot_of


class Shown(BaseModel):
    """A value that the operator API answers with."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class Spend(Shown):
    """What was used of a budget; `budget` is absent where there is none."""

    used: str
    """Tokens, or US dollars."""
    budget: str | None = None
    """The effective budget."""


class RunSummary(Shown):
    """One run in a list."""

    namespace: str
    """Namespace."""
    name: str
    """Name."""
    uid: str
    """Tells it from another run that had the name before."""
    created_at: str
    """When it was made, RFC 3339."""
    workflow: str | None = None
    """The Workflow that it executes."""
    agent: str | None = None
    """The Agent that it executes."""
    parent: str | None = None
    """The run that it is a child of."""
    phase: str = "Pending"
    """Pending, Running, Paused, AwaitingApproval, Succeeded, Failed, Aborted."""
    mode: str = "Run"
    """What `spec.control` asks for: Run, Pause, Finish, Abort."""
    step: str | None = None
    """Current step."""
    turn: int = 0
    """Turns so far."""
    iteration: int = 0
    """Model calls of the visit."""
    max_iterations: int | None = None
    """Its limit."""
    tokens: Spend = Spend(used="0")
    """Tokens of the run."""
    cost: Spend = Spend(used="0")
    """US dollars of the run."""
    parked: str | None = None
    """What it waits for: Paused, AwaitingApproval, AwaitingChild, Barrier, or a service that is away."""
    approvals: int = 0
    """Calls that wait for a person, those of its children included."""
    unknown_effects: int = 0
    """Calls of which nobody knows whether they were done."""
    last_progress_at: str | None = None
    """When something was last settled."""
    finished_at: str | None = None
    """When it ended."""
    exit: str | None = None
    """Reason of its end."""
    message: str | None = None
    """One sentence on it."""
    cluster: str | None = None
    """Cluster that it is in, where the operator API is one of a fleet."""
    as_of: str | None = None
    """When its cluster said so, RFC 3339, of a run of another cluster."""
    is_readable: bool = True
    """False where this version cannot read what the run says about itself."""

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended."""
        return self.phase in FINISHED_PHASES


def summarize(raw_run: Mapping[str, Any]) -> RunSummary:
    """Return the line of a run."""
    metadata = raw_run["metadata"]
    line = RunSummary(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        created_at=metadata.get("creationTimestamp") or "",
    )
    try:
        run = AgentRun.model_validate(raw_run)
    except ValidationError:
        return line.model_copy(update={"is_readable": False})
    line = line.model_copy(update=_of_object(run))
    try:
        return line.model_copy(update=_of_snapshot(run, snapshot_of(run)))
    except ValidationError:
        return line.model_copy(update={"is_readable": False})


def _of_object(run: AgentRun) -> dict[str, Any]:
    spec, status = run.spec, run.status
    owner = next((one for one in run.metadata.owner_references if one.kind == "AgentRun" and one.controller), None)
    return {
        "workflow": spec.workflow_ref.name if spec.workflow_ref else None,
        "agent": spec.agent_ref.name if spec.agent_ref else None,
        "parent": owner.name if owner else None,
        "phase": status.phase or "Pending",
        "mode": (spec.control.mode if spec.control else None) or "Run",
        "finished_at": status.completion_time,
        "exit": status.exit.reason if status.exit else None,
        "message": status.exit.message if status.exit else None,
    }


def _of_snapshot(run: AgentRun, snapshot: Snapshot) -> dict[str, Any]:
    tokens, cost = snapshot.tokens, snapshot.cost
    below = sum(len(child.pending_approvals) for child in run.status.children)
    return {
        "step": snapshot.step,
        "turn": snapshot.turn,
        "iteration": snapshot.iteration,
        "max_iterations": snapshot.max_iterations,
        "tokens": Spend(used=str(tokens.used), budget=None if tokens.budget is None else str(tokens.budget)),
        "cost": Spend(used=cost.used_usd, budget=cost.budget_usd),
        "parked": snapshot.parked.reason if snapshot.parked else None,
        "approvals": len(snapshot.pending_approvals) + below,
        "unknown_effects": len(snapshot.effects.unknown),
        "last_progress_at": snapshot.last_progress_time,
    }
