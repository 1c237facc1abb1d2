"""ToolRepeated: a tool was called often."""

from pilothouse_api.observation import Observation
from pilothouse_api.v1alpha1.supervisor import ToolRepeated
from pilothouse_control.supervision.rules.verdict import Verdict


def evaluate(observation: Observation, params: ToolRepeated) -> Verdict | None:
    """Fire where the tool, or any single one where none is named, has `count` calls of the visit or more."""
    calls = observation.tool_calls
    counted = calls if params.tool is None else {params.tool: calls.get(params.tool, 0)}
    tool = max(counted, key=lambda name: (counted[name], name), default=None)
    if tool is None or counted[tool] < params.count:
        return None
    return Verdict(f"tool {tool} was called {counted[tool]} times; the rule allows fewer than {params.count}")
