"""What a check, a judge and a gate say."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allow:
    """The text goes on as it is."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """This text goes on instead; `note` says what was done, without any of the text."""

    text: str
    note: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The text does not go on; `reason` says why, without any of the text."""

    reason: str


CheckVerdict = Allow | Rewrite | Refuse


@dataclass(frozen=True, slots=True)
class JudgeHolds:
    """The judge finds that the criteria hold."""

    tokens: int = 0


@dataclass(frozen=True, slots=True)
class JudgeViolated:
    """The judge finds that they do not."""

    reason: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class JudgeFailed:
    """The judge gave no verdict: it did not answer, or with something else."""

    message: str
    tokens: int = 0


JudgeVerdict = JudgeHolds | JudgeViolated | JudgeFailed


@dataclass(frozen=True, slots=True)
class Passed:
    """The text may go on as `text`; `notes` say what was done to it and what could not be judged."""

    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The first check that refused, and why; `artifact` is where it comes from, empty for one of the agent itself."""

    artifact: str
    check: str
    reason: str

    @property
    def message(self) -> str:
        """What a person is told: the artifact, the check and the reason."""
        place = f"{self.check} of artifact {self.artifact}" if self.artifact else self.check
        return f"{place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class GateResult:
    """What came of a gate; the tokens of its judges are the run's."""

    verdict: Passed | Refused
    judge_tokens: int = 0
