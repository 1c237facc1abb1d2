"""The runs of all clusters of a fleet, in one hash of its Redis: each cluster writes its own and reads the others'.

A row is sealed with the fleet's key, for its field and for a time: what else stands there is no row. Redis away costs
the picture of the others and nothing else; it is tried again after 1 s to 30 s, and then everything is written anew.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import structlog
from pydantic import ValidationError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from pilothouse_api.names import FLEET_CLUSTERS, FLEET_RUNS, fleet_row
from pilothouse_console.letters import FleetKey
from pilothouse_console.picture import Entry, Picture, RunKey
from pilothouse_console.summaries import RunSummary
from pilothouse_console.watching import Watching

FLUSH_SECONDS = 1.0
"""How long changes are gathered: a run costs one write a second at most."""
HEARTBEAT_SECONDS = 45.0
SILENT_SECONDS = 180.0
"""What was not written for so long is of a cluster that is gone."""
READ_SECONDS = 2.0
"""How long one reading of the whole hash serves."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
LONGEST_MESSAGE = 200
LONGEST_ROW_BYTES = 32 * 1024
"""Longest field and value that is read and left standing: a row has 2 KiB."""
MOST_ROWS = 100_000
"""Most fields of one hash that are read: whoever can write to the fleet's Redis must not fill this process's memory."""
CHUNK = 500

Field = bytes
"""Name of a field of a hash, as Redis has it: anybody's."""

_DELETE_AS_READ = """
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
"""
"""Deletes fields that still hold what was read: another cluster may have written one meanwhile."""

_READ_BOUNDED = """
local longest, most, cursor, found = tonumber(ARGV[1]), tonumber(ARGV[2]), '0', {}
repeat
  local page = redis.call('HSCAN', KEYS[1], cursor, 'COUNT', 500)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    local field, value = page[2][i], page[2][i + 1]
    if #field > longest or #value > longest then redis.call('HDEL', KEYS[1], field)
    elseif #found < 2 * most then found[#found + 1] = field; found[#found + 1] = value end
  end
until cursor == '0' or #found >= 2 * most
return found
"""
"""Reads a hash as far as the bounds go, and deletes what is longer than any row."""

REDIS_ERRORS = (RedisError, OSError, TimeoutError)

T = TypeVar("T")

log = structlog.get_logger()


class FleetAway(Exception):
    """The fleet's Redis does not answer."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run of a cluster, and when the cluster said so (seconds since the epoch)."""

    cluster: str
    at: float
    summary: RunSummary


class Backoff:
    """Pauses between two tries: 1 s, growing to 30 s, as long as nothing works."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE_SECONDS

    def reset(self) -> None:
        """Begin anew: it has worked."""
        self._pause = FIRST_PAUSE_SECONDS

    async def sleep(self) -> None:
        """Wait before the next try."""
        pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE_SECONDS)
        await asyncio.sleep(pause * (0.9 + random.random() / 5))


class Mirror:
    """Keeps this cluster's rows in the hash, and hands out those of the others."""

    def __init__(
        self,
        cluster: str,
        key: FleetKey,
        redis: Redis,
        picture: Picture,
        watching: Watching,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.cluster = cluster
        self._key, self._redis, self._picture, self._watching, self._now = key, redis, picture, watching, now
        self._changed: set[RunKey] = set()
        self._beat_at: float | None = None
        self._known: dict[Field, tuple[bytes, Row | None]] = {}
        self._read_at = 0.0
        self._reading = asyncio.Lock()
        self._up = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """Whether Redis answered when it was last asked."""
        return self._up.is_set()

    async def wait_up(self) -> None:
        """Return once Redis answers."""
        await self._up.wait()

    def lose(self, error: BaseException) -> None:
        """Take Redis for away until it has answered again."""
        if self._up.is_set():
            log.warning("fleet.redis_away", error=f"{type(error).__name__}: {error}"[:300])
        self._up.clear()
        self._beat_at = None  # it may come back empty
        self._changed.clear()

    # ------------------------------------------------------------ the own rows

    async def run(self) -> None:
        """Write what changes, for ever."""
        backoff = Backoff()
        with self._picture.listening(None, self._note):
            while True:
                try:
                    await self._write()
                except REDIS_ERRORS as error:
                    self.lose(error)
                    await backoff.sleep()
                    continue
                if not self._up.is_set():
                    log.info("fleet.redis_there", cluster=self.cluster)
                self._up.set()
                backoff.reset()
                await asyncio.sleep(FLUSH_SECONDS)

    def _note(self, key: RunKey, entry: Entry | None) -> None:
        self._changed.add(key)

    async def _write(self) -> None:
        """Write what has changed, and everything where a heartbeat is due; an old picture lets its rows go silent."""
        await self._redis.ping()
        if not self._watching.is_live:
            return
        now = self._now()
        is_due = self._beat_at is None or now - self._beat_at >= HEARTBEAT_SECONDS
        changed, self._changed = self._changed, set()
        if not is_due:
            await self._put(changed)
            return
        sealed = self._key.seal(f"cluster:{self.cluster}", str(now).encode())
        await self._redis.hset(FLEET_CLUSTERS, self.cluster, sealed)
        await self._put(entry.key for entry in self._picture.entries() if not entry.summary.is_finished)
        await self._prune()
        self._beat_at = now

    async def _put(self, keys: Iterable[RunKey]) -> None:
        for chunk in _chunks(list(keys)):
            pipe = self._redis.pipeline(transaction=False)
            for key in chunk:
                field = fleet_row(self.cluster, *key)
                entry = self._picture.get(key)
                if entry is None or entry.summary.is_finished:
                    pipe.hdel(FLEET_RUNS, field)
                else:
                    pipe.hset(FLEET_RUNS, field, self._seal(field, entry.summary))
            await pipe.execute()

    def _seal(self, field: str, summary: RunSummary) -> bytes:
        if summary.message is not None:
            summary = summary.model_copy(update={"message": summary.message[:LONGEST_MESSAGE]})
        row = {"at": self._now(), "run": summary.model_dump(mode="json", by_alias=True, exclude_none=True)}
        return self._key.seal(f"row:{field}", json.dumps(row, separators=(",", ":")).encode())

    async def _prune(self) -> None:
        """Delete what is silent or not sealed, and own rows whose run is no more, unless it was just written anew."""
        rows, beats = await self._read_all(), await self._read_beats()
        past = [(field, sealed) for field, (sealed, row) in rows.items() if row is None or self._is_past(row)]
        await self._delete(FLEET_RUNS, past)
        await self._delete(FLEET_CLUSTERS, [(name, sealed) for name, (sealed, at) in beats.items() if at is None])

    async def _delete(self, name: str, past: list[tuple[Field, bytes]]) -> None:
        for chunk in _chunks(past):
            words = [word for pair in chunk for word in pair]
            await self._redis.eval(_DELETE_AS_READ, 1, name, *words)

    def _is_past(self, row: Row) -> bool:
        """Whether a row is silent, or an own one whose run has ended."""
        entry = self._picture.get(RunKey(row.summary.namespace, row.summary.name))
        is_own_past = row.cluster == self.cluster and (entry is None or entry.summary.is_finished)
        return is_own_past or not self._is_fresh(row.at)

    # ------------------------------------------------------------ the others' rows

    async def rows(self) -> list[Row]:
        """Return the runs of the other clusters, some seconds old at most; raises FleetAway."""
        if not self.is_up:
            raise FleetAway
        async with self._reading:
            if time.monotonic() - self._read_at >= READ_SECONDS:
                try:
                    await self._read_all()
                except REDIS_ERRORS as error:
                    self.lose(error)
                    raise FleetAway from error
        fresh = [row for _, row in self._known.values() if row is not None and self._is_fresh(row.at)]
        return [row for row in fresh if row.cluster != self.cluster]

    async def clusters(self) -> dict[str, float]:
        """Return when each cluster of the fleet was there last; raises FleetAway."""
        if not self.is_up:
            raise FleetAway
        try:
            return await self._read_clusters()
        except REDIS_ERRORS as error:
            self.lose(error)
            raise FleetAway from error

    async def _read_clusters(self) -> dict[str, float]:
        beats = await self._read_beats()
        return {name.decode(): at for name, (_, at) in beats.items() if at is not None}

    async def _read_beats(self) -> dict[Field, tuple[bytes, float | None]]:
        """Read when clusters were there; None where one is silent, or where nobody sealed it."""
        raw = await self._read_hash(FLEET_CLUSTERS)
        beats: dict[Field, tuple[bytes, float | None]] = {}
        for name, sealed in raw.items():
            at = self._key.open(f"cluster:{name.decode(errors='replace')}", sealed)
            is_fresh = at is not None and self._is_fresh(float(at))
            beats[name] = (sealed, float(at) if at is not None and is_fresh else None)
        return beats

    async def _read_all(self) -> dict[Field, tuple[bytes, Row | None]]:
        """Read the hash, as it is sealed and as rows, silent ones among them; None is of another key, or no row."""
        raw = await self._read_hash(FLEET_RUNS)
        known: dict[Field, tuple[bytes, Row | None]] = {}
        for number, (field, sealed) in enumerate(raw.items()):
            before = self._known.get(field)
            known[field] = before if before is not None and before[0] == sealed else (sealed, self._open(field, sealed))
            if number % CHUNK == CHUNK - 1:
                await asyncio.sleep(0)  # thousands of seals must not hold up who waits for an answer
        self._known, self._read_at = known, time.monotonic()
        return known

    async def _read_hash(self, name: str) -> dict[Field, bytes]:
        words = await self._redis.eval(_READ_BOUNDED, 1, name, LONGEST_ROW_BYTES, MOST_ROWS)
        return dict(zip(words[::2], words[1::2], strict=True))

    def _open(self, name: Field, sealed: bytes) -> Row | None:
        field = name.decode(errors="replace")
        body = self._key.open(f"row:{field}", sealed)
        if body is None:
            return None
        try:
            raw = json.loads(body)
            summary, at = RunSummary.model_validate(raw["run"]), float(raw["at"])
        except (ValueError, KeyError, TypeError, ValidationError):
            return None  # of a version that says more than this one understands
        cluster = field.partition("/")[0]
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
        return Row(cluster, at, summary.model_copy(update={"cluster": cluster, "as_of": moment}))

    def _is_fresh(self, at: float) -> bool:
        return self._now() - at < SILENT_SECONDS


def _chunks(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]
