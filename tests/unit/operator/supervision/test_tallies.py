"""Counters of Supervisors: the sum over runs, whoever dies and whatever goes."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse_api.v1alpha1.supervisor import SupervisorStatus
from pilothouse_operator.supervision.departed import Departed
from pilothouse_operator.supervision.tallies import (
    RunTally,
    Tally,
    count,
    is_counted,
    newest_action,
    read_tally,
    render_counters,
)

Raw = dict[str, Any]


def run(uid: str, pause: int = 1, *, ended: bool = False, label: bool = False, **judge: int) -> Raw:
    record = {"name": "careful", "actions": {"pause": pause}, **({"judge": judge} if judge else {})}
    finished = [{"type": "Finished", "status": "True"}] if ended else []
    labels = {"pilothouse.dev/finished": "Succeeded"} if label else {}
    action = {
        "supervisor": "careful",
        "supervisorUid": "s",
        "action": "Pause",
        "source": "Rule/long",
        "reason": "it took long",
        "turn": 3,
        "time": f"2026-03-01T12:00:0{pause}Z",
        "state": "Done",
    }
    return {
        "kind": "AgentRun",
        "metadata": {"name": f"run-{uid}", "namespace": "ns", "uid": uid, "labels": labels},
        "status": {"conditions": finished, "supervision": {"supervisors": {"s": record}, "actions": [action]}},
    }


def tallies(*raws: Raw) -> list[RunTally]:
    return [tally for raw in raws if (tally := read_tally(raw, "s")) is not None]


class Teller:
    """A Supervisor whose status is written by one operator after another."""

    def __init__(self) -> None:
        self.raw: Raw = {"metadata": {"uid": "s"}, "status": {}}

    def look(self, *present: Raw, departed: Departed | None = None) -> int:
        old = SupervisorStatus.model_validate(self.raw["status"])
        gone = departed.of("s") if departed is not None else []
        counters = count(old, tallies(*present), gone)
        self.raw["status"] = render_counters(counters, old, None)
        if departed is not None:
            departed.set_counted("s", gone)
        pauses: int = self.raw["status"]["actions"]["pause"]
        return pauses

    def restart(self) -> None:
        """Nothing is kept but what stands in status: there is nothing else."""


def test_the_counters_are_the_sum_over_all_runs() -> None:
    teller = Teller()
    assert teller.look(run("a", 2), run("b", 1, calls=3, failures=1, tokensUsed=70)) == 3
    assert teller.raw["status"]["judge"] == {"calls": 3, "failures": 1, "tokensUsed": 70}
    assert teller.raw["status"]["watchedRuns"] == 2
    assert teller.look(run("a", 3), run("b", 1)) == 4


def test_a_run_that_ends_is_counted_once_and_leaves_only_then() -> None:
    teller = Teller()
    live, ended = run("a", 2), run("a", 2, ended=True)
    teller.look(live)
    assert not is_counted(teller.raw, ended)

    assert teller.look(ended) == 2
    assert is_counted(teller.raw, ended)
    assert teller.raw["status"]["ended"]["runs"] == ["a"]
    teller.restart()  # an operator that dies before the label: the run is still there, and counted
    assert teller.look(ended) == 2
    assert teller.look() == 2
    assert "runs" not in teller.raw["status"]["ended"]
    assert teller.raw["status"]["watchedRuns"] == 0


def test_a_run_that_was_left_alone_needs_no_write_to_leave() -> None:
    teller = Teller()
    ended = run("a", 0, ended=True)
    assert is_counted(teller.raw, ended)
    assert teller.look(ended) == 0
    assert "ended" not in teller.raw["status"]


def test_a_run_of_somebody_else_is_nobodys_business() -> None:
    assert read_tally(run("a"), "another") is None
    assert is_counted({"metadata": {"uid": "another"}, "status": {}}, run("a", ended=True))


@pytest.mark.parametrize(("label", "want"), [(False, 3), (True, 1)])
def test_a_run_that_is_deleted_still_counts_unless_it_was_counted_as_it_left(label: bool, want: int) -> None:
    teller, departed = Teller(), Departed()
    assert departed.add(run("a", 2, ended=label, label=label)) == ([] if label else ["careful"])
    assert teller.look(run("b", 1), departed=departed) == want
    assert departed.of("s") == []
    assert teller.look(run("b", 1), departed=departed) == want


def test_a_run_that_was_counted_and_is_deleted_before_its_label_is_not_counted_again() -> None:
    teller, departed = Teller(), Departed()
    ended = run("a", 2, ended=True)
    teller.look(ended)
    departed.add(ended)
    assert teller.look(departed=departed) == 2


def test_a_run_that_is_deleted_while_nobody_looks_still_counts() -> None:
    teller = Teller()
    teller.look(run("a", 2), run("b", 1))
    teller.restart()
    assert teller.look(run("b", 1)) == 3
    assert teller.look(run("b", 2)) == 4


def test_the_newest_action_of_all_runs_is_told() -> None:
    found = newest_action(tallies(run("a", 1), run("b", 2)), None)
    assert found is not None
    assert (found["run"], found["action"], found["source"], found["turn"]) == ("run-b", "Pause", "Rule/long", 3)
    assert newest_action(tallies(run("a", 1)), found) == found
    assert newest_action([], None) is None


def test_counts_add_up_by_name() -> None:
    assert Tally(1, 2, 3, 4, 5, 6) + Tally(steer=1) == Tally(1, 3, 3, 4, 5, 6)
    assert Tally(1, 2).missing_to(Tally(3, 1)) == Tally(2, 0)
