"""NoProgressFor: nothing happened."""

from pilothouse_api.observation import Observation
from pilothouse_api.v1alpha1.supervisor import NoProgressFor
from pilothouse_control.supervision.rules.verdict import Verdict


def evaluate(observation: Observation, params: NoProgressFor) -> Verdict | None:
    """Fire where nothing was settled in `seconds` of unparked time."""
    if observation.idle_seconds < params.seconds:
        return None
    return Verdict(f"no progress for {observation.idle_seconds} s; the rule allows less than {params.seconds} s")
