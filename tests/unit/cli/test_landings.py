"""How long one waits for a directive's answer, and what the words of the steering verbs mean."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import Control
from pilothouse_cli.commands.steering import choose_pending, message_directive, parse_edit, parse_limits
from pilothouse_cli.exits import CliError
from pilothouse_cli.runs.port import wait_for_answer
from pilothouse_cli.runs.turns import TurnRow
from pilothouse_control.directives import Answer, mode_directive

PAUSE = mode_directive("Pause")


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


def test_answered_messages_of_this_command_make_room_for_a_new_one() -> None:
    steers = {key: {"message": "x"} for key in [f"s-{number:06x}" for number in range(32)] + ["mine"]}
    run = run_with({"steer": {"s-000001": {"state": "Landed"}, "mine": {"state": "Landed"}}})
    control = Control.model_validate({"steer": steers})
    run = run.model_copy(update={"spec": run.spec.model_copy(update={"control": control})})
    patch = message_directive("look", "a1", run).patch
    assert patch == {"control": {"steer": {"s-000001": None, "a1": {"message": "look"}}}}
    assert message_directive("look", "a1", run_with({})).patch == {"control": {"steer": {"a1": {"message": "look"}}}}
