"""Events: which turns of a run a person is told about, once."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse_api.v1alpha1.agentrun import AgentRunStatus
from pilothouse_operator.status.events import EventDraft, build_event, plan_events
from unit.operator.run_views import NOW, condition

STARTED = {"phase": "Running", "attempt": 1, "conditions": [condition("Started")]}
PAUSED = {**STARTED, "phase": "Paused", "run": {"turn": 3}}


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        ({}, {"phase": "Pending", "attempt": 1}, []),
        ({"phase": "Pending"}, STARTED, ["Started"]),
        (STARTED, STARTED, []),
        (STARTED, PAUSED, ["Paused"]),
        (PAUSED, STARTED, ["Resumed"]),
        (PAUSED, {**STARTED, "phase": "Pending"}, ["Resumed"]),
        (STARTED, {**STARTED, "phase": "AwaitingApproval"}, ["AwaitingApproval"]),
        (
            STARTED,
            {**STARTED, "attempt": 2, "phase": "Pending", "attempts": {"crashes": 1, "lastFailure": "Crashed: x"}},
            ["AttemptFailed"],
        ),
        (
            {**STARTED, "attempt": 2, "attempts": {"crashes": 1, "lastFailure": "Crashed: x"}},
            {**STARTED, "attempt": 3, "attempts": {"crashes": 2, "lastFailure": "Crashed: x"}},
            ["AttemptFailed"],
        ),
        (
            {**STARTED, "attempt": 2, "attempts": {"crashes": 1, "lastFailure": "Crashed: x"}},
            {**STARTED, "attempt": 3, "attempts": {"crashes": 1, "lastFailure": "Crashed: x"}},
            [],
        ),
        (
            STARTED,
            {**STARTED, "phase": "Succeeded", "exit": {"signal": "default", "reason": "Complete"}},
            ["Succeeded"],
        ),
        (PAUSED, {**STARTED, "phase": "Aborted", "exit": {"signal": "aborted", "reason": "Aborted"}}, ["Aborted"]),
        ({}, {"phase": "Pending", "conditions": [condition("Stalled", reason="InputInvalid")]}, ["Stalled"]),
        (STARTED, {**STARTED, "conditions": [*STARTED["conditions"], condition("JournalLost")]}, ["JournalLost"]),
        (
            {**STARTED, "conditions": [*STARTED["conditions"], condition("JournalLost")]},
            {**STARTED, "conditions": [*STARTED["conditions"], condition("JournalLost")]},
            [],
        ),
        (
            {"phase": "Pending", "conditions": [condition("Stalled", reason="InputInvalid")]},
            {"phase": "Pending", "conditions": [condition("Stalled", reason="InputInvalid")]},
            [],
        ),
        (
            STARTED,
            {
                **STARTED,
                "phase": "Failed",
                "exit": {"signal": "error", "reason": "Error"},
                "conditions": [condition("Started"), condition("Stalled", reason="Error")],
            },
            ["Failed"],
        ),
    ],
)
def test_the_turns_of_a_run(old: dict[str, Any], new: dict[str, Any], want: list[str]) -> None:
    drafts = plan_events(AgentRunStatus.model_validate(old), AgentRunStatus.model_validate(new))

    assert [draft.reason for draft in drafts] == want


def test_the_same_thing_has_one_name_and_another_time_another_one() -> None:
    raw = {
        "apiVersion": "pilothouse.dev/v1alpha1",
        "kind": "AgentRun",
        "metadata": {"name": "r1", "namespace": "ns", "uid": "u1"},
    }
    first, again, later = (
        build_event(raw, EventDraft("Normal", "Paused", message, once), NOW)["metadata"]["name"]
        for message, once in (("a", "Paused-3"), ("b", "Paused-3"), ("a", "Paused-9"))
    )

    assert first == again != later
    assert first.startswith("r1.")
