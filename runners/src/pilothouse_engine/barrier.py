"""The barrier: under Sync supervision a run waits until a turn was seen before the next one begins. Pure.

It stands at the boundary behind a turn of an Agent step, and behind each call with effect Once while more calls of its
reply follow (supervision.md). There is none before the first model call of a run, nor around steps of the graph: they
are no part of what supervision sees. The run has been seen when the clock has come to the length of the journal that
the park of the barrier was published with. Whoever raises the clock has written its directives before, so that they
stand in the same object.
"""

from pilothouse_api.digests import digest
from pilothouse_api.structs import Control
from pilothouse_engine.actions import Action, Commit, Inputs, WaitParked
from pilothouse_engine.control import RETRY_SECONDS, plan_interruption
from pilothouse_engine.facts import BarrierTimedOut, Facts, ModeAnswered, ParkBegan, ParkEnded
from pilothouse_engine.ports import Directives
from pilothouse_engine.state import BARRIER, RunState

LONGEST_WAIT_SECONDS = 300.0


def plan_barrier(state: RunState, inputs: Inputs, newest: int) -> Commit | None:
    """Return the park in which supervision looks at the facts up to number `newest`, None where it has or need not.

    The park is published at once, which is what supervision looks at. A Finish or an Abort does not wait for it.
    """
    directives = inputs.directives
    if directives is None or directives.barrier is None or newest <= state.seen_length:
        return None
    if state.mode == "Finish" or plan_interruption(state, inputs) is not None:
        return None
    wake = inputs.now + directives.barrier.timeout_seconds
    return Commit((ParkBegan(inputs.now, BARRIER, state.turn, wake, directives.barrier.on_timeout),))


def plan_at_barrier(state: RunState, inputs: Inputs, park: ParkBegan) -> Action:
    """Return what happens next to a run that waits at the barrier.

    Where its object cannot be read nobody knows whether it was seen: its time runs on.
    """
    directives, now = inputs.directives, inputs.now
    if directives is None:  # nobody has read since this attempt began, and it may not be this run's any more
        return WaitParked(RETRY_SECONDS)
    if inputs.failure is None:
        landed = plan_interruption(state, inputs)
        if landed is not None:
            return Commit((landed, ParkEnded(now, BARRIER)))
        if _may_pass(state, directives):
            return Commit((ParkEnded(now, BARRIER),))
    if park.wake is not None and now >= park.wake:
        return Commit(_time_out(state, inputs, directives, park))
    left = LONGEST_WAIT_SECONDS if park.wake is None else park.wake - now
    return WaitParked(left if inputs.failure is None else min(left, RETRY_SECONDS))


def _may_pass(state: RunState, directives: Directives) -> bool:
    """Tell whether the run was seen, or nobody holds it any more, or a person lets it go on after its time was up."""
    if directives.barrier is None:
        return True
    if directives.clock is not None and directives.clock.journal_length >= state.park_length:
        return True
    stood = state.barrier_timeout
    return stood is not None and _is_resumed(stood, directives)


def _is_resumed(stood: BarrierTimedOut, directives: Directives) -> bool:
    """Tell whether somebody has asked for Run since: what is new in the spec must be more than a steer message.

    Supervision itself writes those, and where several watch the run, before the last of them has seen it.
    """
    control = directives.control
    if directives.generation <= stood.generation or ((control.mode if control else None) or "Run") != "Run":
        return False
    asked, steers = _told(control)
    return asked != stood.control or steers == stood.steers


def _told(control: Control | None) -> tuple[str, str]:
    """Return digests of what is asked for, without the steer messages, and of their ids."""
    raw = control.to_raw() if control is not None else {}
    return digest({key: value for key, value in raw.items() if key != "steer"}), digest(sorted(raw.get("steer", ())))


def _time_out(state: RunState, inputs: Inputs, directives: Directives, park: ParkBegan) -> Facts:
    """Return what becomes of a run that was not seen in time; what nobody knows is a Pause."""
    now = inputs.now
    assert park.wake is not None, "a barrier without a deadline has timed out before"
    verdict = park.on_timeout if park.on_timeout in ("Continue", "Abort") else "Pause"
    message = f"supervision has not judged turn {park.turn} within {park.wake - park.at:g} s"
    asked, steers = _told(directives.control)
    timed_out = BarrierTimedOut(now, park.turn, verdict, directives.generation, asked, steers, message)
    if verdict == "Pause":
        return (timed_out,)
    if verdict == "Continue":
        return (timed_out, ParkEnded(now, BARRIER))
    reason = f"{message}, and onBarrierTimeout is Abort"
    abort = ModeAnswered(now, state.turn, "Abort", "Landed", reason, cause="BarrierTimeout")
    return (timed_out, abort, ParkEnded(now, BARRIER))
