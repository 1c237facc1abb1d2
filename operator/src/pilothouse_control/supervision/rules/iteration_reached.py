"""IterationReached: an iteration was reached."""

from pilothouse_api.observation import Observation
from pilothouse_api.v1alpha1.supervisor import IterationReached
from pilothouse_control.supervision.rules.verdict import Verdict


def evaluate(observation: Observation, params: IterationReached) -> Verdict | None:
    """Fire at iteration `count` of the visit and at later ones."""
    if observation.iteration < params.count:
        return None
    return Verdict(
        f"iteration {observation.iteration} of {observation.max_iterations} is reached; {params.count} fires"
    )
