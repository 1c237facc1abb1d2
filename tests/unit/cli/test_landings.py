"""How a directive's answer is found, and how long one waits for it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import ApprovalDecision
from pilothouse_api.wake import decision_digest
from pilothouse_cli.commands.steering import choose_pending, parse_edit, parse_limits
from pilothouse_cli.exits import CliError
from pilothouse_cli.runs import (
    Answer,
    Directive,
    answer_of,
    approval_directive,
    limits_directive,
    mode_directive,
    steer_directive,
    wait_for_answer,
)
from pilothouse_cli.turns import TurnRow

PAUSE = mode_directive("Pause")
STEER = steer_directive("a1", "look")
LIMITS = limits_directive({"maxIterations": 3})
APPROVE = approval_directive("t1", {"decision": "Approve"})
EDIT = approval_directive("t1", {"decision": "Approve", "arguments": {"amount": "many"}})
APPROVED, EDITED = (
    decision_digest(ApprovalDecision.model_validate(directive.patch["control"]["approvals"]["t1"]))
    for directive in (APPROVE, EDIT)
)


def run_with(control: Mapping[str, Any], phase: str = "Running", *, parked: str | None = None) -> AgentRun:
    snapshot: dict[str, Any] = {"attempt": 1, "turn": 7, "control": control}
    if parked:
        snapshot["parked"] = {"reason": parked, "turn": 7, "since": "t"}
    return AgentRun.model_validate(
        {
            "metadata": {"name": "r1", "generation": 3},
            "spec": {"workflowRef": {"name": "w"}},
            "status": {"phase": phase, "run": snapshot},
        }
    )


PAUSED = {"value": "Pause", "turn": 4}
CASES: list[tuple[str, Directive, AgentRun, Answer | None]] = [
    ("nothing said yet", PAUSE, run_with({}), None),
    ("landed", PAUSE, run_with({"observedGeneration": 3, "mode": PAUSED}), Answer("Landed", 4)),
    ("an older pause is no answer", PAUSE, run_with({"observedGeneration": 2, "mode": PAUSED}), None),
    (
        "answered as one that cannot land",
        PAUSE,
        run_with({"observedGeneration": 3, "mode": {"value": "Finish", "turn": 2, "state": "NotLanded"}}),
        Answer("NotLanded", 2),
    ),
    ("the run has ended", PAUSE, run_with({"observedGeneration": 2}, "Succeeded"), Answer("Ended", 7)),
    ("steer landed", STEER, run_with({"steer": {"a1": {"state": "Landed", "turn": 5}}}), Answer("Landed", 5)),
    ("steer is late", STEER, run_with({"steer": {"a1": {"state": "NotLanded", "turn": 6}}}), Answer("NotLanded", 6)),
    ("another steer landed", STEER, run_with({"steer": {"b2": {"state": "Landed", "turn": 5}}}), None),
    (
        "a paused run keeps a steer",
        STEER,
        run_with({"observedGeneration": 3, "mode": PAUSED}, "Paused", parked="Paused"),
        Answer("Kept", 7),
    ),
    (
        "a paused run that has not read yet",
        STEER,
        run_with({"observedGeneration": 2, "mode": PAUSED}, "Paused", parked="Paused"),
        None,
    ),
    (
        "a decision landed",
        APPROVE,
        run_with({"approvals": {"t1": {"state": "Landed", "turn": 2, "digest": APPROVED}}}),
        Answer("Landed", 2),
    ),
    (
        "an edit was refused",
        EDIT,
        run_with({"approvals": {"t1": {"state": "NotLanded", "turn": 2, "digest": EDITED, "message": "no number"}}}),
        Answer("NotLanded", 2, "no number"),
    ),
    (
        "the decision before it was refused",
        APPROVE,
        run_with({"approvals": {"t1": {"state": "NotLanded", "turn": 2, "digest": EDITED}}}),
        None,
    ),
    (
        "nobody decided in time",
        APPROVE,
        run_with({"approvals": {"t1": {"state": "Expired", "turn": 2}}}),
        Answer("Expired", 2),
    ),
    ("limits hold", LIMITS, run_with({"limits": {"generation": 3, "turn": 6}}), Answer("Landed", 6)),
    ("older limits hold", LIMITS, run_with({"limits": {"generation": 2, "turn": 6}}), None),
]


@pytest.mark.parametrize(("case", "directive", "run", "want"), CASES)
def test_an_answer_is_found_in_status(case: str, directive: Directive, run: AgentRun, want: Answer | None) -> None:
    assert answer_of(run, directive, generation=3) == want


class ScriptedRuns:
    """Gives one run after another."""

    where = "a test"

    def __init__(self, *runs: AgentRun, is_advancing: bool = True) -> None:
        self._runs = list(runs)
        self._is_advancing = is_advancing

    def all(self) -> Sequence[AgentRun]:
        return self._runs

    def select(self, selector: str | None = None) -> Sequence[AgentRun]:
        return self._runs

    def get(self, name: str) -> AgentRun:
        return self._runs[0]

    def patch(self, name: str, spec: Mapping[str, Any]) -> AgentRun:
        return self._runs[0]

    def turns(self, run: AgentRun) -> Sequence[TurnRow]:
        return ()

    def wait_for_change(self, run: AgentRun, timeout: float) -> AgentRun:
        return self._runs.pop(0)

    def is_advancing(self, run: AgentRun) -> bool:
        return self._is_advancing


def test_waiting_ends_with_the_answer() -> None:
    landed = run_with({"observedGeneration": 3, "mode": PAUSED})
    runs = ScriptedRuns(run_with({}), run_with({"observedGeneration": 2}), landed)

    assert wait_for_answer(runs, run_with({}), PAUSE, 10) == (landed, Answer("Landed", 4))


def test_waiting_ends_after_its_time_and_at_once_where_nothing_advances_the_run() -> None:
    open_run = run_with({})
    assert wait_for_answer(ScriptedRuns(), open_run, PAUSE, 0) == (open_run, Answer("Waiting"))
    assert wait_for_answer(ScriptedRuns(is_advancing=False), open_run, PAUSE, 10) == (open_run, Answer("Kept"))


def test_a_mode_without_a_reason_takes_the_last_reason_away() -> None:
    assert mode_directive("Run").patch == {"control": {"mode": "Run", "reason": None}}
    assert mode_directive("Pause", "lunch").patch == {"control": {"mode": "Pause", "reason": "lunch"}}


def test_limits_are_words_on_the_command_line() -> None:
    words = ["maxIterations=4", "costBudgetUSD=0.50", "onPauseTimeout=Abort", "tokenBudget="]
    assert parse_limits(words) == {
        "maxIterations": 4,
        "costBudgetUSD": "0.50",
        "onPauseTimeout": "Abort",
        "tokenBudget": None,
    }


@pytest.mark.parametrize("word", ["maxIterations", "max_iterations=3", "x=1", "maxIterations=-1", "tokenBudget=1e3"])
def test_a_word_that_is_no_limit_is_refused(word: str) -> None:
    with pytest.raises(CliError):
        parse_limits([word])


def waiting_run(*call_ids: str) -> AgentRun:
    pending = [{"callId": call_id, "tool": "refund", "requestedAt": "t"} for call_id in call_ids]
    run = run_with({}, "AwaitingApproval", parked="AwaitingApproval")
    status = run.status.model_copy(update={"run": {**(run.status.run or {}), "pendingApprovals": pending}})
    return run.model_copy(update={"status": status})


@pytest.mark.parametrize(
    ("waiting", "named", "want"),
    [
        (("t1",), None, "t1"),
        (("t1",), "t1", "t1"),
        (("t1", "t2"), "t2", "t2"),
        (("t1", "t2"), None, "these wait: t1, t2"),
        (("t1",), "t2", "these wait: t1"),
        ((), None, "pilothouse show r1"),
    ],
)
def test_the_call_that_is_decided_on_is_the_one_that_waits(
    waiting: tuple[str, ...], named: str | None, want: str
) -> None:
    run = waiting_run(*waiting)
    if want in waiting:
        assert choose_pending(run, named) == want
    else:
        with pytest.raises(CliError) as caught:
            choose_pending(run, named)
        assert want in caught.value.next_step


@pytest.mark.parametrize("text", ["{", "[]", "3", "null", '{"a": {"b": null}}'])
def test_changes_that_a_merge_patch_cannot_carry_are_refused(text: str) -> None:
    with pytest.raises(CliError, match="--arguments"):
        parse_edit(text, ())


@pytest.mark.parametrize(
    ("text", "remove", "want"),
    [
        (None, (), {}),
        ("{}", (), {}),
        ('{"amount": 40, "to": {"b": [null]}}', (), {"arguments": {"amount": 40, "to": {"b": [None]}}}),
        ('{"note": null}', (), {"remove": ["note"]}),
        (None, ("note",), {"remove": ["note"]}),
        ('{"note": null, "n": 1}', ("note", "to"), {"arguments": {"n": 1}, "remove": ["note", "to"]}),
        ('{"to": {"a": 1}}', ("to",), {"arguments": {"to": {"a": 1}}, "remove": ["to"]}),
    ],
)
def test_a_null_is_an_argument_that_is_taken_away(text: str | None, remove: tuple[str, ...], want: Any) -> None:
    assert parse_edit(text, remove) == want
