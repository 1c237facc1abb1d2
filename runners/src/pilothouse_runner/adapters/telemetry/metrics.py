"""Counters and histograms from facts (engine.md §17): by workflow, step, model and tool, never by run."""

from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.metrics import Counter, Histogram, Meter

from pilothouse_api.signals import BUDGET_EXCEEDED
from pilothouse_api.structs import Plan
from pilothouse_engine.account import NANO
from pilothouse_engine.facts import (
    UNDECLARED,
    ApprovalAnswered,
    CallFinished,
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
    PolicyJudged,
    ReplyReceived,
    ReplyRejected,
    SteerAnswered,
    StepEntered,
    StepFinished,
    TextJudged,
)
from pilothouse_engine.observers import HookEvent, Observer
from pilothouse_engine.ports import Directives
from pilothouse_engine.state import BARRIER, RunState
from pilothouse_runner.adapters.telemetry.models import Attributes, endpoint_of, request_attributes

SECONDS = (0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Bounds of the buckets of every histogram."""


class MetricObserver(Observer):
    """Counts what an attempt does."""

    def __init__(self, meter: Meter, plan: Plan) -> None:
        def counter(name: str, unit: str, what: str) -> Counter:
            return meter.create_counter(name, unit, what)

        def histogram(name: str, what: str) -> Histogram:
            return meter.create_histogram(name, "s", what, explicit_bucket_boundaries_advisory=SECONDS)

        self._plan = plan
        self._iterations = counter("pilothouse_agent_iterations_total", "1", "Model calls that were answered.")
        self._tool_calls = counter("pilothouse_agent_tool_calls_total", "1", "Tool calls, by the code of their result.")
        self._aborts = counter("pilothouse_agent_aborts_total", "1", "Aborts that landed.")
        self._budget = counter("pilothouse_agent_budget_exceeded_total", "1", "Steps that a budget ended.")
        self._hooks = counter("pilothouse_hook_events_total", "1", "Hooks that fired, by what became of them.")
        self._policy = counter("pilothouse_policy_decisions_total", "1", "Verdicts of policy.")
        self._tokens = counter("pilothouse_agent_tokens_total", "1", "Tokens that were charged.")
        self._cost = counter("pilothouse_agent_cost_usd_total", "USD", "US dollars that were charged.")
        self._turn_seconds = histogram("pilothouse_agent_turn_seconds", "Unparked time of a turn.")
        self._tool_seconds = histogram("pilothouse_agent_tool_seconds", "Time of a tool call that ran.")
        self._barrier = histogram("pilothouse_agent_barrier_wait_seconds", "Time at a barrier of supervision.")
        self._latency = histogram(
            "pilothouse_control_latency_seconds", "From a directive's first sight to its landing."
        )
        self._model_seconds = histogram("gen_ai.client.operation.duration", "Time of one attempt of a model call.")
        self._turn: _Stopwatch | None = None
        self._seen = _Seen()

    def observe(self, state: RunState, fact: Fact) -> None:
        """Count a fact."""
        take = _TAKES.get(type(fact))
        if take is not None:
            take(self, state, fact)

    def directives_seen(self, at: float, directives: Directives) -> None:
        """Remember when a directive was first seen."""
        self._seen.note(at, directives)

    def hook_fired(self, event: HookEvent) -> None:
        """Count a hook."""
        labels = {"event": event.event, "action": event.action, "result": event.result, "tool": event.tool}
        self._hooks.add(1, self._labels(event.step, **labels))

    def _labels(self, step: str, **more: str) -> Attributes:
        labels = {"workflow": self._plan.workflow.name, "step": step, **more}
        return {name: value for name, value in labels.items() if value}

    # ------------------------------------------------------------ turns

    def _step_entered(self, state: RunState, fact: StepEntered) -> None:
        if fact.turn:
            self._turn = _Stopwatch(fact.step, fact.at)

    def _model_started(self, state: RunState, fact: ModelStarted) -> None:
        if self._turn is not None and self._turn.answered_at is not None:
            self._end_turn(fact.at)
        if self._turn is None:
            self._turn = _Stopwatch(_step(state), fact.at)

    def _turn_ended(self, state: RunState, fact: NoteAdded | ReplyRejected) -> None:
        self._end_turn(fact.at)

    def _text_judged(self, state: RunState, fact: TextJudged) -> None:
        if self._turn is not None and self._turn.answered_at is not None:
            self._turn.answered_at = fact.at

    def _end_turn(self, at: float) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            self._turn_seconds.record(turn.seconds(at), self._labels(turn.step))

    def _park_began(self, state: RunState, fact: ParkBegan) -> None:
        if self._turn is not None and self._turn.answered_at is not None:
            self._end_turn(fact.at)
        if self._turn is not None:
            self._turn.pause(fact.at)

    def _park_ended(self, state: RunState, fact: ParkEnded) -> None:
        if self._turn is not None:
            self._turn.go_on(fact.at)
        if fact.reason == BARRIER and state.park is not None:
            outcome = state.barrier_timeout.verdict if state.barrier_timeout is not None else "Passed"
            self._barrier.record(max(0.0, fact.at - state.park.at), self._labels(_step(state), outcome=outcome))

    def _step_finished(self, state: RunState, fact: StepFinished) -> None:
        self._end_turn(fact.at)
        if fact.signal == BUDGET_EXCEEDED:
            self._budget.add(1, self._labels(_step(state)))

    # ------------------------------------------------------------ model calls

    def _reply_received(self, state: RunState, fact: ReplyReceived) -> None:
        labels = self._charge(state, fact)
        self._iterations.add(1, labels)
        self._note_duration(state, fact.at, None)

    def _model_failed(self, state: RunState, fact: ModelFailed) -> None:
        self._charge(state, fact)
        self._note_duration(state, fact.at, fact.kind)

    def _judge_answered(self, state: RunState, fact: JudgeAnswered) -> None:
        assert state.visit is not None and state.visit.judge is not None, "a judge answers that was not asked"
        self._charge(state, fact, state.visit.judge)

    def _charge(
        self, state: RunState, fact: ReplyReceived | ModelFailed | JudgeAnswered, judge: JudgeStarted | None = None
    ) -> Attributes:
        started = judge or _started(state)
        labels = self._labels(_step(state), model=endpoint_of(self._plan, _step(state), started).name)
        for kind, tokens in (("input", fact.input), ("output", fact.output)):
            if tokens:
                self._tokens.add(tokens, {**labels, "type": kind})
        if fact.cost:
            self._cost.add(fact.cost / NANO, labels)
        return labels

    def _note_duration(self, state: RunState, at: float, error: str | None) -> None:
        started = _started(state)
        request = request_attributes(endpoint_of(self._plan, _step(state), started))
        names = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")
        attributes: Attributes = {name: request[name] for name in names}
        if error is not None:
            attributes["error.type"] = error
        self._model_seconds.record(max(0.0, at - started.at), attributes)

    # ------------------------------------------------------------ calls and verdicts

    def _call_finished(self, state: RunState, fact: CallFinished) -> None:
        visit = state.visit
        assert visit is not None
        if not visit.is_agent:
            return
        call = visit.call_ids[fact.id]
        labels = self._labels(visit.step, tool=call.asked.name if call.asked.is_declared else UNDECLARED)
        self._tool_calls.add(1, {**labels, "code": fact.code or "ok"})
        if call.started is not None and fact.seconds:
            self._tool_seconds.record(fact.seconds, labels)
        is_last = all(other.finished is not None or other is call for other in visit.calls)
        if is_last and self._turn is not None:
            self._turn.answered_at = fact.at

    def _policy_judged(self, state: RunState, fact: PolicyJudged) -> None:
        labels = {"workflow": self._plan.workflow.name, "at": fact.at_gate, "verdict": fact.verdict}
        self._policy.add(1, labels)

    # ------------------------------------------------------------ control

    def _mode_answered(self, state: RunState, fact: ModeAnswered) -> None:
        if fact.state != "Landed":
            return
        if fact.mode == "Abort":
            self._aborts.add(1, self._labels(state.visit.step if state.visit is not None else ""))
        self._note_landing(fact.mode, self._seen.mode(fact.mode), fact.at)

    def _steer_answered(self, state: RunState, fact: SteerAnswered) -> None:
        if fact.state == "Landed":
            self._note_landing("Steer", self._seen.steers.pop(fact.id, None), fact.at)

    def _approval_answered(self, state: RunState, fact: ApprovalAnswered) -> None:
        if fact.state == "Landed":
            self._note_landing("Approval", self._seen.approvals.pop(fact.id, None), fact.at)

    def _limits_landed(self, state: RunState, fact: LimitsLanded) -> None:
        self._note_landing("Limits", self._seen.limits_at, fact.at)

    def _note_landing(self, directive: str, seen_at: float | None, at: float) -> None:
        if seen_at is not None:
            labels: Attributes = {"workflow": self._plan.workflow.name, "directive": directive}
            self._latency.record(max(0.0, at - seen_at), labels)


class _Stopwatch:
    """Unparked time of a turn. `answered_at`: when it had all that it asked for, and only its end is not told yet."""

    def __init__(self, step: str, at: float) -> None:
        self.step = step
        self.answered_at: float | None = None
        self._since: float | None = at
        self._before = 0.0

    def pause(self, at: float) -> None:
        self._before, self._since = self.seconds(at), None

    def go_on(self, at: float) -> None:
        if self._since is None:
            self._since = at

    def seconds(self, at: float) -> float:
        until = at if self.answered_at is None else self.answered_at
        return self._before + (max(0.0, until - self._since) if self._since is not None else 0.0)


class _Seen:
    """When each directive was first seen by this attempt."""

    def __init__(self) -> None:
        self._mode = ("Run", 0.0)
        self._limits: Any = None
        self.limits_at: float | None = None
        self.steers: dict[str, float] = {}
        self.approvals: dict[str, float] = {}

    def note(self, at: float, directives: Directives) -> None:
        control = directives.control
        mode = (control.mode if control is not None else None) or "Run"
        if mode != self._mode[0]:
            self._mode = (mode, at)
        if directives.limits != self._limits:
            self._limits, self.limits_at = directives.limits, at
        if control is not None:
            for seen, asked in ((self.steers, control.steer), (self.approvals, control.approvals)):
                for key in asked:
                    seen.setdefault(key, at)

    def mode(self, mode: str) -> float | None:
        """Return when a mode was asked for; None where nobody did (an engine's own, by a deadline)."""
        return self._mode[1] if self._mode[0] == mode and self._mode[1] else None


def _step(state: RunState) -> str:
    assert state.visit is not None, "a fact of a visit stands outside of any"
    return state.visit.step


def _started(state: RunState) -> ModelStarted:
    assert state.visit is not None and state.visit.model is not None, "a reply stands without its call"
    return state.visit.model


_TAKES: Mapping[type[Any], Callable[[MetricObserver, RunState, Any], None]] = {
    StepEntered: MetricObserver._step_entered,
    StepFinished: MetricObserver._step_finished,
    ModelStarted: MetricObserver._model_started,
    ModelFailed: MetricObserver._model_failed,
    ReplyReceived: MetricObserver._reply_received,
    NoteAdded: MetricObserver._turn_ended,
    ReplyRejected: MetricObserver._turn_ended,
    CallFinished: MetricObserver._call_finished,
    JudgeAnswered: MetricObserver._judge_answered,
    TextJudged: MetricObserver._text_judged,
    PolicyJudged: MetricObserver._policy_judged,
    ModeAnswered: MetricObserver._mode_answered,
    SteerAnswered: MetricObserver._steer_answered,
    ApprovalAnswered: MetricObserver._approval_answered,
    LimitsLanded: MetricObserver._limits_landed,
    ParkBegan: MetricObserver._park_began,
    ParkEnded: MetricObserver._park_ended,
}
