"""Event streams: one feed for each run that somebody looks at, one reader of Redis for all feeds, a cursor per viewer.

A viewer holds no queue: what is new stands once, in the feed, and a viewer knows how far it has got. Who does not take
what is sent is dropped; who comes back with the id of the last event goes on behind it.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import structlog

from pilothouse_console.frames import (
    START,
    Frame,
    Order,
    Ring,
    TraceFrames,
    dump,
    format_stream_id,
    lost_frame,
    parse_stream_id,
)
from pilothouse_console.metrics import Metrics
from pilothouse_console.picture import Entry, Picture, RunKey
from pilothouse_console.problems import Problem, away
from pilothouse_console.redis_store import Flooded, NotFollowed, RedisAway, RedisStore, WrongKind

BLOCK_MILLISECONDS = 250
"""How long one read of all streams waits: a feed that is opened meanwhile joins the next."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
PAGE = 200
END_SECONDS = 1.0
"""How long the last frames of a run may take to arrive after it is reported as ended: they are sent in moments."""

log = structlog.get_logger()


class Feed:
    """What is new in one run, for all who look at it."""

    def __init__(self, entry: Entry) -> None:
        self.key = entry.key
        self.uid = entry.uid
        self.entry: Entry | None = entry
        self.ring: Ring | None = None
        """None until the stream's end is known."""
        self.is_stream = True
        """False once Redis has said that the key of its frames holds something else."""
        self._viewers: set[asyncio.Event] = set()
        self._told: tuple[int, bytes] = (-1, b"")

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, is gone, or is another one by now."""
        return self.entry is None or self.entry.uid != self.uid or self.entry.summary.is_finished

    def wake(self) -> None:
        """Let everybody look."""
        for viewer in self._viewers:
            viewer.set()

    def tell(self) -> tuple[int, bytes] | None:
        """Return the version of the run and the event that tells of it, made once for all; None where it is gone."""
        entry = self.entry
        if entry is None or entry.uid != self.uid:
            return None
        if entry.version != self._told[0]:
            text = entry.summary.model_dump_json(by_alias=True, exclude_none=True)
            self._told = (entry.version, encode("run", text))
        return self._told

    @contextmanager
    def viewed(self) -> Iterator[asyncio.Event]:
        """Give what is set whenever there is something new, while the context lasts."""
        event = asyncio.Event()
        self._viewers.add(event)
        try:
            yield event
        finally:
            self._viewers.discard(event)


class Streams:
    """All feeds of the process. `store` is None where there is no Redis.

    `most` streams are open at once, `most_per_user` of one user.
    """

    def __init__(
        self, picture: Picture, store: RedisStore | None, metrics: Metrics, most: int, most_per_user: int
    ) -> None:
        self._picture = picture
        self._store = store
        self._metrics = metrics
        self._most = most
        self._most_per_user = most_per_user
        self._open: Counter[str] = Counter()
        self._feeds: dict[RunKey, _Opened] = {}
        self._wanted = asyncio.Event()
        self.is_closing = False

    def close(self) -> None:
        """End all streams: the process ends."""
        self.is_closing = True
        self._wake_all()

    def _wake_all(self) -> None:
        for opened in self._feeds.values():
            opened.feed.wake()

    async def run(self) -> None:
        """Read what is new in Redis for ever, for all feeds at once; without Redis the picture alone feeds them."""
        if self._store is None:
            return
        pause = FIRST_PAUSE_SECONDS
        while True:
            await self._wanted.wait()
            try:
                await self._read(self._store)
                if pause != FIRST_PAUSE_SECONDS:
                    self._wake_all()  # who missed something meanwhile looks again
                pause = FIRST_PAUSE_SECONDS
            except RedisAway as error:
                log.warning("api.redis_away", error=str(error), retry_seconds=round(pause, 1))
                await asyncio.sleep(pause * (0.75 + random.random() / 2))
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _read(self, store: RedisStore) -> None:
        feeds = {(one.feed.key.namespace, one.feed.uid): one.feed for one in self._feeds.values()}
        places: dict[tuple[str, str], Order] = {}
        for run, feed in random.sample(list(feeds.items()), len(feeds)):  # no run always fills a reply before others
            if feed.ring is None:
                feed.ring = Ring(await self._find_end(store, feed))
                if not feed.is_stream:
                    feed.ring.extend([_lost_behind(START)])
                feed.wake()
            if feed.is_stream:
                places[run] = feed.ring.newest
        if not places:
            self._wanted.clear()
            return
        try:
            self._hand_on(feeds, await store.new_frames(places, BLOCK_MILLISECONDS))
        except WrongKind:  # of one run, whose runner may write anything there: the others are read on
            for run in places:
                await self._find_end(store, feeds[run])
        except Flooded:  # by some, likewise: each is read alone
            for run, place in places.items():
                try:
                    self._hand_on(feeds, await store.new_frames({run: place}, None))
                except NotFollowed as error:
                    _give_up(feeds[run], str(error))

    def _hand_on(self, feeds: Mapping[tuple[str, str], Feed], news: Mapping[tuple[str, str], Sequence[Frame]]) -> None:
        for run, frames in news.items():
            ring = feeds[run].ring
            assert ring is not None
            ring.extend(frames)
            feeds[run].wake()

    async def _find_end(self, store: RedisStore, feed: Feed) -> Order:
        """Return where the stream of a feed ends now, and note where it is none."""
        try:
            return await store.newest_place(feed.key.namespace, feed.uid) or START
        except NotFollowed as error:
            _give_up(feed, str(error))
            return START

    @contextmanager
    def opened(self, entry: Entry, user: str) -> Iterator[Feed]:
        """Give the feed of a run to a user while the context lasts; the last who leaves closes it.

        Raises Problem where the user, or all together, have as many open as may be.
        """
        self._check_room(user)
        self._count(user, 1)
        opened = self._feeds.get(entry.key)
        if opened is None or opened.feed.uid != entry.uid:
            opened = self._feeds[entry.key] = _Opened(entry, self._picture, is_traced=self._store is None)
            self._wanted.set()
        opened.count += 1
        try:
            yield opened.feed
        finally:
            opened.count -= 1
            self._count(user, -1)
            if not opened.count:
                opened.close()
                if self._feeds.get(entry.key) is opened:
                    del self._feeds[entry.key]

    def _check_room(self, user: str) -> None:
        if self._open[user] >= self._most_per_user:
            what = f"{user[:253]} has {self._open[user]} event streams open here, as many as one user may"
            raise Problem(429, what, "close some, or raise api.mostStreamsPerUser", headers={"Retry-After": "30"})
        if self.is_closing or self._open.total() >= self._most:
            raise away("there are as many event streams open as this process serves", 30)

    def _count(self, user: str, change: int) -> None:
        self._open[user] += change
        if not self._open[user]:
            del self._open[user]
        self._metrics.streams.set(self._open.total())

    async def is_gap(self, feed: Feed, last_id: str) -> bool:
        """Tell whether frames behind the last one that a viewer has seen are lost."""
        if self._store is None:
            return feed.ring is None or feed.ring.place_of(last_id) is None
        place = parse_stream_id(last_id)
        try:
            oldest = await self._store.oldest_place(feed.key.namespace, feed.uid)
        except RedisAway:
            return False  # nobody can tell now; what is kept is sent once Redis is back
        return place is None or (oldest is not None and oldest > place)

    def place_of(self, feed: Feed, last_id: str) -> Order:
        """Return where a viewer goes on."""
        if self._store is None:
            return (feed.ring.place_of(last_id) if feed.ring else None) or START
        return parse_stream_id(last_id) or START

    async def frames_after(self, feed: Feed, place: Order) -> list[Frame]:
        """Return some frames behind a place, oldest first; none where there are none, or Redis is away."""
        ring = feed.ring
        if ring is not None and place >= ring.floor:
            return ring.after(place)
        if self._store is None:
            return ring.after(ring.floor) if ring is not None else []
        try:
            frames = await self._store.frames_after(feed.key.namespace, feed.uid, place, PAGE)
        except Flooded:  # what is new is read on, where it can be
            return [_lost_at(ring.floor), *ring.after(ring.floor)] if ring is not None else []
        except RedisAway:
            return []
        # The stream's end was seen before: what the store does not have behind this place, nobody has.
        return frames or (ring.after(ring.floor) if ring is not None else [])


def _give_up(feed: Feed, why: str) -> None:
    """Follow the frames of a run no more, and let its viewers know."""
    feed.is_stream = False
    log.warning("api.no_stream", namespace=feed.key.namespace, run=feed.key.name, error=why)
    if feed.ring is not None:
        feed.ring.extend([_lost_behind(feed.ring.newest)])
        feed.wake()


def _lost_behind(place: Order) -> Frame:
    return _lost_at((place[0], place[1] + 1))


def _lost_at(order: Order) -> Frame:
    return Frame(format_stream_id(order), order, lost_frame("frames of this run cannot be read"))


class _Opened:
    """A feed and how many look at it; follows the picture."""

    def __init__(self, entry: Entry, picture: Picture, *, is_traced: bool) -> None:
        self.feed = Feed(entry)
        self.count = 0
        self._trace = TraceFrames() if is_traced else None
        if self._trace is not None:
            self.feed.ring = Ring()
        self._take(entry)
        self._listening = picture.listening(entry.key, self._hear)
        self._listening.__enter__()

    def close(self) -> None:
        self._listening.__exit__(None, None, None)

    def _hear(self, key: RunKey, entry: Entry | None) -> None:
        self._take(entry)
        self.feed.wake()

    def _take(self, entry: Entry | None) -> None:
        self.feed.entry = entry
        if entry is not None and entry.uid == self.feed.uid and self._trace is not None:
            assert self.feed.ring is not None
            self.feed.ring.extend(self._trace.take(trace_of(entry)))


def trace_of(entry: Entry) -> list[dict[str, Any]]:
    """Return the frames that stand in a run's status; what is none of a frame's shape is left out."""
    run = (entry.read().get("status") or {}).get("run") or {}
    trace = run.get("trace") or []
    return [frame for frame in trace if isinstance(frame, dict)] if isinstance(trace, list) else []


class View:
    """One viewer of one run: turns what is new into events, from behind the last one that it has seen."""

    def __init__(self, streams: Streams, feed: Feed, last_id: str | None) -> None:
        self._streams = streams
        self._feed = feed
        self._last_id = last_id
        self._place: Order = START
        self._version = -1

    async def begin(self) -> bytes:
        """Return the first events: where frames are lost, that they are; and how long to wait before coming back."""
        text = b"retry: 2000\n\n"
        if self._last_id is None:
            return text
        is_gap = await self._streams.is_gap(self._feed, self._last_id)
        self._place = self._streams.place_of(self._feed, self._last_id)
        return text + (encode("gap", dump({"lost": True})) if is_gap else b"")

    async def news(self) -> AsyncIterator[bytes]:
        """Yield what is new, some events at a time, until there is nothing more now."""
        while frames := await self._streams.frames_after(self._feed, self._place):
            yield b"".join(encode("frame", frame.text, frame.id) for frame in frames)
            self._place = frames[-1].order
        told = self._feed.tell()
        if told is not None and told[0] > self._version:
            self._version = told[0]
            yield told[1]

    def end(self) -> bytes:
        """Return the last event; who comes back with its id is told that there is no more."""
        entry = self._feed.entry
        is_gone = entry is None or entry.uid != self._feed.uid
        phase = None if entry is None or is_gone else entry.summary.phase
        return encode("end", dump({"gone": is_gone, "phase": phase}), end_id(self._feed.uid))


def end_id(uid: str) -> str:
    """Return the id of the last event of a run."""
    return f"end-{uid}"


def encode(event: str, text: str, event_id: str | None = None) -> bytes:
    """Return one event; `text` is one line."""
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {event}\ndata: {text}\n\n".encode()
