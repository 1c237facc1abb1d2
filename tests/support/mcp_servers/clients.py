"""What tests need of a client, and of the processes that it starts."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from pilothouse_runner.adapters.mcp import SdkMcp

MakeClient = Callable[..., AbstractAsyncContextManager[SdkMcp]]


def children() -> set[int]:
    """Return the processes that this one has started and that are still there."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found |= {int(pid) for pid in (task / "children").read_text().split()}
        except OSError:
            pass  # the thread has ended meanwhile
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until(is_so: Callable[[], bool], seconds: float = 30.0) -> None:
    """Return when something outside of this process is so; TimeoutError when it does not become so."""
    async with asyncio.timeout(seconds):
        while not is_so():  # noqa: ASYNC110 - no event of this process tells of it
            await asyncio.sleep(0.01)
