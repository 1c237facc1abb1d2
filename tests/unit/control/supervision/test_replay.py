"""A supervisor over what was observed before: its rules as they fire in a live run, its judge never asked."""

from typing import Any

import pytest

from pilothouse_api.v1alpha1.supervisor import SupervisorSpec
from pilothouse_control.supervision.replay import Replayed, replay
from support.observations import observation


def rule(name: str, count: int, then: str | None = None) -> dict[str, Any]:
    raw = {"name": name, "when": "IterationReached", "iterationReached": {"count": count}}
    return raw if then is None else {**raw, "then": then}


def replayed(*looks: tuple[int, int] | tuple[int, int, dict[str, Any]], **spec: Any) -> list[Replayed]:
    """Replay looks, each by visit and iteration."""
    seen = [observation(visit=look[0], iteration=look[1], **(look[2] if len(look) == 3 else {})) for look in looks]
    return replay(SupervisorSpec.model_validate(spec), seen)


def done(verdicts: list[Replayed]) -> list[list[str]]:
    return [[f"{deed.action} {deed.source}" for deed in verdict.deeds] for verdict in verdicts]


def test_a_rule_fires_once_in_a_visit_and_again_in_the_next() -> None:
    verdicts = replayed((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), rules=[rule("far", 2, "Steer")])
    assert done(verdicts) == [[], ["Steer Rule/far"], [], [], ["Steer Rule/far"]]
    assert verdicts[1].deeds[0].reason


def test_the_most_severe_word_wins_and_a_message_goes_beside_a_pause() -> None:
    rules = [rule("a", 1, "Steer"), rule("b", 1), rule("c", 2, "Steer"), rule("d", 2, "Abort")]
    assert done(replayed((1, 1), (1, 2), rules=rules)) == [["Pause Rule/b", "Steer Rule/a"], ["Abort Rule/d"]]


def test_behind_an_abort_there_is_nothing_to_be_done() -> None:
    verdicts = replayed((1, 1), (1, 2), (2, 1), rules=[rule("now", 1, "Abort"), rule("later", 2)])
    assert done(verdicts) == [["Abort Rule/now"], [], []]
    assert [verdict.is_over for verdict in verdicts] == [False, True, True]


@pytest.mark.parametrize(
    ("every", "iterations", "want"),
    [
        (1, [1, 1, 2, 3], [True, False, True, True]),
        (2, [1, 2, 2, 3, 4], [False, True, False, False, True]),
        (3, [2, 7, 8, 9], [False, True, False, True]),
    ],
)
def test_a_judge_would_be_asked_where_its_cadence_is_crossed(
    every: int, iterations: list[int], want: list[bool]
) -> None:
    judge = {"model": "careful", "criteria": {"inline": "Be kind."}, "everyNIterations": every}
    verdicts = replayed(*((1, iteration) for iteration in iterations), judge=judge)
    assert [verdict.asks_judge for verdict in verdicts] == want
    assert done(verdicts) == [[]] * len(want)


def test_a_judge_is_asked_anew_in_the_next_visit() -> None:
    judge = {"model": "careful", "criteria": {"inline": "Be kind."}, "everyNIterations": 2}
    verdicts = replayed((1, 2), (2, 1), (2, 2), judge=judge)
    assert [verdict.asks_judge for verdict in verdicts] == [True, False, True]


def test_a_rule_about_time_fires_where_a_time_without_progress_ended() -> None:
    silent = {"name": "silent", "when": "NoProgressFor", "noProgressFor": {"seconds": 60}}
    looks = ((1, 1), (1, 1, {"idleSeconds": 59}), (1, 2, {"idleSeconds": 61}))
    assert done(replayed(*looks, rules=[silent])) == [[], [], ["Pause Rule/silent"]]


def test_a_rule_that_cannot_be_evaluated_is_told_once_and_fires_nothing() -> None:
    odd = {"name": "odd", "when": "Expression", "expression": {"cel": "run.toolCalls['gone'] > 3"}}
    verdicts = replayed((1, 1), (1, 2), rules=[odd])
    assert done(verdicts) == [[], []]
    assert [[name for name, _ in verdict.failed] for verdict in verdicts] == [["odd"], []]


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        (rule("far", 2), rule("far", 2), [False, False, False]),
        (rule("far", 2), rule("far", 3), [False, True, True]),
        (rule("far", 2), rule("far", 2, "Steer"), [False, True, False]),
        (rule("far", 2, "Abort"), rule("far", 9), [False, True, False]),
    ],
    ids=["the same", "later", "another action", "an abort that is no more"],
)
def test_a_look_changes_where_something_else_is_done(
    before: dict[str, Any], after: dict[str, Any], want: list[bool]
) -> None:
    looks = ((1, 1), (1, 2), (1, 3))
    both = zip(replayed(*looks, rules=[before]), replayed(*looks, rules=[after]), strict=True)
    assert [one.differs(other) for one, other in both] == want
