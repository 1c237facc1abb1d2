"""What supervision saw of a run, as its runner has kept it beside the journal."""

from typing import Any

from pilothouse_console.answers import Look, Looks
from pilothouse_console.picture import Entry
from pilothouse_console.problems import Problem, away
from pilothouse_console.redis_store import RedisAway, RedisStore


async def read_looks(entry: Entry, store: RedisStore | None) -> Looks:
    """Return the looks of a run; raises Problem where nothing is kept of them, or it cannot be had."""
    name = entry.key.name
    if store is None:
        what = f"nothing is kept of what supervision saw of run {name}: journals are not in a Redis"
        raise Problem(404, what, "set redis.url, or redis.enabled, before the next run")
    try:
        kept = await store.looks(entry.key.namespace, entry.uid)
    except RedisAway as error:
        raise away(f"Redis does not hand out what supervision saw of run {name}: {error}", 5) from None
    return Looks(items=tuple(_look(raw) for raw in kept.items if _is_look(raw)), is_cut=kept.is_cut or None)


def _is_look(raw: dict[str, Any]) -> bool:
    """Tell whether it is one: the runner writes them, and may write anything."""
    return isinstance(raw.get("now"), str) and isinstance(raw.get("run"), dict)


def _look(raw: dict[str, Any]) -> Look:
    return Look(now=raw["now"], run=raw["run"])
