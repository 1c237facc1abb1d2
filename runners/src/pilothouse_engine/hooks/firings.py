"""Which hooks fire: a pure function of the plan, the state and a fact."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pilothouse_api.hooks import HookTextError, parse_hooks
from pilothouse_api.signals import ERROR
from pilothouse_api.stored_plan import IntegrityError
from pilothouse_api.structs import Hook, Plan, Step
from pilothouse_engine.facts import (
    UNDECLARED,
    CallFinished,
    CallStarted,
    ChildRequested,
    Fact,
    StepEntered,
    StepFinished,
)
from pilothouse_engine.snapshot import masked_text
from pilothouse_engine.state import RunState, Visit
from pilothouse_engine.values import Value


class PlannedHook(Value):
    """One hook. `id` says where it stands, `notify` is the step that it runs."""

    id: str
    event: str
    action: str
    notify: str = ""


class PlannedHooks(Value):
    """The hooks of a plan.

    `at_step` are those in force at a step of the graph: the workflow's, its own, its agent's. `own` are a step's own,
    which fire where it runs as a tool too; `tool_steps` is the step behind a tool, by step and tool. `unreadable`
    are artifacts that cannot be read, and why.
    """

    at_step: Mapping[str, tuple[PlannedHook, ...]]
    own: Mapping[str, tuple[PlannedHook, ...]]
    tool_steps: Mapping[tuple[str, str], str]
    unreadable: Mapping[str, str]


class Firing(Value):
    """One hook that fires, with what its payload says besides the names of run and workflow."""

    hook: PlannedHook
    at: float
    step: str
    tool: str = ""
    signal: str = ""
    error_type: str = ""
    error_message: str = ""


def plan_hooks(plan: Plan) -> PlannedHooks:
    """Return the hooks of a plan, artifacts replaced by what they hold."""
    unreadable: dict[str, str] = {}
    everywhere = _read(plan, "workflow", plan.spec.hooks, unreadable)
    own = {step.id: _read(plan, step.id, step.hooks, unreadable) for step in plan.spec.steps}
    at_step = {step.id: (*everywhere, *own[step.id], *_of_agent(plan, step, unreadable)) for step in plan.spec.steps}
    tool_steps = {
        (step.id, tool.name): tool.step
        for step in plan.spec.steps
        if step.kind == "Agent"
        for tool in plan.agent_of(step).tools
        if tool.step is not None
    }
    return PlannedHooks(at_step, own, tool_steps, unreadable)


def _of_agent(plan: Plan, step: Step, unreadable: dict[str, str]) -> tuple[PlannedHook, ...]:
    return _read(plan, f"{step.id}/agent", plan.agent_of(step).hooks, unreadable) if step.kind == "Agent" else ()


def _read(plan: Plan, place: str, hooks: list[Hook], unreadable: dict[str, str]) -> tuple[PlannedHook, ...]:
    planned: list[PlannedHook] = []
    for index, hook in enumerate(hooks):
        if hook.artifact is None:
            planned.append(_planned(f"{place}/{index}", hook))
            continue
        try:
            inner = parse_hooks(plan.text(hook.source()))
        except (IntegrityError, HookTextError) as error:
            unreadable[hook.artifact] = str(error)
            continue
        planned += [_planned(f"{place}/{hook.artifact}/{n}", Hook.read(one.to_raw())) for n, one in enumerate(inner)]
    return tuple(planned)


def _planned(id: str, hook: Hook) -> PlannedHook:
    return PlannedHook(id, hook.event or "", hook.action or "", hook.notify.step if hook.notify is not None else "")


# ---------------------------------------------------------------- what a fact fires


class _Moment(Value):
    """Something that hooks are about: at a step of the graph, or (`as_tool`) at a step that runs as a tool."""

    event: str
    step: str
    tool: str = ""
    signal: str = ""
    error_type: str = ""
    error_message: str = ""
    as_tool: bool = False


def firings(hooks: PlannedHooks, state: RunState, fact: Fact) -> tuple[Firing, ...]:
    """Return the hooks that a fact fires, in their order; `state` is the run before it."""
    moments = _MOMENTS.get(type(fact))
    if moments is None:
        return ()
    return tuple(
        Firing(hook, fact.at, m.step, m.tool, m.signal, m.error_type, m.error_message)
        for m in moments(hooks, state, fact)
        for hook in (hooks.own if m.as_tool else hooks.at_step).get(m.step, ())
        if hook.event == m.event
    )


def _visit(state: RunState) -> Visit:
    assert state.visit is not None, "a fact of a visit stands outside of any"
    return state.visit


def _step_entered(hooks: PlannedHooks, state: RunState, fact: StepEntered) -> Iterator[_Moment]:
    yield _Moment("BeforeStep", fact.step)


def _step_finished(hooks: PlannedHooks, state: RunState, fact: StepFinished) -> Iterator[_Moment]:
    said = (_visit(state).step, "", fact.signal, fact.error_type or "", fact.error_message)
    if fact.signal == ERROR:
        yield _Moment("OnError", *said)
    yield _Moment("AfterStep", *said)


def _call_started(hooks: PlannedHooks, state: RunState, fact: CallStarted) -> Iterator[_Moment]:
    visit = _visit(state)
    if not visit.is_agent:
        return
    yield _Moment("BeforeTool", visit.step, fact.tool)
    if (step := hooks.tool_steps.get((visit.step, fact.tool))) is not None:
        yield _Moment("BeforeStep", step, fact.tool, as_tool=True)


def _child_requested(hooks: PlannedHooks, state: RunState, fact: ChildRequested) -> Iterator[_Moment]:
    visit = _visit(state)
    if visit.is_agent:  # a delegate is a tool that another run carries out: its call is not started here
        yield _Moment("BeforeTool", visit.step, visit.call_ids[fact.call].asked.name)


def _call_finished(hooks: PlannedHooks, state: RunState, fact: CallFinished) -> Iterator[_Moment]:
    visit = _visit(state)
    call = visit.call_ids.get(fact.id)
    if not visit.is_agent or call is None:
        return
    has_run = call.started is not None
    if fact.code == "tool_call_unresolved" and not has_run and fact.id not in state.children:
        return  # nobody asked for it any more: it was answered so that the transcript is whole
    tool = call.asked.name if call.asked.is_declared else UNDECLARED
    said = (tool, fact.signal, fact.error_type or fact.code or "", fact.message if fact.code else "")
    step = hooks.tool_steps.get((visit.step, tool)) if has_run else None
    if step is not None:
        if fact.signal == ERROR:
            yield _Moment("OnError", step, *said, as_tool=True)
        yield _Moment("AfterStep", step, *said, as_tool=True)
    yield _Moment("AfterTool", visit.step, *said)


_MOMENTS: Mapping[type[Any], Callable[[PlannedHooks, RunState, Any], Iterator[_Moment]]] = {
    StepEntered: _step_entered,
    StepFinished: _step_finished,
    CallStarted: _call_started,
    ChildRequested: _child_requested,
    CallFinished: _call_finished,
}


def build_payload(plan: Plan, firing: Firing) -> dict[str, Any]:
    """Return what a notification sees (`pilothouse_api.hooks.PAYLOAD_KEYS`), a new copy each time."""
    return {
        "hook": firing.hook.id,
        "event": firing.hook.event,
        "workflow": plan.workflow.name,
        "run": plan.run.name,
        "step": firing.step,
        "tool": firing.tool,
        "signal": firing.signal,
        "error": {"type": firing.error_type, "message": masked_text(firing.error_message)},
    }
