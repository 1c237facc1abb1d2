"""An operator with nothing to do asks the API server for something, before its probe takes it for dead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pilothouse_kubernetes.client import LEASES, NotFound, Unavailable
from pilothouse_operator.process.contact import RETRY_SECONDS, TOUCH_SECONDS, touch
from pilothouse_operator.process.serving import LONGEST_SILENCE_SECONDS
from pilothouse_operator.settings import OperatorSettings

pytestmark = pytest.mark.anyio


class Server:
    def __init__(self, refusal: Exception | None = None) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.refusal = refusal

    async def get(self, *what: Any) -> dict[str, Any]:
        self.asked.append(what)
        if self.refusal is not None:
            raise self.refusal
        return {}


def desk(server: Server, heard_at: float) -> Any:
    metrics = SimpleNamespace(last_contact_at=heard_at)
    return SimpleNamespace(client=server, metrics=metrics, settings=OperatorSettings(namespace="ours"))


async def test_a_server_that_was_heard_lately_is_asked_nothing() -> None:
    server = Server()

    assert await touch(desk(server, 90.0), lambda: 100.0) == TOUCH_SECONDS - 10
    assert server.asked == []


@pytest.mark.parametrize("refusal", [None, NotFound(404, "no Lease"), Unavailable(0, "away")])
async def test_a_silent_server_is_asked_for_the_lease_whatever_it_answers(refusal: Exception | None) -> None:
    server = Server(refusal)

    assert await touch(desk(server, 100.0 - TOUCH_SECONDS), lambda: 100.0) == RETRY_SECONDS
    assert server.asked == [(LEASES, "ours", "pilothouse-operator")]


def test_the_probe_allows_for_some_tries() -> None:
    assert TOUCH_SECONDS + 2 * RETRY_SECONDS < LONGEST_SILENCE_SECONDS
