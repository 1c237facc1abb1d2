"""Checks of a workflow as a whole: its agents, tools, totals, schedule, input and deadlines."""

from collections.abc import Iterator

from pilothouse_api.schemas import SchemaError, compile_schema
from pilothouse_api.v1alpha1.workflow import WorkflowSpec
from pilothouse_control.findings import FieldPath
from pilothouse_control.schedules import cron_problem, is_time_zone
from pilothouse_control.validation.agents import (
    TOOL_KINDS,
    endpoints_without_output_tokens,
    endpoints_without_price,
)
from pilothouse_control.validation.scene import AgentSubject, Check, Problem, Scene, UsedAgent, WorkflowSubject
from pilothouse_control.validation.sentences import did_you_mean, show


def _place(used: UsedAgent, *below: str | int) -> FieldPath:
    """Return a place in an agent: in the step where it is written there, else where the step refers to it."""
    return (*used.path, *below) if used.is_inline else used.path


def judge_agents_found(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """An Agent that is nowhere."""
    for path, name in _agents_not_found(scene, subject) if scene.is_complete else ():
        yield Problem(path, f"there is no Agent {name}", did_you_mean(name, scene.agents))


def judge_agents_elsewhere(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """An Agent that is not among what was given."""
    for path, name in () if scene.is_complete else _agents_not_found(scene, subject):
        hint = did_you_mean(name, scene.agents) or "give its file too, or see that the cluster has it"
        yield Problem(path, f"Agent {name} is not among what was given, so it was not judged", hint)


def _agents_not_found(scene: Scene, subject: WorkflowSubject) -> Iterator[tuple[FieldPath, str]]:
    for path, step in subject.steps():
        name = step.agent_ref.name if step.agent_ref is not None else None
        if name is not None and name not in scene.agents and ("Agent", name) not in scene.refused:
            yield (*path, "agentRef", "name"), name


def judge_tool_steps(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A tool that names no step, or a step that cannot be a tool, or one without a description."""
    steps = {step.id: step for step in subject.spec.steps}
    for used in subject.used:
        for index, tool in enumerate(used.spec.tools):
            if tool.step is None:
                continue
            place = _place(used, "tools", index, "step")
            step = steps.get(tool.step)
            prefix = f"the tool {tool.name} of {used.label}"
            if step is None:
                hint = did_you_mean(tool.step, steps) or f"the steps are {', '.join(steps)}"
                yield Problem(place, f"{prefix} names the step {tool.step}, which does not exist", hint)
            elif step.kind not in TOOL_KINDS:
                what = f"{prefix} names a step of kind {step.kind}; tools are {', '.join(TOOL_KINDS)}"
                yield Problem(place, what)
            elif not tool.description and not step.description:
                what = f"{prefix} has no description, and neither has the step {tool.step}"
                yield Problem(place, what, "describe one of them: the model chooses tools by it")


def _subject_of(used: UsedAgent) -> AgentSubject:
    return AgentSubject(used.name, used.spec, used.path)


def judge_total_output_tokens(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A token total without a bound of each reply."""
    if subject.spec.limits.token_budget is not None:
        yield from totals_without_output_tokens(subject.used, "spec.limits.tokenBudget")


def totals_without_output_tokens(used_agents: tuple[UsedAgent, ...], budget: str) -> Iterator[Problem]:
    """Yield the models of a workflow's agents that have no maxOutputTokens."""
    for used in used_agents:
        if used.spec.limits.token_budget is None:  # else the agent's own check says it
            for path, what, hint in endpoints_without_output_tokens(_subject_of(used), budget):
                yield Problem(path if used.is_inline else used.path, f"{used.label}: {what}", hint)


def judge_total_price(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A cost total for a model of which nobody knows the price."""
    if subject.spec.limits.cost_budget_usd is not None:
        yield from totals_without_price(scene, subject.used, "spec.limits.costBudgetUSD")


def totals_without_price(scene: Scene, used_agents: tuple[UsedAgent, ...], budget: str) -> Iterator[Problem]:
    """Yield the models of a workflow's agents whose price is not known."""
    for used in used_agents:
        if used.spec.limits.cost_budget_usd is None:
            for path, what, hint in endpoints_without_price(scene, _subject_of(used), budget):
                yield Problem(path if used.is_inline else used.path, f"{used.label}: {what}", hint)


def judge_deadlines(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A tool that may take longer than the whole run."""
    deadline = subject.spec.run_template.active_deadline_seconds
    yield from deadlines_exceeded(subject.used, deadline, "runTemplate.activeDeadlineSeconds")


def deadlines_exceeded(used_agents: tuple[UsedAgent, ...], deadline: int, name: str) -> Iterator[Problem]:
    """Yield the deadlines that agents state and that the run's deadline cuts off."""
    for used in used_agents:
        limits = used.spec.limits
        rows: list[tuple[FieldPath, int]] = [
            (_place(used, "tools", index, "timeoutSeconds"), tool.timeout_seconds)
            for index, tool in enumerate(used.spec.tools)
            if tool.timeout_seconds is not None
        ]
        if "tool_timeout_seconds" in limits.model_fields_set:
            rows.append((_place(used, "limits", "toolTimeoutSeconds"), limits.tool_timeout_seconds))
        for path, seconds in rows:
            if seconds >= deadline:
                what = f"a tool of {used.label} may take {seconds} s, and {name} ends the run after {deadline} s"
                yield Problem(path, what, f"set less than {deadline}, or raise {name}")


def judge_schedule(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A schedule that has no next slot."""
    schedule = subject.spec.trigger.schedule
    if schedule is None:
        return
    path: FieldPath = ("spec", "trigger", "schedule")
    if (problem := cron_problem(schedule.cron)) is not None:
        yield Problem((*path, "cron"), problem, 'write five fields, such as "0 7 * * 1-5"')
    if not is_time_zone(schedule.time_zone):
        what = f"there is no time zone {show(schedule.time_zone)}"
        yield Problem((*path, "timeZone"), what, "write a name of the IANA table, such as Europe/Berlin")


def judge_input_defaults(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A default that the input's own schema refuses."""
    properties = (subject.spec.input.schema_ or {}).get("properties")
    for key, value in subject.spec.input.defaults.items():
        schema = properties.get(key) if isinstance(properties, dict) else None
        if not isinstance(schema, dict):
            continue
        for problem in _problems(schema, value):
            yield Problem(("spec", "input", "defaults", key), problem, f"see input.schema.properties.{key}")


def judge_trigger_input(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A trigger whose runs are refused, since nobody gives them the input that they need."""
    spec = subject.spec
    if spec.trigger.type == "Manual" or spec.input.schema_ is None:
        return
    for problem in _problems(spec.input.schema_, spec.input.defaults):
        what = f"runs of trigger {spec.trigger.type} have the defaults as input, and input.schema refuses them"
        yield Problem(("spec", "trigger", "type"), f"{what}: {problem}", "complete input.defaults, or set type: Manual")


def _problems(schema: dict[str, object], value: object) -> list[str]:
    try:
        return compile_schema(schema).problems(value)
    except SchemaError:  # said by the check of schemas
        return []


def judge_concurrency(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A policy for runs that no trigger makes."""
    spec: WorkflowSpec = subject.spec
    if spec.trigger.type == "Manual" and spec.concurrency_policy != "Allow":
        what = f"concurrencyPolicy: {spec.concurrency_policy} governs runs of a trigger, and trigger.type is Manual"
        yield Problem(("spec", "concurrencyPolicy"), what, "remove it, or set a trigger")


WORKFLOW_CHECKS: tuple[Check[WorkflowSubject], ...] = (
    Check("AgentNotFound", "Error", judge_agents_found),
    Check("AgentElsewhere", "Warning", judge_agents_elsewhere),
    Check("ToolStepInvalid", "Error", judge_tool_steps),
    Check("TotalWithoutOutputTokens", "Error", judge_total_output_tokens),
    Check("TotalWithoutPrice", "Error", judge_total_price),
    Check("ToolExceedsDeadline", "Error", judge_deadlines),
    Check("ScheduleInvalid", "Error", judge_schedule),
    Check("DefaultDoesNotFit", "Error", judge_input_defaults),
    Check("TriggerWithoutInput", "Error", judge_trigger_input),
    Check("ConcurrencyWithoutTrigger", "Warning", judge_concurrency),
)
