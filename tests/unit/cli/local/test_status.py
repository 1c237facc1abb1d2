"""The phase of a local run, which no operator tells."""

import pytest

from pilothouse_api.v1alpha1.agentrun import Parked, RunExit, Snapshot
from pilothouse_cli.local.status import phase_of

SINCE = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("parked", "want"),
    [
        (None, "Running"),
        (Parked(reason="Paused", turn=1, since=SINCE), "Paused"),
        (Parked(reason="AwaitingApproval", turn=1, since=SINCE, wake=SINCE), "AwaitingApproval"),
        (Parked(reason="Barrier", turn=1, since=SINCE, wake=SINCE, on_timeout="Pause"), "Running"),
        (Parked(reason="Barrier", turn=1, since=SINCE, on_timeout="Pause"), "Paused"),
        (Parked(reason="ControlLost", turn=1, since=SINCE), "Running"),
        (Parked(reason="ControlLost", turn=1, since=SINCE, released=True), "Paused"),
    ],
)
def test_the_phase_of_a_parked_run(parked: Parked | None, want: str) -> None:
    assert phase_of(Snapshot(attempt=1, parked=parked)) == want


@pytest.mark.parametrize(
    ("reason", "want"),
    [("Complete", "Succeeded"), ("Aborted", "Aborted"), ("BarrierTimeout", "Aborted"), ("Error", "Failed")],
)
def test_the_phase_of_a_run_that_has_ended(reason: str, want: str) -> None:
    assert phase_of(Snapshot(attempt=1, exit=RunExit(signal="x", reason=reason, message=""))) == want
