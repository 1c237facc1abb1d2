"""IdenticalCallRepeated: the same call was asked for again and again."""

from pilothouse_api.observation import Observation
from pilothouse_api.v1alpha1.supervisor import IdenticalCallRepeated
from pilothouse_control.supervision.rules.verdict import Verdict


def evaluate(observation: Observation, params: IdenticalCallRepeated) -> Verdict | None:
    """Fire where `count` identical calls or more were asked for in a row, guarded and denied ones counted."""
    asked = observation.identical_calls
    if asked < params.count:
        return None
    return Verdict(f"the same call was asked for {asked} times in a row; the rule allows fewer than {params.count}")
