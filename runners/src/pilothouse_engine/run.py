"""The one call that advances a run: fresh, resumed or parked, locally or in a pod."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pilothouse_api.plan import Plan
from pilothouse_engine.attempt import Attempt, AttemptEnd, Finished, Lost, Released, Stop
from pilothouse_engine.driver import Driver
from pilothouse_engine.observers import GuardedSink, HookEvent, HookRunner, Observer, Watch
from pilothouse_engine.ports import Ports

__all__ = ["Attempt", "AttemptEnd", "Finished", "Lost", "Released", "Stop", "run_attempt"]


async def run_attempt(
    plan: Plan, ports: Ports, attempt: Attempt, stop: Stop, observers: Sequence[Observer] = ()
) -> AttemptEnd:
    """Advance the run from its journal until it ends, is released, or is lost.

    Raises only for faults (a bug, a journal that is corrupt): the attempt then counts as crashed.
    """
    ports = replace(ports, frames=GuardedSink(ports.frames))
    if not observers and not has_hooks(plan):
        return await Driver(plan, ports, attempt, stop).run()
    watch = Watch(observers, _hook_opener(plan, ports, attempt) if has_hooks(plan) else None)
    try:
        return await Driver(plan, ports, attempt, stop, watch).run()
    finally:
        await watch.aclose()


def has_hooks(plan: Plan) -> bool:
    """Tell whether anything of a plan has hooks."""
    spec = plan.spec
    agents = (step.agent.hooks for step in spec.steps if step.agent is not None)
    planned = (agent.spec.hooks for agent in plan.agents.values())
    return any((spec.hooks, *(step.hooks for step in spec.steps), *agents, *planned))


def _hook_opener(plan: Plan, ports: Ports, attempt: Attempt) -> Callable[[Callable[[HookEvent], None]], HookRunner]:
    from pilothouse_engine.hooks.runner import Hooks  # nothing of it is loaded for a plan without hooks

    return lambda report: Hooks(plan, ports, attempt.settings, report)
