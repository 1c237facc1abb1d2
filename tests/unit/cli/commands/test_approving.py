"""Calls that wait over many runs: which are meant, what is asked, and what is said of each."""

import io
import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import ApprovalDecision
from pilothouse_api.wake import decision_digest
from pilothouse_cli.commands.approving import decide_all, list_approvals
from pilothouse_cli.commands.places import Place
from pilothouse_cli.exits import EXIT_FAILED, EXIT_NOT_FOUND, CliError, Forbidden
from pilothouse_cli.runs.pending import Choice, matches, pending_calls
from pilothouse_cli.views.tables import pending_table
from unit.cli.memory_fleet import MemoryFleet
from unit.cli.views.test_tables import text_of

APPROVE = {"decision": "Approve"}
EVERYTHING = Choice(is_all=True)
ASKED_AT = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def waiting(
    name: str,
    *calls: str,
    tool: str = "refund",
    workflow: str = "triage",
    phase: str = "AwaitingApproval",
    minute: int = 0,
    given: Mapping[str, Any] | None = None,
    answers: Mapping[str, Any] | None = None,
) -> AgentRun:
    at = (ASKED_AT + timedelta(minutes=minute)).isoformat()
    expires = (ASKED_AT + timedelta(days=1)).isoformat()
    pending = [
        {"callId": call, "tool": tool, "arguments": {"amount": 80}, "requestedAt": at, "expiresAt": expires}
        for call in calls
    ]
    return AgentRun.model_validate(
        {
            "metadata": {"name": name, "namespace": "support", "generation": 1, "labels": {"team": name[0]}},
            "spec": {"workflowRef": {"name": workflow}, "control": {"approvals": given or {}}},
            "status": {
                "phase": phase,
                "run": {"attempt": 1, "turn": 3, "pendingApprovals": pending, "control": {"approvals": answers or {}}},
            },
        }
    )


class Fleet(MemoryFleet):
    """Runs in memory: a decision is answered at once, unless `refuse` says otherwise or `is_slow`."""

    def answer(self, raw: dict[str, Any]) -> None:
        for call, decision in raw["spec"]["control"]["approvals"].items():
            digest = decision_digest(ApprovalDecision.model_validate(decision))
            raw["status"]["run"]["control"]["approvals"][call] = {"state": "Landed", "turn": 3, "digest": digest}


class Desk:
    """A person at a terminal, or a script without one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = monkeypatch, capsys
        self.said = ""

    def type(
        self,
        fleet: Fleet,
        choice: Choice = EVERYTHING,
        decision: Mapping[str, Any] = APPROVE,
        *,
        says: str | None = None,
        output: str = "table",
        wait: bool = True,
    ) -> tuple[int, str]:
        """Decide on many calls; `says` is what is typed at the question, None stands for --yes."""
        self._at(fleet, says)
        how = {"is_agreed": says is None, "wait": wait, "timeout": 0.2, "output": output}
        code = decide_all(Place(), choice, decision, **how)  # type: ignore[arg-type]
        out, self.said = self._capsys.readouterr()
        return code, out

    def list(self, fleet: Fleet, choice: Choice = EVERYTHING, output: str = "table") -> str:
        self._at(fleet, "")
        list_approvals(Place(), choice, output)
        out, self.said = self._capsys.readouterr()
        return out

    def _at(self, fleet: Fleet, says: str | None) -> None:
        keyboard = io.StringIO(f"{says}\n")
        self._patch.setattr(keyboard, "isatty", lambda: True, raising=False)
        self._patch.setattr(sys, "stdin", keyboard)
        self._patch.setattr(Place, "fleet", lambda place: fleet)
        self._patch.setenv("COLUMNS", "200")


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(monkeypatch, capsys)


# ---------------------------------------------------------------- which are meant


@pytest.mark.parametrize(
    ("selector", "want"),
    [
        ("team=a", True),
        ("team==a", True),
        ("team = a , tier=gold", True),
        ("team=b", False),
        ("team!=b", True),
        ("team!=a", False),
        ("other!=a", True),
        ("team", True),
        ("!team", False),
        ("!other", True),
        ("team=a,!tier", False),
        ("pilothouse.dev/workflow=w", True),
        ("none=", False),
    ],
)
def test_labels_fit_a_selector(selector: str, want: bool) -> None:
    assert matches({"team": "a", "tier": "gold", "pilothouse.dev/workflow": "w"}, selector) is want


@pytest.mark.parametrize("selector", ["", "team in (a, b)", "!team=a", "=a", "team=a,", "a=b=c"])
def test_a_selector_that_cannot_be_judged_here_is_refused(selector: str) -> None:
    with pytest.raises(CliError, match="no selector that local runs know"):
        matches({"team": "a"}, selector)


def test_calls_are_chosen_by_workflow_and_tool_and_stand_in_the_order_in_which_they_wait() -> None:
    runs = [
        waiting("a1", "t1", minute=2),
        waiting("a2", "t1", tool="mail"),
        waiting("b1", "t1", workflow="other"),
        waiting("c1", "t1", phase="Succeeded"),
        waiting("c2"),
    ]

    def chosen(choice: Choice) -> list[str]:
        return [call.run.metadata.name for call in pending_calls(runs, choice)]

    assert chosen(Choice()) == ["a2", "b1", "a1"]
    assert chosen(Choice(workflow="triage")) == ["a2", "a1"]
    assert chosen(Choice(tool="refund")) == ["b1", "a1"]
    assert chosen(Choice(workflow="triage", tool="refund")) == ["a1"]


def test_what_waits_is_a_table_with_masked_arguments_and_who_has_decided() -> None:
    refused = {"decision": "Approve", "arguments": {"amount": "many"}, "by": "jo"}
    digest = decision_digest(ApprovalDecision.model_validate(refused))
    answers = {"t2": {"state": "NotLanded", "turn": 3, "digest": digest, "message": "no number"}}
    runs = [
        waiting("a1", "t1"),
        waiting("a2", "t2", given={"t2": refused}, answers=answers),
        waiting("a3", "t3", given={"t3": {"decision": "Deny"}}),
    ]
    calls = pending_calls(runs, Choice())
    rows = text_of(pending_table(calls, ASKED_AT + timedelta(minutes=3)))

    assert [call.is_open for call in calls] == [True, True, False]
    for words in ("a1", "t1", "refund", '{"amount": 80}', "3m", "in 23h", "Deny, not", "Approve by jo"):
        assert words in rows


# ---------------------------------------------------------------- many at once


def test_all_that_is_shown_is_approved_and_told_one_by_one(desk: Desk) -> None:
    fleet = Fleet(waiting("a1", "t1"), waiting("a2", "t2"))
    code, out = desk.type(fleet)

    assert code == 0
    assert out.splitlines()[-2:] == ["a1: approval of t1 landed at turn 3", "a2: approval of t2 landed at turn 3"]
    assert out.splitlines()[0].startswith("RUN"), "what is decided on is shown first"
    assert "2/2 landed" in desk.said
    assert sorted(fleet.patches, key=str) == [
        ("a1", {"control": {"approvals": {"t1": APPROVE}}}),
        ("a2", {"control": {"approvals": {"t2": APPROVE}}}),
    ]


def test_many_are_denied_with_one_reason(desk: Desk) -> None:
    fleet = Fleet(waiting("a1", "t1"), waiting("b1", "t2"))
    decision = {"decision": "Deny", "reason": "closed"}
    code, out = desk.type(fleet, Choice(selector="team=b"), decision)

    assert (code, fleet.patches) == (0, [("b1", {"control": {"approvals": {"t2": decision}}})])
    assert "b1: denial of t2 landed at turn 3" in out


@pytest.mark.parametrize("says", ["", "n", "no", "yess"])
def test_a_person_who_does_not_say_yes_decides_nothing(desk: Desk, says: str) -> None:
    fleet = Fleet(waiting("a1", "t1"), waiting("a2", "t2"))
    with pytest.raises(CliError, match="nothing was asked"):
        desk.type(fleet, says=says)

    assert fleet.patches == []


def test_a_person_is_asked_how_many_and_where(desk: Desk) -> None:
    fleet = Fleet(waiting("a1", "t1"), waiting("a2", "t2", "t3"))
    code, _ = desk.type(fleet, says="Yes", output="json")

    assert (code, len(fleet.patches)) == (0, 3)
    assert "Approve 3 calls of 2 runs in namespace support? [y/N]" in desk.said
    assert "refund" in desk.said, "the table is no data for a program"


def test_a_script_must_say_that_it_means_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(waiting("a1", "t1"))
    monkeypatch.setattr(Place, "fleet", lambda place: fleet)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(CliError, match="nobody can be asked"):
        decide_all(Place(), Choice(is_all=True), APPROVE, is_agreed=False, wait=True, timeout=1, output="table")

    assert fleet.patches == []


def test_what_has_a_decision_that_is_not_answered_is_left_alone_and_a_refused_one_is_replaced(desk: Desk) -> None:
    refused = {"decision": "Approve", "arguments": {"amount": "many"}}
    digest = decision_digest(ApprovalDecision.model_validate(refused))
    fleet = Fleet(
        waiting("a1", "t1", given={"t1": {"decision": "Deny"}}),
        waiting("a2", "t2", given={"t2": refused}, answers={"t2": {"state": "NotLanded", "digest": digest}}),
    )
    code, out = desk.type(fleet)

    assert code == 0
    assert fleet.patches == [
        ("a2", {"control": {"approvals": {"t2": None}}}),
        ("a2", {"control": {"approvals": {"t2": APPROVE}}}),
    ]
    assert "a1" not in out


def test_each_run_says_why_nothing_was_decided(desk: Desk) -> None:
    def refusal(code: int = 2) -> CliError:
        return CliError("no call t1 waits for an approval", "", code)

    fleet = Fleet(*(waiting(name, "t1") for name in ("landed", "moved", "other", "ended", "gone", "broken")))

    def becomes(name: str, run: AgentRun | None) -> Callable[[], CliError]:
        def refuse() -> CliError:
            if run is None:
                del fleet.runs[name]
            else:
                fleet.runs[name] = run
            return refusal()

        return refuse

    fleet.refuse = {
        "moved": becomes("moved", waiting("moved", "t4")),
        "other": becomes("other", waiting("other", given={"t1": {"decision": "Deny"}})),
        "ended": becomes("ended", waiting("ended", phase="Aborted")),
        "gone": becomes("gone", None),
        "broken": lambda: CliError("the cluster does not answer", "", EXIT_FAILED),
    }
    code, out = desk.type(fleet, output="json")
    outcomes = {one["run"]: (one["outcome"], one["message"]) for one in json.loads(out)}

    assert code == EXIT_FAILED
    assert outcomes == {
        "landed": ("Landed", ""),
        "moved": ("NotPending", ""),
        "other": ("Decided", "Deny"),
        "ended": ("Ended", ""),
        "gone": ("Gone", ""),
        "broken": ("Failed", "the cluster does not answer"),
    }
    assert fleet.patches == [("landed", {"control": {"approvals": {"t1": APPROVE}}})]
    assert "1/6 landed" in desk.said


def test_a_missing_right_ends_with_its_own_code(desk: Desk) -> None:
    fleet = Fleet(waiting("a1", "t1"), waiting("a2", "t2"))
    fleet.refuse["a1"] = lambda: Forbidden("jo may not approve", "", EXIT_NOT_FOUND)
    code, out = desk.type(fleet)

    assert code == EXIT_NOT_FOUND
    assert "a1: approval of t1 forbidden: jo may not approve" in out
    assert "1/2 landed, 1 forbidden" in desk.said


def test_what_has_not_landed_in_time_is_parked_and_what_is_not_waited_for_is_asked(desk: Desk) -> None:
    code, out = desk.type(Fleet(waiting("a1", "t1"), is_slow=True))
    assert (code, out.splitlines()[-1]) == (4, "a1: approval of t1 not landed yet")

    code, out = desk.type(Fleet(waiting("a1", "t1"), is_slow=True), wait=False)
    assert (code, out.splitlines()[-1]) == (0, "a1: approval of t1 asked for")


def test_nothing_that_waits_is_no_failure(desk: Desk) -> None:
    assert desk.type(Fleet(waiting("a1"))) == (0, "")
    assert "no call waits for a person in namespace support" in desk.said
    assert desk.type(Fleet(waiting("a1")), Choice(tool="x"), output="json") == (0, "[]\n")
    assert "no call of those waits for a person" in desk.said


def test_what_waits_is_listed_for_people_and_programs(desk: Desk) -> None:
    fleet = Fleet(waiting("a1", "t1"), waiting("b1", "t2"))

    assert desk.list(fleet, Choice(selector="team=a"), "name") == "agentrun.pilothouse.dev/a1\n"
    assert [call["call"] for call in json.loads(desk.list(fleet, output="json"))] == ["t1", "t2"]
    assert "t1" in desk.list(fleet)
    assert desk.list(Fleet(), output="table") == ""
