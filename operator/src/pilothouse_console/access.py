"""Who calls, and what may they: TokenReview and SubjectAccessReview, their answers kept for some seconds.

The caller's rights are asked for, never this process's own: its ServiceAccount may patch every run.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from pilothouse_api.names import GROUP
from pilothouse_console.problems import Problem, away
from pilothouse_kubernetes.client import (
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    ApiError,
    Forbidden,
    KubernetesClient,
    Throttled,
)

TOKEN_SECONDS = 10.0
"""How long a token that was found good is taken for good."""
RIGHT_SECONDS = 10.0
"""How long an answer on a right holds."""
REFUSED_SECONDS = 3.0
"""The same of an answer that was no: who is given a right does not want to wait."""
REFUSED_IN_LISTS_SECONDS = 30.0
"""The same where many namespaces are asked about at once, as for a list of all: most of them say no."""
AT_ONCE = 16
"""Reviews under way at once: a storm of made-up tokens leaves connections for everything else."""
AT_ONCE_PER_USER = 4
"""The same of one user's lists of all namespaces: nobody else waits for them."""
MOST_ASKED = 1000
"""Reviews at one time for lists of all namespaces of one user: who has asked more waits."""
ASKED_PER_SECOND = 100.0
"""How fast these come back."""
MOST_USERS = 4096
MOST_TOKENS = 4096
MOST_RIGHTS = 20_000
LONGEST_TOKEN = 16 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as the API server knows them."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    @property
    def is_runner(self) -> bool:
        """Whether this is the ServiceAccount of a runner, whose name begins with `prun`: an agent steers no run."""
        kind, _, name = self.user.rpartition(":")
        return kind.startswith("system:serviceaccount:") and name.startswith("prun")


class Access:
    """Asks the API server, each question at most once in some seconds however many callers wait for its answer."""

    def __init__(self, client: KubernetesClient, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._tokens: Answers[Caller | None] = Answers(MOST_TOKENS, monotonic)
        self._rights: Answers[bool] = Answers(MOST_RIGHTS, monotonic)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._monotonic = monotonic
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    async def identify(self, token: str) -> Caller | None:
        """Return whose token it is, None for one that is not valid. Raises Problem where nobody can tell."""
        if not token or len(token) > LONGEST_TOKEN:
            return None
        key = hashlib.sha256(token.encode()).digest()
        return await self._tokens.get(key, lambda: self._review_token(token))

    async def may(self, caller: Caller, verb: str, namespace: str = "", name: str = "") -> bool:
        """Tell whether a caller may do something with runs: of all namespaces, of one, or with one run.

        Raises Problem where nobody can tell.
        """
        key = (caller, verb, namespace, name)
        return await self._rights.get(key, lambda: self._review_right(caller, verb, namespace, name), _is_new)

    async def may_list_in(self, caller: Caller, namespaces: Iterable[str]) -> frozenset[str]:
        """Return those of many namespaces whose runs a caller may list.

        Raises Problem where nobody can tell, and where it would be more reviews than one user may cause in a time:
        those that were done stand, so that who comes back gets on.
        """
        budget = self._budget(caller.user)

        async def may_list(one: str) -> bool:
            return await self._rights.get((caller, "list", one, ""), partial(self._review_in_turn, budget, caller, one))

        there = sorted(namespaces)
        answers = await asyncio.gather(*map(may_list, there), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return frozenset(one for one, is_allowed in zip(there, answers, strict=True) if is_allowed)

    async def _review_in_turn(self, budget: "_Budget", caller: Caller, namespace: str) -> tuple[bool, float]:
        async with budget.turns:
            budget.spend(self._monotonic())
            return await self._review_right(caller, "list", namespace, "")

    def _budget(self, user: str) -> "_Budget":
        budget = self._budgets.setdefault(user, _Budget(self._monotonic()))
        self._budgets.move_to_end(user)
        while len(self._budgets) > MOST_USERS:
            self._budgets.popitem(last=False)
        return budget

    async def _review_token(self, token: str) -> tuple[Caller | None, float]:
        raw = await self._ask(TOKEN_REVIEWS, {"token": token})
        if not raw.get("authenticated"):
            return None, REFUSED_SECONDS
        user = raw.get("user") or {}
        extra = {name: tuple(values) for name, values in (user.get("extra") or {}).items()}
        groups = tuple(user.get("groups") or ())
        return Caller(str(user.get("username", "")), str(user.get("uid", "")), groups, extra), TOKEN_SECONDS

    async def _review_right(self, caller: Caller, verb: str, namespace: str, name: str) -> tuple[bool, float]:
        attributes = {"group": GROUP, "resource": "agentruns", "verb": verb, "namespace": namespace, "name": name}
        spec = {
            "user": caller.user,
            "uid": caller.uid,
            "groups": list(caller.groups),
            "extra": {key: list(values) for key, values in caller.extra.items()},
            "resourceAttributes": attributes,
        }
        raw = await self._ask(SUBJECT_ACCESS_REVIEWS, spec)
        allowed = bool(raw.get("allowed")) and not raw.get("denied")
        return allowed, RIGHT_SECONDS if allowed else REFUSED_IN_LISTS_SECONDS

    async def _ask(self, resource: Any, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        try:
            async with self._turns:
                raw = await self._client.create(resource, None, body)
        except Throttled as error:
            raise away("the API server has too much to do to say who you are", error.retry_after) from None
        except Forbidden:
            what = f"the operator API may not create {resource.plural}: nobody can be let in"
            raise Problem(503, what, "bind the ClusterRole system:auth-delegator to its ServiceAccount") from None
        except ApiError as error:
            raise away(f"the API server cannot be asked who you are ({error.status or 'no answer'})") from None
        answer: Mapping[str, Any] = raw.get("status") or {}
        return answer


def _is_new(allowed: bool, age: float) -> bool:
    return age < (RIGHT_SECONDS if allowed else REFUSED_SECONDS)


class _Budget:
    """Reviews that one user's lists of all namespaces may still cause."""

    def __init__(self, now: float) -> None:
        self.turns = asyncio.Semaphore(AT_ONCE_PER_USER)
        self._left = float(MOST_ASKED)
        self._at = now

    def spend(self, now: float) -> None:
        """Take one; raises Problem where none is left."""
        self._left = min(MOST_ASKED, self._left + (now - self._at) * ASKED_PER_SECOND)
        self._at = now
        if self._left < 1:
            what = f"your rights in more than {MOST_ASKED} namespaces were asked for in a short time"
            raise Problem(429, what, "send ?namespace=NAME, or try again", headers={"Retry-After": "5"})
        self._left -= 1


class Answers(Generic[T]):
    """Answers by question, the least lately given ones forgotten; one who asks while another does waits for the same.

    What is under way is a task of its own: a caller who leaves takes no answer from those who wait with them.
    """

    def __init__(self, most: int, monotonic: Callable[[], float]) -> None:
        self._most = most
        self._monotonic = monotonic
        self._known: OrderedDict[Hashable, tuple[T, float, float]] = OrderedDict()
        self._asked: dict[Hashable, asyncio.Task[T]] = {}

    async def get(
        self,
        key: Hashable,
        ask: Callable[[], Awaitable[tuple[T, float]]],
        is_new: Callable[[T, float], bool] = lambda answer, age: True,
    ) -> T:
        """Return the answer to a question; `ask` gives it with the seconds for which it holds.

        `is_new` says whether one that holds yet is taken at its age.
        """
        known = self._known.get(key)
        now = self._monotonic()
        if known is not None and now < known[2] and is_new(known[0], now - known[1]):
            self._known.move_to_end(key)
            return known[0]
        task = self._asked.get(key)
        if task is None:
            task = asyncio.create_task(self._fill(key, ask))
            self._asked[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)

    def _forget(self, key: Hashable, task: asyncio.Task[T]) -> None:
        del self._asked[key]
        if not task.cancelled():
            task.exception()  # whoever waited has it; where all have left nobody must be told

    async def _fill(self, key: Hashable, ask: Callable[[], Awaitable[tuple[T, float]]]) -> T:
        answer, seconds = await ask()
        now = self._monotonic()
        self._known[key] = (answer, now, now + seconds)
        self._known.move_to_end(key)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return answer
