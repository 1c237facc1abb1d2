"""All of one run that lies in Redis, over one connection."""

from typing import TYPE_CHECKING

from pilothouse_api.names import redis_run_prefix
from pilothouse_engine.catalog import Catalog
from pilothouse_runner.adapters.redis_client import (
    RedisClient,
    RedisLogin,
    RedisRefused,
    RedisUnanswered,
    RedisUnreachable,
    parse_address,
)
from pilothouse_runner.adapters.redis_frames import LookKeeper, RedisFrames
from pilothouse_runner.adapters.redis_journal import RedisJournal
from pilothouse_runner.settings import RedisSettings, SettingsError

if TYPE_CHECKING:
    from pilothouse_runner.adapters.redis_sessions import RedisSessions


class RedisRun:
    """Opens the keys of a run; raises SettingsError for an address that is none."""

    def __init__(self, settings: RedisSettings, namespace: str, uid: str) -> None:
        try:
            address = parse_address(settings.url)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        self._client = RedisClient(address, RedisLogin(settings.login_path))
        self._prefix = redis_run_prefix(namespace, uid)
        self._settings = settings
        self.frames = RedisFrames(self._client, self._prefix, keep_seconds=settings.keep_finished_seconds)
        self.journal = RedisJournal(self._client, self._prefix, keep_seconds=settings.keep_seconds)

    @property
    def sessions(self) -> "RedisSessions":
        """The conversations of the run's namespace, for a run that has one."""
        from pilothouse_runner.adapters.redis_sessions import RedisSessions

        return RedisSessions(self._client, keep_seconds=self._settings.keep_seconds)

    def look_keeper(self, catalog: Catalog) -> LookKeeper:
        """Return what keeps the looks of an attempt."""
        return LookKeeper(catalog, self.frames.keep_look)

    async def retire(self) -> None:
        """Let the keys go a while from now: the run is over, or its object is gone.

        Where Redis does not take it they stay for as long as those of a run that waits, and go then. The last frames go
        ahead: one flush of Redis's disk for all of it.
        """
        self.frames.flush()
        try:
            await self._client.call("EXPIRE", f"{self._prefix}journal", self._settings.keep_finished_seconds)
        except (RedisUnreachable, RedisUnanswered, RedisRefused):
            return

    async def aclose(self) -> None:
        """Send the last frames and close the connection."""
        self.frames.flush()
        await self._client.aclose()
