"""What a sweep takes for missed: the difference must outlast a watch that is merely behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pilothouse_kubernetes.client import AGENTRUNS, NotFound, Raw
from pilothouse_operator.process import sweep
from pilothouse_operator.process.sweep import Sweeper
from pilothouse_operator.watching.cache import Cache

pytestmark = pytest.mark.anyio


def run(version: int) -> Raw:
    metadata = {"name": "r", "namespace": "ns", "uid": "u", "resourceVersion": str(version)}
    return {"kind": "AgentRun", "metadata": metadata, "status": {}}


class Listings:
    """Gives these versions, one a listing; None: it is not there."""

    def __init__(self, cache: Cache, *versions: int | None, on_list: Callable[[int], None]) -> None:
        self.cache = cache
        self.versions = list(versions)
        self.listings = 0
        self.on_list = on_list

    async def list_pages(self, *_: Any, **__: Any) -> AsyncIterator[list[Raw]]:
        version = self.versions[self.listings]
        self.listings += 1
        yield [] if version is None else [run(version)]
        self.on_list(self.listings)

    async def get(self, *_: Any) -> Raw:
        if self.versions[-1] is None:
            raise NotFound(404, "gone")
        return run(self.versions[-1])


@pytest.mark.parametrize(
    ("known", "listed", "watched", "want"),
    [
        (5, [5], {}, 0),
        (5, [7, 7], {}, 1),
        (5, [7, 7], {1: 7}, 0),
        (None, [7, 7], {}, 1),
        (5, [None, None], {}, 1),
        # It changes all the time, and the watch is a little behind each listing.
        (5, [7, 9], {1: 8}, 0),
        (5, [7, 9], {1: 6}, 1),
        (5, [7, None], {}, 1),
    ],
)
async def test_what_a_watch_had_time_to_tell_is_not_missed(
    monkeypatch: pytest.MonkeyPatch, known: int | None, listed: list[int | None], watched: Mapping[int, int], want: int
) -> None:
    monkeypatch.setattr(sweep, "SETTLE_SECONDS", 0.0)
    cache = Cache()
    if known is not None:
        cache.apply(run(known))

    def watch(listing: int) -> None:
        if listing in watched:
            cache.apply(run(watched[listing]))

    counted = SimpleNamespace(labels=lambda kind: SimpleNamespace(inc=lambda: None))
    client = Listings(cache, *listed, on_list=watch)
    desk: Any = SimpleNamespace(cache=cache, client=client, metrics=SimpleNamespace(sweep_drift=counted))
    sweeper = Sweeper(desk, [None], lambda raw, is_gone: cache.apply(raw, is_gone) and None)

    assert await sweeper._sweep_kind(AGENTRUNS, "") == want
    if want and listed[-1] is not None:
        assert cache.get(sweep.key_of(run(0))) == run(listed[-1])
