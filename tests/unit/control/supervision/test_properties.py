"""Whatever happens in whatever order: a finding acts at most once, and the clock passes nothing that is not done."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pilothouse_api.judging import JudgeFailure, Verdict
from pilothouse_api.v1alpha1.agentrun import SupervisionClock
from unit.control.supervision.worlds import REPEATED, World, a_guard, a_judge, a_snapshot
from unit.engine.hostile import examples

LATE = {"name": "late", "when": "IterationReached", "iterationReached": {"count": 4}}
IDLE = {"name": "idle", "when": "NoProgressFor", "noProgressFor": {"seconds": 60}}
ACTIONS = st.sampled_from(["Pause", "Steer", "Abort"])
ON_ERROR = st.sampled_from(["Ignore", "Pause"])
ENFORCEMENT = st.sampled_from(["Sync", "Async"])
ANSWERS = st.sampled_from(
    [
        Verdict(passed=True, reason="fine", tokens=7),
        Verdict(passed=False, reason="it pays twice", tokens=7),
        JudgeFailure(type="Timeout", message="none", tokens=7),
    ]
)
NAMES = ("plain", "judged")


class Supervised(RuleBasedStateMachine):
    """A run with two supervisors, a host that dies whenever it likes, and people who steer."""

    @initialize(then=ACTIONS, on_error=ON_ERROR, enforcement=ENFORCEMENT)
    def begin(self, then: str, on_error: str, enforcement: str) -> None:
        rules = [{**REPEATED, "then": then}, LATE, IDLE]
        judge = a_judge(everyNIterations=2, onError=on_error, tokenBudget=40)
        plain = a_guard("plain", *rules, enforcement="Sync")
        self.world = World([plain, a_guard("judged", judge=judge, enforcement=enforcement)])
        self.turn, self.visit, self.iteration, self.calls, self.length = 0, 1, 0, 0, 1
        self.clock = SupervisionClock()
        self.patched: list[tuple[str, int]] = []
        self.resumed: set[str] = set()
        self.paid = 0
        self.publish()

    def publish(self, **changes: Any) -> None:
        counts = {"toolCalls": {"lookup": self.calls}}
        raw: dict[str, Any] = {"visit": self.visit, "iteration": self.iteration, "journalLength": self.length}
        raw |= {"visitCounts": counts, "lastProgressTime": self.world.now.isoformat()}
        self.world.snapshot = a_snapshot(self.turn, **{**raw, **changes})

    @rule(calls=st.integers(0, 3))
    def a_turn_ends(self, calls: int) -> None:
        self.turn, self.iteration = self.turn + 1, self.iteration + 1
        self.length, self.calls = self.length + 4, self.calls + calls
        self.publish()

    @rule()
    def a_call_of_a_batch_ends(self) -> None:
        self.length, self.calls = self.length + 1, self.calls + 1
        self.publish()

    @rule()
    def a_visit_ends(self) -> None:
        self.visit, self.iteration, self.calls = self.visit + 1, 0, 0
        self.turn, self.length = self.turn + 1, self.length + 3
        self.publish()

    @rule()
    def a_step_without_an_agent_is_at_work(self) -> None:
        self.turn, self.length = self.turn + 1, self.length + 2
        self.publish(step="fetch", visitCounts=None)

    @rule(seconds=st.integers(1, 90))
    def time_passes(self, seconds: int) -> None:
        self.world.wait(seconds)

    @rule(mode=st.sampled_from(["Run", "Pause", "Finish", "Abort"]))
    def a_person_sets_the_mode(self, mode: str) -> None:
        stands = self.world.control.get("mode", "Run")
        if stands == "Abort" or (stands == "Finish" and mode != "Abort"):
            return  # the API server refuses it
        self.world.person(mode=mode)

    @precondition(lambda self: hasattr(self, "world") and self.world.control.get("mode") == "Pause")
    @rule()
    def a_person_resumes(self) -> None:
        self.world.person(mode="Run")

    @precondition(lambda self: hasattr(self, "world") and self.world.control.get("mode", "Run") == "Run")
    @rule(dies=st.booleans())
    def a_finding_is_carried_out_and_a_person_takes_it_back_at_once(self, dies: bool) -> None:
        self.turn, self.iteration, self.length = self.turn + 1, self.iteration + 1, self.length + 4
        self.calls += 3
        self.publish()
        patches = len(self.world.patches)
        for _ in range(4):
            self.the_host_looks("done" if dies else "")
            if len(self.world.patches) > patches:
                break
        if self.world.control.get("mode") == "Pause":
            self.world.person(mode="Run")

    @rule()
    def a_person_changes_a_limit(self) -> None:
        generation = self.world.raw["metadata"]["generation"]
        self.world._patch({"limits": {"maxIterations": 10 + generation}})

    @rule(name=st.sampled_from(NAMES), answer=ANSWERS)
    def a_judge_answers(self, name: str, answer: Any) -> None:
        if f"uid-{name}" in self.world.underway:
            self.world.answer(answer, name)

    @rule(dies_before=st.sampled_from(["", "", "", "write", "asks", "done"]))
    def the_host_looks(self, dies_before: str) -> None:
        patches = len(self.world.patches)
        self.world.look(dies_before=dies_before)
        if len(self.world.patches) > patches:
            self._note(self.world.patches[-1]["control"])

    def _note(self, control: Any) -> None:
        intended = {action.id: action for action in self.world.record.actions}
        for key in control.get("steer") or {}:
            if control["steer"][key] is not None:
                self.patched.append((key, intended[key].visit))
        mode = control.get("mode")
        if mode is not None:
            actions = self.world.record.actions
            meant = [one for one in actions if one.action == mode and f"({one.source})" in control["reason"]]
            assert meant, "a directive without its intent"
            self.patched.append((f"{meant[-1].source}", meant[-1].visit))

    @precondition(lambda self: hasattr(self, "world"))
    @rule()
    def the_host_comes_to_rest(self) -> None:
        for _ in range(8):
            self.the_host_looks("")
        assert "Intended" not in [state for _, state in self.world.states]

    @invariant()
    def a_rule_acts_once_in_a_visit(self) -> None:
        if hasattr(self, "world"):
            rules = [one for one in self.patched if not one[0].startswith("Judge")]
            assert len(set(rules)) == len(rules), rules

    @invariant()
    def the_clock_never_goes_back_and_passes_nothing_that_is_not_done(self) -> None:
        if not hasattr(self, "world"):
            return
        clock = self.world.record.clock or SupervisionClock()
        assert clock.journal_length >= self.clock.journal_length
        if clock.journal_length > self.clock.journal_length:
            assert "Intended" not in [state for _, state in self.world.states]
            assert clock.journal_length <= self.length
            judged = self.world.record.supervisors["uid-judged"]
            is_sync = judged.spec.get("enforcement") == "Sync"
            is_awaited = judged.judge is not None and judged.judge.asked_at is not None
            assert not (is_sync and is_awaited and judged.judge and judged.judge.asked_length <= clock.journal_length)
        self.clock = clock

    @invariant()
    def a_finish_or_an_abort_of_a_person_stands(self) -> None:
        if hasattr(self, "world") and self.world.control.get("mode") == "Pause":
            assert not any(patch["control"].get("mode") == "Abort" for patch in self.world.patches)


Supervised.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
TestSupervised = Supervised.TestCase
