"""The calls of one reply: the ordered table of gates, and what happens next to the batch (engine.md §3). Pure.

Every call gets exactly one result. A gate is a function of what it may see; the first that does not allow decides.
"""

from collections.abc import Callable
from typing import Any, assert_never

from pilothouse_api.signals import BUDGET_EXCEEDED, ERROR, MAX_ITERATIONS, UNRECOVERABLE
from pilothouse_api.stored_plan import IntegrityError
from pilothouse_engine.actions import Action, AskPolicy, Commit, Execute, Execution, Inputs, Show
from pilothouse_engine.catalog import Catalog, PlannedStep, PlannedTool
from pilothouse_engine.control import check_control, plan_interruption
from pilothouse_engine.endings import plan_aborted, plan_exit, unknown_effect, unresolved
from pilothouse_engine.executions import build_tool_execution, tell_edit
from pilothouse_engine.facts import CallCode, CallFinished, Cause, Facts
from pilothouse_engine.limits import Limits
from pilothouse_engine.results import error_content
from pilothouse_engine.state import Call, RunState, Visit, identity_of
from pilothouse_engine.tool_schemas import InvalidArguments, check_arguments
from pilothouse_engine.values import Value

GUARDED_AT = 3
"""The call that makes so many identical ones in a visit is answered and not run."""

MAX_NAMES_SHOWN = 64


class GateInput(Value):
    """What gates see of one call.

    `ahead` are calls of the same parallel run that passed and have not started, `tool` is the one that the model named.
    """

    catalog: Catalog
    planned: PlannedStep
    limits: Limits
    state: RunState
    inputs: Inputs
    visit: Visit
    call: Call
    ahead: tuple[Call, ...]
    tool: PlannedTool | None


class Allow(Value):
    """Go on to the next gate; the last one runs the call with these arguments."""

    arguments: dict[str, Any] | None = None


class Answer(Value):
    """The call is not run and gets this result."""

    code: CallCode
    message: str


class Note(Value):
    """These facts are journaled, then the call is judged again."""

    facts: Facts


class Ask(Value):
    """Nobody knows yet: the policy endpoints must be asked first."""

    action: AskPolicy


class Wait(Value):
    """The run parks for a person's decision, once the calls before this one have run."""

    facts: Facts


class Exit(Value):
    """The step ends; this call and the later ones are answered as not run."""

    signal: str
    error_type: Cause
    message: str


Verdict = Allow | Answer | Note | Ask | Wait | Exit
Gate = Callable[[GateInput, Allow], Verdict]
"""What a gate says of a call that the gates before it have allowed."""

_ALLOW = Allow()


def check_tool_call_limit(gate: GateInput, allowed: Allow) -> Verdict:
    """Close the batch past maxToolCalls, of the visit or of the run."""
    limit, used = gate.limits.max_tool_calls, gate.visit.tool_calls + len(gate.ahead)
    if used >= limit:
        return Exit(UNRECOVERABLE, "ToolCallLimit", f"{used} tool calls were made: raise limits.maxToolCalls ({limit})")
    total, run_limit = gate.state.total_tool_calls + len(gate.ahead), gate.limits.run_tool_calls
    if run_limit is not None and total >= run_limit:
        message = f"{total} tool calls were made in this run: raise limits.maxToolCalls of the run ({run_limit})"
        return Exit(UNRECOVERABLE, "ToolCallLimit", message)
    return allowed


def check_tool_max_calls(gate: GateInput, allowed: Allow) -> Verdict:
    """Refuse a tool past its own maxCalls."""
    tool = gate.tool
    if tool is None or tool.tool.max_calls is None:
        return allowed
    names, runs = gate.planned.names_beside(tool), gate.visit.runs_by_tool
    used = sum(runs.get(name, 0) for name in names) + sum(call.asked.name in names for call in gate.ahead)
    if used < tool.tool.max_calls:
        return allowed
    what = tool.tool.name if tool.entry is None else f"a tool of {tool.entry}"
    return Answer("tool_max_calls", f"{what} was called {used} times, which is all it may be; go on without it")


def check_truncation(gate: GateInput, allowed: Allow) -> Verdict:
    """Run no call of a reply that was cut: its arguments may be half of what was meant."""
    if gate.visit.reply is not None and gate.visit.reply.finish == "Length":
        return Answer(
            "tool_arguments_truncated",
            "your reply was cut at the output limit, so no call of it was run; make fewer or shorter calls",
        )
    return allowed


def check_loop(gate: GateInput, allowed: Allow) -> Verdict:
    """Answer the third identical call of a visit."""
    identity = identity_of(gate.call.asked)
    seen = gate.visit.identities.get(identity, 0) + sum(identity_of(call.asked) == identity for call in gate.ahead)
    if seen + 1 < GUARDED_AT:
        return allowed
    return Answer(
        "tool_call_loop_guard",
        f"this same call was made {seen} times already and was not run again: change the tool, change the arguments,"
        " or answer",
    )


def check_known(gate: GateInput, allowed: Allow) -> Verdict:
    """Refuse a tool that is not offered, and name those that are."""
    if gate.tool is not None:
        return allowed
    names = ", ".join(list(gate.planned.tools)[:MAX_NAMES_SHOWN])
    return Answer("tool_unknown", f"there is no such tool; there are: {names}")


def check_call_arguments(gate: GateInput, allowed: Allow) -> Verdict:
    """Parse and validate the arguments."""
    assert gate.tool is not None, "check_known stands before"
    checked = check_arguments(gate.tool.tool, gate.call.asked.arguments)
    if isinstance(checked, InvalidArguments):
        return Answer("tool_invalid_arguments", checked.message)
    return Allow(checked.value)


def check_policy(gate: GateInput, allowed: Allow) -> Verdict:
    """Refuse what a policy denies; a verdict that is journaled is not asked for again.

    Arguments that a decision changed are judged anew; the approval itself then needs no other.
    """
    call, policies = gate.call, gate.planned.tool_policies
    if call.edited is not None:
        allowed = Allow(dict(call.edited))
    policed = gate.planned.policed_tools
    if not policies or (policed is not None and call.asked.name not in policed):
        return allowed
    verdict = call.verdict if call.edited is None else call.edit_verdict
    if verdict is None and (call.approval is None or call.edited is not None):
        return _judge_by_policy(gate, allowed)
    if verdict is None or verdict.verdict != "Deny":
        return allowed
    from pilothouse_engine.policies.gating import say_denial

    return Answer("tool_policy_denied", say_denial(verdict))


def _judge_by_policy(gate: GateInput, allowed: Allow) -> Verdict:
    from pilothouse_engine.policies.gating import plan_verdict, question_of_call

    assert gate.tool is not None and allowed.arguments is not None, "check_call_arguments stands before"
    asked, now = gate.call.asked, gate.inputs.now
    question = question_of_call(
        gate.catalog.plan,
        gate.state,
        gate.planned.step,
        now,
        tool=asked.name,
        arguments=allowed.arguments,
        effect=gate.tool.effect,
        ahead=len(gate.ahead),
    )
    action = plan_verdict(gate.planned.tool_policies, question, asked.id, now)
    if action is None:
        return allowed
    return Ask(action) if isinstance(action, AskPolicy) else Note(action.facts)


def check_approval(gate: GateInput, allowed: Allow) -> Verdict:
    """Wait for a person where policy or the tool asks for one."""
    call, tool = gate.call, gate.tool
    assert tool is not None and allowed.arguments is not None, "check_call_arguments stands before"
    is_required = call.verdict is not None and call.verdict.verdict == "RequireApproval"
    if not is_required and tool.tool.approval == "Never":
        return allowed
    from pilothouse_engine.approvals import denial_of, plan_request

    if call.answer is None:
        arguments = allowed.arguments
        return Wait(plan_request(gate.catalog, gate.state, gate.inputs, call.asked.id, tool.tool.name, arguments))
    denial = denial_of(call.answer)
    return allowed if denial is None else Answer(*denial)


GATES: tuple[Gate, ...] = (
    check_tool_call_limit,
    check_tool_max_calls,
    check_truncation,
    check_loop,
    check_known,
    check_call_arguments,
    check_policy,
    check_approval,
)
"""In the order of engine.md §3."""


def judge_call(gate: GateInput) -> Verdict:
    """Return the verdict of the first gate that does not allow, else Allow with the arguments."""
    allowed = _ALLOW
    for check in GATES:
        verdict = check(gate, allowed)
        if not isinstance(verdict, Allow):
            return verdict
        allowed = verdict
    return allowed


# ---------------------------------------------------------------- what happens next to the batch


def plan_batch(catalog: Catalog, state: RunState, inputs: Inputs) -> Action:
    """Return what happens next to the calls of the newest reply."""
    visit = state.visit
    assert visit is not None
    planned = catalog.offer(visit)
    limits = catalog.limits(visit.step, state.limits)
    action = _plan_closing(state, inputs, limits)
    if action is None and visit.is_gated and any(call.finished and not call.is_judged for call in visit.calls):
        from pilothouse_engine.guardrails.judgements import judge_result  # most runs have no guardrail

        action = judge_result(catalog, state, inputs)
    if action is not None:
        return action
    lost = next((call for call in visit.calls if call.started is not None and call.finished is None), None)
    if lost is not None:
        return _resume_lost(catalog, state, inputs, planned, limits, lost)
    return _plan_next_calls(catalog, state, inputs, planned, limits)


def _plan_closing(state: RunState, inputs: Inputs, limits: Limits) -> Action | None:
    """Return how the batch ends early, or None."""
    visit, now = state.visit, inputs.now
    assert visit is not None
    if visit.fatal is not None:
        return Commit(plan_exit(state, now, ERROR, visit.fatal.fatal, visit.fatal.message))
    if state.abort is not None:
        return Commit(plan_aborted(state, now))
    if state.mode == "Finish":  # with every result there, only their gate is waited for
        facts = unresolved(visit.calls, now, "the run was asked to finish")
        return Commit(facts) if facts else None
    spent = limits.remaining(state.account, visit.account).spent()
    if spent is not None:
        return Commit(plan_exit(state, now, BUDGET_EXCEEDED, "BudgetExceeded", spent))
    if visit.replies >= limits.max_iterations:
        message = f"iteration {visit.replies} of {limits.max_iterations} asked for tools instead of answering"
        return Commit(plan_exit(state, now, MAX_ITERATIONS, "MaxIterations", message))
    return None


def _resume_lost(
    catalog: Catalog, state: RunState, inputs: Inputs, planned: PlannedStep, limits: Limits, call: Call
) -> Action:
    """Repeat a call that started and has no result, where its effect allows it; else say that nobody knows."""
    assert call.started is not None
    if call.asked.id in state.children:  # the run was woken, and what woke it does not end the step
        from pilothouse_engine.children import await_child

        return Commit(await_child(state, inputs))
    tool = planned.tools.get(call.asked.name)
    if call.started.effect == "Once" or tool is None:
        return Commit((tell_edit(call, unknown_effect(call, inputs.now)),))
    if call.edited is not None:
        return _run(catalog, state, inputs, [(call, tool, dict(call.edited))], limits)
    checked = check_arguments(tool.tool, call.asked.arguments)
    if isinstance(checked, InvalidArguments):
        return Commit((tell_edit(call, unknown_effect(call, inputs.now)),))
    return _run(catalog, state, inputs, [(call, tool, checked.value)], limits)


def _plan_next_calls(catalog: Catalog, state: RunState, inputs: Inputs, planned: PlannedStep, limits: Limits) -> Action:
    """Gate the next call, and those after it that may run beside it."""
    visit = state.visit
    assert visit is not None
    parallel = limits.max_parallel_tool_calls
    run: list[tuple[Call, PlannedTool, dict[str, Any]]] = []
    for call in visit.calls[visit.next_call :]:
        if call.finished is not None:
            continue
        ahead, named = tuple(ahead for ahead, _, _ in run), planned.tools.get(call.asked.name)
        gate = GateInput(catalog, planned, limits, state, inputs, visit, call, ahead, named)
        action = None if run else _check_before_call(state, inputs, gate, parallel)
        if action is not None:
            return action
        if run and gate.tool is not None and not gate.tool.may_run_beside:
            break
        verdict = judge_call(gate)
        if isinstance(verdict, Note):
            return Commit(verdict.facts)
        if not isinstance(verdict, Allow):
            return _run(catalog, state, inputs, run, limits) if run else _apply_verdict(state, inputs, call, verdict)
        tool = gate.tool
        assert tool is not None and verdict.arguments is not None
        run.append((call, tool, verdict.arguments))
        if not tool.may_run_beside or len(run) >= parallel:
            break
    return _run(catalog, state, inputs, run, limits)


def _check_before_call(state: RunState, inputs: Inputs, gate: GateInput, parallel: int) -> Action | None:
    """Return what control asks for before this call, or None: read between calls, and before every Once.

    What a Once call did is shown to supervision first, which may want to stop the calls that follow.
    """
    visit = gate.visit
    is_repeatable = gate.tool is None or gate.tool.effect != "Once"
    is_first = visit.next_call == 0
    if is_repeatable and is_first and (parallel == 1 or len(visit.calls) == 1):
        return None
    is_watched = visit.once_length > 0 and inputs.is_supervised
    if is_watched and not inputs.is_held and visit.once_length > inputs.shown_length:
        return Show()
    action = check_control(state, inputs, is_repeatable=is_repeatable)
    if action is not None:
        return action
    landed = plan_interruption(state, inputs)
    if landed is not None:
        return Commit((landed,))
    if not is_watched:
        return None
    from pilothouse_engine.barrier import plan_barrier  # most runs have no Sync supervision

    return plan_barrier(state, inputs, visit.once_length)


def _apply_verdict(state: RunState, inputs: Inputs, call: Call, verdict: Answer | Ask | Wait | Exit) -> Action:
    match verdict:
        case Ask(action):
            return action
        case Wait(facts):
            return Commit(facts)
        case Answer(code, message):
            content = error_content(code, message)
            answered = CallFinished(inputs.now, call.asked.id, content, code, signal=ERROR, message=message)
            return Commit((tell_edit(call, answered),))
        case Exit(signal, error_type, message):
            return Commit(plan_exit(state, inputs.now, signal, error_type, message))
        case _:
            assert_never(verdict)


def _run(
    catalog: Catalog,
    state: RunState,
    inputs: Inputs,
    run: list[tuple[Call, PlannedTool, dict[str, Any]]],
    limits: Limits,
) -> Action:
    executions: list[Execution] = []
    for call, tool, arguments in run:
        if tool.agent_ref is not None:
            from pilothouse_engine.children import plan_delegated_call

            return plan_delegated_call(catalog, state, inputs, limits, call, tool, arguments)
        try:
            executions.append(build_tool_execution(catalog, state, inputs, limits, call, tool, arguments))
        except IntegrityError as error:
            return Commit(plan_exit(state, inputs.now, ERROR, "IntegrityViolation", str(error)))
    return Execute(tuple(executions))
