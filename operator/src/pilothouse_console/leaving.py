"""Work for a caller that ends with the caller's patience: who has left is not waited for."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")
U = TypeVar("U")


async def while_there(receive: Receive, work: Coroutine[Any, Any, T], otherwise: U) -> T | U:
    """Return what comes of `work`, or `otherwise` where the caller leaves first; the request's body has been read."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_wait_for_leave(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else otherwise
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait({working, leaving})


async def _wait_for_leave(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
