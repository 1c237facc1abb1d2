"""What is asked of the API server about callers, how often, and what its answers mean."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from pilothouse_console.access import RIGHT_SECONDS, TOKEN_SECONDS, Access, Caller
from pilothouse_console.problems import Problem
from pilothouse_kubernetes.client import Forbidden, KubernetesClient, Resource, Throttled, Unavailable

pytestmark = pytest.mark.anyio


class Reviews:
    """Answers reviews; the clock stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.is_good = True
        self.error: Exception | None = None

    async def create(self, resource: Resource, namespace: str | None, body: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(resource.kind)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        if resource.kind == "TokenReview":
            user = {"username": body["spec"]["token"], "groups": ["g"], "extra": {"k": ["v"]}}
            return {"status": {"authenticated": self.is_good, "user": user}}
        return {"status": {"allowed": self.is_good}}


def opened() -> tuple[Access, Reviews]:
    reviews = Reviews()
    return Access(cast(KubernetesClient, reviews), lambda: reviews.now), reviews


async def test_a_question_is_asked_once_in_some_seconds_however_many_wait() -> None:
    access, reviews = opened()
    callers = await asyncio.gather(*[access.identify("ada") for _ in range(20)])
    assert set(callers) == {Caller("ada", groups=("g",), extra={"k": ("v",)})}
    caller = callers[0]
    assert caller is not None
    assert all(await asyncio.gather(*[access.may(caller, "get", "a", "r") for _ in range(20)]))
    assert reviews.asked == ["TokenReview", "SubjectAccessReview"]
    reviews.now = max(TOKEN_SECONDS, RIGHT_SECONDS)
    reviews.is_good = False
    assert await access.identify("ada") is None
    assert not await access.may(caller, "get", "a", "r")


async def test_answers_of_one_caller_are_not_those_of_another() -> None:
    access, reviews = opened()
    assert await access.may(Caller("ada"), "get", "a", "r")
    reviews.is_good = False
    assert not await access.may(Caller("bob"), "get", "a", "r")
    assert not await access.may(Caller("ada", groups=("x",)), "get", "a", "r")
    assert not await access.may(Caller("ada"), "patch", "a", "r")
    assert not await access.may(Caller("ada"), "get", "a")
    assert await access.may(Caller("ada"), "get", "a", "r")


async def test_a_caller_who_leaves_takes_no_answer_from_those_who_wait() -> None:
    access, _ = opened()
    leaving, staying = [asyncio.create_task(access.identify("ada")) for _ in range(2)]
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying) is not None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unavailable(0, "x"), "cannot be asked"),
        (Throttled(429, "x", 7.0), "too much to do"),
        (Forbidden(403, "x"), "may not create tokenreviews"),
    ],
)
async def test_where_nobody_can_tell_nobody_is_let_in(error: Exception, said: str) -> None:
    access, reviews = opened()
    reviews.error = error
    with pytest.raises(Problem, match=said) as caught:
        await access.identify("ada")
    assert caught.value.status == 503
    reviews.error = None
    assert await access.identify("ada") is not None  # a failure is not kept


async def test_what_cannot_be_a_token_is_not_asked_about() -> None:
    access, reviews = opened()
    assert await access.identify("") is None
    assert await access.identify("x" * 100_000) is None
    assert reviews.asked == []


@pytest.mark.parametrize(
    ("user", "want"),
    [
        ("system:serviceaccount:a:prun", True),
        ("system:serviceaccount:a:prun-eager", True),
        ("system:serviceaccount:a:deployer", False),
        ("system:serviceaccount:prun:deployer", False),
        ("prun", False),
    ],
)
def test_the_account_of_a_runner_is_known_by_its_name(user: str, want: bool) -> None:
    assert Caller(user).is_runner is want
