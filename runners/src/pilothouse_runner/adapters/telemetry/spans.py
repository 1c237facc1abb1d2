"""Spans from facts: run, step, iteration, model call, tool call, each with the times of its facts (engine.md §17)."""

from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.context import Context, attach
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from pilothouse_api.signals import ERROR
from pilothouse_api.structs import Plan
from pilothouse_engine.facts import (
    UNDECLARED,
    ApprovalAnswered,
    ApprovalRequested,
    AttemptStarted,
    BarrierTimedOut,
    CallFinished,
    CallStarted,
    ChildDelivered,
    ChildRequested,
    Fact,
    JudgeAnswered,
    JudgeStarted,
    LimitsLanded,
    ModeAnswered,
    ModelFailed,
    ModelStarted,
    NoteAdded,
    ParkBegan,
    ParkEnded,
    ParkReleased,
    PolicyJudged,
    ReplyReceived,
    ReplyRejected,
    RunEnded,
    SteerAnswered,
    StepEntered,
    StepFinished,
    TextJudged,
    ToolSurface,
)
from pilothouse_engine.observers import Observer
from pilothouse_engine.results import READ_TOOL_RESULT
from pilothouse_engine.state import BARRIER, RunState, Visit
from pilothouse_runner.adapters.telemetry.models import Attributes, endpoint_of, reply_attributes, request_attributes
from pilothouse_runner.telemetry import TRACEPARENT

NANOSECONDS = 1_000_000_000


class SpanObserver(Observer):
    """Keeps the open spans of one attempt. The innermost one is current, so that requests carry it."""

    def __init__(self, tracer: Tracer, plan: Plan, attempt: int) -> None:
        self._tracer = tracer
        self._plan = plan
        self._attempt = attempt
        self._run: Span | None = None
        self._step: Span | None = None
        self._iteration: Span | None = None
        self._turn = 0
        self._answered_at: float | None = None
        """When the iteration has all that it asked for; what follows belongs to the step."""
        self._model: Span | None = None
        self._calls: dict[str, tuple[Span, Span | None]] = {}
        self._last_at = 0.0

    def observe(self, state: RunState, fact: Fact) -> None:
        """Open and close the spans that a fact is about."""
        take = _TAKES.get(type(fact))
        self._last_at = max(self._last_at, fact.at)
        if take is not None:
            take(self, state, fact)

    def call_begins(self, call: str) -> None:
        """Make a call's span current in the task that carries it out."""
        spans = self._calls.get(call)
        if spans is not None:
            _enter(spans[1] or spans[0])

    def span_of(self, fact: Fact) -> Span | None:
        """Return the open span that a fact is about."""
        if isinstance(fact, CallFinished) and fact.id in self._calls:
            return self._calls[fact.id][0]
        if isinstance(fact, ModelFailed):
            return self._model or self._innermost()
        if isinstance(fact, StepFinished):
            return self._step or self._run
        return self._innermost()

    def finish(self, end: str) -> None:
        """Close what is open when the attempt ends, which says how."""
        self._close_step(self._last_at)
        if self._run is not None:
            self._run.set_attribute("pilothouse.attempt.end", end)
            self._run.end(_nanoseconds(self._last_at))
            self._run = None

    # ------------------------------------------------------------ run and steps

    def _attempt_started(self, state: RunState, fact: AttemptStarted) -> None:
        plan = self._plan
        attributes: Attributes = {
            "pilothouse.workflow": plan.workflow.name,
            "pilothouse.namespace": plan.run.namespace,
            "pilothouse.run": plan.run.name,
            "pilothouse.attempt": self._attempt,
        }
        self._run = self._start("pilothouse.run", None, fact.at, attributes)
        visit = state.visit
        if visit is None:
            _enter(self._run)
        else:  # what was under way when the last attempt ended goes on
            self._open_step(visit.kind, visit.step, visit.number, fact.at, {"pilothouse.is_resumed": True})

    def _step_entered(self, state: RunState, fact: StepEntered) -> None:
        self._open_step(fact.kind, fact.step, fact.visit, fact.at, {})

    def _open_step(self, kind: str, step: str, visit: int, at: float, more: Attributes) -> None:
        attributes: Attributes = {"pilothouse.step": step, "pilothouse.visit": visit, **more}
        self._step = self._start(f"step.{kind}", self._run, at, attributes)
        _enter(self._step)

    def _step_finished(self, state: RunState, fact: StepFinished) -> None:
        if self._step is not None:
            self._step.set_attribute("pilothouse.signal", fact.signal)
            _note_error(self._step, fact.error_type if fact.signal == ERROR else None, fact.error_type)
        self._close_step(fact.at)
        if self._run is not None:
            _enter(self._run)

    def _close_step(self, at: float) -> None:
        for span, inner in self._calls.values():
            for one in (inner, span):
                if one is not None:
                    one.end(_nanoseconds(at))
        self._calls.clear()
        self._close_iteration(at)
        if self._step is not None:
            self._step.end(_nanoseconds(at))
            self._step = None

    def _run_ended(self, state: RunState, fact: RunEnded) -> None:
        if self._run is None:
            return
        self._run.set_attributes({"pilothouse.signal": fact.signal, "pilothouse.reason": fact.reason})
        _note_error(self._run, fact.reason if fact.signal == ERROR else None, fact.error_type)

    # ------------------------------------------------------------ iterations and model calls

    def _model_started(self, state: RunState, fact: ModelStarted) -> None:
        visit = _visit(state)
        if self._iteration is None or self._turn != fact.turn:
            self._close_iteration(fact.at)
            self._turn, self._answered_at = fact.turn, None
            attributes: Attributes = {
                "pilothouse.step": visit.step,
                "pilothouse.turn": fact.turn,
                "pilothouse.iteration": fact.iteration,
            }
            self._iteration = self._start("agent.iteration", self._step, fact.at, attributes)
        more: Attributes = {"pilothouse.purpose": fact.purpose, "pilothouse.model.attempt": fact.attempt}
        self._open_model(visit, fact, more)

    def _open_model(self, visit: Visit, fact: ModelStarted | JudgeStarted, more: Attributes) -> None:
        self._close_model(fact.at, "Interrupted")
        request = request_attributes(endpoint_of(self._plan, visit.step, fact))
        name, parent = f"chat {request['gen_ai.request.model']}", self._iteration or self._step
        self._model = self._start(name, parent, fact.at, {**request, **more}, SpanKind.CLIENT)
        _enter(self._model)

    def _model_failed(self, state: RunState, fact: ModelFailed) -> None:
        if self._model is not None and fact.status is not None:
            self._model.set_attribute("http.response.status_code", fact.status)
        self._close_model(fact.at, fact.kind)

    def _reply_received(self, state: RunState, fact: ReplyReceived) -> None:
        if self._model is not None:
            self._model.set_attributes(reply_attributes(fact))
        if self._iteration is not None:
            tokens = fact.input + fact.output
            self._iteration.set_attributes({"pilothouse.tokens": tokens, "pilothouse.tool_calls": len(fact.calls)})
        self._close_model(fact.at, None)

    def _close_model(self, at: float, error: str | None) -> None:
        if self._model is not None:
            _note_error(self._model, error, error)
            self._model.end(_nanoseconds(at))
            self._model = None
            self._enter_innermost()

    def _iteration_answered(self, state: RunState, fact: NoteAdded | ReplyRejected) -> None:
        self._close_iteration(fact.at)

    def _close_iteration(self, at: float) -> None:
        self._close_model(at, "Interrupted")
        if self._iteration is not None:
            self._iteration.end(_nanoseconds(at if self._answered_at is None else self._answered_at))
            self._iteration = None
            self._enter_innermost()

    # ------------------------------------------------------------ gates

    def _judge_started(self, state: RunState, fact: JudgeStarted) -> None:
        more: Attributes = {"pilothouse.purpose": "Judge", "pilothouse.gate": fact.gate}
        self._open_model(_visit(state), fact, more)

    def _judge_answered(self, state: RunState, fact: JudgeAnswered) -> None:
        self._close_model(fact.at, "JudgeFailed" if fact.said == "Failed" else None)

    def _text_judged(self, state: RunState, fact: TextJudged) -> None:
        if self._answered_at is not None:
            self._answered_at = fact.at
        if fact.check:
            what: Attributes = {"gate": fact.gate, "check": fact.check, "verdict": fact.verdict}
            self._event("guardrail", fact.at, what, self._iteration)

    # ------------------------------------------------------------ calls

    def _call_started(self, state: RunState, fact: CallStarted) -> None:
        visit = _visit(state)
        if not visit.is_agent:
            return
        span = self._open_call(visit, fact.id, fact.tool, fact.at)
        kind, step = self._dispatched(visit.step, fact.tool)
        attributes: Attributes = {"pilothouse.step": step} if step else {}
        inner = self._start(f"step.{kind}", span, fact.at, attributes) if kind else None
        self._calls[fact.id] = (span, inner)

    def _open_call(self, visit: Visit, call: str, tool: str, at: float) -> Span:
        attributes: Attributes = {
            "pilothouse.step": visit.step,
            "pilothouse.tool": tool,
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.call.id": call,
        }
        return self._start("agent.tool_call", self._iteration or self._step, at, attributes)

    def _dispatched(self, step_id: str, tool: str) -> tuple[str, str]:
        """Return kind and id of the step behind a tool; the kind is empty for the engine's own tools."""
        if tool == READ_TOOL_RESULT:
            return "", ""
        if "__" in tool:  # no other tool's name may have it
            return "MCP", ""
        entry = next((one for one in self._plan.agent_of(self._plan.step(step_id)).tools if one.name == tool), None)
        if entry is None:
            return "", ""
        if entry.step is not None:
            return self._plan.step(entry.step).kind, entry.step
        return (entry.inline_step.kind, "") if entry.inline_step is not None else ("Delegate", "")

    def _call_finished(self, state: RunState, fact: CallFinished) -> None:
        visit = _visit(state)
        if not visit.is_agent:
            return
        span, inner = self._calls.pop(fact.id, (None, None))
        if span is None:  # it was answered and not run
            asked = visit.call_ids[fact.id].asked
            span = self._open_call(visit, fact.id, asked.name if asked.is_declared else UNDECLARED, fact.at)
        span.set_attribute("pilothouse.code", fact.code or "ok")
        _note_error(span, fact.code, fact.code)
        if inner is not None:
            # No signal here: a Router that runs as a tool may end with what the model gave it.
            _note_error(inner, fact.error_type if fact.signal == ERROR else None, fact.error_type)
            inner.end(_nanoseconds(fact.at))
        span.end(_nanoseconds(fact.at))
        is_last = all(call.finished is not None or call.asked.id == fact.id for call in visit.calls)
        if is_last:
            self._answered_at = fact.at
            self._enter_innermost()

    # ------------------------------------------------------------ what happens at a moment

    def _mode_answered(self, state: RunState, fact: ModeAnswered) -> None:
        self._event("control", fact.at, {"directive": fact.mode, "landing": fact.state, "turn": fact.turn})

    def _steer_answered(self, state: RunState, fact: SteerAnswered) -> None:
        self._event("control", fact.at, {"directive": "Steer", "landing": fact.state, "turn": fact.turn})

    def _approval_answered(self, state: RunState, fact: ApprovalAnswered) -> None:
        self._event("control", fact.at, {"directive": "Approval", "landing": fact.state, "turn": fact.turn})

    def _approval_requested(self, state: RunState, fact: ApprovalRequested) -> None:
        self._event("approval", fact.at, {"tool": fact.tool, "turn": fact.turn})

    def _limits_landed(self, state: RunState, fact: LimitsLanded) -> None:
        self._event("control", fact.at, {"directive": "Limits", "landing": "Landed", "turn": fact.turn})

    def _park_began(self, state: RunState, fact: ParkBegan) -> None:
        if fact.reason != BARRIER:  # that is a span, which is opened when it is over
            self._event("park.began", fact.at, {"reason": fact.reason})

    def _park_released(self, state: RunState, fact: ParkReleased) -> None:
        self._event("park.released", fact.at, {})

    def _park_ended(self, state: RunState, fact: ParkEnded) -> None:
        if fact.reason == BARRIER and state.park is not None:
            verdict = state.barrier_timeout.verdict if state.barrier_timeout is not None else "Passed"
            what: Attributes = {"pilothouse.turn": state.park.turn, "pilothouse.outcome": verdict}
            visit = _visit(state)
            parent = self._iteration or self._step if visit.stage == "Batch" else self._step
            span = self._start("agent.barrier", parent, state.park.at, {"pilothouse.step": visit.step, **what})
            span.end(_nanoseconds(fact.at))
            return
        self._event("park.ended", fact.at, {"reason": fact.reason})

    def _barrier_timed_out(self, state: RunState, fact: BarrierTimedOut) -> None:
        self._event("barrier.timed_out", fact.at, {"turn": fact.turn, "outcome": fact.verdict})

    def _policy_judged(self, state: RunState, fact: PolicyJudged) -> None:
        self._event("policy", fact.at, {"at": fact.at_gate, "verdict": fact.verdict, "rule": fact.rule})

    def _tool_surface(self, state: RunState, fact: ToolSurface) -> None:
        self._event("tools", fact.at, {"offered": len(fact.tools), "left_out": len(fact.left_out)})

    def _child_requested(self, state: RunState, fact: ChildRequested) -> None:
        what: Attributes = {"kind": fact.ref_kind, "name": fact.ref_name, "is_background": fact.is_background}
        self._event("child.requested", fact.at, what)
        visit = _visit(state)
        if visit.is_agent and not fact.is_background:  # the call lasts as long as the run that carries it out
            span = self._open_call(visit, fact.call, visit.call_ids[fact.call].asked.name, fact.at)
            self._calls[fact.call] = (span, None)

    def _child_delivered(self, state: RunState, fact: ChildDelivered) -> None:
        self._event("child.delivered", fact.at, {"tokens": fact.input + fact.output})

    # ------------------------------------------------------------ spans

    def _innermost(self) -> Span | None:
        return (self._iteration if self._answered_at is None else None) or self._step or self._run

    def _enter_innermost(self) -> None:
        if (span := self._innermost()) is not None:
            _enter(span)

    def _event(self, name: str, at: float, attributes: Attributes, span: Span | None = None) -> None:
        span = span or self._innermost()
        if span is not None:
            named = {f"pilothouse.{key}": value for key, value in attributes.items()}
            span.add_event(f"pilothouse.{name}", named, _nanoseconds(at))

    def _start(
        self, name: str, parent: Span | None, at: float, attributes: Attributes, kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        context = Context() if parent is None else set_span_in_context(parent, Context())
        return self._tracer.start_span(name, context, kind, attributes, start_time=_nanoseconds(at))


def _visit(state: RunState) -> Visit:
    assert state.visit is not None, "a fact of a visit stands outside of any"
    return state.visit


def _nanoseconds(at: float) -> int:
    return int(at * NANOSECONDS)


def _note_error(span: Span, failed: str | None, error_type: str | None) -> None:
    """Name the cause of an abnormal end; it is a failure of the span where `failed` says so."""
    if error_type is not None:
        span.set_attribute("error.type", error_type)
    if failed is not None:
        span.set_status(Status(StatusCode.ERROR, failed))


def _enter(span: Span) -> None:
    """Make a span the current one of this task: for libraries that ask OpenTelemetry, and for our own requests."""
    attach(set_span_in_context(span))
    context = span.get_span_context()
    TRACEPARENT.set(f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}")


_TAKES: Mapping[type[Any], Callable[[SpanObserver, RunState, Any], None]] = {
    AttemptStarted: SpanObserver._attempt_started,
    StepEntered: SpanObserver._step_entered,
    StepFinished: SpanObserver._step_finished,
    RunEnded: SpanObserver._run_ended,
    ModelStarted: SpanObserver._model_started,
    ModelFailed: SpanObserver._model_failed,
    ReplyReceived: SpanObserver._reply_received,
    NoteAdded: SpanObserver._iteration_answered,
    ReplyRejected: SpanObserver._iteration_answered,
    CallStarted: SpanObserver._call_started,
    CallFinished: SpanObserver._call_finished,
    ModeAnswered: SpanObserver._mode_answered,
    SteerAnswered: SpanObserver._steer_answered,
    ApprovalRequested: SpanObserver._approval_requested,
    ApprovalAnswered: SpanObserver._approval_answered,
    LimitsLanded: SpanObserver._limits_landed,
    ParkBegan: SpanObserver._park_began,
    ParkReleased: SpanObserver._park_released,
    ParkEnded: SpanObserver._park_ended,
    BarrierTimedOut: SpanObserver._barrier_timed_out,
    JudgeStarted: SpanObserver._judge_started,
    JudgeAnswered: SpanObserver._judge_answered,
    TextJudged: SpanObserver._text_judged,
    PolicyJudged: SpanObserver._policy_judged,
    ToolSurface: SpanObserver._tool_surface,
    ChildRequested: SpanObserver._child_requested,
    ChildDelivered: SpanObserver._child_delivered,
}
