"""What follows a failed attempt of a model call: the same model again, the next fallback, or the end (engine.md §5).

Pure. `retry` counts the attempts of one model; its deadline is counted from the first attempt of a call, over all of
its models. Within it an attempt may begin and must end, but the first one of each model: that has its own timeout.
"""

from collections.abc import Mapping

from pilothouse_api.structs import Retry
from pilothouse_engine.catalog import PlannedStep
from pilothouse_engine.facts import Cause, ModelFailed
from pilothouse_engine.ports import RETRIED_FAILURES
from pilothouse_engine.state import Visit
from pilothouse_engine.values import Value

FAILURE_CAUSES: Mapping[str, Cause] = {
    "Timeout": "ModelTimeout",
    "Connection": "ModelConnection",
    "RateLimited": "ModelRateLimited",
    "ServerError": "ModelServerError",
    "Garbage": "ModelGarbage",
    "Authentication": "ModelAuthentication",
    "InvalidRequest": "ModelInvalidRequest",
    "ContextWindowExceeded": "ContextWindowExceeded",
    "Refused": "ModelRefused",
    "ScriptSpent": "ScriptSpent",
}
"""The cause that an exit names for each kind of failure of a model."""


SHORTEST_ATTEMPT_SECONDS = 1.0
"""A retry that wakes at its deadline gets this: to be cut off at once it would be charged for nothing."""


class Attempt(Value):
    """The next attempt of a model call: which endpoint, which of its attempts, and when (epoch seconds)."""

    endpoint: int
    number: int
    due: float


def attempt_after_failure(planned: PlannedStep, visit: Visit) -> Attempt | None:
    """Return the attempt that follows the one that failed, or None where the call has failed for good."""
    failure, model, retry = visit.failure, visit.model, planned.agent.retry
    assert failure is not None and model is not None
    if failure.kind == "ContextWindowExceeded":  # a tighter level is no new attempt
        return Attempt(model.endpoint, model.attempt, failure.at)
    due = failure.at + retry_wait(retry, model.attempt, failure)
    if _is_retried(retry, failure.kind) and model.attempt < retry.attempts and due < deadline_of(retry, visit):
        return Attempt(model.endpoint, model.attempt + 1, due)
    if failure.kind == "Refused" or model.endpoint + 1 >= len(planned.endpoints):
        return None
    return Attempt(model.endpoint + 1, 1, failure.at)


def _is_retried(retry: Retry, kind: str) -> bool:
    cause = "Timeout" if kind == "Timeout" else "Error"
    return kind in RETRIED_FAILURES and cause in retry.causes


def retry_wait(retry: Retry, attempt: int, failure: ModelFailed) -> float:
    """Return the seconds to wait after a failed attempt: the backoff, or longer where the provider asks for it."""
    backoff = min(retry.backoff_seconds * 2 ** (attempt - 1), retry.max_backoff_seconds)
    return max(float(backoff), failure.retry_after or 0.0)


def deadline_of(retry: Retry, visit: Visit) -> float:
    """Return when the last attempt of the call under way must have ended (epoch seconds)."""
    return visit.trying_since + retry.deadline_seconds


def attempt_seconds(retry: Retry, visit: Visit, attempt: int, now: float, own: float) -> float:
    """Return the seconds that an attempt may take: `own`, and for a retry no more than what is left."""
    return own if attempt == 1 else min(own, max(deadline_of(retry, visit) - now, SHORTEST_ATTEMPT_SECONDS))


def attempt_after_rejection(planned: PlannedStep, visit: Visit, now: float) -> Attempt | None:
    """Return the attempt that asks a completion again whose answer was not what was asked for (cause ParseError)."""
    model, retry = visit.model, planned.agent.retry
    assert model is not None
    if "ParseError" not in retry.causes:
        return None
    if model.attempt < retry.attempts and now < deadline_of(retry, visit):
        return Attempt(model.endpoint, model.attempt + 1, now)
    return Attempt(model.endpoint + 1, 1, now) if model.endpoint + 1 < len(planned.endpoints) else None


def say_failure(planned: PlannedStep, visit: Visit) -> str:
    """Return what went wrong, and whether the provider asked for a longer wait than there is."""
    failure, retry = visit.failure, planned.agent.retry
    assert failure is not None
    if failure.retry_after is None or failure.at + failure.retry_after < deadline_of(retry, visit):
        return failure.message
    seconds = retry.deadline_seconds
    return f"{failure.message}; it asks to wait {failure.retry_after:g} s, past retry.deadlineSeconds ({seconds})"
