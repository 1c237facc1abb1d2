"""This cluster among others: what a caller is shown of theirs, what a caller asks of theirs, and what theirs ask here.

Each cluster judges its own runs: who may see them and who may steer them is asked of its API server, about the person
whom the other cluster names. Nothing that is read from Redis lends a right.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from pydantic import ValidationError
from redis.asyncio import Redis

from pilothouse_api.names import fleet_claim
from pilothouse_console.access import Answers, Caller
from pilothouse_console.answers import ClusterView, DirectiveAnswer, landing_of
from pilothouse_console.channel import Channel
from pilothouse_console.letters import (
    LETTER_SECONDS,
    SKEW_SECONDS,
    Content,
    DirectiveLetter,
    FleetKey,
    GivenLetter,
    Letter,
    SeenLetter,
    SightLetter,
    caller_from,
    is_runner,
    person_of,
)
from pilothouse_console.metrics import Metrics
from pilothouse_console.mirror import REDIS_ERRORS, FleetAway, Mirror
from pilothouse_console.orders import What, plan_order, read_order
from pilothouse_console.picture import Picture
from pilothouse_console.problems import Problem, away
from pilothouse_console.rights import Guard
from pilothouse_console.steering import Steering
from pilothouse_console.summaries import RunSummary
from pilothouse_console.watching import Watching

ANSWER_SECONDS = 5.0
"""How long another cluster may take to judge a directive."""
SIGHT_SECONDS = 1.5
"""How long a list waits for what another cluster lets the caller see."""
SIGHT_HOLDS_SECONDS = 10.0
"""How long that answer holds."""
UNANSWERED_HOLDS_SECONDS = 3.0
MOST_SIGHTS = 10_000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Office:
    """What this cluster judges its own runs with."""

    picture: Picture
    watching: Watching
    guard: Guard
    steering: Steering
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Horizon:
    """What a caller is shown of the other clusters."""

    rows: tuple[RunSummary, ...] = ()
    clusters: tuple[ClusterView, ...] = ()
    is_degraded: bool = False


@dataclass(frozen=True, slots=True)
class Sight:
    """The namespaces of a cluster whose runs somebody may list; None: all."""

    namespaces: frozenset[str] | None

    def shows(self, namespace: str) -> bool:
        """Tell whether the runs of a namespace are shown."""
        return self.namespaces is None or namespace in self.namespaces


class Fleet:
    """One cluster of a fleet."""

    def __init__(self, cluster: str, key: FleetKey, redis: Redis, office: Office) -> None:
        self.cluster = cluster
        self._redis, self._office = redis, office
        self.mirror = Mirror(cluster, key, redis, office.picture, office.watching)
        self.channel = Channel(self.mirror, key, redis, self.answer, office.metrics)
        self._sights: Answers[Sight | None] = Answers(MOST_SIGHTS, time.monotonic)

    async def run(self) -> None:
        """Mirror and listen until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.mirror.run(), name="mirror")
                group.create_task(self.channel.run(), name="channel")
        finally:
            await self._redis.aclose()

    # ------------------------------------------------------------ callers of this cluster

    async def horizon(self, caller: Caller, cluster: str | None) -> Horizon:
        """Return what a caller may see of the other clusters, or of one; raises Problem for a cluster that is none."""
        try:
            rows, beats = await self.mirror.rows(), await self.mirror.clusters()
        except FleetAway:
            return Horizon(is_degraded=True)
        others = sorted(name for name in beats if name != self.cluster and cluster in (None, name))
        if cluster not in (None, self.cluster) and not others:
            raise _no_cluster(cluster)
        found = await asyncio.gather(*[self._sight(name, caller) for name in others])
        sights = dict(zip(others, found, strict=True))
        shown = []
        for row in rows:
            sight = sights.get(row.cluster)
            if sight is not None and sight.shows(row.summary.namespace):
                shown.append(row.summary)
        views = [_view(name, at, name == self.cluster or sights.get(name) is not None) for name, at in beats.items()]
        return Horizon(tuple(shown), tuple(sorted(views, key=lambda view: view.name)))

    async def _sight(self, cluster: str, caller: Caller) -> Sight | None:
        """Return what another cluster lets a caller see, None where it does not say."""
        return await self._sights.get((cluster, caller), partial(self._ask_sight, cluster, caller))

    async def _ask_sight(self, cluster: str, caller: Caller) -> tuple[Sight | None, float]:
        try:
            told = await self.channel.ask(cluster, SightLetter(person=person_of(caller)), SIGHT_SECONDS)
        except FleetAway:
            told = None
        if not isinstance(told, SeenLetter):
            return None, UNANSWERED_HOLDS_SECONDS
        return Sight(None if told.namespaces is None else frozenset(told.namespaces)), SIGHT_HOLDS_SECONDS

    async def give(
        self, caller: Caller, cluster: str, run: tuple[str, str], what: What, order: Mapping[str, Any], wait: float
    ) -> DirectiveAnswer:
        """Give a directive to a run of another cluster; raises Problem where that refuses it, or does not answer."""
        if caller.is_runner:
            raise _no_person(caller)
        letter = DirectiveLetter(
            person=person_of(caller),
            namespace=run[0][:63],
            name=run[1][:63],
            what=what,
            order=dict(order),
            new_id=f"api-{secrets.token_hex(4)}",
            wait=wait,
        )
        try:
            if cluster not in await self.mirror.clusters():
                raise _no_cluster(cluster)
            told = await self.channel.ask(cluster, letter, ANSWER_SECONDS + wait)
        except FleetAway:
            raise away("the fleet's Redis is away: only runs of this cluster can be steered from here") from None
        if not isinstance(told, GivenLetter):
            raise away(f"cluster {cluster} does not answer: look whether it was done", LETTER_SECONDS)
        if told.refusal is not None:
            raise Problem.of(told.refusal)
        if told.answer is None:
            raise away(f"cluster {cluster} gives an answer that this version does not understand")
        return told.answer

    # ------------------------------------------------------------ other clusters' callers

    async def answer(self, letter: Letter) -> Content | None:
        """Answer a letter of another cluster."""
        match letter.content:
            case SightLetter(person=person):
                return await self._answer_sight(letter, caller_from(letter.sender, person))
            case DirectiveLetter() as directive:
                return await self._answer_directive(letter, directive)
            case _:
                return None

    async def _answer_sight(self, letter: Letter, caller: Caller) -> SeenLetter | None:
        try:
            visible = await self._office.guard.visible_namespaces(caller, None)
        except Problem as problem:
            log.warning("fleet.sight_unknown", sender=letter.sender, problem=str(problem))
            return None
        return SeenLetter(of=letter.id, namespaces=None if visible is None else tuple(sorted(visible)))

    async def _answer_directive(self, letter: Letter, directive: DirectiveLetter) -> GivenLetter | None:
        if not await self._is_claimed(letter):
            return None  # another process of this cluster has taken it
        try:
            answer = await self._perform(letter.sender, directive)
        except Problem as problem:
            self._tell(letter, directive, f"Refused{problem.status}")
            return GivenLetter(of=letter.id, refusal=problem.details)
        self._tell(letter, directive, "Written")
        return GivenLetter(of=letter.id, answer=answer)

    async def _is_claimed(self, letter: Letter) -> bool:
        seconds = int(LETTER_SECONDS + SKEW_SECONDS) * 2
        try:
            return bool(await self._redis.set(fleet_claim(letter.id), self.cluster, nx=True, ex=seconds))
        except REDIS_ERRORS as error:
            self.mirror.lose(error)
            return False  # what nobody can claim might be done twice

    async def _perform(self, sender: str, directive: DirectiveLetter) -> DirectiveAnswer:
        caller = caller_from(sender, directive.person)
        if is_runner(directive.person):
            raise _no_person(caller)
        try:
            order = read_order(directive.what, directive.order)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])[:200]
            raise Problem(422, f"{field}: {first['msg'][:300]}", "see /openapi.json of that cluster") from None
        office = self._office
        key = await office.guard.steerable(caller, directive.namespace, directive.name, directive.what)
        plan = partial(plan_order, directive.what, order, directive.new_id, by=caller.user)
        given = await office.steering.give(key, plan)
        landing = landing_of(await office.steering.wait(given, directive.wait)) if directive.wait else None
        return DirectiveAnswer(id=given.id, generation=given.generation, by=caller.user, landing=landing)

    def _tell(self, letter: Letter, directive: DirectiveLetter, outcome: str) -> None:
        self._office.metrics.fleet_directives.labels(outcome).inc()
        log.info(
            "fleet.directive",
            sender=letter.sender,
            user=directive.person.user[:253],
            namespace=directive.namespace,
            run=directive.name,
            what=directive.what,
            outcome=outcome,
        )


def _view(name: str, at: float, is_shown: bool) -> ClusterView:
    return ClusterView(name=name, seen_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)), is_shown=is_shown)


def _no_cluster(name: str | None) -> Problem:
    return Problem(404, f"there is no cluster {str(name)[:63]!r} in this fleet", "GET /api/agents/runs names them")


def _no_person(caller: Caller) -> Problem:
    what = f"{caller.user[:253]} is the account of a runner: an agent steers no run"
    return Problem(403, what, "use an account of a person")
