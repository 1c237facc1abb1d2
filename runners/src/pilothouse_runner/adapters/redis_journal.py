"""The journal in Redis: a stream of batches for each run, and one script that compares and appends.

A batch's id in the stream is `<entries up to its end>-<attempt>`, so the newest id is the journal's length and its
newest writer, and both are compared in the step that adds. An append whose answer was lost is sent again as a question:
where the place holds the very batch that was sent, by this very process, it is done, and nothing is added twice.

What Redis acknowledges is as durable as its configuration: `appendonly yes`, `appendfsync always`,
`maxmemory-policy noeviction` (the chart's).
"""

import logging
import os
from collections.abc import Sequence
from time import monotonic
from typing import Any

from pilothouse_api.batches import Batch, decode_batch, encode_batch
from pilothouse_engine.ports import Fenced, JournalCorrupt, JournalUnavailable, RawEntry
from pilothouse_runner.adapters.redis_client import (
    RedisClient,
    RedisRefused,
    RedisUnanswered,
    RedisUnreachable,
    Script,
    Word,
)

PAGE_BATCHES = 200
"""Batches that are read at once: a page of small ones is 100 kB, one of the largest results 200 MB."""
KEEP_SECONDS = 365 * 86400
"""How long the journal of a run stays to which nothing was added: a released run may wait as long."""
KEEP_FINISHED_SECONDS = 7 * 86400
"""How long it stays after the run's end."""

log = logging.getLogger(__name__)

_APPEND = Script("""
local key, id, batch, writer = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local attempt, expected = tonumber(ARGV[4]), tonumber(ARGV[5])
local length, newest = 0, 0
local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
if last then
  local place = last[1]
  local dash = string.find(place, '-', 1, true)
  length, newest = tonumber(string.sub(place, 1, dash - 1)), tonumber(string.sub(place, dash + 1))
end
if attempt < newest then return {'attempt', newest} end
if expected ~= length then
  local there = ARGV[6] == '1' and redis.call('XRANGE', key, id, id)[1]
  if there and there[2][2] == batch and there[2][4] == writer then return {'done', 0} end
  return {'length', length}
end
if id ~= '' then redis.call('XADD', key, id, 'batch', batch, 'writer', writer) end
return {'done', 0}
""")
"""`id` is empty where nothing is added. One write and no more: two would be a transaction in Redis's file, and Redis
7.0 replays transactions with the rights of its user `default`, which may have none: at a restart they were gone."""

RENEW_SECONDS = 3600.0
"""How often the time that a journal stays is set anew while something is added."""


class RedisJournal:
    """One run's journal in a Redis.

    `keep_seconds` is how long it stays after the last append, an hour less at most; `prefix` begins the names of the
    run's keys (`names.redis_run_prefix`).
    """

    durable = True

    def __init__(self, client: RedisClient, prefix: str, *, keep_seconds: int = KEEP_SECONDS) -> None:
        self._client = client
        self._key = f"{prefix}journal"
        self._keep_seconds = keep_seconds
        self._writer = os.urandom(6).hex()
        self._unanswered: bytes | None = None
        self._said: str | None = None
        self._renew_at = 0.0

    async def read(self) -> Sequence[RawEntry]:
        """Return all entries, oldest first, page by page."""
        entries: list[RawEntry] = []
        start = "-"
        while True:
            page = await self._read_page(start)
            for item in page:
                entries.extend(self._decode(item, len(entries)).entries)
            if len(page) < PAGE_BATCHES:
                return entries
            start = f"({page[-1][0].decode()}"

    async def append(self, attempt: int, expected_seq: int, entries: Sequence[RawEntry]) -> None:
        """Add entries as one batch, on Redis's disk when this returns; raises Fenced, JournalUnavailable."""
        batch = encode_batch(Batch(attempt, expected_seq, tuple(entries)))
        place = f"{expected_seq + len(entries)}-{attempt}" if entries else ""
        arguments = (place, batch, self._writer, attempt, expected_seq)
        now = monotonic()
        is_renewed = bool(entries) and now >= self._renew_at
        is_asked_again = self._unanswered == batch
        # Until there is an answer: also where this task is cancelled.
        self._unanswered = batch
        try:
            verdict, number = await self._compare_and_add(*arguments, int(is_asked_again), is_renewed=is_renewed)
        except RedisUnanswered:
            # Once more at once, over a new connection: most answers are lost because Redis has restarted.
            try:
                verdict, number = await self._compare_and_add(*arguments, 1, is_renewed=is_renewed)
            except RedisUnanswered as error:
                raise self._unavailable(error) from None
        self._unanswered = self._said = None
        if verdict == b"attempt":
            raise Fenced(f"attempt {number} has written to the journal in Redis, this is attempt {attempt}")
        if verdict == b"length":
            raise Fenced(f"the journal in Redis holds {number} entries, attempt {attempt} expects {expected_seq}")
        if is_renewed:
            self._renew_at = now + RENEW_SECONDS

    async def _compare_and_add(self, *arguments: Word, is_renewed: bool) -> tuple[bytes, int]:
        """Return the script's verdict. The expiry goes along, since by itself it would be a flush of Redis's disk; a
        journal that is another's by now stays longer for it, until that one sets its own.
        """
        expire = ("EXPIRE", self._key, self._keep_seconds) if is_renewed else None
        try:
            reply = await self._client.run(_APPEND, self._key, *arguments, then=expire)
        except (RedisUnreachable, RedisRefused) as error:
            raise self._unavailable(error) from None
        match reply:
            case [bytes(verdict), int(number)]:
                return verdict, number
            case _:
                raise self._strange(reply)

    async def _read_page(self, start: str) -> list[Any]:
        try:
            page = await self._client.call("XRANGE", self._key, start, "+", "COUNT", PAGE_BATCHES)
        except (RedisUnreachable, RedisUnanswered, RedisRefused) as error:
            raise self._unavailable(error) from None
        if not isinstance(page, list):
            raise self._strange(page)
        return page

    def _unavailable(
        self, error: RedisUnreachable | RedisUnanswered | RedisRefused
    ) -> JournalUnavailable | JournalCorrupt:
        if isinstance(error, RedisRefused) and error.is_other_type:
            return JournalCorrupt(f"the key {self._key} in Redis holds something else than a journal")
        sentence = error.sentence(self._client.address) if isinstance(error, RedisRefused) else str(error)
        if sentence != self._said:  # the run's status says that it waits for its journal, its log says why
            self._said = sentence
            log.warning("the journal is unavailable: %s", sentence)
        return JournalUnavailable(sentence)

    def _strange(self, reply: object) -> JournalUnavailable:
        return JournalUnavailable(f"Redis at {self._client.address} answered something strange: {str(reply)[:80]!r}")

    def _decode(self, item: Any, expected: int) -> Batch:
        match item:
            case [bytes(raw_id), [bytes(), bytes(line), *_]]:
                batch = decode_batch(line)
            case [bytes(raw_id), *_]:
                batch = None
            case _:
                raise self._strange(item)
        if batch is None:
            raise JournalCorrupt(f"{self._key}: the batch {raw_id.decode()} is damaged, entry {expected} was expected")
        if batch.seq != expected or raw_id != b"%d-%d" % (batch.seq + len(batch.entries), batch.attempt):
            raise JournalCorrupt(
                f"{self._key}: the batch {raw_id.decode()} begins with entry {batch.seq}, entry {expected} was expected"
            )
        return batch
