"""The outcome contract as a table (engine.md §2)."""

from typing import Any

import pytest

from pilothouse_api.structs import AgentSpec
from pilothouse_engine.outcome import Accepted, Rejected, judge_answer


def spec(mode: str = "Autonomous", **outcome: Any) -> AgentSpec:
    return AgentSpec.read({"mode": mode, "model": {"name": "m"}, "outcome": outcome})


ENUM = {"enum": ["resolved", "other"]}


@pytest.mark.parametrize(
    ("outcome", "text", "signal", "writes"),
    [
        (ENUM, '{"outcome": "resolved", "result": {"a": 1}}', "resolved", {"s_result": {"a": 1}}),
        (ENUM, '{"outcome": "resolved", "note": "x"}', "resolved", {"s_result": {"outcome": "resolved", "note": "x"}}),
        (ENUM, '```json\n{"outcome": "other", "result": null}\n```', "other", {"s_result": None}),
        (ENUM, '  ```\n{"outcome": "other", "result": 0}\n```\n', "other", {"s_result": 0}),
        ({"write": "w"}, "just text", "default", {"w": "just text"}),
        ({}, '{"result": 5, "more": 6}', "default", {"s_result": {"result": 5, "more": 6}}),
        ({}, "[1, 2]", "default", {"s_result": [1, 2]}),
        ({"schema": {"type": "object", "required": ["a"]}}, '{"a": 1}', "default", {"s_result": {"a": 1}}),
        ({}, '{"a": NaN}', "default", {"s_result": '{"a": NaN}'}),
    ],
)
def test_a_valid_answer_means_a_signal_and_writes(outcome: Any, text: str, signal: str, writes: Any) -> None:
    assert judge_answer(spec(**outcome), "s", text) == Accepted(signal, writes)


@pytest.mark.parametrize(
    ("outcome", "text", "problem"),
    [
        (ENUM, "resolved", "not valid JSON"),
        (ENUM, '"resolved"', "outcome is missing"),
        (ENUM, '{"outcome": "Resolved"}', "'Resolved'"),
        (ENUM, '{"outcome": " resolved"}', "exactly one of resolved, other"),
        (ENUM, '{"outcome": ["resolved"]}', "['resolved']"),
        (ENUM, '{"outcome": "error", "result": 1}', "'error'"),
        ({"schema": {"type": "object"}}, "no json", "not valid JSON"),
        ({"schema": {"type": "object", "required": ["a", "b"]}}, "{}", 'is a required property; "b"'),
    ],
)
def test_an_invalid_answer_says_what_is_wrong(outcome: Any, text: str, problem: str) -> None:
    verdict = judge_answer(spec(**outcome), "s", text)
    assert isinstance(verdict, Rejected)
    assert problem in verdict.problem


@pytest.mark.parametrize(
    ("outcome", "text", "want"),
    [
        ({"format": "Text"}, " hi ", Accepted("default", {"s_result": " hi "})),
        ({"format": "Text", **ENUM}, " other ", Accepted("other", {"s_result": "other"})),
        ({"map": {"x": "a.0"}}, '{"a": [7]}', Accepted("default", {"s_result": {"a": [7]}, "x": 7})),
    ],
)
def test_a_completion_has_its_formats(outcome: Any, text: str, want: Any) -> None:
    assert judge_answer(spec("Completion", **outcome), "s", text) == want


@pytest.mark.parametrize(
    ("outcome", "text", "problem"),
    [
        ({}, "no json", "not valid JSON"),
        ({"format": "Text", **ENUM}, "neither", "it must be exactly one of resolved, other"),
        ({"map": {"x": "a.5"}}, '{"a": [7]}', "it has nothing at a.5"),
        ({"map": {"x": "0"}}, "[7]", "it has nothing at 0"),
    ],
)
def test_a_completion_that_cannot_be_read_is_rejected(outcome: Any, text: str, problem: str) -> None:
    verdict = judge_answer(spec("Completion", **outcome), "s", text)
    assert isinstance(verdict, Rejected)
    assert problem in verdict.problem
