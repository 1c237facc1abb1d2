"""The ports of one attempt, put together: the same in a pod and on a laptop but for journal, store, frames, secrets."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from pilothouse_api.plan import Plan
from pilothouse_engine.ports import FrameSink, Journal, Ports, RunStore, Secrets
from pilothouse_runner.adapters.clock import SystemClock
from pilothouse_runner.adapters.functions import ProcessFunctions
from pilothouse_runner.adapters.http import HttpxHttp
from pilothouse_runner.adapters.models import ModelRouter


def named_environment(plan: Plan, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `runTemplate.env` names: a pod has their values, a laptop those that are written."""
    named: dict[str, str] = {}
    for entry in plan.pod.get("env") or ():
        name = str(entry.get("name"))
        value = entry["value"] if "value" in entry else environment.get(name)
        if value is not None:
            named[name] = str(value)
    return named


@asynccontextmanager
async def open_ports(
    *, journal: Journal, store: RunStore, frames: FrameSink, secrets: Secrets, environment: Mapping[str, str]
) -> AsyncIterator[Ports]:
    """Give the ports, and close the connections to models afterwards; `environment` is for Function steps."""
    clock = SystemClock()
    model = ModelRouter(secrets, clock)
    try:
        yield Ports(
            model=model,
            http=HttpxHttp(),
            functions=ProcessFunctions(environment),
            secrets=secrets,
            journal=journal,
            store=store,
            frames=frames,
            clock=clock,
        )
    finally:
        await model.aclose()
