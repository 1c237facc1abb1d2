"""What runs have in Redis: the streams of their frames and looks, and the journal with a large result; only read.

Runners write it, and a hostile one writes anything: each request bounds what it holds of an entry and of all of them.
"""

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.asyncio
from redis.asyncio.connection import DefaultParser
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry

from pilothouse_api.batches import decode_batch
from pilothouse_api.digests import compact_json, text_digest
from pilothouse_api.names import LONGEST_FRAME_BYTES, LONGEST_LOOK_BYTES, redis_run_prefix
from pilothouse_console.bounded_replies import Bound, BoundedParser, Cut, TooLong, TooMuch, bounded
from pilothouse_console.frames import Frame, Order, format_stream_id, frame_text, lost_frame, parse_stream_id
from pilothouse_console.metrics import Metrics

CONNECT_SECONDS = 3.0
REPLY_SECONDS = 5.0
MOST_CONNECTIONS = 16
LAST_BATCHES = 8
"""Batches at the end of a journal among which its result is: it is in the last but for what a host adds."""
MOST_LOOKS = 500
"""Looks of a run that are handed on; a runner keeps as many, a few more at times."""
NAMES_BYTES = 64
"""Room for the name of an entry's field beside its value."""
_FRAME_BYTES = LONGEST_FRAME_BYTES + NAMES_BYTES
TRACE_BOUND = Bound(_FRAME_BYTES, 2 * 1024 * 1024)
"""Of the newest frames: eight times what 1,000 usual ones take."""
PAGE_BOUND = Bound(_FRAME_BYTES, 256 * 1024)
NEWS_BOUND = Bound(_FRAME_BYTES, 4 * 1024 * 1024, depth=3)
"""Of what is new in all feeds at once: what is left comes with the next reply."""
LOOKS_BOUND = Bound(LONGEST_LOOK_BYTES + NAMES_BYTES, 4 * 1024 * 1024)
BATCH_BOUND = Bound(12 * 1024 * 1024, 1)
"""Of one batch of a journal: a result of 8 MiB and what else the turn has brought."""
MOST_BATCH_VALUES = 400_000
"""Values of a batch that is read: in Python each takes up to a hundred bytes, however short its JSON is."""


class RedisAway(Exception):
    """Redis does not answer, or refuses; the message says which."""


class NotFollowed(RedisAway):
    """A key holds what cannot be followed: whoever may write to it has made it so."""


class WrongKind(NotFollowed):
    """A key is of another kind than the one that was asked for."""


class Flooded(NotFollowed):
    """Entries are longer than anybody reads past."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a run, oldest first; `is_cut` where older ones are left out, since they are too much."""

    items: list[dict[str, Any]]
    is_cut: bool


class FileLogin(CredentialProvider):
    """User and password out of the files of a mounted Secret, read at each connect: they may be replaced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get_credentials(self) -> tuple[str, str]:
        """Return both; raises ConnectionError where they cannot be read."""
        try:
            user, password = [(self._folder / name).read_text().rstrip("\r\n") for name in ("username", "password")]
        except (OSError, UnicodeDecodeError) as error:
            raise RedisConnectionError(f"the login of Redis cannot be read: {error}") from error
        return user, password


def connect(url: str, login: Path | None, *, is_bounded: bool = True) -> "redis.asyncio.Redis":
    """Return a client, whose replies are bounded where runners write what is read; nothing is sent yet."""
    options: dict[str, Any] = {}
    if login is not None:
        options["credential_provider"] = FileLogin(login)
    if url.startswith("rediss"):
        authorities = login / "ca.crt" if login is not None else None
        options["ssl_ca_certs"] = str(authorities) if authorities and authorities.exists() else None
        options["ssl_min_version"] = ssl.TLSVersion.TLSv1_2
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        parser_class=BoundedParser if is_bounded else DefaultParser,
        socket_timeout=REPLY_SECONDS,
        socket_connect_timeout=CONNECT_SECONDS,
        max_connections=MOST_CONNECTIONS,
        timeout=REPLY_SECONDS,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        **options,
    )
    return redis.asyncio.Redis.from_pool(pool)


class RedisStore:
    """Asks Redis; every method raises RedisAway."""

    def __init__(self, client: "redis.asyncio.Redis", metrics: Metrics) -> None:
        self._client = client
        self._metrics = metrics
        self._large = asyncio.Semaphore(1)
        for command in ("XRANGE", "XREVRANGE", "XREAD"):
            client.set_response_callback(command, _as_it_is)  # type: ignore[arg-type]  # it wants a class of callables

    async def newest_frames(self, namespace: str, uid: str, count: int) -> list[Frame]:
        """Return the newest frames of a run, oldest first; where they are too much, one says that older ones are not
        shown.
        """
        items = await self._ask(self._client.xrevrange(_frames(namespace, uid), count=count), TRACE_BOUND)
        frames = [_frame(item) for item in reversed(items)]
        if isinstance(items, Cut) and frames:
            first = frames[0]
            frames.insert(0, Frame(first.id, first.order, lost_frame("older frames are left out: they are too large")))
        return frames

    async def frames_after(self, namespace: str, uid: str, order: Order, count: int) -> list[Frame]:
        """Return frames behind a place, oldest first, as many as are asked for at most; none where there are none."""
        key = _frames(namespace, uid)
        items = await self._ask(self._client.xrange(key, min=f"({format_stream_id(order)}", count=count), PAGE_BOUND)
        return [_frame(item) for item in items]

    async def oldest_place(self, namespace: str, uid: str) -> Order | None:
        """Return the place of the oldest frame that is kept, None where there is none."""
        return _place(await self._ask(self._client.xrange(_frames(namespace, uid), count=1), PAGE_BOUND))

    async def newest_place(self, namespace: str, uid: str) -> Order | None:
        """Return the place of the newest frame, None where there is none."""
        return _place(await self._ask(self._client.xrevrange(_frames(namespace, uid), count=1), PAGE_BOUND))

    async def new_frames(
        self, places: Mapping[tuple[str, str], Order], milliseconds: int | None
    ) -> dict[tuple[str, str], list[Frame]]:
        """Return what came behind each place (by namespace and uid) as soon as something has, or nothing in time.

        `milliseconds` None: without waiting. What is too much for one reply comes with the next, so that the order of
        the places says who is served first.
        """
        names = {_frames(*run): run for run in places}
        streams: dict[Any, Any] = {name: format_stream_id(places[run]) for name, run in names.items()}
        reply = await self._ask(self._client.xread(streams, count=200, block=milliseconds), NEWS_BOUND)
        told = [one for one in reply or () if len(one) == 2]  # one that was cut may lack its entries
        return {names[key.decode()]: [_frame(item) for item in items] for key, items in told}

    async def result(self, namespace: str, uid: str, digest: str) -> Mapping[str, Any] | None:
        """Return the result with this digest out of a run's journal, None where it is not there (any more).

        One is read at a time: what a batch becomes in Python is much larger than its text.
        """
        key, before = f"{redis_run_prefix(namespace, uid)}journal", "+"
        async with self._large:
            for _ in range(LAST_BATCHES):
                items = await self._ask(self._client.xrevrange(key, max=before, count=1), BATCH_BOUND)
                for raw_id, fields in items:
                    before = f"({raw_id.decode()}"
                    result = await asyncio.to_thread(_find_result, _value(fields, b"batch"), digest)
                    if result is not None:
                        return result
                if not items:
                    break
        return None

    async def looks(self, namespace: str, uid: str) -> Kept:
        """Return the looks that are kept of a run; what is no JSON object, or too long for one, is left out."""
        key = f"{redis_run_prefix(namespace, uid)}looks"
        items = await self._ask(self._client.xrevrange(key, count=MOST_LOOKS), LOOKS_BOUND)
        found = [_json_object(_value(fields, b"look")) for _, fields in reversed(items)]
        return Kept([look for look in found if look is not None], is_cut=isinstance(items, Cut))

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _ask(self, answer: Any, bound: Bound) -> Any:  # its stubs know of every shape that any reply can have
        try:
            with bounded(bound):
                reply = await answer
        except TooMuch as error:
            raise Flooded(str(error)) from error
        except (RedisError, OSError, TimeoutError) as error:
            self._metrics.redis_failures.inc()
            kind = WrongKind if str(error).startswith("WRONGTYPE") else RedisAway
            raise kind(f"{type(error).__name__}: {str(error)[:200]}") from error
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError  # redis-py loses one that comes together with a reply
        return reply


def _frames(namespace: str, uid: str) -> str:
    return f"{redis_run_prefix(namespace, uid)}frames"


def _as_it_is(reply: Any, **options: Any) -> Any:
    return reply


def _value(fields: Any, name: bytes) -> bytes:
    """Return the value of an entry's field, nothing where there is none or the entry is too long."""
    if fields is TooLong:
        return b""
    return dict(zip(fields[::2], fields[1::2], strict=False)).get(name) or b""


def _place(items: list[Any]) -> Order | None:
    return parse_stream_id(items[0][0].decode()) if items else None


def _frame(item: Any) -> Frame:
    raw_id, fields = item
    stream_id = raw_id.decode()
    text = lost_frame(f"it has more than {LONGEST_FRAME_BYTES} bytes") if fields is TooLong else None
    return Frame(stream_id, parse_stream_id(stream_id) or (0, 0), text or frame_text(_value(fields, b"frame")))


def _json_object(text: bytes) -> dict[str, Any] | None:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return raw if isinstance(raw, dict) else None


def _find_result(text: bytes, digest: str) -> Mapping[str, Any] | None:
    """Return the result with this digest out of a batch; one of too many values has none, whoever wrote it."""
    if text.count(b",") + text.count(b"[") + text.count(b"{") > MOST_BATCH_VALUES:
        return None
    batch = decode_batch(text)
    for entry in reversed(batch.entries if batch else ()):
        result = entry.get("result") if isinstance(entry, Mapping) else None
        if isinstance(result, Mapping) and text_digest(compact_json(result)) == digest:
            return result
    return None
