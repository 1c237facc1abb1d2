"""UndeclaredToolCalled: the model asked for a tool that it does not have."""

from pilothouse_api.observation import Observation
from pilothouse_control.supervision.rules.verdict import Verdict


def evaluate(observation: Observation, params: None) -> Verdict | None:
    """Fire at the first call of the visit whose tool was not declared; its name is not told."""
    count = observation.undeclared_tool_calls
    return Verdict(f"{count} calls name a tool that the agent does not have") if count > 0 else None
