"""Judging: what the host of a run asks the platform's judge, and what comes back (supervision.md "Judge").

The operator asks a service over HTTP, `pilothouse run` in its own process, both by the port `Judge`. The values are the
bodies of `POST /v1/verdicts`, in their JSON form; what a newer writer adds is ignored.
"""

from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from pilothouse_api.observation import Observation
from pilothouse_api.v1alpha1.base import StatusModel
from pilothouse_api.v1alpha1.common import Name

VERDICTS_PATH = "/v1/verdicts"
"""POST: a JudgeRequest, answered by a JudgeAnswer. Status 200 where it was asked, else a JudgeFailure says why not."""
MODELS_PATH = "/v1/models"
"""GET: `{"models": [names]}`."""

MAX_CRITERIA_CHARS = 65_536
MAX_REASON_CHARS = 300
MAX_FAILURE_CHARS = 500

JudgeFailureType = Literal[
    "Timeout",  # no verdict within the request's time
    "BadAnswer",  # the model answered, but no verdict
    "Unavailable",  # the service, or the endpoint behind it, gave no answer
    "BudgetExceeded",  # judge.tokenBudget is spent; said by the host, which then does not ask
    "UnknownModel",  # the platform's table has no model of that name
    "CriteriaMissing",  # the criteria cannot be read; said by the host, which then does not ask
    "Refused",  # the provider's own policy, or the service does not know who asks
]


class JudgeRequest(StatusModel):
    """One question: does this run, as far as it is seen, keep to the criteria?"""

    model: Name
    """Name in the platform's table (chart value judge.models)."""
    criteria: Annotated[str, Field(max_length=MAX_CRITERIA_CHARS)]
    """What must hold: an author's text, never one of the run. Where it is longer, the host says CriteriaMissing."""
    observation: Observation
    """All that the judge sees of the run."""
    timeout_seconds: Annotated[int, Field(ge=1, le=600)]
    """An answer is there within this time."""


class Verdict(StatusModel):
    """What the judge says."""

    passed: Annotated[bool, Field(strict=True)]
    """False: the criteria are being violated, and the agent must be stopped or corrected now."""
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS)]
    """Why, on one line; never empty where `passed` is false."""
    tokens: Annotated[int, Field(ge=0)] = 0
    """What it took; bounded from above where the endpoint did not count."""


class JudgeFailure(StatusModel):
    """Why there is no verdict."""

    type: JudgeFailureType
    """Whose doing it is; the reason of a fail-closed action is `judge unavailable (<type>)`."""
    message: Annotated[str, Field(max_length=MAX_FAILURE_CHARS)]
    """For people, on one line: no key, no criteria, nothing of the Observation."""
    tokens: Annotated[int, Field(ge=0)] = 0
    """What may be charged for it nevertheless."""


JudgeAnswer = Verdict | JudgeFailure


class Judge(Protocol):
    """Gives verdicts. Nothing it does raises but a cancellation."""

    async def ask(self, request: JudgeRequest) -> JudgeAnswer:
        """Return a verdict or why there is none, within the request's time and little more."""
        ...

    async def models(self) -> frozenset[str] | JudgeFailure:
        """Return the names of the platform's table, or why nobody says; within seconds. Asks no endpoint."""
        ...


def parse_answer(raw: Any) -> JudgeAnswer:
    """Return an answer from its JSON form; raises ValueError."""
    if isinstance(raw, dict) and "type" in raw:
        return JudgeFailure.model_validate(raw)
    return Verdict.model_validate(raw)
