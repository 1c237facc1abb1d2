"""Chaos must notice what it looks for: a story in which all is well, and one wrong in each way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from chaos.evidence import Evidence, Mark, Process, Sight
from chaos.journals import prefix_digest
from chaos.plans import EFFECTS, plan_run
from chaos.verdict import judge

CONDITIONS = [
    {"type": "Finished", "status": "True"},
    {"type": "Ready", "status": "True"},
    {"type": "Complete", "status": "True"},
    {"type": "EffectsSettled", "status": "True"},
]


@dataclass
class Story:
    """A run that was killed once and ended well; tests spoil one thing of it."""

    journal: list[dict[str, Any]] = field(
        default_factory=lambda: [
            {"fact": "RunStarted", "at": 1.0},
            {"fact": "ModelStarted", "at": 2.0, "turn": 1, "hold_input": 50, "hold_output": 50},
            {"fact": "ModelStarted", "at": 3.0, "turn": 1, "hold_input": 50, "hold_output": 50},
            {"fact": "ReplyReceived", "at": 4.0, "input": 20, "output": 10, "counted": True, "mark": 0},
            {
                "fact": "CallStarted",
                "at": 5.0,
                "id": "t1-0-a",
                "tool": "pay",
                "effect": "Once",
                "key": "k1",
                "attempt": 2,
            },
            {"fact": "CallFinished", "at": 6.0, "id": "t1-0-a"},
            {"fact": "SteerAnswered", "at": 6.5, "turn": 1, "id": "s0"},
            {"fact": "RunEnded", "at": 7.0, "reason": "Complete"},
        ]
    )
    done: list[dict[str, Any]] = field(
        default_factory=lambda: [
            {"at": 2.1, "what": "asked", "n": 0},
            {"at": 3.1, "what": "asked", "n": 0},
            {"at": 3.2, "what": "replied", "n": 0, "input": 20, "output": 10},
            {"at": 5.1, "what": "executed", "tool": "pay", "n": "0", "how": "ok", "key": "k1"},
        ]
    )
    statuses: list[dict[str, Any]] = field(
        default_factory=lambda: [
            {"attempt": 1, "phase": "Running", "run": {"attempt": 1, "turn": 0, "journalLength": 1}},
            {
                "attempt": 2,
                "attempts": {"crashes": 1},
                "phase": "Succeeded",
                "conditions": copy.deepcopy(CONDITIONS),
                "exit": {"reason": "Complete"},
                "result": {"a": 1},
                "pod": {"name": "r-2"},
                "run": {
                    "attempt": 2,
                    "turn": 1,
                    "journalLength": 8,
                    "exit": {"reason": "Complete"},
                    "effects": {"unknown": []},
                    "tokens": {"used": 130},
                },
            },
        ]
    )
    processes: list[Process] = field(
        default_factory=lambda: [Process(1, 0.0, 2.5, -9, "crash"), Process(2, 2.6, 7.1, 0)]
    )
    marks: list[Mark] = field(default_factory=list)
    alive: tuple[str, ...] = ()
    budget: int | None = 100

    @property
    def final(self) -> dict[str, Any]:
        return self.statuses[-1]

    def evidence(self) -> Evidence:
        sights = [Sight(float(number), status) for number, status in enumerate(self.statuses)]
        sights[-1] = replace(sights[-1], alive=self.alive)
        return Evidence("r", self.journal, sights, self.done, self.processes, self.marks, self.budget, effects=EFFECTS)


def test_a_run_that_went_well_is_found_well() -> None:
    story = Story()
    story.marks = [Mark(3, prefix_digest(story.journal, 3))]

    assert judge(story.evidence()) == []


def done_twice(story: Story) -> None:
    story.done.append(story.done[-1])


def repeated_with_another_key(story: Story) -> None:
    for key in ("a", "b"):
        story.done.append({"at": 5.2, "what": "executed", "tool": "put", "n": "1", "how": "ok", "key": key})


def done_without_a_start(story: Story) -> None:
    story.done.append({"at": 5.2, "what": "executed", "tool": "put", "n": "1", "how": "ok", "key": "other"})


def sent_a_key_for_a_look(story: Story) -> None:
    story.done.append({"at": 5.2, "what": "executed", "tool": "look", "n": "1", "how": "ok", "key": "k1"})


def left_open_and_not_listed(story: Story) -> None:
    story.journal[5] = {**story.journal[5], "is_unknown": True, "code": "tool_effect_unknown"}


def listed_though_it_is_known(story: Story) -> None:
    story.final["run"]["effects"]["unknown"] = [{"callId": "t1-0-a"}]
    story.final["conditions"][3]["status"] = "False"


def told_a_result_of_what_was_not_done(story: Story) -> None:
    story.done.pop()


def told_a_result_that_nobody_gave(story: Story) -> None:
    story.done[-1]["how"] = "drop"


def told_a_result_twice(story: Story) -> None:
    story.journal.insert(6, story.journal[5])


def steered_twice(story: Story) -> None:
    story.journal.insert(6, story.journal[6])


def went_on_after_its_end(story: Story) -> None:
    story.journal.append({"fact": "StepEntered", "at": 8.0})


def began_twice(story: Story) -> None:
    story.journal.insert(1, story.journal[0])


def lost_a_turn_in_status(story: Story) -> None:
    story.statuses.insert(1, {"attempt": 2, "run": {"attempt": 1, "turn": 2, "journalLength": 2}})


def lost_facts(story: Story) -> None:
    story.statuses.insert(1, {"attempt": 1, "run": {"attempt": 1, "turn": 0, "journalLength": 9}})


def let_an_older_attempt_write(story: Story) -> None:
    story.statuses.insert(1, {"attempt": 2, "run": {"attempt": 2, "turn": 0, "journalLength": 2}})
    story.statuses.insert(2, {"attempt": 2, "run": {"attempt": 1, "turn": 0, "journalLength": 2}})


def rewrote_the_journal(story: Story) -> None:
    story.marks = [Mark(3, prefix_digest([*story.journal[:2], {"fact": "Other"}], 3))]


def asked_for_a_reply_again(story: Story) -> None:
    story.journal.insert(4, story.journal[3])


def asked_the_server_again(story: Story) -> None:
    story.done.append({"at": 5.5, "what": "asked", "n": 0})


def asked_without_a_hold(story: Story) -> None:
    story.done.insert(0, {"at": 1.0, "what": "asked", "n": 0})


def spent_past_its_budget(story: Story) -> None:
    story.budget = 20


def was_billed_more_than_it_says(story: Story) -> None:
    story.done[2]["input"] = 500


def says_another_sum(story: Story) -> None:
    story.final["run"]["tokens"]["used"] = 30


def is_stuck(story: Story) -> None:
    story.final["conditions"][0]["status"] = "False"


def ended_without_a_journal(story: Story) -> None:
    story.final["exit"]["reason"] = "JournalLost"


def says_failed_and_ready(story: Story) -> None:
    story.final["phase"] = "Failed"


def ended_while_another_process_lived(story: Story) -> None:
    story.alive = ("r-1", "r-2")


def ended_not_knowing_while_its_process_lived(story: Story) -> None:
    story.alive = ("r-2",)
    story.final["run"]["effects"]["unknown"] = [{"callId": "t1-0-a", "tool": "pay"}]


def changed_its_result(story: Story) -> None:
    story.statuses.append({**story.final, "result": {"a": 2}})


def came_back_to_life(story: Story) -> None:
    story.statuses.append({**story.final, "phase": "Running"})
    story.statuses.append(story.statuses[1])


def counted_what_is_no_crash(story: Story) -> None:
    story.processes[0] = replace(story.processes[0], blow="delete")


def failed_by_itself(story: Story) -> None:
    story.processes[1] = replace(story.processes[1], code=1)


def logged_a_fault(story: Story) -> None:
    story.processes[1] = replace(story.processes[1], lines=({"event": "runner.fault"},))


def did_not_stop_in_its_grace(story: Story) -> None:
    story.processes[1] = replace(story.processes[1], code=-9)


def runs_for_ever(story: Story) -> None:
    story.processes[1] = replace(story.processes[1], code=None)


SPOILED: dict[Callable[[Story], None], str] = {
    done_twice: "once_means_once",
    repeated_with_another_key: "repeats_have_their_key",
    done_without_a_start: "repeats_have_their_key",
    sent_a_key_for_a_look: "repeats_have_their_key",
    left_open_and_not_listed: "unknown_is_listed",
    listed_though_it_is_known: "unknown_is_listed",
    told_a_result_of_what_was_not_done: "learned_was_done",
    told_a_result_that_nobody_gave: "learned_was_done",
    told_a_result_twice: "one_result_each",
    steered_twice: "one_result_each",
    went_on_after_its_end: "one_result_each",
    began_twice: "one_result_each",
    lost_a_turn_in_status: "no_turn_is_lost",
    lost_facts: "no_turn_is_lost",
    let_an_older_attempt_write: "no_turn_is_lost",
    rewrote_the_journal: "no_turn_is_lost",
    asked_for_a_reply_again: "replies_are_not_asked_again",
    asked_the_server_again: "replies_are_not_asked_again",
    asked_without_a_hold: "budgets_hold",
    spent_past_its_budget: "budgets_hold",
    was_billed_more_than_it_says: "budgets_hold",
    says_another_sum: "budgets_hold",
    is_stuck: "ends_and_says_so",
    ended_without_a_journal: "ends_and_says_so",
    says_failed_and_ready: "ends_and_says_so",
    ended_while_another_process_lived: "ends_and_says_so",
    ended_not_knowing_while_its_process_lived: "ends_and_says_so",
    changed_its_result: "ends_and_says_so",
    came_back_to_life: "ends_and_says_so",
    counted_what_is_no_crash: "only_crashes_count",
    failed_by_itself: "processes_end_well",
    logged_a_fault: "processes_end_well",
    did_not_stop_in_its_grace: "processes_end_well",
    runs_for_ever: "processes_end_well",
}


def test_the_process_that_has_told_the_end_may_live_a_moment_longer() -> None:
    story = Story()
    story.alive = ("r-2",)

    assert judge(story.evidence()) == []


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_each_wrong_is_noticed(spoil: Callable[[Story], None]) -> None:
    story = Story()
    spoil(story)

    assert SPOILED[spoil] in {found.split(":")[0] for found in judge(story.evidence())}


def test_a_run_is_drawn_from_the_seed_and_its_number_alone() -> None:
    assert plan_run(7, 3, "http://x") == plan_run(7, 3, "http://x")
    assert plan_run(7, 3, "http://x") != plan_run(7, 4, "http://x")
    assert plan_run(7, 3, "http://x").script != plan_run(8, 3, "http://x").script
