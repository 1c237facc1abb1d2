"""Frames: the loop facts that viewers see (engine.md §16). No values, no arguments, no names that a model chose."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pilothouse_engine.facts import (
    UNDECLARED,
    ApprovalAnswered,
    BarrierTimedOut,
    CallFinished,
    Fact,
    LimitsLanded,
    ModeAnswered,
    ParkBegan,
    ParkEnded,
    ParkReleased,
    PolicyJudged,
    ReplyReceived,
    RunEnded,
    SteerAnswered,
    StepEntered,
    StepFinished,
    TextJudged,
    ToolSurface,
    decode_all,
)
from pilothouse_engine.parks import iso
from pilothouse_engine.ports import Frame, RawEntry
from pilothouse_engine.state import BARRIER, RunState


def advance(state: RunState, fact: Fact) -> tuple[Frame, ...]:
    """Apply a fact and return the frames that it makes; the newest ones stay in the state's trace."""
    build = _BUILDERS.get(type(fact))
    frames = tuple(build(state, fact)) if build is not None else ()
    state.apply(fact)
    state.trace.extend(frames)
    return frames


def fold(entries: Sequence[RawEntry], context: Mapping[str, Any]) -> RunState:
    """Return the state of a run from its journal and the context that it began with; raises JournalCorrupt."""
    state = RunState(context=dict(context))
    for fact in decode_all(entries):
        advance(state, fact)
    return state


def _frame(state: RunState, at: float, kind: str, /, **fields: Any) -> Frame:
    frame = {"kind": kind, "turn": state.turn, "time": iso(at), **fields}
    return frame if None not in fields.values() else {key: value for key, value in frame.items() if value is not None}


def park_frame(state: RunState, park: ParkBegan) -> Frame:
    """Return the frame of a park that begins; one for a service that is away may never be journaled."""
    return _frame(state, park.at, "Park", reason=park.reason, event="Began", message=park.message or None)


def _step_entered(state: RunState, fact: StepEntered) -> Iterator[Frame]:
    yield _frame(state, fact.at, "Step", step=fact.step, stepKind=fact.kind, event="Entered")


def _step_finished(state: RunState, fact: StepFinished) -> Iterator[Frame]:
    visit = state.visit
    assert visit is not None
    yield _frame(state, fact.at, "Step", step=visit.step, stepKind=visit.kind, event="Finished", signal=fact.signal)
    if visit.is_agent:
        yield _frame(
            state,
            fact.at,
            "Outcome",
            step=visit.step,
            signal=fact.signal,
            reason=fact.error_type,
            turnEnding=fact.turn_ending,
        )


def _reply_received(state: RunState, fact: ReplyReceived) -> Iterator[Frame]:
    visit = state.visit
    assert visit is not None
    yield _frame(
        state,
        fact.at,
        "Iteration",
        step=visit.step,
        iteration=visit.replies + 1,
        toolCalls=len(fact.calls),
        tokens=state.account.used + fact.input + fact.output,
        **({"level": fact.level} if fact.level != "full" else {}),
    )


def _policy_judged(state: RunState, fact: PolicyJudged) -> Iterator[Frame]:
    yield _frame(state, fact.at, "Policy", turn=fact.turn, at=fact.at_gate, rule=fact.rule, verdict=fact.verdict)


def _call_finished(state: RunState, fact: CallFinished) -> Iterator[Frame]:
    visit = state.visit
    assert visit is not None
    if not visit.is_agent:
        return
    call = visit.call_ids[fact.id]
    tool = call.asked.name if call.asked.is_declared else UNDECLARED
    frame = _frame(state, fact.at, "ToolCall", tool=tool, code=fact.code or "ok", seconds=round(fact.seconds, 3))
    if (cut_from := fact.cut_from) is not None:
        frame = {**frame, "cutFrom": cut_from}
    yield frame


def _tool_surface(state: RunState, fact: ToolSurface) -> Iterator[Frame]:
    visit = state.visit
    assert visit is not None
    left_out = list(fact.left_out) or None
    yield _frame(
        state,
        fact.at,
        "Tools",
        turn=state.next_turn,
        step=visit.step,
        offered=len(fact.tools),
        leftOut=left_out,
        warnings=len(fact.warnings),
    )


def _text_judged(state: RunState, fact: TextJudged) -> Iterator[Frame]:
    """Yield a frame where the gate did something; what passes as it is needs none."""
    if fact.check:
        yield _frame(state, fact.at, "Guardrail", gate=fact.gate, check=fact.check, verdict=fact.said)


def _mode_answered(state: RunState, fact: ModeAnswered) -> Iterator[Frame]:
    yield _frame(state, fact.at, "Control", directive=fact.mode, landing=fact.state, landedTurn=fact.turn, by=fact.by)


def _steer_answered(state: RunState, fact: SteerAnswered) -> Iterator[Frame]:
    yield _frame(state, fact.at, "Control", directive="Steer", id=fact.id, landing=fact.state, landedTurn=fact.turn)


def _approval_answered(state: RunState, fact: ApprovalAnswered) -> Iterator[Frame]:
    if fact.state == "Withdrawn":
        return
    directive = fact.decision or "Approval"
    yield _frame(
        state, fact.at, "Control", directive=directive, id=fact.id, landing=fact.state, landedTurn=fact.turn, by=fact.by
    )


def _limits_landed(state: RunState, fact: LimitsLanded) -> Iterator[Frame]:
    yield _frame(state, fact.at, "Control", directive="Limits", landing="Landed", landedTurn=fact.turn)


def _park_began(state: RunState, fact: ParkBegan) -> Iterator[Frame]:
    """Yield a frame, but for the barrier's: under Sync each turn has one, and its end says how long it took."""
    if fact.reason != BARRIER:
        yield park_frame(state, fact)


def _barrier_timed_out(state: RunState, fact: BarrierTimedOut) -> Iterator[Frame]:
    yield _frame(state, fact.at, "Park", reason=BARRIER, event="TimedOut", verdict=fact.verdict, message=fact.message)


def _park_released(state: RunState, fact: ParkReleased) -> Iterator[Frame]:
    yield _frame(state, fact.at, "Park", reason=state.park.reason if state.park else None, event="Released")


def _park_ended(state: RunState, fact: ParkEnded) -> Iterator[Frame]:
    seconds = round(fact.at - state.park.at, 3) if state.park is not None and fact.reason == BARRIER else None
    yield _frame(state, fact.at, "Park", reason=fact.reason, event="Ended", seconds=seconds)


def _run_ended(state: RunState, fact: RunEnded) -> Iterator[Frame]:
    yield _frame(state, fact.at, "Outcome", signal=fact.signal, reason=fact.reason, turnEnding=fact.turn_ending)


_BUILDERS: Mapping[type[Any], Callable[[RunState, Any], Iterator[Frame]]] = {
    StepEntered: _step_entered,
    StepFinished: _step_finished,
    ToolSurface: _tool_surface,
    ReplyReceived: _reply_received,
    PolicyJudged: _policy_judged,
    CallFinished: _call_finished,
    TextJudged: _text_judged,
    ModeAnswered: _mode_answered,
    SteerAnswered: _steer_answered,
    ApprovalAnswered: _approval_answered,
    LimitsLanded: _limits_landed,
    ParkBegan: _park_began,
    ParkReleased: _park_released,
    ParkEnded: _park_ended,
    BarrierTimedOut: _barrier_timed_out,
    RunEnded: _run_ended,
}
