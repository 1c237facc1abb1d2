"""Election: who may take the Lease, judged by one's own clock alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pilothouse_kubernetes.client import Conflict, NotFound
from pilothouse_kubernetes.connection import Credentials
from pilothouse_operator.process.lease import Elector, LeaseTerms, Sighting, build_lease, is_free

TERMS = LeaseTerms("ns", "lease", "me")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def lease(holder: str | None = "other", version: str = "7", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": holder, **spec}}


@pytest.mark.parametrize(
    ("raw", "last", "want"),
    [
        (lease(""), None, True),
        (lease(None), None, True),
        (lease("me"), None, True),
        (lease(), None, False),
        (lease(), Sighting("other", "7", 90), False),
        (lease(), Sighting("other", "7", 84), True),
        (lease(version="8"), Sighting("other", "7", 0), False),
        (lease(leaseDurationSeconds=60), Sighting("other", "7", 84), False),
        (lease(leaseDurationSeconds=1), Sighting("other", "7", 98), True),
    ],
)
def test_a_lease_is_free_when_nobody_renewed_it_while_we_watched(
    raw: dict[str, Any], last: Sighting | None, want: bool
) -> None:
    assert is_free(raw, last, 100.0, TERMS) is want


def test_a_renewal_keeps_when_it_was_taken_and_a_takeover_counts() -> None:
    ours = lease("me", acquireTime="then", leaseTransitions=3)
    theirs = lease("other", acquireTime="then", leaseTransitions=3)

    renewed, taken = build_lease(ours, TERMS, NOW), build_lease(theirs, TERMS, NOW)

    assert (renewed["spec"]["acquireTime"], renewed["spec"]["leaseTransitions"]) == ("then", 3)
    assert (taken["spec"]["acquireTime"], taken["spec"]["leaseTransitions"]) == ("2026-03-01T12:00:00.000000Z", 4)
    assert renewed["metadata"]["resourceVersion"] == "7"
    assert "resourceVersion" not in build_lease(None, TERMS, NOW)["metadata"]


class Leases:
    """One Lease, and what was asked about it."""

    def __init__(self) -> None:
        self.raw: dict[str, Any] | None = None
        self.asked: list[str] = []

    async def get(self, *_: Any) -> dict[str, Any]:
        self.asked.append("get")
        if self.raw is None:
            raise NotFound(404, "no Lease")
        return self.raw

    async def create(self, resource: Any, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append("create")
        return self.write(body)

    async def replace(self, resource: Any, namespace: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append("replace")
        if self.raw is None:
            raise NotFound(404, "no Lease")
        if body["metadata"]["resourceVersion"] != self.raw["metadata"]["resourceVersion"]:
            raise Conflict(409, "written meanwhile")
        return self.write(body)

    def write(self, body: dict[str, Any]) -> dict[str, Any]:
        version = int(self.raw["metadata"]["resourceVersion"]) + 1 if self.raw else 1
        self.raw = {**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}}
        return self.raw


@pytest.mark.anyio
async def test_a_leader_renews_by_one_request_and_looks_when_somebody_else_has_written() -> None:
    leases, lost = Leases(), []
    elector = Elector(Credentials("https://nowhere", "ns"), TERMS, lost.append, lambda: 100.0)

    async def ask() -> list[str]:
        leases.asked.clear()
        await elector._try(leases)  # type: ignore[arg-type]
        return list(leases.asked)

    assert await ask() == ["get", "create"]
    assert await ask() == ["replace"]
    assert leases.raw is not None
    leases.write({**leases.raw, "metadata": {**leases.raw["metadata"], "annotations": {"a": "person's"}}})
    assert await ask() == ["replace", "get", "replace"]
    leases.raw = None
    assert await ask() == ["replace", "get", "create"]
    assert (elector.is_leader, lost) == (True, [])
    leases.write({**leases.raw, "spec": {**leases.raw["spec"], "holderIdentity": "other"}})
    assert await ask() == ["replace", "get"]
    assert lost == ["another process holds the Lease"]
