"""Where a run goes after a step (api.md "Signals and routes")."""

from pilothouse_api.signals import DEFAULT, END, UNROUTED_REASON
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.values import Value

COMPLETE = "Complete"


class Next(Value):
    """The next step."""

    step: str


class EndRun(Value):
    """The run is over. `message` is empty where nothing went wrong."""

    reason: str
    message: str = ""


def route(catalog: Catalog, step_id: str, signal: str) -> Next | EndRun:
    """Return where a step's signal leads."""
    routes = catalog.steps[step_id].routes
    target = routes.get(signal)
    if target == END:
        return EndRun(COMPLETE)
    if target is not None:
        return Next(target)
    if signal == DEFAULT:
        following = catalog.step_after(step_id)
        return EndRun(COMPLETE) if following is None else Next(following)
    known = ", ".join(routes) or "none"
    return EndRun(
        UNROUTED_REASON.get(signal, "UnroutedSignal"),
        f"step {step_id} ended with {signal:.63}, which its routes do not map (mapped: {known}): add a route for it",
    )


def is_mapped(catalog: Catalog, step_id: str, signal: str) -> bool:
    """Tell whether a step's routes name a signal."""
    return signal in catalog.steps[step_id].routes
