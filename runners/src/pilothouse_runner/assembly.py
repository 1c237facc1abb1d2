"""The ports of one attempt, put together: the same in a pod and on a laptop but for journal, store, frames, secrets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pilothouse_engine.ports import FrameSink, Journal, Ports, RunStore, Secrets
from pilothouse_runner.adapters.clock import SystemClock
from pilothouse_runner.adapters.functions import ProcessFunctions
from pilothouse_runner.adapters.http import HttpxHttp
from pilothouse_runner.adapters.models import ModelRouter


@asynccontextmanager
async def open_ports(*, journal: Journal, store: RunStore, frames: FrameSink, secrets: Secrets) -> AsyncIterator[Ports]:
    """Give the ports, and close the connections to models afterwards."""
    clock = SystemClock()
    model = ModelRouter(secrets, clock)
    try:
        yield Ports(
            model=model,
            http=HttpxHttp(),
            functions=ProcessFunctions(),
            secrets=secrets,
            journal=journal,
            store=store,
            frames=frames,
            clock=clock,
        )
    finally:
        await model.aclose()
