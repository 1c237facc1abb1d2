"""Checks of what is run as a child: delegates of agents, Delegate steps, tasks in the background."""

from collections.abc import Iterable, Iterator

from pilothouse_api.v1alpha1.agent import AgentSpec, Tool
from pilothouse_api.v1alpha1.workflow import WorkflowSpec
from pilothouse_control.findings import FieldPath
from pilothouse_control.lineage import MAX_DEPTH
from pilothouse_control.tree import walk
from pilothouse_control.validation.agents import endpoints_without_output_tokens, endpoints_without_price
from pilothouse_control.validation.scene import (
    AgentSubject,
    Check,
    Problem,
    Scene,
    SpecSubject,
    WorkflowSubject,
    used_agents,
)
from pilothouse_control.validation.sentences import did_you_mean

Target = tuple[str, str]
"""Kind and name of what a child runs."""


def judge_background(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A tool in the background that is no run of its own."""
    for path, node in walk(subject.spec, subject.path):
        if isinstance(node, Tool) and node.background and node.agent_ref is None:
            what = f"the tool {node.name} cannot run in the background: only an agentRef is a run of its own"
            yield Problem((*path, "background"), what, "remove it, or make the tool an agentRef")


def judge_delegate_timeout(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """A deadline that holds for calls in the runner's own process."""
    for path, node in walk(subject.spec, subject.path):
        if isinstance(node, Tool) and node.agent_ref is not None and node.timeout_seconds is not None:
            what = f"timeoutSeconds ends no child: the tool {node.name} is bounded by what its own run may do"
            yield Problem((*path, "timeoutSeconds"), what, "bound the Agent's own limits")


def judge_delegate_target(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A Delegate of something that is nowhere."""
    yield from _not_found(scene, subject) if scene.is_complete else ()


def judge_delegate_elsewhere(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A Delegate of something that is not among what was given."""
    for path, what, hint in () if scene.is_complete else _not_found(scene, subject):
        yield Problem(path, f"{what} among what was given", hint or "give its file too, or see that the cluster has it")


def _not_found(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    for path, step in subject.steps():
        delegate = step.delegate
        if delegate is None:
            continue
        workflows = ("workflowRef", "Workflow", delegate.workflow_ref, frozenset(scene.workflows))
        agents = ("agentRef", "Agent", delegate.agent_ref, frozenset(scene.agents))
        for field, kind, ref, known in (workflows, agents):
            if ref is not None and ref.name not in known and (kind, ref.name) not in scene.refused:
                place = (*path, "delegate", field, "name")
                yield Problem(place, f"there is no {kind} {ref.name}", did_you_mean(ref.name, known))


def judge_delegate_outcomes(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """An outcome of an Agent that is run as a child, leading nowhere."""
    for path, step in subject.steps():
        ref = step.delegate.agent_ref if step.delegate is not None else None
        agent = scene.agents.get(ref.name) if ref is not None else None
        if ref is None or agent is None:
            continue
        for value in agent.spec.outcome.enum or ():
            if value not in step.routes:
                what = f"Agent {ref.name} may end with {value}, and routes do not map it: the run would fail"
                yield Problem((*path, "routes"), what, f"add {value}: <step or end>")


def judge_own_workflow(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A Delegate that reaches the workflow that it belongs to, directly or through others."""
    own: Target = ("Workflow", subject.workflow.metadata.name)
    for path, target in _delegates(subject.spec):
        chain = _chain_to(own, target, scene)
        if chain is not None:
            shown = " → ".join(name for _, name in (own, *chain))
            yield Problem(path, f"it reaches its own Workflow: {shown}", "remove one of these references")


def judge_depth(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A chain of delegates that is longer than runs may be deep."""
    yield from _too_deep(scene, _targets_of(("", ""), scene, subject.spec), ("spec", "steps"))


def judge_agent_depth(scene: Scene, subject: AgentSubject) -> Iterator[Problem]:
    """The same in runs of an Agent alone."""
    if subject.path == ("spec",):  # one that is written in a step is judged with its workflow
        yield from _too_deep(scene, _delegates_of_agent(subject.spec), ("spec", "tools"))


def _too_deep(scene: Scene, targets: Iterable[Target], path: FieldPath) -> Iterator[Problem]:
    known: dict[tuple[Target, int], tuple[Target, ...]] = {}
    for start in dict.fromkeys(targets):
        chain = _chain_of(start, MAX_DEPTH + 1, scene, known)
        if len(chain) > MAX_DEPTH and len(set(chain)) == len(chain):  # cycles are another check's
            shown = " → ".join(name for _, name in chain)
            what = f"children are at most {MAX_DEPTH} deep, and {shown} is {len(chain)}: the last one would be refused"
            yield Problem(path, what, "delegate less deep")


def _chain_of(
    start: Target, length: int, scene: Scene, known: dict[tuple[Target, int], tuple[Target, ...]]
) -> tuple[Target, ...]:
    """Return a longest chain from `start` of at most that length; each target is followed once for each length."""
    if length == 1:
        return (start,)
    if (start, length) not in known:
        known[start, length] = ()
        below = (_chain_of(one, length - 1, scene, known) for one in _targets_of(start, scene))
        known[start, length] = (start, *max(below, key=len, default=()))
    return known[start, length]


def _delegates(spec: WorkflowSpec) -> Iterator[tuple[FieldPath, Target]]:
    for index, step in enumerate(spec.steps):
        place = ("spec", "steps", index, "delegate")
        if step.delegate is not None and step.delegate.workflow_ref is not None:
            yield (*place, "workflowRef"), ("Workflow", step.delegate.workflow_ref.name)
        if step.delegate is not None and step.delegate.agent_ref is not None:
            yield (*place, "agentRef"), ("Agent", step.delegate.agent_ref.name)


def _targets_of(node: Target, scene: Scene, spec: WorkflowSpec | None = None) -> list[Target]:
    """Return what a run of something may run as children, in their order."""
    kind, name = node
    if spec is None and kind == "Agent":
        agent = scene.agents.get(name)
        return _delegates_of_agent(agent.spec) if agent is not None else []
    workflow = scene.workflows.get(name) if spec is None else None
    spec = workflow.spec if workflow is not None else spec
    if spec is None:
        return []
    found = [target for _, target in _delegates(spec)]
    for used in used_agents(spec, scene.agents):
        found += _delegates_of_agent(used.spec)
    return list(dict.fromkeys(found))


def _delegates_of_agent(spec: AgentSpec) -> list[Target]:
    return [("Agent", tool.agent_ref.name) for tool in spec.tools if tool.agent_ref is not None]


def _chain_to(target: Target, start: Target, scene: Scene) -> list[Target] | None:
    """Return the way from `start` to `target`, breadth first."""
    chains, seen = [[start]], {start}
    while chains:
        chain = chains.pop(0)
        if chain[-1] == target:
            return chain
        for following in _targets_of(chain[-1], scene):
            if following not in seen:
                seen.add(following)
                chains.append([*chain, following])
    return None


def judge_child_budgets(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A budget that a child is lent a part of, and an Agent that cannot reserve of it."""
    limits, steps = subject.spec.limits, ("spec", "steps")
    lends_tokens = limits.token_budget is not None
    lends_money = limits.cost_budget_usd is not None
    for used in subject.used:
        budgets = used.spec.limits
        for _, name in _delegates_of_agent(used.spec):
            tokens, money = lends_tokens or budgets.token_budget is not None, budgets.cost_budget_usd is not None
            yield from _unreservable(scene, name, (*steps, used.index), tokens, lends_money or money)
    for path, (kind, name) in _delegates(subject.spec):
        if kind == "Agent":
            yield from _unreservable(scene, name, path, lends_tokens, lends_money)


def _unreservable(scene: Scene, name: str, path: FieldPath, tokens: bool, money: bool) -> Iterator[Problem]:
    agent = scene.agents.get(name)
    if agent is None:
        return
    subject = AgentSubject(name, agent.spec, ("spec",))
    if tokens and agent.spec.limits.token_budget is None:  # else the agent's own check says it
        for _, what, hint in endpoints_without_output_tokens(subject, "a part of tokenBudget that is lent to a child"):
            yield Problem(path, f"Agent {name}: {what}", hint)
    if money and agent.spec.limits.cost_budget_usd is None:
        for _, what, hint in endpoints_without_price(scene, subject, "a part of costBudgetUSD that is lent to a child"):
            yield Problem(path, f"Agent {name}: {what}", hint)


CHILD_SPEC_CHECKS: tuple[Check[SpecSubject], ...] = (
    Check("BackgroundWithoutAgent", "Error", judge_background),
    Check("DelegateTimeout", "Warning", judge_delegate_timeout),
)
CHILD_AGENT_CHECKS: tuple[Check[AgentSubject], ...] = (Check("AgentDelegatesTooDeep", "Warning", judge_agent_depth),)
CHILD_WORKFLOW_CHECKS: tuple[Check[WorkflowSubject], ...] = (
    Check("DelegateTargetNotFound", "Error", judge_delegate_target),
    Check("DelegateTargetElsewhere", "Warning", judge_delegate_elsewhere),
    Check("DelegateOutcomeUnmapped", "Error", judge_delegate_outcomes),
    Check("DelegateReachesItself", "Error", judge_own_workflow),
    Check("DelegatesTooDeep", "Warning", judge_depth),
    Check("ChildBudgetUnreservable", "Error", judge_child_budgets),
)
