"""Waiting for what happens between the clusters of a fleet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def eventually(look: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> Any:
    """Return the first truthy answer; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := await look()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.02)
    return found
