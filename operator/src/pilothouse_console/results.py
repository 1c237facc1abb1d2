"""The result of a run: in its status, or where it is large (over 8 KiB) in its journal, to which the status refers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilothouse_api.digests import compact_json
from pilothouse_console.answers import Result
from pilothouse_console.picture import Entry
from pilothouse_console.problems import Problem, away
from pilothouse_console.redis_store import RedisAway, RedisStore

RESULT = "result"
"""Id of the result of a run, the only one that there is."""
LONGEST_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reference:
    """What a status says of a result that it does not hold."""

    size: int
    digest: str


def stored_result(raw_run: Mapping[str, Any]) -> Mapping[str, Any] | Reference | None:
    """Return what a run's status holds: a result, a reference to one, or None."""
    status = raw_run.get("status") or {}
    match status.get("result") or (status.get("run") or {}).get("result"):
        case {"ref": "journal/result", "bytes": int(size), "digest": str(digest)}:
            return Reference(size, digest)
        case dict() as result:
            return result
        case _:
            return None


async def read_result(entry: Entry, result_id: str, store: RedisStore | None) -> Result:
    """Return a result of a run; raises Problem where there is none, or it cannot be had."""
    name = entry.key.name
    stored = stored_result(entry.read()) if result_id == RESULT else None
    if stored is None:
        raise Problem(404, f"run {name} has no result {result_id[:63]!r}", "a run has one, named result, at its end")
    if not isinstance(stored, Reference):
        size = len(compact_json(stored).encode("utf-8", "surrogatepass"))
        return Result(id=result_id, bytes=size, result=dict(stored))
    if stored.size > LONGEST_BYTES:
        what = f"the result has {stored.size} bytes, more than the {LONGEST_BYTES} that are handed on here"
        raise Problem(413, what, "read it in the run's journal in Redis")
    if store is None:
        what = f"the result of run {name} ({stored.size} bytes) lies in its journal, which is not in a Redis"
        raise Problem(404, what, "read it in the run's journal, or set redis.url")
    try:
        found = await store.result(entry.key.namespace, entry.uid, stored.digest)
    except RedisAway as error:
        raise away(f"Redis does not hand out the journal of run {name}: {error}", 5) from None
    if found is None:
        raise Problem(410, f"the journal of run {name} does not hold its result any more", "journals are kept for days")
    return Result(id=result_id, bytes=stored.size, digest=stored.digest, result=dict(found))
