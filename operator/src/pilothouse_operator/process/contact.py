"""Keeping in touch with the API server: an operator whose runs rest asks it nothing, and counts as dead for its probe.

Watches may stay open and silent for minutes where nothing happens, and the Lease is renewed over a connection of its
own: neither tells whether the connections that reconcilers use still work.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from pilothouse_kubernetes.client import LEASES, ApiError, NotFound
from pilothouse_operator.reconcile.desk import Desk

TOUCH_SECONDS = 30.0
"""How long nothing need be heard; well below what the probe allows."""
RETRY_SECONDS = 10.0

log = structlog.get_logger()


async def keep_in_touch(desk: Desk) -> None:
    """Ask the API server for something small whenever it has said nothing for a while; for ever."""
    while True:
        pause = await touch(desk)
        await asyncio.sleep(pause)


async def touch(desk: Desk, monotonic: Callable[[], float] = time.monotonic) -> float:
    """Ask once where it is time to; return after how many seconds to look again."""
    silence = monotonic() - desk.metrics.last_contact_at
    if silence < TOUCH_SECONDS:
        return TOUCH_SECONDS - silence
    try:
        await desk.client.get(LEASES, desk.settings.namespace, desk.settings.lease_name)
    except NotFound:
        pass  # an answer as well
    except ApiError as error:
        log.warning("contact.lost", error=str(error), silent_seconds=round(silence))
    return RETRY_SECONDS
