"""What a rule says when it fires."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """Something is wrong; `reason` is a sentence of numbers and of names of the plan."""

    reason: str
