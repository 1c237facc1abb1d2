"""One request to a server and what is known of its fate, seen from the wire.

The SDK tells of a failure in its own words, which mix the transport's faults with the server's; whether a request has
left is not among them. So the transports write it down here. The one that belongs to a request is found by a context
variable: the SDK carries the context of whoever asks into the tasks that send.
"""

import asyncio
from contextvars import ContextVar
from typing import Literal

from msgspec import Struct, field

FailureKind = Literal["Timeout", "Connection", "Unavailable", "Credentials", "Protocol", "TooLarge", "JsonRpc"]

OVERHEAD_BYTES = 16_384
"""What a protocol may need around a result."""


class Exchange(Struct, eq=False):
    """Fate of one request.

    `seconds` is all the time that whoever asks has. `status`: the last HTTP status.
    `sent`: the request may have reached the server.
    `is_refused`: the server said that it did not take it, so that no effect can have happened.
    `told`: the server was told, or its connection shows it, that nobody waits any more.
    """

    max_bytes: int
    seconds: float
    idempotency_key: str | None = None
    sent: bool = False
    is_refused: bool = False
    kind: FailureKind | None = None
    message: str = ""
    status: int | None = None
    resumptions: int = 0
    credentials: set[str] = field(default_factory=set)
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    told: asyncio.Event = field(default_factory=asyncio.Event)
    _received: int = 0

    def fail(self, kind: FailureKind, message: str, *, is_refused: bool = False) -> None:
        """Note why there will be no answer; the first reason stays."""
        if self.kind is None:
            self.kind, self.message, self.is_refused = kind, message, is_refused
            self.failed.set()

    def take(self, size: int) -> bool:
        """Count bytes that came; False, and failed, when they are too many."""
        self._received += size
        if self._received <= self.max_bytes + OVERHEAD_BYTES:
            return True
        self.fail("TooLarge", f"the answer is larger than {self.max_bytes:,} bytes")
        return False


CANCELLED = "notifications/cancelled"

CURRENT: ContextVar[Exchange] = ContextVar("pilothouse_mcp_exchange")
