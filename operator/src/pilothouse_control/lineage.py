"""What a child inherits of the run that asked for it: policies, hold, place in the tree, and where it runs (§12)."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pilothouse_api.plan import AncestorPolicy, Plan
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agent import AgentSpec, Tool
from pilothouse_api.v1alpha1.agentrun import ChildHold, ChildRef, ChildRequest, RunLimits
from pilothouse_api.v1alpha1.steps import Delegate
from pilothouse_api.v1alpha1.workflow import RunTemplate, WorkflowSpec
from pilothouse_control.tree import walk

MAX_DEPTH = 3
"""How many runs a run may be below the one that a person or a trigger made."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a run inherits. `run_template` holds for a run of an Agent alone: it has none of its own.

    The hold stands in the child's plan and not in its `spec.limits`, which people may relax: what was lent is all
    that there is.
    """

    ancestors: tuple[str, ...]
    policies: tuple[AncestorPolicy, ...]
    hold: ChildHold
    run_template: RunTemplate

    @property
    def limits(self) -> RunLimits | None:
        """The hold as limits of a run, None where the parent has no budget."""
        raw = {"tokenBudget": self.hold.tokens, "costBudgetUSD": self.hold.cost_usd}
        set_ = {name: value for name, value in raw.items() if value is not None}
        return RunLimits.model_validate(set_) if set_ else None


def lineage_of(parent: Plan, request: ChildRequest) -> Lineage:
    """Return what the child of a request inherits of the plan that asked for it."""
    return Lineage(
        ancestors=(*parent.ancestors, parent.run.name),
        policies=(*parent.ancestor_policies, *_policies_over(parent, request.ref)),
        hold=request.hold,
        run_template=parent.spec.run_template,
    )


def _policies_over(plan: Plan, ref: ChildRef) -> Iterator[AncestorPolicy]:
    """Yield the lists of a plan that hold for what it delegates: its workflow's, and those of agents that may ask."""
    if plan.spec.policy:
        yield AncestorPolicy(owner=f"workflow {plan.workflow.name}", rules=plan.spec.policy)
    for owner, spec in _agents_of_steps(plan):
        is_asking = ref.kind == "Agent" and any(
            tool.agent_ref and tool.agent_ref.name == ref.name for tool in spec.tools
        )
        if spec.policy and is_asking:
            yield AncestorPolicy(owner=owner, rules=spec.policy)


def _agents_of_steps(plan: Plan) -> Iterator[tuple[str, AgentSpec]]:
    seen: set[str] = set()
    for step in plan.spec.steps:
        if step.agent is not None:
            yield f"agent of step {step.id}", step.agent
        elif step.agent_ref is not None and step.agent_ref.name not in seen:
            seen.add(step.agent_ref.name)
            yield f"agent {step.agent_ref.name}", plan.agents[step.agent_ref.name].spec


def delegates_of(plan: Plan) -> frozenset[tuple[str, str]]:
    """Return kind and name of everything that a plan may run as a child."""
    found: set[tuple[str, str]] = set()
    for spec in (plan.spec, *(agent for _, agent in _agents_of_steps(plan))):
        for _, node in walk(spec):
            if isinstance(node, Tool) and node.agent_ref is not None:
                found.add(("Agent", node.agent_ref.name))
            elif isinstance(node, Delegate):
                found |= {("Agent", node.agent_ref.name)} if node.agent_ref is not None else set()
                found |= {("Workflow", node.workflow_ref.name)} if node.workflow_ref is not None else set()
    return frozenset(found)


def inherit(spec: WorkflowSpec, run: AgentRun, lineage: Lineage) -> WorkflowSpec:
    """Return the workflow of a child, within its hold."""
    limits = spec.limits
    changed: dict[str, Any] = {}
    tokens, cost = lineage.hold.tokens, lineage.hold.cost_usd
    if tokens is not None and (limits.token_budget is None or limits.token_budget > tokens):
        changed["token_budget"] = tokens
    if cost is not None and (limits.cost_budget_usd is None or Decimal(limits.cost_budget_usd) > Decimal(cost)):
        changed["cost_budget_usd"] = cost
    updates: dict[str, Any] = {"limits": limits.model_copy(update=changed)} if changed else {}
    if run.spec.agent_ref is not None:
        updates["run_template"] = lineage.run_template
    return spec.model_copy(update=updates)
