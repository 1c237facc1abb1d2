"""What a check, a judge and a gate say."""

from pilothouse_engine.values import Value


class Allow(Value):
    """The text goes on as it is."""


class Rewrite(Value):
    """This text goes on instead; `note` says what was done, without any of the text."""

    text: str
    note: str


class Refuse(Value):
    """The text does not go on; `reason` says why, without any of the text."""

    reason: str


CheckVerdict = Allow | Rewrite | Refuse


class JudgeHolds(Value):
    """The judge finds that the criteria hold."""

    tokens: int = 0


class JudgeViolated(Value):
    """The judge finds that they do not."""

    reason: str
    tokens: int = 0


class JudgeFailed(Value):
    """The judge gave no verdict: it did not answer, or with something else."""

    message: str
    tokens: int = 0


JudgeVerdict = JudgeHolds | JudgeViolated | JudgeFailed


class Passed(Value):
    """The text may go on as `text`; `notes` say what was done to it and what could not be judged."""

    text: str
    notes: tuple[str, ...] = ()


class Refused(Value):
    """The first check that refused, and why; `artifact` is where it comes from, empty for one of the agent itself."""

    artifact: str
    check: str
    reason: str

    @property
    def message(self) -> str:
        """What a person is told: the artifact, the check and the reason."""
        place = f"{self.check} of artifact {self.artifact}" if self.artifact else self.check
        return f"{place}: {self.reason}"


class GateResult(Value):
    """What came of a gate; the tokens of its judges are the run's."""

    verdict: Passed | Refused
    judge_tokens: int = 0
