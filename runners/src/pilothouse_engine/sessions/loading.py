"""What an agent step begins with in a session: loaded once for a run, and a fact from then on (engine.md §11)."""

from collections.abc import Callable, Coroutine
from typing import Any

from pilothouse_api.signals import ERROR
from pilothouse_engine.actions import Action, Commit, Inputs, LoadSession
from pilothouse_engine.alarms import Cut
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.control import RETRY_SECONDS, plan_interruption
from pilothouse_engine.endings import plan_aborted, plan_exit
from pilothouse_engine.facts import Cause, Facts, ParkEnded, SessionLoaded
from pilothouse_engine.parks import STORE_LOST, lost_park
from pilothouse_engine.ports import (
    SESSION_SECONDS,
    SessionCorrupt,
    SessionKey,
    Sessions,
    SessionsUnavailable,
    StoredSession,
)
from pilothouse_engine.sessions.records import build_history, decode_conversation, encode_message
from pilothouse_engine.state import RunState

Bound = Callable[[Coroutine[Any, Any, StoredSession], float], Coroutine[Any, Any, StoredSession | Cut]]
"""Cuts work short after so many seconds, or when the attempt is asked to let go."""


def key_of(catalog: Catalog, step: str) -> SessionKey:
    """Return the conversation of an agent step of a run that has a session."""
    plan = catalog.plan
    assert plan.session is not None, "only a run that has a session asks for a conversation"
    return SessionKey(plan.run.namespace, plan.session, step)


def plan_loading(catalog: Catalog, state: RunState, inputs: Inputs) -> Action:
    """Return what comes before the prompt of the first visit of an agent step."""
    assert state.visit is not None
    if state.abort is not None:
        return Commit(plan_aborted(state, inputs.now))
    return LoadSession(key_of(catalog, state.visit.step))


def plan_store_lost(catalog: Catalog, state: RunState, inputs: Inputs) -> Action:
    """Return what happens next to a run that waits for its history: it asks again, until somebody aborts it."""
    visit = state.visit
    assert visit is not None, "only a visit waits for its history"
    landed = plan_interruption(state, inputs)
    if landed is not None and landed.mode == "Abort":
        return Commit((landed, ParkEnded(inputs.now, STORE_LOST)))
    return LoadSession(key_of(catalog, visit.step), RETRY_SECONDS)


async def load_session(
    state: RunState, key: SessionKey, sessions: Sessions | None, most: int, now: Callable[[], float], bound: Bound
) -> Facts:
    """Return the history as a fact, or what follows from there being none to read; nothing while it is waited for.

    A conversation that cannot be read ends the step: it is never taken for an empty one.
    """
    if sessions is None:
        return _failed(state, now(), "NotSupported", "this host keeps no sessions: remove spec.session")
    try:
        stored = await bound(sessions.load(key), SESSION_SECONDS)
        if stored is Cut.INTERRUPTED:
            return ()
        if isinstance(stored, Cut):
            raise SessionsUnavailable(f"the store of sessions gave no answer within {SESSION_SECONDS:g} s")
        conversation = decode_conversation(stored.content)
        history = build_history(conversation.runs, most)
    except SessionsUnavailable as error:
        if state.park is not None:
            return ()
        return (lost_park(state, STORE_LOST, now(), str(error)),)
    except SessionCorrupt as error:
        what = f"session {key.session}, step {key.step}: {error}; a run of another session begins anew"
        return _failed(state, now(), "SessionCorrupt", what)
    loaded = SessionLoaded(now(), key.step, tuple(map(encode_message, history)), conversation.tasks)
    return (*_park_ended(state, now()), loaded)


def _failed(state: RunState, now: float, cause: Cause, message: str) -> Facts:
    return (*_park_ended(state, now), *plan_exit(state, now, ERROR, cause, message))


def _park_ended(state: RunState, now: float) -> Facts:
    return (ParkEnded(now, STORE_LOST),) if state.park is not None else ()
