"""The one call that advances a run: fresh, resumed or parked, locally or in a pod."""

from pilothouse_api.plan import Plan
from pilothouse_engine.attempt import Attempt, AttemptEnd, Finished, Lost, Released, Stop
from pilothouse_engine.driver import Driver
from pilothouse_engine.ports import Ports

__all__ = ["Attempt", "AttemptEnd", "Finished", "Lost", "Released", "Stop", "run_attempt"]


async def run_attempt(plan: Plan, ports: Ports, attempt: Attempt, stop: Stop) -> AttemptEnd:
    """Advance the run from its journal until it ends, is released, or is lost.

    Raises only for faults (a bug, a journal that is corrupt): the attempt then counts as crashed.
    """
    return await Driver(plan, ports, attempt, stop).run()
