"""Landing of directives: which take effect now, and the answer of every one (engine.md §8). Pure."""

from collections.abc import Iterator

from pilothouse_api.structs import Control
from pilothouse_api.wake import decision_digest
from pilothouse_engine.actions import Action, Commit, Inputs, ReadControl
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.facts import (
    ApprovalAnswered,
    Fact,
    Facts,
    LimitsLanded,
    ModeAnswered,
    ParkBegan,
    SteerAnswered,
)
from pilothouse_engine.prompts.texts import steer_text
from pilothouse_engine.state import RunState

MAX_OUTAGE_CHARS = 300
RETRY_SECONDS = 2.0
"""Wait before directives that could not be read are read again."""


def check_control(state: RunState, inputs: Inputs, *, is_repeatable: bool = True) -> Action | None:
    """Return what must be done before control may be consulted, or None.

    What may be repeated goes on for a while without it, everything else waits; then the run parks until it is back.
    """
    if inputs.read_tick != state.tick:
        return ReadControl()
    if inputs.failure is None:
        return None
    if not inputs.may_go_on_unread:
        said = f"{inputs.failure.kind}: {inputs.failure.message}"[:MAX_OUTAGE_CHARS]
        return Commit((ParkBegan(inputs.now, "ControlLost", state.turn, message=said),))
    return None if is_repeatable else ReadControl(RETRY_SECONDS)


def plan_checkpoint(catalog: Catalog, state: RunState, inputs: Inputs, step_id: str | None) -> Action | None:
    """Return the landings that are due at a turn boundary before `step_id`'s next turn, or None to go on."""
    action = check_control(state, inputs)
    if action is not None or inputs.directives is None:
        return action
    if inputs.is_held and state.visit is not None:
        from pilothouse_engine.barrier import plan_barrier  # most runs have no Sync supervision

        if (held := plan_barrier(state, inputs, state.turn_length)) is not None:
            return held
    if inputs.failure is not None:
        return None
    facts = tuple(_boundary_landings(catalog, state, inputs, step_id))
    return Commit(facts) if facts else None


def _boundary_landings(catalog: Catalog, state: RunState, inputs: Inputs, step_id: str | None) -> Iterator[Fact]:
    directives = inputs.directives
    assert directives is not None
    control = directives.control
    turn = state.next_turn
    mode = plan_mode(state, control, inputs.now, turn)
    if directives.limits is not state.limits and directives.limits != state.limits:
        raw_limits = directives.limits.to_raw() if directives.limits else {}
        if raw_limits or state.limits_landed is not None:
            yield LimitsLanded(inputs.now, turn, directives.generation, raw_limits)
    if control is not None:
        yield from stray_approvals(state, control, inputs.now, turn)
    if mode is not None:
        yield mode
        if mode.mode == "Pause" and mode.state == "Landed":
            limits = catalog.limits(step_id, directives.limits)
            yield ParkBegan(inputs.now, "Paused", turn, inputs.now + limits.pause_seconds, limits.on_pause_timeout)
            return
        if mode.mode == "Abort" and mode.state == "Landed":
            return
    if control is not None and state.visit is not None and state.visit.is_agent:
        yield from _steers(state, control, inputs, turn)


def plan_mode(state: RunState, control: Control | None, now: float, turn: int) -> ModeAnswered | None:
    """Return the answer to the mode that is asked for, or None where it is in force or was answered."""
    want = (control.mode if control else None) or "Run"
    if want in (state.mode, state.refused_mode):
        return None
    reason, by = (control.reason, control.by) if control else (None, None)
    is_final = state.mode == "Abort" or (state.mode == "Finish" and want != "Abort")
    answer = "Superseded" if is_final else "Landed"
    return ModeAnswered(now, turn, want, answer, reason, by)


def plan_interruption(state: RunState, inputs: Inputs) -> ModeAnswered | None:
    """Return the landing of an Abort or a Finish, the only modes that land between the calls of a turn."""
    control = inputs.directives.control if inputs.directives else None
    if control is None or control.mode not in ("Abort", "Finish") or inputs.failure is not None:
        return None
    return plan_mode(state, control, inputs.now, state.turn)


def _steers(state: RunState, control: Control, inputs: Inputs, turn: int) -> Iterator[SteerAnswered]:
    if not control.steer:
        return
    pending = [key for key in control.steer if key not in state.steers]
    pending.sort(key=lambda key: (inputs.first_seen.get(key, inputs.now), key))
    for key in pending:
        yield SteerAnswered(inputs.now, turn, key, "Landed", steer_text(control.steer[key].message))


def stray_approvals(
    state: RunState, control: Control, now: float, turn: int, pending: str = ""
) -> Iterator[ApprovalAnswered]:
    """Yield the answers to decisions that were not answered and are not on the pending call; they are not kept."""
    for key, decision in control.approvals.items():
        if key not in state.approvals and key != pending:
            answer = "NotLanded" if key in state.requested else "NotPending"
            yield ApprovalAnswered(now, turn, key, answer, digest=decision_digest(decision))


def plan_last_answers(state: RunState, inputs: Inputs) -> Facts:
    """Return the answers to directives that can no longer land because the run ends now."""
    control = inputs.directives.control if inputs.directives else None
    if control is None:
        return ()
    now, turn = inputs.now, state.turn
    facts: list[Fact] = []
    want = control.mode or "Run"
    if want not in (state.mode, state.refused_mode):
        answer = "Superseded" if state.mode in ("Finish", "Abort") else "NotLanded"
        facts.append(ModeAnswered(now, turn, want, answer, control.reason, control.by))
    facts += [SteerAnswered(now, turn, key, "NotLanded") for key in sorted(control.steer) if key not in state.steers]
    facts += stray_approvals(state, control, now, turn)
    return tuple(facts)
