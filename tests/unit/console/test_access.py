"""What is asked of the API server about callers, how often, and what its answers mean."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from pilothouse_console.access import (
    AT_ONCE_PER_USER,
    MOST_ASKED,
    REFUSED_IN_LISTS_SECONDS,
    RIGHT_SECONDS,
    TOKEN_SECONDS,
    Access,
    Caller,
)
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
        self.allowed: set[str] | None = None
        self.under_way = self.most_under_way = 0

    async def create(self, resource: Resource, namespace: str | None, body: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(resource.kind)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if self.error is not None:
            raise self.error
        if resource.kind == "TokenReview":
            user = {"username": body["spec"]["token"], "groups": ["g"], "extra": {"k": ["v"]}}
            return {"status": {"authenticated": self.is_good, "user": user}}
        place = body["spec"]["resourceAttributes"]["namespace"]
        return {"status": {"allowed": self.is_good if self.allowed is None else place in self.allowed}}


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


def in_namespaces(count: int) -> list[str]:
    return [f"ns-{number}" for number in range(count)]


async def test_a_list_of_all_namespaces_asks_about_each_seldom_and_few_at_once() -> None:
    access, reviews = opened()
    reviews.allowed = {"ns-3", "ns-7"}
    ada = Caller("ada")
    for reviews.now in (0, 3, 6, 9):
        assert await access.may_list_in(ada, in_namespaces(900)) == {"ns-3", "ns-7"}
    assert (len(reviews.asked), reviews.most_under_way) == (900, AT_ONCE_PER_USER)
    reviews.allowed = {"ns-3", "ns-9"}
    assert await access.may(ada, "list", "ns-9")  # who asks for one namespace need not wait, and the list knows it too
    reviews.now = RIGHT_SECONDS
    assert await access.may_list_in(ada, in_namespaces(900)) == {"ns-3", "ns-9"}
    assert len(reviews.asked) == 903
    reviews.now = REFUSED_IN_LISTS_SECONDS
    reviews.allowed = {"ns-4"}
    assert await access.may_list_in(ada, in_namespaces(900)) == {"ns-4"}


async def test_one_user_causes_so_many_reviews_and_others_go_on_meanwhile() -> None:
    access, reviews = opened()
    reviews.allowed = {"ns-1300"}
    with pytest.raises(Problem, match="more than 1000 namespaces were asked for") as refused:
        await access.may_list_in(Caller("ada"), in_namespaces(1500))
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "5")
    assert len(reviews.asked) == MOST_ASKED
    assert await access.may_list_in(Caller("bob"), in_namespaces(5)) == frozenset()
    assert await access.may(Caller("ada"), "list", "ns-1300")
    reviews.now = 5
    assert await access.may_list_in(Caller("ada"), in_namespaces(1500)) == {"ns-1300"}


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
