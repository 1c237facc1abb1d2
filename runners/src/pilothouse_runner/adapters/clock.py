"""The system's time."""

import asyncio
import time
from datetime import UTC, datetime


class SystemClock:
    """Clock of the machine."""

    def now(self) -> datetime:
        """Return the wall time, UTC."""
        return datetime.now(UTC)

    monotonic = staticmethod(time.monotonic)
    """Return seconds that only grow; without a frame of Python, since the loop asks for it at each of its steps."""

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)
