"""Children: runs of other Agents and Workflows that do a call, awaited or in the background (engine.md §12). Pure.

The engine asks and reads; who makes a child, caps it by its hold and copies directives down to it is the operator. A
request is one append with the start of its call (and, where it is awaited, the park), and an end is one append with
the call's result (and the end of the park), so that a crash finds either nothing or all of it.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pilothouse_api.signals import ABORTED, BUDGET_EXCEEDED, DEFAULT, ERROR, RESERVED_EXITS
from pilothouse_api.structs import ChildRef, ChildReport, ChildRequest, Delegate, Snapshot
from pilothouse_api.templates import MissingPath, render_value
from pilothouse_api.wake import wake_due
from pilothouse_engine.account import Remaining, dollars, nano
from pilothouse_engine.actions import Action, Commit, Inputs
from pilothouse_engine.catalog import Catalog, PlannedTool, Work
from pilothouse_engine.context import fit_writes
from pilothouse_engine.control import plan_mode
from pilothouse_engine.endings import FINISHED_WITHOUT_ANSWER, plan_exit
from pilothouse_engine.executions import build_tool_start, tell_edit
from pilothouse_engine.facts import (
    CallFinished,
    CallStarted,
    ChildDelivered,
    ChildRequested,
    Facts,
    ParkBegan,
    ParkEnded,
    StepFinished,
)
from pilothouse_engine.limits import Limits
from pilothouse_engine.parks import hold, parked_report
from pilothouse_engine.prompts.texts import task_note
from pilothouse_engine.results import compact, error_content, shown_result
from pilothouse_engine.state import Call, Child, RunState, task_result_id
from pilothouse_engine.strict_json import JsonError, check_json, printable
from pilothouse_engine.values import Value

AWAITING_CHILD = "AwaitingChild"
MAX_INPUT_BYTES = 8192
MAX_OPEN_BYTES = 16_384
"""Inputs of all children that are under way: the snapshot holds them, and may not grow past its cap."""

MAX_CHILDREN = 64
"""Of one run: the operator's list of them is no longer."""

SMALLEST_HOLD_TOKENS = 1024
"""A child with less could hardly read its task."""

MAX_MESSAGE_CHARS = 500
MAX_SIGNAL_CHARS = 63
CRASHED = "MaxAttempts"
RESTART_LIMIT = "restart_limit"
"""Code of a child that crashed in every attempt that it had."""


class Refused(Value):
    """A child cannot be asked for: the cause, and a sentence."""

    error_type: str
    message: str


# ---------------------------------------------------------------- asking for a child


def plan_delegated_call(
    catalog: Catalog,
    state: RunState,
    inputs: Inputs,
    limits: Limits,
    call: Call,
    planned: PlannedTool,
    arguments: dict[str, Any],
) -> Action:
    """Return how a tool call that passed its gates goes to a child; a task in the background has its result at once."""
    assert planned.agent_ref is not None and state.visit is not None
    remaining = limits.remaining(state.account, state.visit.account)
    call_id, ref = call.asked.id, ChildRef(kind="Agent", name=planned.agent_ref)
    request = _build_request(catalog, state, inputs, remaining, call_id, ref, arguments, planned.is_task)
    if isinstance(request, Refused):
        message = request.message
        content = error_content("tool_error", message)
        refused = CallFinished(
            inputs.now, call_id, content, "tool_error", ERROR, message=message, error_type=request.error_type
        )
        return Commit((refused,))
    started = build_tool_start(catalog, state, inputs, call, planned, arguments)
    if not planned.is_task:
        return Commit((started, request, *await_child(state, inputs)))
    content = compact({"signal": DEFAULT, "output": {"task": call_id}})
    finished = tell_edit(call, CallFinished(inputs.now, call_id, content, signal=DEFAULT))
    return Commit((started, request, finished))


def plan_delegating_step(
    catalog: Catalog, state: RunState, inputs: Inputs, work: Work, started: CallStarted, context: Mapping[str, Any]
) -> Action:
    """Return how a Delegate step goes to a child."""
    params, visit, now = work.params, state.visit, inputs.now
    assert isinstance(params, Delegate) and visit is not None
    kind, target = ("Agent", params.agent_ref) if params.agent_ref is not None else ("Workflow", params.workflow_ref)
    assert target is not None, "the schema asks for one"
    try:
        given = render_value(params.input, context)
    except MissingPath as missing:
        return Commit(plan_exit(state, now, ERROR, "MissingContext", f"delegate.input: {missing}"))
    remaining = catalog.limits(visit.step, state.limits).remaining(state.account, visit.account)
    ref = ChildRef(kind=kind, name=target.name)
    request = _build_request(catalog, state, inputs, remaining, started.id, ref, given)
    if isinstance(request, Refused):
        signal = BUDGET_EXCEEDED if request.error_type == "BudgetExceeded" else ERROR
        return Commit((StepFinished(now, signal, None, request.error_type, request.message),))
    return Commit((started, request, *await_child(state, inputs)))


def await_child(state: RunState, inputs: Inputs) -> Facts:
    """Return the park of a run that waits for a child."""
    return (ParkBegan(inputs.now, AWAITING_CHILD, state.turn),)


def _build_request(
    catalog: Catalog,
    state: RunState,
    inputs: Inputs,
    remaining: Remaining,
    call_id: str,
    ref: ChildRef,
    given: Mapping[str, Any],
    is_background: bool = False,
) -> ChildRequested | Refused:
    copied = _copy_input(state, given)
    if isinstance(copied, Refused):
        return copied
    share = _share_budgets(catalog, ref, remaining)
    if isinstance(share, Refused):
        return share
    tokens, cost = share
    return ChildRequested(inputs.now, call_id, state.turn, ref.kind, ref.name, copied, is_background, tokens, cost)


def _copy_input(state: RunState, given: Mapping[str, Any]) -> dict[str, Any] | Refused:
    """Return the input as a value of the child's own, small enough for the snapshots that carry it."""
    try:
        check_json(dict(given))
    except JsonError as error:
        return Refused("ChildRefused", f"the input of the child is no JSON: {error}")
    text = compact(given)
    size = _bytes_of(text)
    if size > MAX_INPUT_BYTES:
        return Refused("ChildRefused", f"the input of a child has {size:,} bytes; the limit is {MAX_INPUT_BYTES:,}")
    if len(state.children) >= MAX_CHILDREN:
        return Refused("ChildRefused", f"this run has asked for {MAX_CHILDREN} children, which is all it may")
    shown = (child.request.input for child in state.children.values() if child.is_to_be_made)
    under_way = size + sum(_bytes_of(compact(given)) for given in shown)
    if under_way > MAX_OPEN_BYTES:
        what = f"the inputs of tasks under way would have {under_way:,} bytes; the limit is {MAX_OPEN_BYTES:,}"
        return Refused("ChildRefused", f"{what}: wait until one has ended")
    copied: dict[str, Any] = json.loads(text)
    return copied


def _bytes_of(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _share_budgets(catalog: Catalog, ref: ChildRef, remaining: Remaining) -> tuple[int | None, int | None] | Refused:
    """Return the tokens and the money that a child gets, None where its parent has no such budget.

    Half of what is left, so that the parent can still say what came of it; less where an Agent may use less by its
    own limits.
    """
    planned = catalog.plan.agents.get(ref.name) if ref.kind == "Agent" else None
    own = planned.spec.limits if planned is not None else None
    own_cost = nano(own.cost_budget_usd) if own is not None and own.cost_budget_usd is not None else None
    tokens = _half(remaining.tokens, own.token_budget if own is not None else None)
    cost = _half(remaining.cost, own_cost)
    if tokens is not None and tokens < SMALLEST_HOLD_TOKENS:
        what = f"{remaining.tokens} tokens are left of a tokenBudget of {remaining.tokens_budget}"
        return Refused("BudgetExceeded", f"{what}, too few to share with a child: raise limits.tokenBudget")
    if cost is not None and cost <= 0:
        left, budget = dollars(remaining.cost or 0), dollars(remaining.cost_budget or 0)
        what = f"{left} USD are left of a costBudgetUSD of {budget}, too little to share with a child"
        return Refused("BudgetExceeded", f"{what}: raise limits.costBudgetUSD")
    return tokens, cost


def _half(left: int | None, own: int | None) -> int | None:
    if left is None:
        return None
    return left // 2 if own is None else min(left // 2, own)


# ---------------------------------------------------------------- while one is awaited


def plan_awaiting_child(catalog: Catalog, state: RunState, inputs: Inputs, park: ParkBegan) -> Action:
    """Return what happens next to a run that waits for a child, once its directives were read."""
    child = next((child for child in state.children.values() if child.state == "Awaited"), None)
    if child is None:
        return Commit((ParkEnded(inputs.now, park.reason),))
    directives = inputs.directives
    if inputs.failure is None and directives is not None:
        reports = _ended(directives.children)
        snapshot = _as_published(state, inputs, child, park)
        if wake_due(snapshot, directives.control, datetime.fromtimestamp(inputs.now, UTC), reports.keys()):
            ended = ParkEnded(inputs.now, park.reason)
            landed = plan_mode(state, directives.control, inputs.now, state.turn)
            if landed is not None and landed.mode in ("Finish", "Abort"):
                return Commit((landed, ended))
            report = reports.get(child.request.call)
            if report is not None:
                return Commit((*_plan_end(catalog, state, inputs, child, report), ended))
    return hold(state, inputs, park, may_release=catalog.is_durable)


def plan_waiting_step(state: RunState, inputs: Inputs) -> Action:
    """Return what happens to a Delegate step whose child is under way although the run is not parked."""
    if state.mode == "Finish":
        message = "the run was asked to finish while this step waited for a child"
        return Commit(plan_exit(state, inputs.now, ABORTED, FINISHED_WITHOUT_ANSWER, message))
    return Commit(await_child(state, inputs))


def _ended(reports: Mapping[str, ChildReport]) -> dict[str, ChildReport]:
    return {call: report for call, report in reports.items() if report.exit is not None}


def _as_published(state: RunState, inputs: Inputs, child: Child, park: ParkBegan) -> Snapshot:
    """Return what `wake_due` needs of the snapshot, without building the rest of it."""
    request = child.request
    ref = ChildRef(kind=request.ref_kind, name=request.ref_name)
    return Snapshot(
        attempt=inputs.attempt,
        parked=parked_report(park, is_released=state.is_released),
        children=[ChildRequest(call_id=request.call, ref=ref, state=child.state)],
    )


# ---------------------------------------------------------------- what it gave


def _plan_end(catalog: Catalog, state: RunState, inputs: Inputs, child: Child, report: ChildReport) -> Facts:
    """Return the end of an awaited child, with the result of its call."""
    visit, call_id = state.visit, child.request.call
    assert visit is not None
    end = _EndOfChild.of(report)
    delivered = _delivered(state, inputs, child, report, end)
    key, cut_at, is_written = f"{visit.step}_result", 0, not visit.is_agent
    if visit.is_agent:
        tool = catalog.offer(visit).tools[visit.call_ids[call_id].asked.name].tool
        limits = catalog.limits(visit.step, state.limits)
        key, cut_at, is_written = f"{tool.name}_result", limits.max_tool_result_chars, tool.writes_context
    writes = _fit(state, inputs, {key: report.result}, call_id) if is_written and end.error_type is None else None
    finished = CallFinished(
        inputs.now,
        call_id,
        end.content,
        None if end.error_type is None else "tool_error",
        end.signal,
        message=end.message,
        cut_at=cut_at,
        writes=writes,
        error_type=end.error_type,
        seconds=max(0.0, inputs.now - child.request.at),
    )
    return (delivered, tell_edit(visit.call_ids[call_id], finished))


def plan_deliveries(catalog: Catalog, state: RunState, inputs: Inputs, limits: Limits) -> Action | None:
    """Return the note about the next task in the background that has ended, or what must be known before it."""
    directives, visit = inputs.directives, state.visit
    if directives is None or visit is None or inputs.failure is not None:
        return None
    reports, cut_at = _ended(directives.children), limits.max_tool_result_chars
    for call_id, child in state.tasks.items():
        report = reports.get(call_id)
        if report is None:
            continue
        end, result_id = _EndOfChild.of(report), task_result_id(call_id)
        if visit.is_gated:
            from pilothouse_engine.guardrails.judgements import judge_task  # most runs have no guardrail

            judging = judge_task(catalog, state, inputs, result_id, end.content, cut_at)
            if judging is not None:
                return judging
        text, pointer = shown_result(result_id, end.content, cut_at)
        judged = visit.judged_tasks.get(result_id)
        if judged is not None and judged.text is not None:
            text = judged.text
        # The model knows it by the id that its start gave, in whichever run that was.
        note = task_note(child.past.call if child.past is not None else call_id, end.signal, text + pointer)
        return Commit((_delivered(state, inputs, child, report, end, end.content, note),))
    return None


class _EndOfChild(Value):
    """How a child ended, as the model reads it."""

    signal: str
    content: str
    error_type: str | None
    message: str

    @staticmethod
    def of(report: ChildReport) -> "_EndOfChild":
        """Return the end of a child that has one; an exit of the engine's own is an error of the call."""
        assert report.exit is not None
        said = report.exit
        signal = printable(said.signal, MAX_SIGNAL_CHARS) if said.signal and not said.signal.startswith("_") else ERROR
        if signal not in RESERVED_EXITS:
            return _EndOfChild(signal, compact({"signal": signal, "output": report.result}), None, "")
        cause = said.reason or "Error"
        code = RESTART_LIMIT if cause == CRASHED else "tool_error"
        what = "it was started again and again and crashed each time" if cause == CRASHED else said.message
        message = printable(f"the child ended with {signal} ({cause}): {what}", MAX_MESSAGE_CHARS)
        error = {"code": code, "type": cause, "message": message}
        content = compact({"signal": signal, "output": report.result, "error": error})
        return _EndOfChild(signal, content, cause, message)


def _delivered(
    state: RunState,
    inputs: Inputs,
    child: Child,
    report: ChildReport,
    end: _EndOfChild,
    content: str = "",
    note: str = "",
) -> ChildDelivered:
    """Return the end of a child with what it took: its whole hold where nobody knows.

    What a task of an earlier run took was that run's.
    """
    request = child.request
    if child.past is not None:
        return ChildDelivered(inputs.now, request.call, state.next_turn, end.signal, 0, 0, 0, content, note)
    is_known = report.input_tokens is not None and report.output_tokens is not None
    taken_input = report.input_tokens if is_known else request.hold_tokens
    cost = _nano(report.cost_usd)
    cost = request.hold_cost if cost is None else cost
    turn = state.next_turn if note else state.turn
    taken_output = report.output_tokens if is_known else 0
    return ChildDelivered(
        inputs.now, request.call, turn, end.signal, taken_input or 0, taken_output or 0, cost, content, note
    )


def _nano(amount: str | None) -> int | None:
    try:
        return None if amount is None else max(0, nano(amount))
    except (ArithmeticError, ValueError):  # no decimal, or no finite one: as if it had not been said
        return None


def _fit(state: RunState, inputs: Inputs, writes: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    used = _bytes_of(state.context_json())
    return fit_writes(state.context, used, writes, inputs.settings.max_context_bytes, f"journal/{call_id}")
