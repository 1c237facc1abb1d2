"""What follows a failed attempt of a model call, as tables (engine.md §5); in a run: test_model_errors.py."""

from typing import Any, get_args

import pytest

from pilothouse_api.structs import Retry
from pilothouse_engine.catalog import Catalog, PlannedStep
from pilothouse_engine.facts import ModelFailed, ModelStarted, ReplyRejected
from pilothouse_engine.ports import RETRIED_FAILURES, FailureKind
from pilothouse_engine.retries import (
    Attempt,
    attempt_after_failure,
    attempt_after_rejection,
    attempt_seconds,
    retry_wait,
)
from pilothouse_engine.state import Visit
from unit.engine.scenarios import ListModel, Scenario, agent_step, build_plan, failure, scenario, text

pytestmark = pytest.mark.anyio

NOW = 1000.0


def planned_step(fallbacks: int = 0, **retry: Any) -> PlannedStep:
    model = {"name": "m", "maxOutputTokens": 100, "fallbacks": [{"name": f"f{n}"} for n in range(fallbacks)]}
    plan = build_plan(agent_step(model=model, retry={"backoffSeconds": 2, "maxBackoffSeconds": 30} | retry))
    return Catalog(plan, lambda endpoint: None, lambda endpoint: None, is_durable=True).agent("work")


def failed_visit(
    kind: str, attempt: int = 1, endpoint: int = 0, retry_after: float | None = None, since: float = NOW
) -> Visit:
    visit = Visit("work", 1, "Agent", 0.0, stage="Calling", trying_since=since)
    visit.model = ModelStarted(since, 1, 1, "Regular", endpoint, attempt, 10, 10)
    visit.failure = ModelFailed(NOW, kind, "it failed", retry_after=retry_after)
    return visit


KINDS = {
    "Timeout": ("again", "Timeout"),
    "Connection": ("again", "Error"),
    "RateLimited": ("again", "Error"),
    "ServerError": ("again", "Error"),
    "Garbage": ("again", "Error"),
    "Authentication": ("fallback", None),
    "InvalidRequest": ("fallback", None),
    "ScriptSpent": ("fallback", None),
    "Refused": ("end", None),
    "ContextWindowExceeded": ("tighter", None),
}
NEXT = {
    "again": Attempt(0, 2, NOW + 2),
    "fallback": Attempt(1, 1, NOW),
    "tighter": Attempt(0, 1, NOW),
    "end": None,
}


def test_every_kind_of_failure_has_a_row() -> None:
    assert set(KINDS) == set(get_args(FailureKind))
    assert {kind for kind, (then, _) in KINDS.items() if then == "again"} == RETRIED_FAILURES


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_each_kind_of_failure(kind: str) -> None:
    assert attempt_after_failure(planned_step(1), failed_visit(kind)) == NEXT[KINDS[kind][0]]


@pytest.mark.parametrize("kind", [kind for kind, (_, cause) in KINDS.items() if cause is not None])
@pytest.mark.parametrize("causes", [[], ["Timeout"], ["Error"], ["Timeout", "Error"]])
def test_only_the_causes_that_are_named_are_retried(kind: str, causes: list[str]) -> None:
    then = attempt_after_failure(planned_step(1, causes=causes), failed_visit(kind))
    assert then == NEXT["again" if KINDS[kind][1] in causes else "fallback"]


@pytest.mark.parametrize(
    ("fallbacks", "endpoint", "attempt", "want"),
    [
        (0, 0, 1, Attempt(0, 2, NOW + 2)),
        (0, 0, 2, Attempt(0, 3, NOW + 4)),
        (0, 0, 3, None),
        (2, 0, 3, Attempt(1, 1, NOW)),
        (2, 1, 1, Attempt(1, 2, NOW + 2)),
        (2, 1, 3, Attempt(2, 1, NOW)),
        (2, 2, 3, None),
    ],
)
def test_each_model_has_attempts_of_its_own(fallbacks: int, endpoint: int, attempt: int, want: Attempt | None) -> None:
    assert attempt_after_failure(planned_step(fallbacks), failed_visit("ServerError", attempt, endpoint)) == want


@pytest.mark.parametrize(
    ("attempt", "retry_after", "want"),
    [(1, None, 2), (2, None, 4), (5, None, 30), (1, 1.0, 2), (1, 17.5, 17.5), (5, 31.0, 31)],
)
def test_the_wait_grows_and_is_never_shorter_than_the_provider_asks(
    attempt: int, retry_after: float | None, want: float
) -> None:
    retry = Retry(backoff_seconds=2, max_backoff_seconds=30)
    assert retry_wait(retry, attempt, ModelFailed(NOW, "RateLimited", "", retry_after=retry_after)) == want


@pytest.mark.parametrize(
    ("age", "retry_after", "fallbacks", "want"),
    [
        (50, None, 0, Attempt(0, 2, NOW + 2)),
        (57.9, None, 0, Attempt(0, 2, NOW + 2)),
        (58, None, 0, None),
        (0, 59.0, 0, Attempt(0, 2, NOW + 59)),
        (0, 60.0, 0, None),
        (0, 60.0, 1, Attempt(1, 1, NOW)),  # another model owes nobody the wait
        (400, None, 1, Attempt(1, 1, NOW)),  # and is tried once however long it took to get here
    ],
)
def test_the_deadline_is_of_all_attempts_and_waits(
    age: float, retry_after: float | None, fallbacks: int, want: Attempt | None
) -> None:
    visit = failed_visit("RateLimited", retry_after=retry_after, since=NOW - age)
    assert attempt_after_failure(planned_step(fallbacks, deadlineSeconds=60), visit) == want


@pytest.mark.parametrize(
    ("attempt", "age", "want"), [(1, 0, 45), (1, 400, 45), (2, 10, 45), (2, 20, 40), (3, 59, 1), (3, 61, 1)]
)
def test_a_retry_ends_with_the_deadline_and_a_first_attempt_with_its_own_timeout(
    attempt: int, age: float, want: float
) -> None:
    visit = failed_visit("Timeout", since=NOW - age)
    assert attempt_seconds(Retry(deadline_seconds=60), visit, attempt, NOW, 45.0) == want


@pytest.mark.parametrize(
    ("causes", "attempt", "endpoint", "age", "want"),
    [
        (["Error"], 1, 0, 0, None),
        (["ParseError"], 1, 0, 0, Attempt(0, 2, NOW)),
        (["ParseError"], 3, 0, 0, Attempt(1, 1, NOW)),
        (["ParseError"], 1, 1, 0, Attempt(1, 2, NOW)),
        (["ParseError"], 3, 1, 0, None),
        (["ParseError"], 1, 1, 61, None),
    ],
)
def test_an_answer_that_cannot_be_read_is_asked_for_again(
    causes: list[str], attempt: int, endpoint: int, age: float, want: Attempt | None
) -> None:
    visit = failed_visit("Timeout", attempt, endpoint, since=NOW - age)
    assert attempt_after_rejection(planned_step(1, causes=causes, deadlineSeconds=60), visit, NOW) == want


# ---------------------------------------------------------------- completions, in a run


def completion(turns: list[Any], fallbacks: int = 0, **retry: Any) -> Scenario:
    model = {"name": "m", "maxOutputTokens": 100, "fallbacks": [{"name": f"f{n}"} for n in range(fallbacks)]}
    agent = {
        "mode": "Completion",
        "model": model,
        "prompt": {"inline": "Which?"},
        "outcome": {"enum": ["yes", "no"], "format": "Text"},
        "retry": {"attempts": 3, "causes": ["Error", "ParseError"], "backoffSeconds": 0} | retry,
    }
    return scenario(turns, {"id": "ask", "kind": "Agent", "agent": agent, "routes": {"yes": "end", "no": "end"}})


async def attempts_of(run: Scenario) -> list[tuple[int, int]]:
    return [(fact.endpoint, fact.attempt) for fact in await run.facts_of(ModelStarted)]


async def test_attempts_are_counted_over_all_causes() -> None:
    run = completion([text("maybe"), failure("ServerError"), text("perhaps")])
    end = await run.finish()
    assert end.exit.error is not None
    assert end.exit.error.type == "InvalidOutcome"
    assert await attempts_of(run) == [(0, 1), (0, 2), (0, 3)]


async def test_the_fallback_is_asked_where_the_answers_of_a_model_cannot_be_read() -> None:
    run = completion([text("maybe"), text("perhaps"), text("yes")], fallbacks=1, attempts=2)
    assert (await run.finish()).exit.signal == "yes"
    assert await attempts_of(run) == [(0, 1), (0, 2), (1, 1)]
    assert isinstance(run.model, ListModel)
    assert [len(request.messages) for request in run.model.requests] == [2, 2, 2]


async def test_the_deadline_holds_for_answers_that_are_asked_for_again() -> None:
    async def slow(request: Any) -> Any:
        await run.clock.sleep(40)
        return text("maybe")

    run = completion([slow] * 5, attempts=10, deadlineSeconds=60)
    end = await run.finish()
    assert end.exit.error is not None
    assert await attempts_of(run) == [(0, 1), (0, 2)]
    assert end.exit.error.type == "ModelTimeout"
    assert run.clock.monotonic() == 60


async def test_a_crash_forgets_no_attempt() -> None:
    class Crash(Exception):
        pass

    def crash(request: Any) -> Any:
        raise Crash

    run = completion([text("maybe"), crash, text("perhaps"), text("yes")])
    with pytest.raises(Crash):
        await run.attempt()
    assert (await run.finish()).exit.signal == "yes"
    assert await attempts_of(run) == [(0, 1), (0, 2), (0, 2), (0, 3)]
    assert [fact.attempt for fact in await run.facts_of(ReplyRejected)] == [2, 3]
