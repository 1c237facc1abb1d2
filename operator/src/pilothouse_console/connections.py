"""Connections that ask in time: who sends no whole request, or never its body, holds no connection for long."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 20.0
"""From the first byte of a request, or from the beginning of the connection, until the request is there as a whole."""


class PunctualProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, which by itself waits for ever for a request that has begun."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Take bytes; go on waiting until they are a request."""
        super().data_received(data)
        if self._is_asked():
            self._stop_expecting()
        else:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_expecting()
        super().connection_lost(exc)

    def _is_asked(self) -> bool:
        """Tell whether a request is there as a whole and not answered yet."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._give_up)

    def _stop_expecting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing() and not self._is_asked():
            self.transport.close()
