"""Checks of a supervisor, and of the references to one."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pilothouse_api.digests import digest
from pilothouse_api.v1alpha1 import Workflow
from pilothouse_api.v1alpha1.agent import AgentLimits
from pilothouse_api.v1alpha1.supervisor import SupervisorRule
from pilothouse_api.v1alpha1.workflow import RunTotals
from pilothouse_control.findings import FieldPath
from pilothouse_control.supervision.observing import declared_tools
from pilothouse_control.supervision.rules.registry import RULES
from pilothouse_control.validation.scene import (
    Check,
    Problem,
    Scene,
    SupervisorSubject,
    UsedAgent,
    WorkflowSubject,
    used_agents,
)
from pilothouse_control.validation.sentences import did_you_mean

_SYNC_FIELDS = {"on_barrier_timeout": "onBarrierTimeout", "barrier_timeout_seconds": "barrierTimeoutSeconds"}


@dataclass(frozen=True, slots=True)
class _Watched:
    """The workflows that a supervisor may watch, as far as they are given, and their agents."""

    workflows: tuple[Workflow, ...]
    agents: tuple[UsedAgent, ...]


def _watched(scene: Scene, subject: SupervisorSubject) -> _Watched | None:
    """Return what is watched; None where nothing is given, or not all of its agents: nothing can be said then.

    Which runs a selector selects is not known before there are runs, so any workflow may be meant.
    """
    supervisor = subject.supervisor
    workflows = tuple(
        workflow
        for workflow in scene.workflows.values()
        if supervisor.spec.selector is not None or supervisor.metadata.name in _refs(workflow)
    )
    agents = tuple(used for workflow in workflows for used in used_agents(workflow.spec, scene.agents))
    wanted = sum(step.kind == "Agent" for workflow in workflows for step in workflow.spec.steps)
    return _Watched(workflows, agents) if agents and len(agents) == wanted else None


def _refs(workflow: Workflow) -> Collection[str]:
    return [ref.name for ref in workflow.spec.supervisor_refs]


def judge_on_error(scene: Scene, subject: SupervisorSubject) -> Iterator[Problem]:
    """A fail-closed judge that no turn waits for."""
    judge = subject.supervisor.spec.judge
    if judge is not None and judge.on_error != "Ignore" and subject.supervisor.spec.enforcement != "Sync":
        what = f"onError: {judge.on_error} comes too late to hold a turn, since enforcement is Async"
        yield Problem(("spec", "judge", "onError"), what, "set enforcement: Sync, or onError: Ignore")


def judge_sync_fields(scene: Scene, subject: SupervisorSubject) -> Iterator[Problem]:
    """A field of the barrier where there is none."""
    spec = subject.supervisor.spec
    for attribute, field in _SYNC_FIELDS.items() if spec.enforcement == "Async" else ():
        if attribute in spec.model_fields_set:
            yield Problem(("spec", field), "no turn waits, since enforcement is Async", "set enforcement: Sync")


def judge_repeated_rules(scene: Scene, subject: SupervisorSubject) -> Iterator[Problem]:
    """A rule that fires whenever another one does."""
    seen: dict[str, str] = {}
    for path, rule in _rules(subject):
        params = RULES[rule.when].params(rule)
        key = digest([rule.when, params.model_dump(mode="json") if params is not None else None])
        if key in seen:
            what = f"it fires whenever the rule {seen[key]} does: both are {rule.when} with the same parameters"
            yield Problem(path, what, "remove one of them")
        seen.setdefault(key, rule.name)


def judge_unknown_tools(scene: Scene, subject: SupervisorSubject) -> Iterator[Problem]:
    """A rule about a tool that nothing which is watched has."""
    watched = _watched(scene, subject)
    if watched is None:
        return
    known = {name for used in watched.agents for name in declared_tools(used.spec).values()}
    known |= {tool.name for used in watched.agents for tool in used.spec.tools if _allows_all(tool.mcp)}
    for path, rule in _rules(subject):
        tool = rule.tool_repeated.tool if rule.tool_repeated is not None else None
        if tool is not None and tool not in known:
            what = f"no workflow that it watches has a tool {tool}, so that the rule never fires"
            hint = did_you_mean(tool, known) or f"the tools are {', '.join(sorted(known)) or 'none'}"
            yield Problem((*path, "toolRepeated", "tool"), what, hint)


def _allows_all(mcp: object) -> bool:
    return "*" in getattr(mcp, "allow", ())


def judge_unreachable_rules(scene: Scene, subject: SupervisorSubject) -> Iterator[Problem]:
    """A rule that nothing which is watched can make fire."""
    watched = _watched(scene, subject)
    if watched is None:
        return
    most = max(used.spec.limits.max_iterations for used in watched.agents)
    has_budget = any(_has_budget(used.spec.limits) for used in watched.agents)
    has_budget = has_budget or any(_has_budget(workflow.spec.limits) for workflow in watched.workflows)
    for path, rule in _rules(subject):
        count = rule.iteration_reached.count if rule.iteration_reached is not None else 0
        if count > most:
            what = f"count is {count}, and no agent that it watches has more than {most} iterations"
            yield Problem((*path, "iterationReached", "count"), what, "lower it, or raise maxIterations of the agent")
        if rule.when == "BudgetFraction" and not has_budget:
            what = "nothing that it watches has a tokenBudget or a costBudgetUSD, so that the rule never fires"
            yield Problem(path, what, "set a budget in limits of the workflow or its agents")


def _has_budget(limits: AgentLimits | RunTotals) -> bool:
    return limits.token_budget is not None or limits.cost_budget_usd is not None


def judge_watches_something(scene: Scene, subject: SupervisorSubject) -> Iterator[Problem]:
    """A supervisor that selects nothing and that nothing refers to."""
    name = subject.supervisor.metadata.name
    is_named = any(name in _refs(workflow) for workflow in scene.workflows.values())
    if scene.is_complete and subject.supervisor.spec.selector is None and not is_named:
        what = "it watches nothing: it has no selector, and no supervisorRefs name it"
        yield Problem(
            ("spec", "selector"), what, f"write selector: {{}}, or name {name} in supervisorRefs of a workflow"
        )


def judge_supervisors_found(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A Supervisor that is nowhere."""
    for path, name in _not_found(scene, subject) if scene.is_complete and scene.knows_supervisors else ():
        yield Problem(path, f"there is no Supervisor {name}", did_you_mean(name, scene.supervisors))


def judge_supervisors_elsewhere(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A Supervisor that is not among what was given."""
    for path, name in () if scene.is_complete else _not_found(scene, subject):
        hint = did_you_mean(name, scene.supervisors) or "give its file too, or see that the cluster has it"
        yield Problem(path, f"Supervisor {name} is not among what was given, so it was not judged", hint)


def _not_found(scene: Scene, subject: WorkflowSubject) -> Iterator[tuple[FieldPath, str]]:
    for index, ref in enumerate(subject.spec.supervisor_refs):
        if ref.name not in scene.supervisors and ("Supervisor", ref.name) not in scene.refused:
            yield ("spec", "supervisorRefs", index, "name"), ref.name


def _rules(subject: SupervisorSubject) -> Iterator[tuple[FieldPath, SupervisorRule]]:
    for index, rule in enumerate(subject.supervisor.spec.rules):
        yield ("spec", "rules", index), rule


SUPERVISOR_CHECKS: tuple[Check[SupervisorSubject], ...] = (
    Check("OnErrorWithoutSync", "Warning", judge_on_error),
    Check("BarrierWithoutSync", "Warning", judge_sync_fields),
    Check("RuleRepeated", "Warning", judge_repeated_rules),
    Check("RuleToolUnknown", "Warning", judge_unknown_tools),
    Check("RuleUnreachable", "Warning", judge_unreachable_rules),
    Check("WatchesNothing", "Warning", judge_watches_something),
)
SUPERVISOR_REF_CHECKS: tuple[Check[WorkflowSubject], ...] = (
    Check("SupervisorNotFound", "Error", judge_supervisors_found),
    Check("SupervisorElsewhere", "Warning", judge_supervisors_elsewhere),
)
