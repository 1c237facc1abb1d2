"""The one call that advances a run: fresh, resumed or parked, locally or in a pod."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from pilothouse_api.structs import Plan
from pilothouse_engine.attempt import Attempt, AttemptEnd, Finished, Lost, Released, Stop
from pilothouse_engine.catalog import Catalog, catalog_of
from pilothouse_engine.driver import Driver
from pilothouse_engine.observers import GuardedSink, HookEvent, HookRunner, Observer, Watch
from pilothouse_engine.ports import Ports

__all__ = ["Attempt", "AttemptEnd", "Finished", "Lost", "Released", "Stop", "run_attempt"]


async def run_attempt(
    plan: Plan | Catalog, ports: Ports, attempt: Attempt, stop: Stop, observers: Sequence[Observer] = ()
) -> AttemptEnd:
    """Advance the run from its journal until it ends, is released, or is lost.

    `plan` may be the catalog of a plan that advances more than one attempt in this process. Raises only for faults (a
    bug, a journal that is corrupt): the attempt then counts as crashed.
    """
    ports = replace(ports, frames=GuardedSink(ports.frames))
    catalog = catalog_of(plan, ports)
    if not observers and not catalog.has_hooks:
        return await Driver(catalog, ports, attempt, stop).run()
    watch = Watch(observers, _hook_opener(catalog.plan, ports, attempt) if catalog.has_hooks else None)
    try:
        return await Driver(catalog, ports, attempt, stop, watch).run()
    finally:
        await watch.aclose()


def _hook_opener(plan: Plan, ports: Ports, attempt: Attempt) -> Callable[[Callable[[HookEvent], None]], HookRunner]:
    from pilothouse_engine.hooks.runner import Hooks  # nothing of it is loaded for a plan without hooks

    return lambda report: Hooks(plan, ports, attempt.settings, report)
