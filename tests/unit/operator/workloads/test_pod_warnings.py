"""Warnings about pods: one listing serves all pods of a namespace for some seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pilothouse_kubernetes.client import Raw
from pilothouse_operator.workloads.pod_warnings import KEPT_SECONDS, PodWarnings

pytestmark = pytest.mark.anyio


class Events:
    """Lists one warning a pod, with the number of the listing."""

    def __init__(self) -> None:
        self.listed: list[str] = []

    async def list_pages(self, _: Any, namespace: str, *, field_selector: str) -> AsyncIterator[list[Raw]]:
        assert field_selector == "involvedObject.kind=Pod,type=Warning"
        self.listed.append(namespace)
        number = len(self.listed)
        await asyncio.sleep(0)
        yield [{"involvedObject": {"uid": "a"}, "reason": f"r{number}"}]
        yield [{"involvedObject": {"uid": "b"}, "reason": f"r{number}"}, {"reason": "of nobody"}]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_pods_that_are_looked_at_together_share_one_listing() -> None:
    events, clock = Events(), Clock()
    warnings = PodWarnings(events, clock)  # type: ignore[arg-type]

    found = await asyncio.gather(*(warnings.of_pod("ns", uid) for uid in ("a", "b", "c")))

    assert [[event["reason"] for event in one] for one in found] == [["r1"], ["r1"], []]
    assert events.listed == ["ns"]


async def test_a_listing_is_made_anew_when_it_is_old_and_for_another_namespace() -> None:
    events, clock = Events(), Clock()
    warnings = PodWarnings(events, clock)  # type: ignore[arg-type]

    await warnings.of_pod("ns", "a")
    await warnings.of_pod("other", "a")
    clock.now += KEPT_SECONDS
    again = await warnings.of_pod("ns", "a")

    assert [event["reason"] for event in again] == ["r3"]
    assert events.listed == ["ns", "other", "ns"]
