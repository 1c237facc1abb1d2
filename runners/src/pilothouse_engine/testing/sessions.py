"""Conversations in memory, as strict as the durable ones."""

from pilothouse_engine.ports import SessionKey, SessionsUnavailable, StoredSession


class MemorySessions:
    """Keeps conversations for as long as the process lives; the runs of one process may share it.

    `fail_next` makes the next loads and replaces fail with the given errors, before anything is done; `lose_next` makes
    the next replace store and fail all the same, as where an answer is lost.
    """

    def __init__(self) -> None:
        self._stored: dict[SessionKey, StoredSession] = {}
        self._failures: list[Exception] = []
        self._is_answer_lost = False

    async def load(self, key: SessionKey) -> StoredSession:
        """Return what is stored."""
        self._fail()
        return self._stored.get(key, StoredSession())

    async def replace(self, key: SessionKey, version: int, content: bytes) -> bool:
        """Store the next version, unless there is one already."""
        self._fail()
        if self._stored.get(key, StoredSession()).version != version:
            return False
        self._stored[key] = StoredSession(version + 1, bytes(content))
        if self._is_answer_lost:
            self._is_answer_lost = False
            raise SessionsUnavailable("the answer was lost")
        return True

    def fail_next(self, *errors: Exception) -> None:
        """Fail the next calls, one by one; without arguments, one of them with SessionsUnavailable."""
        self._failures += errors or (SessionsUnavailable("the store of sessions was made to fail"),)

    def lose_next(self) -> None:
        """Let the answer of the next replace be lost."""
        self._is_answer_lost = True

    def _fail(self) -> None:
        if self._failures:
            raise self._failures.pop(0)
