"""What runs have in Redis: the streams of their frames and looks, and the journal with a large result; only read."""

import asyncio
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis.asyncio
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry

from pilothouse_api.batches import decode_batch
from pilothouse_api.digests import compact_json, text_digest
from pilothouse_api.names import redis_run_prefix
from pilothouse_console.frames import Frame, Order, format_stream_id, frame_text, parse_stream_id
from pilothouse_console.metrics import Metrics

CONNECT_SECONDS = 3.0
REPLY_SECONDS = 5.0
MOST_CONNECTIONS = 16
LAST_BATCHES = 8
"""Batches at the end of a journal among which its result is: it is in the last but for what a host adds."""


MOST_LOOKS = 500
"""Looks of a run that are handed on; a runner keeps as many, a few more at times."""


class RedisAway(Exception):
    """Redis does not answer, or refuses; the message says which."""


class WrongKind(RedisAway):
    """A key is of another kind than the one that was asked for: whoever may write to it has made it so."""


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


def connect(url: str, login: Path | None, connections: int = MOST_CONNECTIONS) -> "redis.asyncio.Redis":
    """Return a client; nothing is sent yet."""
    options: dict[str, Any] = {}
    if login is not None:
        options["credential_provider"] = FileLogin(login)
    if url.startswith("rediss"):
        authorities = login / "ca.crt" if login is not None else None
        options["ssl_ca_certs"] = str(authorities) if authorities and authorities.exists() else None
        options["ssl_min_version"] = ssl.TLSVersion.TLSv1_2
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        socket_timeout=REPLY_SECONDS,
        socket_connect_timeout=CONNECT_SECONDS,
        max_connections=connections,
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

    async def newest_frames(self, namespace: str, uid: str, count: int) -> list[Frame]:
        """Return the newest frames of a run, oldest first."""
        items = await self._ask(self._client.xrevrange(_frames(namespace, uid), count=count))
        return [_frame(item) for item in reversed(items)]

    async def frames_after(self, namespace: str, uid: str, order: Order, count: int) -> list[Frame]:
        """Return frames behind a place, oldest first, as many as are asked for at most."""
        key = _frames(namespace, uid)
        items = await self._ask(self._client.xrange(key, min=f"({format_stream_id(order)}", count=count))
        return [_frame(item) for item in items]

    async def oldest_place(self, namespace: str, uid: str) -> Order | None:
        """Return the place of the oldest frame that is kept, None where there is none."""
        items = await self._ask(self._client.xrange(_frames(namespace, uid), count=1))
        return _frame(items[0]).order if items else None

    async def new_frames(
        self, places: Mapping[tuple[str, str], Order], milliseconds: int
    ) -> dict[tuple[str, str], list[Frame]]:
        """Return what came behind each place (by namespace and uid) as soon as something has, or nothing in time."""
        names = {_frames(*run): run for run in places}
        streams: dict[Any, Any] = {name: format_stream_id(places[run]) for name, run in names.items()}
        reply = await self._ask(self._client.xread(streams, count=200, block=milliseconds))
        return {names[key.decode()]: [_frame(item) for item in items] for key, items in reply or ()}

    async def result(self, namespace: str, uid: str, digest: str) -> Mapping[str, Any] | None:
        """Return the result with this digest out of a run's journal, None where it is not there (any more)."""
        key = f"{redis_run_prefix(namespace, uid)}journal"
        for _, fields in await self._ask(self._client.xrevrange(key, count=LAST_BATCHES)):
            batch = decode_batch(fields.get(b"batch", b""))
            for entry in reversed(batch.entries if batch else ()):
                result = entry.get("result")
                if isinstance(result, Mapping) and text_digest(compact_json(result)) == digest:
                    return result
        return None

    async def looks(self, namespace: str, uid: str) -> list[dict[str, Any]]:
        """Return the looks that are kept of a run, oldest first; what is no JSON object is left out."""
        items = await self._ask(self._client.xrevrange(f"{redis_run_prefix(namespace, uid)}looks", count=MOST_LOOKS))
        found = [_json_object(fields.get(b"look", b"")) for _, fields in reversed(items)]
        return [look for look in found if look is not None]

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _ask(self, answer: Any) -> Any:  # its stubs know of every shape that any reply can have
        try:
            reply = await answer
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


def _json_object(text: bytes) -> dict[str, Any] | None:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return raw if isinstance(raw, dict) else None


def _frame(item: Any) -> Frame:
    raw_id, fields = item
    stream_id = raw_id.decode()
    return Frame(stream_id, parse_stream_id(stream_id) or (0, 0), frame_text(fields.get(b"frame", b"")))
