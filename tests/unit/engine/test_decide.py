"""The rules that stand above every step: which wins, and that the one look that skips them skips none in vain."""

from itertools import product
from typing import Any

import pytest

from pilothouse_engine.actions import Action, Commit, Finish, Inputs, ReadControl, Release
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.decide import RULES, is_undisturbed, next_action
from pilothouse_engine.facts import AttemptStarted, ParkBegan, ParkReleased, RunEnded, RunStarted
from pilothouse_engine.settings import Settings
from pilothouse_engine.state import RunState
from unit.engine.scenarios import agent_step, build_plan

NOW = 1000.0


def catalog() -> Catalog:
    return Catalog(
        build_plan(agent_step(), active_deadline_seconds=60),
        lambda endpoint: None,
        lambda endpoint: None,
        is_durable=True,
    )


def state(*, attempt: int = 1, park: bool = False, ended: bool = False, active: float = 0.0) -> RunState:
    built = RunState()
    built.apply(RunStarted(NOW, "d"))
    built.apply(AttemptStarted(NOW, attempt))
    built.active_seconds = active
    if park:
        built.apply(ParkBegan(NOW, "Paused", 1, NOW + 300, "Release"))
    if ended:
        built.apply(RunEnded(NOW, "default", "Complete"))
    return built


def inputs(**fields: Any) -> Inputs:
    given = {"published_length": 0, "opened_length": 0, "attempt": 1, "settle": None} | fields
    return Inputs(settings=Settings(), plan_digest="d", now=NOW, read_at=NOW, **given)


def test_where_one_look_finds_nothing_no_rule_has_anything_to_do() -> None:
    found = {True: 0, False: 0}
    cases = product((1, 2), (False, True), (False, True), (0.0, 60.0), (None, 0, 9), (None, "Aborted"), (False, True))
    for attempt, park, ended, active, published, settle, is_stopping in cases:
        run = state(attempt=attempt, park=park, ended=ended, active=active)
        known = inputs(published_length=published, settle=settle, is_stopping=is_stopping)
        quiet = is_undisturbed(catalog(), run, known)
        found[quiet] += 1
        assert quiet == all(rule(catalog(), run, known) is None for rule in RULES)
    assert found[True] >= 1 and found[False] > 100


@pytest.mark.parametrize(
    ("run", "known", "want"),
    [
        (state(attempt=2, ended=True), inputs(), Commit),
        (state(ended=True), inputs(is_stopping=True), Finish),
        (state(ended=True), inputs(published_length=None), Finish),
        (state(), inputs(published_length=None), ReadControl),
        (state(park=True), inputs(published_length=None, is_stopping=True), Commit),
        (state(), inputs(published_length=None, is_stopping=True), Commit),
        (state(), inputs(settle="Aborted", published_length=9), ReadControl),
        (state(active=60.0), inputs(published_length=9), Commit),
    ],
)
def test_the_rules_win_in_their_order(run: RunState, known: Inputs, want: type[Action]) -> None:
    assert isinstance(next_action(catalog(), run, known), want)


def test_a_released_park_lets_go_at_once() -> None:
    run = state(park=True)
    run.apply(ParkReleased(NOW))
    assert next_action(catalog(), run, inputs(is_stopping=True)) == Release()
