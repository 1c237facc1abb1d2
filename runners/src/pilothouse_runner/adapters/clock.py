"""The system's time."""

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """Clock of the machine."""

    def now(self) -> datetime:
        """Return the wall time, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that only grow."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)
