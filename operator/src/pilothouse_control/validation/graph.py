"""The graph of a workflow: what each step can end with, and where that leads."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pilothouse_api.signals import (
    ABORTED,
    BUDGET_EXCEEDED,
    DEFAULT,
    END,
    ERROR,
    GUARDRAIL_VIOLATION,
    MAX_ITERATIONS,
    POLICY_DENIED,
    RESERVED_EXITS,
    UNRECOVERABLE,
)
from pilothouse_api.v1alpha1.agent import AgentSpec
from pilothouse_api.v1alpha1.workflow import Step
from pilothouse_control.findings import FieldPath
from pilothouse_control.validation.hooks import notified_steps
from pilothouse_control.validation.scene import Check, Problem, Scene, UsedAgent, WorkflowSubject
from pilothouse_control.validation.sentences import did_you_mean


@dataclass(frozen=True, slots=True)
class Signals:
    """What a step can end with; `is_open` where author code or data may choose others."""

    known: frozenset[str]
    is_open: bool = False


def signals_of(step: Step, agent: AgentSpec | None) -> Signals:
    """Return the signals of a step; `agent` is that of an Agent step, None where it is not known."""
    if step.kind == "Agent":
        if agent is None:
            return Signals(RESERVED_EXITS | {DEFAULT}, is_open=True)
        return Signals(RESERVED_EXITS | frozenset(agent.outcome.enum or {DEFAULT}))
    if step.kind == "Router":
        conditions = step.router.conditions if step.router is not None else None
        if conditions is None:
            return Signals(frozenset({DEFAULT, ERROR}), is_open=True)
        return Signals(frozenset({DEFAULT, ERROR, *(condition.signal for condition in conditions)}))
    if step.kind in ("Function", "Delegate"):
        return Signals(frozenset({DEFAULT, ERROR}), is_open=True)
    if step.kind == "Resource":
        return Signals(frozenset({DEFAULT, ERROR, "not_found", "forbidden"}))
    if step.kind == "Approval":
        return Signals(frozenset({"approved", "denied", "expired"}))
    return Signals(frozenset({DEFAULT, ERROR}))


def _by_index(subject: WorkflowSubject) -> dict[int, UsedAgent]:
    return {used.index: used for used in subject.used}


def _signals(subject: WorkflowSubject) -> Iterator[tuple[FieldPath, Step, Signals]]:
    used = _by_index(subject)
    for index, (path, step) in enumerate(subject.steps()):
        yield path, step, signals_of(step, used[index].spec if index in used else None)


def judge_route_targets(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A route to a step that does not exist."""
    targets = [*(step.id for step in subject.spec.steps), END]
    for path, step in subject.steps():
        for signal, target in step.routes.items():
            if target not in targets:
                hint = did_you_mean(target, targets) or f"the steps are {', '.join(targets)}"
                yield Problem((*path, "routes", signal), f"there is no step {target}", hint)


def judge_outcomes_mapped(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """An outcome of an agent that leads nowhere."""
    for used in subject.used:
        for value in used.spec.outcome.enum or ():
            if value not in used.step.routes:
                what = f"{used.label} may end with {value}, and routes do not map it: the run would fail"
                hint = f"add {value}: <step or end>"
                yield Problem(("spec", "steps", used.index, "routes"), what, hint)


def judge_signals_mapped(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A signal that a step surely can end with, leading nowhere."""
    for path, step, signals in _signals(subject):
        if step.kind == "Agent" or step.tool_only:
            continue
        for signal in sorted(signals.known - {DEFAULT, ERROR} - step.routes.keys()):
            what = f"the step may end with {signal}, and routes do not map it: the run would fail with UnroutedSignal"
            yield Problem((*path, "routes"), what, f"add {signal}: <step or end>")


def judge_never_taken(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A route for a signal that the step never ends with."""
    for path, step, signals in _signals(subject):
        for signal in step.routes if not signals.is_open else ():
            if signal not in signals.known:
                hint = did_you_mean(signal, signals.known) or f"it ends with {', '.join(sorted(signals.known))}"
                yield Problem((*path, "routes", signal), f"the step never ends with {signal}", hint)


def judge_exits_mapped(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """Exits that end the run because no route takes them."""
    for used in subject.used:
        unmapped = [signal for signal in _exits_of(subject, used.spec) if signal not in used.step.routes]
        if unmapped:
            what = f"{', '.join(unmapped)} not mapped: each would fail the run"
            yield Problem(("spec", "steps", used.index, "routes"), what, "map them to a step or to end")


def _exits_of(subject: WorkflowSubject, agent: AgentSpec) -> Iterator[str]:
    is_autonomous = agent.mode == "Autonomous"
    gates = agent.guardrails
    if is_autonomous:
        yield MAX_ITERATIONS
    yield BUDGET_EXCEEDED
    yield ABORTED
    if is_autonomous:
        yield UNRECOVERABLE
    if gates is not None and (gates.input or gates.tools or gates.output):
        yield GUARDRAIL_VIOLATION
    if agent.policy or subject.spec.policy:
        yield POLICY_DENIED


def _next_indices(steps: list[Step], index: int, signals: Signals) -> Iterator[int]:
    ids = {step.id: position for position, step in enumerate(steps)}
    step = steps[index]
    yield from (ids[target] for target in step.routes.values() if target in ids)
    if DEFAULT not in step.routes and (DEFAULT in signals.known or signals.is_open):
        following = (position for position in range(index + 1, len(steps)) if not steps[position].tool_only)
        yield from (position for position in (next(following, None),) if position is not None)


def reachable(steps: list[Step], signals: list[Signals]) -> frozenset[int]:
    """Return the indices of the steps that a run can come to."""
    pending = [index for index, step in enumerate(steps) if not step.tool_only][:1]
    found: set[int] = set(pending)
    while pending:
        for index in _next_indices(steps, pending[-1], signals[pending.pop()]):
            if index not in found:
                found.add(index)
                pending.append(index)
    return frozenset(found)


def _tool_steps(used: Iterable[UsedAgent]) -> frozenset[str]:
    return frozenset(tool.step for agent in used for tool in agent.spec.tools if tool.step is not None)


def judge_unreachable(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A step that no run comes to, neither by a route nor as a tool."""
    rows = list(_signals(subject))
    steps = [step for _, step, _ in rows]
    found = reachable(steps, [signals for _, _, signals in rows])
    called = _tool_steps(subject.used) | notified_steps(scene, subject)
    knows_all_agents = len(subject.used) == sum(1 for step in steps if step.kind == "Agent")
    for index, (path, step, _) in enumerate(rows):
        if index in found or step.id in called or (step.tool_only and not knows_all_agents):
            continue
        what = "no run comes to this step"
        if step.tool_only:
            what = "no agent has it as a tool, no hook notifies through it, and no route leads to it"
        yield Problem((*path, "id"), what, "route to it, or remove it")


GRAPH_CHECKS: tuple[Check[WorkflowSubject], ...] = (
    Check("RouteToUnknownStep", "Error", judge_route_targets),
    Check("OutcomeUnmapped", "Error", judge_outcomes_mapped),
    Check("SignalUnmapped", "Warning", judge_signals_mapped),
    Check("RouteNeverTaken", "Warning", judge_never_taken),
    Check("ExitUnmapped", "Warning", judge_exits_mapped),
    Check("StepUnreachable", "Warning", judge_unreachable),
)
