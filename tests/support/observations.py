"""An Observation as a run in its third turn gives it."""

from typing import Any

from pilothouse_api.judging import JudgeRequest
from pilothouse_api.observation import Observation


def observation(**fields: Any) -> Observation:
    """Return an Observation; `fields` by their names in JSON."""
    seen = {
        "step": "triage",
        "visit": 1,
        "turn": 3,
        "iteration": 3,
        "maxIterations": 10,
        "spend": {"used": 1200, "budget": 20000},
        "toolCalls": {"lookup": 2},
        "now": "2030-01-01T00:00:00Z",
    }
    return Observation.model_validate(seen | fields)


def judge_request(criteria: str = "No tool is called more than five times.", **fields: Any) -> JudgeRequest:
    """Return a question about such a run; `fields` of JudgeRequest by their names in Python."""
    asked = {"model": "careful", "criteria": criteria, "observation": observation(), "timeout_seconds": 30}
    return JudgeRequest.model_validate(asked | fields)
