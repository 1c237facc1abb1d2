"""The runner is stopped at each point between two facts (engine.md §10). `make faults` plays all of them; this a part.

The part holds each kind of point once for each thing that can go wrong there: a port or a method that is new has
points of its own, and fails here until a script reaches it.
"""

from collections import Counter

import pytest

from faults.campaign import FIRST_OF_TWO, SEED, Case, judge, scripts, second, stratified, whole
from faults.world import FAULT_KINDS, PASSIVE, Fault, FaultKind, port_forms

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
"""A process that is dead does not begin what it had prepared."""


def failures_of(cases: list[Case]) -> list[str]:
    return [f'{problem}\n  make faults AT="{case}"' for case in cases for problem in judge(case)]


def test_every_method_of_every_port_is_a_point_of_some_script() -> None:
    reached = {(point.port, point.method) for name in scripts() for point in whole(name).world.points}
    for form in port_forms():
        if form.is_optional and form.methods.isdisjoint(reached):
            continue  # no script has a host that offers it
        missed = form.methods - PASSIVE - reached
        assert missed == set(), "write a script in tests/faults/scripts that reaches it"


def test_nothing_is_wrong_with_a_run_that_nothing_stops() -> None:
    assert failures_of([Case(name) for name in scripts()]) == []


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_what_must_hold_holds_wherever_the_runner(kind: FaultKind) -> None:
    cases = [case for case in stratified(SEED) if case.faults[0].kind == kind]
    assert len(cases) >= 10
    assert failures_of(cases) == []


def test_a_park_whose_last_snapshot_had_no_answer_does_not_take_it_back() -> None:
    lost = [
        Case(name, (Fault(point.number, "lose"),))
        for name in scripts()
        if name.startswith("parks/")
        for point in whole(name).world.points
        if (point.port, point.method, point.phase) == ("store", "publish", "after")
    ]
    assert len(lost) >= 20
    assert failures_of(lost) == []


def test_a_process_may_be_stopped_after_that_as_well() -> None:
    first = [case for case in stratified(SEED) if case.faults[0].kind in FIRST_OF_TWO]
    twice = [case for case in (second(one, SEED) for one in first[::3]) if case is not None]
    assert len(twice) >= 50
    assert failures_of(twice) == []


def test_the_points_are_those_at_which_the_engine_touches_the_world() -> None:
    points = Counter(point.kind for name in scripts() for point in whole(name).world.points)
    assert points.total() > 8000
