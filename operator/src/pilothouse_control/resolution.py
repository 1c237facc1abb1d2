"""From a run and what it refers to, its plan: frozen, complete, within the platform's ceilings, small enough."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from pilothouse_api import names
from pilothouse_api.digests import digest
from pilothouse_api.plan import LiveCeilings, Origin, Plan, PlannedAgent, PlannedText, RunIdentity
from pilothouse_api.v1alpha1 import Agent, AgentRun, Workflow
from pilothouse_api.v1alpha1.agent import AgentLimits, AgentSpec
from pilothouse_api.v1alpha1.agentrun import AgentRunSpec, Overrides
from pilothouse_api.v1alpha1.common import SecretKeyRef
from pilothouse_api.v1alpha1.steps import ServiceAccountTokenAuth
from pilothouse_api.v1alpha1.workflow import RunTotals, WorkflowSpec
from pilothouse_control.findings import spell
from pilothouse_control.inputs import InputRefused, resolve_input
from pilothouse_control.lineage import Lineage, inherit
from pilothouse_control.mcp_artifacts import expand_servers
from pilothouse_control.standalone import workflow_of_agent
from pilothouse_control.texts import MissingText, resolve_text, text_sites
from pilothouse_control.tree import walk
from pilothouse_control.validation import Sources, as_document, validate
from pilothouse_control.world import Ceilings, Platform, References, needed_references

MAX_PLAN_BYTES = 1_000_000
"""A ConfigMap holds 1 MiB, its metadata included."""


@dataclass(frozen=True, slots=True)
class NotResolved:
    """Why a run has no plan: a PascalCase reason, a sentence, and whether it may heal by itself.

    `is_waiting`: something that is referred to is not there (yet): Reconciling within the grace, then Stalled.
    Otherwise a person must change something.
    """

    reason: str
    message: str
    is_waiting: bool = False


_Identity = tuple[str, str, tuple[tuple[str, str], ...], str, Platform]
_IN_ORDER: OrderedDict[_Identity, None] = OrderedDict()
REMEMBERED_JUDGEMENTS = 1024


class _Refused(Exception):
    def __init__(self, reason: str, message: str, is_waiting: bool = False) -> None:
        super().__init__(message)
        self.outcome = NotResolved(reason, message, is_waiting)


def resolve_plan(run: AgentRun, known: References, lineage: Lineage | None = None) -> Plan | NotResolved:
    """Return the plan of a run, or why there is none. Secrets are named in it, never read.

    `lineage`: of a child, what it inherits of the run that asked for it.
    """
    try:
        return _resolve(run, known, lineage)
    except _Refused as refused:
        return refused.outcome


def _resolve(run: AgentRun, known: References, lineage: Lineage | None) -> Plan:
    origin, spec = _workflow_of(run, known)
    ceilings = known.platform.ceilings
    spec = clamp_workflow(spec, ceilings)
    if lineage is not None:
        spec = inherit(spec, run, lineage)
    _check_children_known(run, known)
    agents = _agents_of(run, known)
    specs: dict[str, BaseModel] = {f"Workflow {origin.name}": spec} | {
        f"Agent {name}": agent.spec for name, agent in agents.items()
    }
    # What may still appear comes first: a run waits for it, and is judged when everything is there.
    texts = _texts_of(specs, known)
    resolved_input = _input_of(run, spec)
    _check_findings(run, origin, spec, agents, known, lineage)
    spec = expand_servers(spec, known.config_maps)
    agents = {
        name: agent.model_copy(update={"spec": expand_servers(agent.spec, known.config_maps)})
        for name, agent in agents.items()
    }
    expanded = (spec, *(agent.spec for agent in agents.values()))
    overrides = run.spec.overrides or Overrides()
    template = spec.run_template
    plan = Plan(
        run=RunIdentity(
            namespace=run.metadata.namespace or "default",
            name=run.metadata.name,
            uid=run.metadata.uid or "",
            labels=run.metadata.labels,
        ),
        workflow=origin,
        spec=spec,
        agents=agents,
        texts=texts,
        input=resolved_input,
        active_deadline_seconds=overrides.active_deadline_seconds or template.active_deadline_seconds,
        max_attempts=overrides.max_attempts or template.max_attempts,
        secrets=_secrets_of(expanded),
        audiences=_audiences_of(expanded),
        ceilings=LiveCeilings(
            tool_timeout_seconds=ceilings.tool_timeout_seconds,
            pause_seconds=ceilings.pause_seconds,
            approval_expires_seconds=ceilings.approval_expires_seconds,
        ),
        ancestors=list(lineage.ancestors) if lineage else [],
        ancestor_policies=list(lineage.policies) if lineage else [],
        session=run.spec.session,
        pod=_pod_of(spec, overrides, known.platform),
    )
    try:
        size = len(plan.encode().encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:  # as a schema that is nested too deep for who executes it
        raise _Refused("InvalidPlan", f"the plan cannot be written as JSON: {str(error)[:200]}") from None
    if size > MAX_PLAN_BYTES:
        hint = "shorten texts, schemas or input, or fetch large ones in a step"
        raise _Refused("PlanTooLarge", f"the plan has {size} bytes; the limit is {MAX_PLAN_BYTES}: {hint}")
    return plan


def _workflow_of(run: AgentRun, known: References) -> tuple[Origin, WorkflowSpec]:
    if run.spec.workflow_ref is not None:
        name = run.spec.workflow_ref.name
        workflow = known.workflows.get(name)
        if workflow is None:
            raise _Refused("WorkflowNotFound", f"spec.workflowRef: there is no Workflow {name}", True)
        return _origin(workflow), workflow.spec
    name = run.spec.agent_ref.name if run.spec.agent_ref else ""
    agent = known.agents.get(name)
    if agent is None:
        raise _Refused("AgentNotFound", f"spec.agentRef: there is no Agent {name}", True)
    return _origin(agent), workflow_of_agent(name, agent.spec)


def _origin(obj: Workflow | Agent) -> Origin:
    try:
        raw_spec = obj.spec.to_raw()
    except ValueError as error:  # nested deeper than pydantic writes
        what = f"{type(obj).__name__} {obj.metadata.name} cannot be written as JSON: {str(error)[:200]}"
        raise _Refused("InvalidPlan", what) from None
    return Origin(
        name=obj.metadata.name,
        uid=obj.metadata.uid or "",
        generation=obj.metadata.generation or 0,
        digest=digest(raw_spec),
    )


def _agents_of(run: AgentRun, known: References) -> dict[str, PlannedAgent]:
    wanted = sorted(ref.name for ref in needed_references(run, known) if ref.kind == "Agent")
    missing = [name for name in wanted if name not in known.agents]
    if missing:
        raise _Refused("AgentNotFound", f"there is no Agent {', '.join(missing)}", True)
    ceilings = known.platform.ceilings
    return {
        name: PlannedAgent(
            origin=_origin(known.agents[name]),
            spec=clamp_agent(known.agents[name].spec, ceilings),
        )
        for name in wanted
    }


def _check_children_known(run: AgentRun, known: References) -> None:
    """Refuse a run of which a Delegate names a Workflow that is not there: it would find out in the middle."""
    wanted = sorted(ref.name for ref in needed_references(run, known) if ref.kind == "Workflow")
    missing = [name for name in wanted if name not in known.workflows]
    if missing:
        raise _Refused("WorkflowNotFound", f"there is no Workflow {', '.join(missing)}", True)


def _texts_of(specs: Mapping[str, BaseModel], known: References) -> dict[str, PlannedText]:
    texts: dict[str, PlannedText] = {}
    for owner, spec in specs.items():
        for site in text_sites(spec):
            resolved = resolve_text(site, known.config_maps)
            if isinstance(resolved, MissingText):
                message = f"{owner}: {spell(site.path)}: {resolved.message}"
                raise _Refused(resolved.reason, message, resolved.is_waiting)
            if resolved is not None:
                texts[resolved[0]] = resolved[1]
    return texts


def _secrets_of(specs: Iterable[BaseModel]) -> list[str]:
    refs = (node for spec in specs for _, node in walk(spec) if isinstance(node, SecretKeyRef))
    return sorted({names.secret_file(ref.name, ref.key) for ref in refs})


def _audiences_of(specs: Iterable[BaseModel]) -> list[str]:
    nodes = (node for spec in specs for _, node in walk(spec) if isinstance(node, ServiceAccountTokenAuth))
    return sorted({node.audience for node in nodes})


def _pod_of(spec: WorkflowSpec, overrides: Overrides, platform: Platform) -> dict[str, Any]:
    template = spec.run_template
    resources = overrides.resources or template.resources
    return {
        "image": template.image or platform.runner_image,
        "serviceAccountName": template.service_account_name,
        "resources": resources.to_raw() if resources else {},
        "env": template.env,
        "envFrom": template.env_from,
        "nodeSelector": template.node_selector,
        "tolerations": template.tolerations,
        "runtimeClassName": template.runtime_class_name,
        "labels": template.labels,
    }


def _input_of(run: AgentRun, spec: WorkflowSpec) -> dict[str, Any]:
    resolved = resolve_input(run.spec.input, spec.input)
    if isinstance(resolved, InputRefused):
        place = spell(("spec", "input", *resolved.path))
        raise _Refused(resolved.reason, f"{place}: {resolved.message}")
    return resolved


def clamp_agent(spec: AgentSpec, ceilings: Ceilings) -> AgentSpec:
    """Return an agent within the platform's ceilings."""
    limits = spec.limits
    changed = _less(
        {
            "tool_timeout_seconds": (limits.tool_timeout_seconds, ceilings.tool_timeout_seconds),
            "pause_seconds": (limits.pause_seconds, ceilings.pause_seconds),
            "token_budget": (limits.token_budget, ceilings.token_budget if limits.token_budget else None),
        }
    )
    if limits.cost_budget_usd and ceilings.cost_budget_usd:
        changed["cost_budget_usd"] = _cheaper(limits.cost_budget_usd, ceilings.cost_budget_usd)
    if not changed:
        return spec
    clamped: AgentLimits = limits.model_copy(update=changed)
    return spec.model_copy(update={"limits": clamped})


def clamp_workflow(spec: WorkflowSpec, ceilings: Ceilings) -> WorkflowSpec:
    """Return a workflow within the platform's ceilings: budgets are totals of the run, set or not."""
    limits = spec.limits
    changed = _less({"token_budget": (limits.token_budget, ceilings.token_budget)})
    if ceilings.cost_budget_usd:
        changed["cost_budget_usd"] = _cheaper(limits.cost_budget_usd, ceilings.cost_budget_usd)
    updates: dict[str, Any] = {}
    if changed:
        totals: RunTotals = limits.model_copy(update=changed)
        updates["limits"] = totals
    if any(step.agent is not None for step in spec.steps):
        updates["steps"] = [
            step.model_copy(update={"agent": clamp_agent(step.agent, ceilings)}) if step.agent else step
            for step in spec.steps
        ]
    return spec.model_copy(update=updates) if updates else spec


def _less(limits: Mapping[str, tuple[int | None, int | None]]) -> dict[str, Any]:
    return {
        name: ceiling
        for name, (value, ceiling) in limits.items()
        if ceiling is not None and (value is None or value > ceiling)
    }


def _cheaper(value: str | None, ceiling: str) -> str:
    return ceiling if value is None or Decimal(value) > Decimal(ceiling) else value


def _check_findings(
    run: AgentRun,
    origin: Origin,
    spec: WorkflowSpec,
    agents: Mapping[str, PlannedAgent],
    known: References,
    lineage: Lineage | None,
) -> None:
    """Refuse what validation refuses: the same checks as at admission and on the command line.

    The runs of a workflow differ in their input, which was judged before: what was found to be in order is
    remembered, because judging it anew for each run is half of what a run costs the operator.
    """
    hold = lineage.limits if lineage else None
    judged_run = run.spec.model_copy(update={"control": None, "limits": hold})
    identity = _identity(judged_run, origin, agents, known)
    if identity in _IN_ORDER:
        _IN_ORDER.move_to_end(identity)
        return
    raws: list[dict[str, Any]] = [_raw("Agent", name, agent.spec.to_raw()) for name, agent in agents.items()]
    if run.spec.workflow_ref is not None:
        raws.append(_raw("Workflow", origin.name, spec.to_raw()))
    raws.append(_raw("AgentRun", run.metadata.name, judged_run.to_raw()))
    others = References(workflows=known.workflows, config_maps=known.config_maps)
    sources = Sources([as_document(raw) for raw in raws], others, is_complete=True)
    platform = known.platform
    findings = validate(sources, durable_journal=platform.durable_journal, known_price=platform.known_price)
    errors = [finding for finding in findings if finding.is_error]
    if errors:
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise _Refused("InvalidPlan", f"{first.kind} {first.name}: {first.sentence}{more}")
    _IN_ORDER[identity] = None
    if len(_IN_ORDER) > REMEMBERED_JUDGEMENTS:
        _IN_ORDER.popitem(last=False)


def _identity(spec: AgentRunSpec, origin: Origin, agents: Mapping[str, PlannedAgent], known: References) -> _Identity:
    """Return all that a judgement follows from, but for the name and the input of the run.

    Digests are of the specs as they were written; the platform's ceilings, which stand beside them, do the rest.
    """
    texts = [[name, found.artifact, dict(found.data)] for name, found in sorted(known.config_maps.items())]
    judged = spec.model_copy(update={"input": {}}).to_raw()
    specs = tuple((name, agent.origin.digest) for name, agent in sorted(agents.items()))
    # What Delegate steps name: their own digests, since none of them is the origin.
    others = [[name, it.spec.to_raw()] for name, it in sorted(known.workflows.items()) if name != origin.name]
    return origin.name, origin.digest, specs, digest([judged, texts, others]), known.platform


def _raw(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": names.API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
