"""One run of a session at a time, in order of creation (engine.md §11): who holds it, and who waits. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pilothouse_operator.watching.cache import Cache, Key, Raw, key_of


def session_of(raw_run: Mapping[str, Any]) -> str | None:
    """Return the session of a run, None for a run without one and for other objects."""
    if raw_run["kind"] != "AgentRun":
        return None
    session = raw_run.get("spec", {}).get("session")
    return session if isinstance(session, str) and session else None


def runs_of_session(raw_run: Mapping[str, Any], cache: Cache) -> Iterator[Raw]:
    """Yield the other runs of a run's session that the picture holds."""
    session, own = session_of(raw_run), key_of(raw_run)
    if session is None:
        return
    for key in cache.keys("AgentRun", own.namespace):
        raw = cache.get(key)
        if raw is not None and key != own and session_of(raw) == session:
            yield raw


def waiting_for(raw_run: Mapping[str, Any], cache: Cache) -> Iterator[Key]:
    """Yield the runs that a change of this one may let begin."""
    for raw in runs_of_session(raw_run, cache):
        if not _has_begun(raw):
            yield key_of(raw)


def session_holder(raw_run: Mapping[str, Any], others: Iterable[Mapping[str, Any]], claimed: str = "") -> str | None:
    """Return the name of the run that this one waits for, None where it is its turn.

    A run that has begun holds its session until it is Finished, parked or not. Of those that have not, the oldest is
    next, but for one that a person must mend first. `claimed` is the uid of the run that this process has let begin,
    which the picture may not show yet.
    """
    if _has_begun(raw_run):
        return None
    rivals = [raw for raw in others if not _is_true(raw, "Finished")]
    ready = [raw for raw in rivals if not _is_true(raw, "Stalled")]
    begun = [raw for raw in rivals if _has_begun(raw)] or [raw for raw in ready if _uid(raw) == claimed]
    ahead = [raw for raw in ready if _order(raw) < _order(raw_run)]
    if not begun and _uid(raw_run) == claimed:
        return None
    first = min(begun or ahead, key=_order, default=None)
    return None if first is None else str(first["metadata"]["name"])


def _has_begun(raw_run: Mapping[str, Any]) -> bool:
    return bool((raw_run.get("status") or {}).get("attempt"))


def _uid(raw_run: Mapping[str, Any]) -> str:
    return str(raw_run["metadata"].get("uid", ""))


def _order(raw_run: Mapping[str, Any]) -> tuple[str, str]:
    metadata = raw_run["metadata"]
    return str(metadata.get("creationTimestamp") or ""), str(metadata["name"])


def _is_true(raw_run: Mapping[str, Any], kind: str) -> bool:
    conditions = (raw_run.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == kind and one.get("status") == "True" for one in conditions)
