"""Conversations in Redis: one hash a session and agent step, replaced whole by one script that compares versions.

What was said is gone when nobody has gone on with it for `keep_seconds`: nothing else would ever remove it.
"""

import zlib
from typing import Any

from pilothouse_api.digests import digest
from pilothouse_engine.ports import SessionCorrupt, SessionKey, SessionsUnavailable, StoredSession
from pilothouse_runner.adapters.redis_client import (
    RedisClient,
    RedisRefused,
    RedisUnanswered,
    RedisUnreachable,
    Script,
)

_REPLACE = Script("""
local found = redis.call('HMGET', KEYS[1], 'version', 'crc')
local stored = found[1] or (found[2] and 'missing') or '0'
if stored ~= ARGV[1] then return {'is', stored} end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'crc', ARGV[3], 'content', ARGV[4])
return {'done', ARGV[2]}
""")
"""One write and no more: see the journal's script."""


class RedisSessions:
    """The conversations of the namespaces that the client's user may reach."""

    def __init__(self, client: RedisClient, *, keep_seconds: int) -> None:
        self._client = client
        self._keep_seconds = keep_seconds

    async def load(self, key: SessionKey) -> StoredSession:
        """Return what is stored; raises SessionsUnavailable, SessionCorrupt."""
        name = session_key(key)
        try:
            reply = await self._client.call("HMGET", name, "version", "crc", "content")
        except (RedisUnreachable, RedisUnanswered, RedisRefused) as error:
            raise self._failure(name, error) from None
        match reply:
            case [None, None, None]:
                return StoredSession()
            case [bytes(version), bytes(crc), bytes(content)] if _is_version(version) and crc == _crc(content):
                return StoredSession(int(version), content)
            case _:
                raise self._corrupt(name)

    async def replace(self, key: SessionKey, version: int, content: bytes) -> bool:
        """Store the next version on Redis's disk; raises SessionsUnavailable, SessionCorrupt."""
        name = session_key(key)
        arguments = (version, version + 1, _crc(content), content)
        try:
            reply: Any = await self._client.run(_REPLACE, name, *arguments)
        except (RedisUnreachable, RedisUnanswered, RedisRefused) as error:
            raise self._failure(name, error) from None
        match reply:
            case [b"done", _]:
                self._client.send([("EXPIRE", name, self._keep_seconds)])
                return True
            case [b"is", bytes(stored)] if stored == b"0" or _is_version(stored):
                return False
            case _:
                raise self._corrupt(name)

    def _failure(
        self, name: str, error: RedisUnreachable | RedisUnanswered | RedisRefused
    ) -> SessionsUnavailable | SessionCorrupt:
        if not isinstance(error, RedisRefused):
            return SessionsUnavailable(str(error))
        return self._corrupt(name) if error.is_other_type else SessionsUnavailable(error.sentence(self._client.address))

    def _corrupt(self, name: str) -> SessionCorrupt:
        return SessionCorrupt(
            f"the key {name} in Redis holds no whole conversation: restore it, or remove it to let the conversation "
            "begin anew"
        )


def session_key(key: SessionKey) -> str:
    """Return the name of a conversation's key: a hash, since a session may be named by any text."""
    return f"ns:{key.namespace}:session:{digest([key.namespace, key.session, key.step])[:40]}"


def _is_version(text: bytes) -> bool:
    return text.isdigit() and text[:1] != b"0"


def _crc(content: bytes) -> bytes:
    return b"%08x" % zlib.crc32(content)
