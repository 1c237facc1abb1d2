"""What a session needs of a transport, whatever carries it."""

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from pilothouse_runner.adapters.mcp.exchange import Exchange

Streams = tuple[Any, Any]
"""Read and write stream of the SDK's session."""


class TransportUnusable(Exception):
    """The entry of the server cannot be used as it is written, or its program cannot be started; safe to show."""


class Transport(Protocol):
    """Carries the messages of one session."""

    def connect(self) -> AbstractAsyncContextManager[Streams]:
        """Give the streams of a session; raises TransportUnusable."""
        ...

    def begin(self, exchange: Exchange) -> None:
        """Somebody waits for an answer from now on."""
        ...

    def end(self, exchange: Exchange) -> None:
        """Nobody waits for this one any more."""
        ...

    def last_words(self) -> str:
        """Return why the server went away, where the transport knows; else nothing."""
        ...
