"""The protocol, checked in small; `make model` checks more."""

import pytest

from model.checker import explore, walk
from model.mutations import MUTATIONS, Mutation
from model.operator_process import silent
from model.runner_process import StepPublisher
from model.scenarios import SCENARIOS, WHOLE
from model.world import PilothouseModel
from pilothouse_engine.publisher import Publisher


@pytest.mark.parametrize("name", WHOLE)
def test_every_state_of_a_small_scenario_is_as_promised_and_leads_to_an_end(name: str) -> None:
    with silent():
        report = explore(PilothouseModel(SCENARIOS[name]))
    assert report.violation is None, report.say()
    assert report.is_whole and report.ends > 0, report.say()


@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - set(WHOLE)))
def test_random_ways_through_a_large_scenario_are_as_promised_and_end(name: str) -> None:
    with silent():
        report = walk(PilothouseModel(SCENARIOS[name]), walks=12, seed=20)
    assert report.violation is None, report.say()


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_a_protocol_that_is_wrong_in_one_thing_is_caught(mutation: Mutation) -> None:
    with silent():
        report = explore(PilothouseModel(mutation.scenario, mutation.parts), most_states=12_000, leads=False)
    assert report.violation is not None and report.violation.name in mutation.caught_by, report.say()


def test_the_publisher_of_the_model_has_all_that_the_real_one_offers() -> None:
    """Else a driver that asks for more would end by a fault, and every scenario would say so in its own words."""
    offered = {name for name in vars(Publisher) if not name.startswith("_")}
    assert offered <= {name for name in dir(StepPublisher) if not name.startswith("_")}
