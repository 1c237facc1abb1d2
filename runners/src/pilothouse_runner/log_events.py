"""What a run does as events in the runner's log (engine.md §17): an observer over the JSON lines.

No values, arguments, results, messages of providers or names that a model chose.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pilothouse_api.signals import ABORTED, BUDGET_EXCEEDED, GUARDRAIL_VIOLATION, MAX_ITERATIONS
from pilothouse_engine.facts import UNDECLARED, CallFinished, Fact, ModelFailed, ReplyReceived, StepFinished
from pilothouse_engine.observers import HookEvent, Observer
from pilothouse_engine.state import RunState, Visit
from pilothouse_runner.log_lines import LogLines

SpanIds = Callable[[Fact], tuple[str, str] | None]
"""Returns trace and span id of what a fact is about, None where nothing is traced."""

EXIT_EVENTS: Mapping[str, str] = {
    MAX_ITERATIONS: "agent.max_iterations",
    BUDGET_EXCEEDED: "agent.budget_exceeded",
    ABORTED: "agent.aborted",
    GUARDRAIL_VIOLATION: "agent.guardrail_violation",
}
"""Events of exits by the signal."""

INVALID_OUTCOME = "InvalidOutcome"
TOOL_TIMEOUT = "ToolTimeout"


class LogEvents(Observer):
    """Writes a line for each event."""

    def __init__(self, lines: LogLines, span_ids: SpanIds = lambda fact: None) -> None:
        self._lines = lines
        self._span_ids = span_ids

    def observe(self, state: RunState, fact: Fact) -> None:
        """Write what a fact says, if it says something."""
        visit = state.visit
        if visit is None or not visit.is_agent:
            return
        if isinstance(fact, ReplyReceived):
            self._say_turn(state, visit, fact)
        elif isinstance(fact, CallFinished):
            self._say_call(state, visit, fact)
        elif isinstance(fact, ModelFailed):
            self._say_failure(state, visit, fact)
        elif isinstance(fact, StepFinished):
            self._say_exit(state, visit, fact)

    def hook_fired(self, event: HookEvent) -> None:
        """Write a hook whose action is Log, and every one that failed."""
        if event.action != "Log" and event.result == "Done":
            return
        self._lines.say(
            "hook",
            "info" if event.result == "Done" else "warning",
            hook=event.hook,
            hookEvent=event.event or None,
            action=event.action or None,
            step=event.step or None,
            tool=event.tool or None,
            signal=event.signal or None,
            error=event.error or None,
            result=event.result,
            message=event.why or None,
        )

    def _say_turn(self, state: RunState, visit: Visit, fact: ReplyReceived) -> None:
        seconds = round(max(0.0, fact.at - visit.model.at), 3) if visit.model is not None else None
        tokens = {"inputTokens": fact.input, "outputTokens": fact.output}
        iteration = visit.replies + 1
        self._say(
            "agent.turn", "info", state, visit, fact, iteration, toolCalls=len(fact.calls), **tokens, seconds=seconds
        )

    def _say_call(self, state: RunState, visit: Visit, fact: CallFinished) -> None:
        asked = visit.call_ids[fact.id].asked
        tool = asked.name if asked.is_declared else UNDECLARED
        said: dict[str, Any] = {"tool": tool, "seconds": round(fact.seconds, 3)}
        self._say("agent.tool_call", "info", state, visit, fact, code=fact.code or "ok", **said)
        if fact.fatal == TOOL_TIMEOUT:
            self._say("agent.tool_timeout", "warning", state, visit, fact, **said)

    def _say_failure(self, state: RunState, visit: Visit, fact: ModelFailed) -> None:
        model = visit.model
        which = {"endpoint": model.endpoint, "modelAttempt": model.attempt} if model is not None else {}
        iteration = visit.replies + 1
        self._say(
            "agent.llm_error", "warning", state, visit, fact, iteration, kind=fact.kind, status=fact.status, **which
        )

    def _say_exit(self, state: RunState, visit: Visit, fact: StepFinished) -> None:
        event = EXIT_EVENTS.get(fact.signal)
        if fact.error_type == INVALID_OUTCOME:
            event = "agent.invalid_outcome"
        violation = visit.violation if event == EXIT_EVENTS[GUARDRAIL_VIOLATION] else None
        which: dict[str, Any] = {}
        if violation is not None:
            which = {"gate": violation.gate, "check": violation.check, "artifact": violation.artifact or None}
        if event is not None:
            self._say(event, "warning", state, visit, fact, reason=fact.error_type, **which)

    def _say(
        self,
        event: str,
        level: str,
        state: RunState,
        visit: Visit,
        fact: Fact,
        iteration: int | None = None,
        **fields: Any,
    ) -> None:
        ids = self._span_ids(fact)
        trace, span = ids if ids is not None else (None, None)
        self._lines.say(
            event,
            level,
            step=visit.step,
            turn=state.turn,
            iteration=visit.replies if iteration is None else iteration,
            **fields,
            traceId=trace,
            spanId=span,
        )
