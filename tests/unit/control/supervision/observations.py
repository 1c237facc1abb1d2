"""An Observation to be judged; a test changes the one thing that it is about."""

from typing import Any

from pilothouse_api.observation import Observation, Spend


def an_observation(**changes: Any) -> Observation:
    fields: dict[str, Any] = {
        "step": "triage",
        "visit": 2,
        "turn": 7,
        "iteration": 4,
        "max_iterations": 8,
        "spend": Spend(used=400, budget=1000, used_usd="0.30"),
        "visit_spend": Spend(used=200),
        "tool_calls": {"pay": 3, "look": 1},
        "last_progress_time": "2026-01-01T00:00:00Z",
        "idle_seconds": 60,
        "now": "2026-01-01T00:01:00Z",
    }
    return Observation(**{**fields, **changes})
