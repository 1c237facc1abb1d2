"""Letters between the clusters of a fleet, over one channel of its Redis: asked, answered once, or not at all."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

import structlog
from redis.asyncio import Redis

from pilothouse_api.names import FLEET_CONTROL
from pilothouse_console.letters import (
    Content,
    DirectiveLetter,
    FleetKey,
    GivenLetter,
    Letter,
    Porter,
    SeenLetter,
    SightLetter,
    open_letter,
    seal_letter,
)
from pilothouse_console.metrics import Metrics
from pilothouse_console.mirror import REDIS_ERRORS, Backoff, FleetAway, Mirror

MOST_AT_ONCE = 64
"""Letters of a kind that are worked on at once; what comes then is left unanswered. Directives may wait for a minute:
who asks what may be seen does not stand behind them."""
POLL_SECONDS = 1.0
"""How often a silent channel asks whether Redis is there."""

Handle = Callable[[Letter], Awaitable[Content | None]]
"""Answers a letter that asks something; None: leave it unanswered."""

log = structlog.get_logger()


class Channel:
    """Sends and takes letters of one cluster."""

    def __init__(
        self,
        mirror: Mirror,
        key: FleetKey,
        redis: Redis,
        handle: Handle,
        metrics: Metrics,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._mirror, self._key, self._redis, self._handle = mirror, key, redis, handle
        self._metrics, self._now = metrics, now
        self._cluster = mirror.cluster
        self._porter = Porter(now())
        self._asked: dict[str, tuple[str, asyncio.Future[Content]]] = {}
        """By the id of a letter that asks: whom, and who waits."""
        self._working: dict[str, set[asyncio.Task[None]]] = {"Directive": set(), "Sight": set()}
        self.listening = asyncio.Event()
        """Set while letters arrive."""

    async def ask(self, receiver: str, content: Content, seconds: float) -> Content | None:
        """Return the answer of a cluster, None where it gives none in time; raises FleetAway."""
        if not self.listening.is_set():
            raise FleetAway
        letter_id = secrets.token_hex(16)
        answered: asyncio.Future[Content] = asyncio.get_running_loop().create_future()
        self._asked[letter_id] = (receiver, answered)
        try:
            await self._send(letter_id, receiver, content)
            return await asyncio.wait_for(answered, seconds)
        except TimeoutError:
            return None
        finally:
            del self._asked[letter_id]

    async def _send(self, letter_id: str, receiver: str, content: Content) -> None:
        letter = Letter(id=letter_id, sender=self._cluster, receiver=receiver, sent_at=self._now(), content=content)
        try:
            await self._redis.publish(FLEET_CONTROL, seal_letter(self._key, letter))
        except REDIS_ERRORS as error:
            self._mirror.lose(error)
            raise FleetAway from error

    async def run(self) -> None:
        """Listen for ever."""
        backoff = Backoff()
        try:
            while True:
                await self._mirror.wait_up()
                try:
                    await self._listen(backoff)
                except REDIS_ERRORS as error:
                    self._mirror.lose(error)
                self.listening.clear()
                await backoff.sleep()
        finally:
            self.listening.clear()
            for task in set().union(*self._working.values()):
                task.cancel()

    async def _listen(self, backoff: Backoff) -> None:
        """Take letters until Redis is away."""
        pubsub = self._redis.pubsub()
        try:
            await pubsub.subscribe(FLEET_CONTROL)
            await pubsub.get_message(timeout=POLL_SECONDS)  # that it is subscribed
            self._porter.begin(self._now())
            backoff.reset()
            self.listening.set()
            while self._mirror.is_up:
                message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=POLL_SECONDS)
                if message is not None:
                    self._take(bytes(message["data"]))
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]

    def _take(self, sealed: bytes) -> None:
        letter = open_letter(self._key, sealed)
        if letter is None:
            self._refuse("Unsealed")
        elif letter.sender != self._cluster and letter.receiver == self._cluster:
            problem = self._porter.refuse(letter, self._now())
            if problem is not None:
                self._refuse(problem)
            elif isinstance(letter.content, GivenLetter | SeenLetter):
                self._deliver(letter.sender, letter.content)
            else:
                self._work(letter)

    def _refuse(self, cause: str) -> None:
        self._metrics.fleet_refused.labels(cause).inc()
        log.debug("fleet.letter_refused", cause=cause)

    def _deliver(self, sender: str, content: GivenLetter | SeenLetter) -> None:
        asked, answered = self._asked.get(content.of, ("", None))
        if answered is not None and asked == sender and not answered.done():
            answered.set_result(content)

    def _work(self, letter: Letter) -> None:
        assert isinstance(letter.content, DirectiveLetter | SightLetter)
        working = self._working[letter.content.kind]
        if len(working) >= MOST_AT_ONCE:
            self._refuse("Busy")
            return
        task = asyncio.create_task(self._answer(letter), name=f"letter-{letter.id}")
        working.add(task)
        task.add_done_callback(working.discard)

    async def _answer(self, letter: Letter) -> None:
        try:
            content = await self._handle(letter)
            if content is not None:
                await self._send(secrets.token_hex(16), letter.sender, content)
        except FleetAway:
            log.warning("fleet.unanswered", sender=letter.sender)
        except Exception:
            # A fault of ours: who asked gets no answer and says so, and the next letter is taken all the same.
            log.exception("fleet.fault", sender=letter.sender)
