"""The snapshot: what the runner says about itself (`status.run`), built from the state and kept under its cap."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from pilothouse_api.digests import compact_json, text_digest
from pilothouse_api.structs import (
    ChildHold,
    ChildRef,
    ChildRequest,
    ControlAnswer,
    CostReport,
    Effects,
    ErrorReport,
    Landing,
    LimitsLanding,
    ModeLanding,
    PendingApproval,
    RunExit,
    RunningCall,
    Snapshot,
    StepReport,
    TokenReport,
    UnknownEffect,
    VisitCounts,
)
from pilothouse_engine.account import Account, dollars
from pilothouse_engine.actions import Inputs
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.facts import RunEnded
from pilothouse_engine.limits import Limits
from pilothouse_engine.parks import iso, parked_report
from pilothouse_engine.ports import Directives
from pilothouse_engine.results import compact
from pilothouse_engine.routes import Next, route
from pilothouse_engine.state import Answer, Child, Report, RunState, Visit

MAX_PARTIAL_BYTES = 2048
MAX_MASKED_CHARS = 16_384
"""How much of a partial text is looked at; so much more than is shown that no cut of it splits what is masked."""
MAX_STEPS = 40
MAX_ANSWERS = 64
MAX_UNKNOWN = 64
MAX_COUNTED_TOOLS = 32
MAX_ENDED_CHILDREN = 8
MAX_ERROR_CHARS = 1000


def build_snapshot(catalog: Catalog, state: RunState, inputs: Inputs) -> Snapshot:
    """Return the snapshot of a state, cut to the cap whatever tools and models returned."""
    visit = state.visit
    step = visit.step if visit is not None else None
    limits = catalog.limits(step, state.limits)
    fields: dict[str, Any] = {
        "attempt": inputs.attempt,
        "journal_length": state.length,
        "step": step or _upcoming_step(catalog, state),
        "visit": state.visits,
        "turn": state.turn,
        "iteration": state.iteration,
        "steps": [_step_report(state, report) for report in state.reports[-MAX_STEPS:]],
        "tokens": _tokens(state, limits),
        "cost": _cost(state, limits),
        "tool_calls": dict(state.tool_calls),
        "undeclared_tool_calls": state.undeclared_tool_calls,
        "tool_errors": state.tool_errors,
        "identical_calls": state.identical_calls,
        "last_progress_time": iso(state.last_progress_at) if state.last_progress_at else None,
        "control": _control(state, inputs),
        "parked": parked_report(state.park, is_released=state.is_released) if state.park else None,
        "running": _running(state),
        "pending_approvals": _pending(visit),
        "effects": _effects(state),
        "children": [_child_request(child) for child in _shown_children(state)] if state.children else [],
        "trace": [dict(frame) for frame in state.trace],
    }
    if visit is not None and visit.is_agent:
        fields["max_iterations"] = limits.max_iterations
        fields["visit_counts"] = _visit_counts(visit)
    if state.ended is not None:
        fields["exit"] = run_exit(state.ended)
        fields["result"] = fit_result(state.ended.result, inputs.settings.max_result_bytes)
    return fit_snapshot(Snapshot(**fields), inputs.settings.max_snapshot_bytes)


def _running(state: RunState) -> RunningCall | None:
    """Return the oldest call that runs; a run that is parked or has ended runs none."""
    visit = state.visit
    if visit is None or state.park is not None:
        return None
    for call in visit.calls:
        if call.started is not None and call.finished is None:
            return RunningCall(call_id=call.asked.id, tool=call.started.tool, since=iso(call.started.at))
    return None


def read_snapshot(directives: Directives | None, attempt: int) -> Snapshot:
    """Return the snapshot that stood when directives were read, as this attempt's; an empty one where none did."""
    try:
        stood = Snapshot.read((directives and directives.snapshot) or {})
    except ValueError:
        stood = Snapshot(attempt=attempt)
    return replace(stood, attempt=attempt)


def lost_snapshot(raw_snapshot: Mapping[str, Any], catalog: Catalog, state: RunState, inputs: Inputs) -> Snapshot:
    """Return the end of a run whose journal was lost: what stood in its last snapshot, and how it ended.

    What the journal would have known is not made up: the counts stay as they were published.
    """
    built = build_snapshot(catalog, state, inputs)
    try:
        stood = Snapshot.read(raw_snapshot)
    except ValueError:
        return built
    unknown = {effect.call_id: effect for effect in (*stood.effects.unknown, *built.effects.unknown)}
    changes = {
        "attempt": built.attempt,
        "journal_length": built.journal_length,
        "parked": None,
        "running": None,
        "exit": built.exit,
        "control": built.control,
        "effects": Effects(settled=stood.effects.settled, unknown=list(unknown.values())),
    }
    return fit_snapshot(replace(stood, **changes), inputs.settings.max_snapshot_bytes)


def _upcoming_step(catalog: Catalog, state: RunState) -> str | None:
    """Return the step that is entered next, or the last one where the run is over."""
    if state.ended is not None:
        return state.last_step_id
    if state.last_step is None or state.last_step_id is None:
        return catalog.first_step()
    target = route(catalog, state.last_step_id, state.last_step.signal)
    return target.step if isinstance(target, Next) else state.last_step_id


def _step_report(state: RunState, report: Report) -> StepReport:
    visit = state.visit
    is_open = visit is not None and visit.number == report.visit
    return StepReport(
        id=report.step,
        visit=report.visit,
        kind=report.kind,
        signal=report.signal,
        iterations=visit.replies if visit is not None and is_open else report.iterations,
        tokens=visit.account.used if visit is not None and is_open else report.tokens,
        started_at=iso(report.started_at),
        finished_at=None if report.finished_at is None else iso(report.finished_at),
    )


def _tokens(state: RunState, limits: Limits) -> TokenReport:
    visit = state.visit
    report = _account(state.account, limits.run_tokens)
    if visit is None or not visit.is_agent:
        return report
    return replace(report, visit=_account(visit.account, limits.visit_tokens))


def _account(account: Account, budget: int | None) -> TokenReport:
    held = account.lent_tokens + (account.held.input + account.held.output if account.held else 0)
    return TokenReport(used=account.used, input=account.input, output=account.output, held=held, budget=budget)


def _cost(state: RunState, limits: Limits) -> CostReport:
    visit = state.visit
    if visit is None or not visit.is_agent:
        return _money(state.account, limits.run_cost)
    return _money(state.account, limits.run_cost, _money(visit.account, limits.visit_cost))


def _money(account: Account, budget: int | None, visit: CostReport | None = None) -> CostReport:
    return CostReport(
        used_usd=dollars(account.cost),
        budget_usd=None if budget is None else dollars(budget),
        unknown=account.is_unpriced,
        visit=visit,
    )


def _visit_counts(visit: Visit) -> VisitCounts:
    counts = visit.counts
    return VisitCounts(
        tool_calls=dict(counts.tool_calls),
        undeclared_tool_calls=counts.undeclared_tool_calls,
        tool_errors=counts.tool_errors,
        identical_calls=counts.identical_calls,
    )


def _control(state: RunState, inputs: Inputs) -> ControlAnswer:
    landed = state.limits_landed
    mode = ModeLanding(
        value=state.mode,
        turn=state.mode_answer.turn,
        time=iso(state.mode_answer.at) if state.mode_answer.at else None,
        state=state.refused_state,
    )
    control = inputs.directives.control if inputs.directives is not None else None
    asked = set(control.steer) | set(control.approvals) if control is not None else set()
    return ControlAnswer(
        observed_generation=inputs.directives.generation if inputs.directives is not None else 0,
        mode=mode,
        steer=_landings(state.steers, asked),
        approvals=_landings(state.approvals, asked),
        limits=LimitsLanding(generation=landed.generation, turn=landed.turn) if landed is not None else None,
    )


def _landings(answers: Mapping[str, Answer], asked: set[str]) -> dict[str, Landing]:
    """Return the answers of what is still asked, and then the newest others: writers prune what was answered."""
    keys = [key for key in answers if key in asked]
    keys += [key for key in reversed(list(answers)) if key not in asked][: max(0, MAX_ANSWERS - len(keys))]
    return {key: landing_report(answers[key]) for key in keys}


def landing_report(answer: Answer) -> Landing:
    """Return an answer as the snapshot says it."""
    return Landing(
        state=answer.state,
        turn=answer.turn,
        time=iso(answer.at),
        message=answer.message or None,
        digest=answer.digest or None,
    )


def _pending(visit: Visit | None) -> list[PendingApproval]:
    approval = visit.waiting.approval if visit is not None and visit.waiting is not None else None
    if approval is None:
        return []
    return [
        PendingApproval(
            call_id=approval.call,
            tool=approval.tool,
            arguments=dict(approval.arguments),
            requested_at=iso(approval.at),
            expires_at=iso(approval.expires_at),
        )
    ]


def _shown_children(state: RunState) -> list[Child]:
    """Return the children that are wanted or must be aborted, and the newest of the others."""
    ended = [child for child in state.children.values() if child.state == "Delivered"]
    return [child for child in state.children.values() if child.state != "Delivered"] + ended[-MAX_ENDED_CHILDREN:]


def _child_request(child: Child) -> ChildRequest:
    request = child.request
    held: dict[str, Any] = {}
    if request.hold_tokens is not None:
        held["tokens"] = request.hold_tokens
    if request.hold_cost is not None:
        held["cost_usd"] = dollars(request.hold_cost)
    owner = {} if child.past is None else {"owner": child.past.run}
    return ChildRequest(
        call_id=request.call,
        ref=ChildRef(kind=request.ref_kind, name=request.ref_name),
        input=dict(request.input) if child.is_to_be_made else {},
        hold=ChildHold(**held),
        state=child.state,
        **owner,
    )


def _effects(state: RunState) -> Effects:
    unknown = [UnknownEffect(call_id=e.call_id, tool=e.tool, at=iso(e.at)) for e in state.effects_unknown]
    return Effects(settled=state.effects_settled, unknown=unknown)


def run_exit(ended: RunEnded) -> RunExit:
    """Return the end of a run as the snapshot says it; what a model or a tool may have said in it is masked."""
    error = None
    if ended.error_type is not None:
        error = ErrorReport(type=ended.error_type, message=masked_text(ended.error_message)[:MAX_ERROR_CHARS])
    return RunExit(
        signal=ended.signal,
        turn_ending=ended.turn_ending,
        reason=ended.reason,
        message=masked_text(ended.message)[:MAX_ERROR_CHARS],
        error=error,
        partial=_cut(masked_text(ended.partial[:MAX_MASKED_CHARS]), MAX_PARTIAL_BYTES) if ended.partial else None,
    )


def masked_text(text: str) -> str:
    """Return a text of others as people may be shown it, in status, logs and notifications."""
    if not text:
        return text
    from pilothouse_engine.guardrails.masks import mask_text  # heavy, and an end that went well has nothing to mask

    return mask_text(text)


REFERENCE_BYTES = 160
"""What is no larger than a reference to a result is shown: it is no smaller as a reference, and may be one."""


def fit_result(result: Mapping[str, Any] | None, cap: int) -> dict[str, Any] | None:
    """Return a result, or where it is larger than `cap` bytes a reference to the journal that holds it."""
    if result is None:
        return None
    text = compact(result)
    size = len(text.encode("utf-8", "surrogatepass"))
    return dict(result) if size <= cap else {"ref": "journal/result", "bytes": size, "digest": text_digest(text)}


def _cut(text: str, size: int) -> str:
    """Return the head of a text, at most `size` bytes of UTF-8, never half a character."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


# ---------------------------------------------------------------- the cap


def fit_snapshot(snapshot: Snapshot, cap: int) -> Snapshot:
    """Return the snapshot under the cap: what helps least is left out first, and `truncated` says so."""
    for shrink in ((lambda s: {}), *_SHRINKS):
        changed = shrink(snapshot)
        if changed:
            snapshot = replace(snapshot, **changed, truncated=True)
        if _size(snapshot) <= cap:
            return snapshot
    return snapshot


def _size(snapshot: Snapshot) -> int:
    return len(compact_json(snapshot.to_raw()).encode("utf-8", "replace"))


_Shrink = Callable[[Snapshot], dict[str, Any]]

_SHRINKS: tuple[_Shrink, ...] = (
    lambda s: {"trace": s.trace[-5:]},
    lambda s: {"steps": s.steps[-10:]},
    lambda s: {"trace": []},
    lambda s: {"control": replace(s.control, steer=_newest(s.control.steer), approvals={})},
    lambda s: {"effects": Effects(settled=s.effects.settled, unknown=s.effects.unknown[:MAX_UNKNOWN])},
    lambda s: {"steps": s.steps[-1:]},
    lambda s: {"children": [child for child in s.children if child.state != "Delivered"]},
    lambda s: {"exit": s.exit and replace(s.exit, partial=None)},
    lambda s: {"result": fit_result(s.result, REFERENCE_BYTES)},
    lambda s: {"effects": Effects(settled=s.effects.settled, unknown=s.effects.unknown[:8])},
    lambda s: {"tool_calls": {}},
    lambda s: {"visit_counts": s.visit_counts and _most_called(s.visit_counts)},
)


def _most_called(counts: VisitCounts) -> VisitCounts:
    """Return the counts with the tools that a rule may be about: those that were called most."""
    most = sorted(counts.tool_calls.items(), key=lambda item: -item[1])[:MAX_COUNTED_TOOLS]
    return replace(counts, tool_calls=dict(most))


def _newest(answers: dict[str, Landing]) -> dict[str, Landing]:
    return dict(list(answers.items())[-16:])
