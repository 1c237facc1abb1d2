"""How a step ends, and how the run ends: the facts of each, in one place."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from pilothouse_api.signals import ABORTED, ERROR
from pilothouse_engine.actions import Action, Commit, Inputs, ReadControl
from pilothouse_engine.control import plan_last_answers
from pilothouse_engine.facts import CallFinished, Cause, Fact, Facts, ModeAnswered, RunEnded, StepFinished
from pilothouse_engine.results import error_content
from pilothouse_engine.routes import COMPLETE, EndRun
from pilothouse_engine.state import Call, RunState

FINISHED_EARLY = "FinishedEarly"
ABORTED_REASON: Cause = "Aborted"
FINISHED_WITHOUT_ANSWER: Cause = "FinishedWithoutAnswer"
MAX_MESSAGE_CHARS = 1000


def plan_exit(
    state: RunState,
    now: float,
    signal: str,
    error_type: Cause | None = None,
    message: str = "",
    *,
    writes: Mapping[str, Any] | None = None,
    turn_ending: str | None = None,
    fallback: str = "",
) -> Facts:
    """Return the facts that end the visit under way: every call that is open gets its result first.

    An abnormal end keeps the newest text of the model as the partial result, or `fallback` where that is set.
    """
    visit = state.visit
    assert visit is not None, "a step ends that was not entered"
    reason = message or f"the step ended with {signal}"
    is_partial = error_type is not None and visit.is_agent
    partial = (fallback or "".join(visit.parts) or visit.newest_text) if is_partial else None
    finished = StepFinished(
        now,
        signal,
        writes,
        error_type,
        message[:MAX_MESSAGE_CHARS],
        partial or None,
        turn_ending,
    )
    return (*unresolved(visit.calls, now, reason), finished)


def plan_aborted(state: RunState, now: float) -> Facts:
    """Return the facts that end the visit under way because the run was aborted."""
    assert state.abort is not None
    return plan_exit(state, now, ABORTED, state.abort.cause or ABORTED_REASON, abort_message(state.abort))


def unresolved(calls: list[Call], now: float, reason: str) -> tuple[CallFinished, ...]:
    """Return the results of calls that were not run, or whose end nobody knows."""
    return tuple(_unresolved(call, now, reason) for call in calls if call.finished is None)


def _unresolved(call: Call, now: float, reason: str) -> CallFinished:
    if call.started is not None and call.started.effect != "ReadOnly":
        return unknown_effect(call, now)
    message = f"not run: {reason}"[:MAX_MESSAGE_CHARS]
    return CallFinished(
        now,
        call.asked.id,
        error_content("tool_call_unresolved", message),
        "tool_call_unresolved",
        message=message,
    )


def unknown_effect(call: Call, now: float, why: str = "the runner stopped while it ran") -> CallFinished:
    """Return the result of a call of which nobody knows what it did; it is never made again."""
    message = f"nobody knows whether this call was carried out ({why}); it is not repeated: find out before you go on"
    return CallFinished(
        now,
        call.asked.id,
        error_content("tool_effect_unknown", message),
        "tool_effect_unknown",
        signal=ERROR,
        message=message,
        is_unknown=True,
        error_type="EffectUnknown",
    )


def plan_end(state: RunState, inputs: Inputs, end: EndRun, signal: str | None = None) -> Action:
    """Return the facts that end the run, after one last look at control so that every directive is answered."""
    if inputs.read_tick != state.tick:
        return ReadControl()
    return Commit((*plan_last_answers(state, inputs), build_end(state, inputs.now, end, signal)))


def build_end(state: RunState, now: float, end: EndRun, signal: str | None = None) -> RunEnded:
    """Return the end of the run; an abort or a finish that is in force decides its reason."""
    last = state.last_step
    said = signal or (last.signal if last is not None else ERROR)
    if state.abort is not None:
        cause = state.abort.cause or ABORTED_REASON
        return _ended(state, now, ABORTED, cause, abort_message(state.abort))
    gave_no_answer = last is not None and last.error_type == FINISHED_WITHOUT_ANSWER
    if state.mode == "Finish" and (end.reason == COMPLETE or gave_no_answer):
        return _ended(state, now, said, FINISHED_EARLY, "")
    return _ended(state, now, said, end.reason, end.message)


def abort_message(abort: ModeAnswered) -> str:
    """Return when, by whom and why the run was aborted."""
    who = f" by {abort.by}" if abort.by else ""
    why = f": {abort.reason}" if abort.reason else ""
    return f"aborted at turn {abort.turn}{who}{why}"


def _ended(state: RunState, now: float, signal: str, reason: str, message: str) -> RunEnded:
    last = state.last_step
    error_type, error_message = (last.error_type, last.error_message) if last is not None else (None, "")
    if reason == COMPLETE:
        error_type, error_message = None, ""
    elif error_message and message and error_message != message:
        message = f"{message}; it said: {error_message}"
    result = state.result
    if result is None and state.last_step_was_agent:
        result = state.agent_result
    return RunEnded(
        now,
        signal,
        reason,
        message[:MAX_MESSAGE_CHARS],
        error_type,
        error_message,
        state.partial,
        state.turn_ending,
        result,
    )


def plan_settled(state: RunState, now: float, cause: Cause, signal: str, message: str) -> Facts:
    """Return the facts that close the run for a cause from outside, whatever is under way."""
    facts = plan_exit(state, now, signal, cause, message) if state.visit is not None else ()
    ended = build_end(state, now, EndRun(cause, message), signal)
    partial = _partial(state) if state.visit is not None else ended.partial
    return (*facts, replace(ended, error_type=cause, error_message=message, message=message, partial=partial))


def plan_failure(state: RunState, inputs: Inputs, reason: Cause, message: str) -> Facts:
    """Return the facts that end the run where it stands, whatever is under way; no route is followed."""
    now = inputs.now
    facts: list[Fact] = [*plan_last_answers(state, inputs)]
    if state.visit is not None:
        facts += plan_exit(state, now, ERROR, reason, message)
    ended = RunEnded(now, ERROR, reason, message, reason, message, _partial(state), state.turn_ending, state.result)
    return (*facts, ended)


def _partial(state: RunState) -> str | None:
    visit = state.visit
    return ("".join(visit.parts) or visit.newest_text or None) if visit is not None else state.partial
