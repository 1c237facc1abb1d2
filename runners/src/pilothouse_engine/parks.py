"""Parks: waiting without advancing, and what ends it (engine.md §8). Pure."""

from datetime import UTC, datetime
from functools import lru_cache

from pilothouse_api.structs import Parked, Snapshot
from pilothouse_api.wake import wake_due
from pilothouse_engine.actions import Action, Commit, Inputs, ReadControl, Release, WaitParked
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.control import MAX_OUTAGE_CHARS, RETRY_SECONDS, plan_mode
from pilothouse_engine.facts import Fact, Facts, ModeAnswered, ParkBegan, ParkEnded, ParkReleased
from pilothouse_engine.state import BARRIER, RunState

STOPPED = "Stopped"
"""Reason of the park of an attempt that its host asked to let go: the next attempt goes on at once."""

STORE_LOST = "StoreLost"
"""Reason of the park of a run whose conversation can be neither read nor kept."""

LONGEST_WAIT_SECONDS = 300.0
HELD_SECONDS = 30.0
"""How long a run that waits for a person or a child keeps its pod (engine.md §8)."""


def iso(at: float) -> str:
    """Return a moment (epoch seconds) as RFC 3339, to the millisecond."""
    seconds, milliseconds = divmod(int(at * 1000), 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def lost_park(state: RunState, reason: str, since: float, said: str) -> ParkBegan:
    """Return the park of a service that is away, with what was last said of it."""
    return ParkBegan(since, reason, state.turn, message=said[:MAX_OUTAGE_CHARS])


def parked_report(park: ParkBegan, *, is_released: bool) -> Parked:
    """Return a park as the snapshot says it."""
    return Parked(
        reason=park.reason,
        turn=park.turn,
        since=iso(park.at),
        wake=None if park.wake is None else iso(park.wake),
        released=is_released,
        on_timeout=park.on_timeout,
        message=park.message or None,
    )


def plan_parked(catalog: Catalog, state: RunState, inputs: Inputs) -> Action:
    """Return what happens next to a run that is parked."""
    park = state.park
    assert park is not None
    if inputs.read_tick != state.tick:
        return ReadControl()
    if park.reason == "AwaitingApproval":
        from pilothouse_engine.approvals import plan_awaiting  # masks and detectors, for runs that need them

        return plan_awaiting(catalog, state, inputs, park)
    if park.reason == "AwaitingChild":
        from pilothouse_engine.children import plan_awaiting_child

        return plan_awaiting_child(catalog, state, inputs, park)
    if park.reason == BARRIER:
        from pilothouse_engine.barrier import plan_at_barrier

        return plan_at_barrier(state, inputs, park)
    if park.reason == STORE_LOST:
        from pilothouse_engine.sessions.loading import plan_store_lost

        return plan_store_lost(catalog, state, inputs)
    if park.reason != "Paused":
        if inputs.failure is None:
            return Commit((ParkEnded(inputs.now, park.reason),))
        return WaitParked(RETRY_SECONDS)
    return _plan_paused(state, inputs, park)


def _plan_paused(state: RunState, inputs: Inputs, park: ParkBegan) -> Action:
    control = inputs.directives.control if inputs.directives is not None else None
    is_past = park.wake is not None and inputs.now >= park.wake
    if inputs.failure is None:
        snapshot = Snapshot(attempt=inputs.attempt, parked=parked_report(park, is_released=state.is_released))
        if wake_due(snapshot, control, datetime.fromtimestamp(inputs.now, UTC)):
            landed = plan_mode(state, control, inputs.now, state.turn)
            if landed is not None:
                return Commit((landed, ParkEnded(inputs.now, park.reason)))
    if is_past and park.on_timeout == "Abort":
        return Commit((_pause_deadline(state, inputs, park), ParkEnded(inputs.now, park.reason)))
    if is_past:
        return Release() if state.is_released else Commit((ParkReleased(inputs.now),))
    left = LONGEST_WAIT_SECONDS if park.wake is None else park.wake - inputs.now
    return WaitParked(min(left, RETRY_SECONDS if inputs.failure is not None else LONGEST_WAIT_SECONDS))


def hold(state: RunState, inputs: Inputs, park: ParkBegan, *, may_release: bool) -> Action:
    """Wait on, until `park.wake` at the latest; past the hold time let go of the pod, where the journal survives it."""
    held = park.at + HELD_SECONDS
    if may_release and inputs.failure is None and inputs.now >= held:
        return Release() if state.is_released else Commit((ParkReleased(inputs.now),))
    ends = [LONGEST_WAIT_SECONDS if inputs.failure is None else RETRY_SECONDS]
    if inputs.failure is None:
        ends += [held - inputs.now] if may_release else []
        ends += [park.wake - inputs.now] if park.wake is not None else []
    return WaitParked(min(ends))


def _pause_deadline(state: RunState, inputs: Inputs, park: ParkBegan) -> Fact:
    seconds = (park.wake or inputs.now) - park.at
    reason = f"paused for {seconds:g} s, which is pauseSeconds, and nobody resumed it"
    return ModeAnswered(inputs.now, state.turn, "Abort", "Landed", reason, cause="PauseDeadline")


def plan_release(state: RunState, now: float) -> Action:
    """Return how an attempt that was asked to let go does so."""
    if state.park is not None:
        return Release() if state.is_released else Commit((ParkReleased(now),))
    facts: Facts = (ParkBegan(now, STOPPED, state.turn), ParkReleased(now))
    return Commit(facts)
