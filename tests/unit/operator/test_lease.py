"""Election: who may take the Lease, judged by one's own clock alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pilothouse_operator.lease import LeaseTerms, Sighting, build_lease, is_free

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
