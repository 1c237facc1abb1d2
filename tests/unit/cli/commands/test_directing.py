"""One directive for many runs: which are meant, when each counts as landed, what is asked and what is said."""

import io
import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.commands.directing import Verb, direct_all, limit_verb, mode_verb, steer_verb
from pilothouse_cli.commands.places import Place
from pilothouse_cli.exits import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_PARKED, CliError, Forbidden
from pilothouse_cli.runs.fleets import OPERATOR_PATIENCE_SECONDS, Order, judge
from pilothouse_cli.runs.pending import Choice
from pilothouse_control.directives import MAX_STEERS, Answer, Directive, mode_directive, steer_directive
from support.terminal import Inside
from unit.cli.memory_fleet import MemoryFleet

EVERYTHING = Choice(is_all=True)
PAUSE, RUN, FINISH, ABORT = (mode_directive(mode) for mode in ("Pause", "Run", "Finish", "Abort"))
STEER = steer_directive("a1", "look")
LIMIT = 60.0


def live(
    name: str = "r1",
    *,
    workflow: str = "triage",
    phase: str = "Running",
    generation: int = 1,
    mode: str | None = None,
    run: Mapping[str, Any] | None = None,
    **status: Any,
) -> AgentRun:
    """A run with a runner at turn 3, unless `run` says otherwise; a `run` of {} has not begun."""
    snapshot = {"attempt": 1, "turn": 3, **(run or {})} if run != {} else {}
    return AgentRun.model_validate(
        {
            "metadata": {
                "name": name,
                "namespace": "support",
                "uid": name,
                "generation": generation,
                "labels": {"team": name[0]},
            },
            "spec": {"workflowRef": {"name": workflow}, **({"control": {"mode": mode}} if mode else {})},
            "status": {"phase": phase, "run": snapshot, **status},
        }
    )


def landed(mode: str, *, generation: int = 2, turn: int = 4) -> dict[str, Any]:
    return {"control": {"observedGeneration": generation, "mode": {"value": mode, "turn": turn}}}


RELEASED = {"parked": {"reason": "Paused", "turn": 3, "since": "2026-01-01T00:00:00Z", "released": True}}
ASKING = {"parked": {"reason": "AwaitingApproval", "turn": 3, "since": "2026-01-01T00:00:00Z", "released": True}}
PAUSED_BEFORE = {**RELEASED, "control": {"observedGeneration": 1, "mode": {"value": "Pause", "turn": 3}}}
EXIT = {"exit": {"signal": "aborted", "reason": "Aborted"}}
ANSWERED = {"exit": {"signal": "default", "reason": "Complete"}}

JUDGED: list[tuple[str, Directive, AgentRun, float, Answer | None]] = [
    ("nothing yet", PAUSE, live(generation=2, mode="Pause", run={"turn": 3}), 1, None),
    ("not in time", PAUSE, live(generation=2, mode="Pause", run={"turn": 3}), LIMIT, Answer("Waiting")),
    ("landed", PAUSE, live(generation=2, mode="Pause", run=landed("Pause")), 1, Answer("Landed", 4)),
    ("a look from before the patch", PAUSE, live(generation=1, run=landed("Pause")), 1, None),
    ("an end that its operator has not seen", PAUSE, live(generation=2, run=ANSWERED), 1, Answer("Ended", 3)),
    ("an end", PAUSE, live(generation=2, phase="Succeeded", run={"turn": 3}), 1, Answer("Ended", 3)),
    ("released, and a pause wakes nothing", PAUSE, live(generation=2, mode="Pause", run=ASKING), 1, Answer("Kept")),
    ("not begun", PAUSE, live(generation=2, phase="Pending", mode="Pause", run={}), 1, Answer("Kept")),
    ("a released run goes on", RUN, live(generation=2, mode="Run", run=PAUSED_BEFORE), 1, None),
    (
        "its operator is away",
        RUN,
        live(generation=2, mode="Run", run=PAUSED_BEFORE),
        OPERATOR_PATIENCE_SECONDS,
        Answer("Unattended"),
    ),
    (
        "its operator is at it",
        RUN,
        live(generation=2, mode="Run", run=PAUSED_BEFORE, observedGeneration=2),
        OPERATOR_PATIENCE_SECONDS,
        None,
    ),
    (
        "its operator is late",
        RUN,
        live(generation=2, mode="Run", run=PAUSED_BEFORE, observedGeneration=2),
        LIMIT,
        Answer("Waiting"),
    ),
    ("an abort is followed to the end", ABORT, live(generation=2, mode="Abort", run=landed("Abort")), 1, None),
    (
        "an abort that does not end",
        ABORT,
        live(generation=2, mode="Abort", run=landed("Abort")),
        LIMIT,
        Answer("Landed", 4),
    ),
    ("aborted", ABORT, live(generation=2, mode="Abort", run={**landed("Abort"), **EXIT}), 1, Answer("Landed", 3)),
    ("aborted before it began", ABORT, live(generation=2, phase="Aborted", run={}), 1, Answer("Landed", 0)),
    ("an answer was first", ABORT, live(generation=2, phase="Succeeded", run=ANSWERED), 1, Answer("Ended", 3)),
    ("aborts want an operator", ABORT, live(generation=2, mode="Abort", run={}), 1, None),
    ("and none is there", ABORT, live(generation=2, mode="Abort", run={}), LIMIT, Answer("Unattended")),
    (
        "a message for a paused run",
        STEER,
        live(generation=2, mode="Pause", run={**landed("Pause"), **RELEASED}),
        1,
        Answer("Kept", 3),
    ),
]


@pytest.mark.parametrize(("case", "directive", "run", "seconds", "want"), JUDGED, ids=[row[0] for row in JUDGED])
def test_a_run_is_judged_by_what_its_runner_says(
    case: str, directive: Directive, run: AgentRun, seconds: float, want: Answer | None
) -> None:
    order = Order(live(generation=2), directive)
    assert judge(run, order, is_advancing=True, seconds=seconds, limit=LIMIT) == want


@pytest.mark.parametrize(("directive", "want"), [(PAUSE, "Kept"), (RUN, "Unhosted"), (STEER, "Kept")])
def test_a_local_run_that_no_process_advances_says_so_at_once(directive: Directive, want: str) -> None:
    order = Order(live(generation=2), directive)
    assert judge(live(generation=2), order, is_advancing=False, seconds=0, limit=LIMIT) == Answer(want)


# ---------------------------------------------------------------- the verbs


class Ships(MemoryFleet):
    """Runs whose runner lands everything at turn 4 at once; one that is aborted ends."""

    def answer(self, raw: dict[str, Any]) -> None:
        control, generation = raw["spec"].get("control") or {}, raw["metadata"]["generation"]
        said = raw["status"]["run"].setdefault("control", {})
        said["observedGeneration"] = generation
        said["mode"] = {"value": control.get("mode") or "Run", "turn": 4}
        said["steer"] = {key: {"state": "Landed", "turn": 4} for key in control.get("steer") or {}}
        said["limits"] = {"generation": generation, "turn": 4}
        if control.get("mode") == "Abort":
            raw["status"]["run"].update(EXIT)


class Desk:
    """A person at a terminal, or a script without one (`says` None stands for --yes)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = monkeypatch, capsys
        self.said = ""

    def type(
        self,
        fleet: MemoryFleet,
        verb: Verb,
        choice: Choice = EVERYTHING,
        *,
        says: str | None = None,
        output: str = "table",
        timeout: float = 5,
        wait: bool = True,
    ) -> tuple[int, list[str]]:
        keyboard = io.StringIO(f"{says}\n")
        self._patch.setattr(keyboard, "isatty", lambda: True, raising=False)
        self._patch.setattr(sys, "stdin", keyboard)
        self._patch.setattr(Place, "fleet", lambda place: fleet)
        self._patch.setenv("COLUMNS", "200")
        code = direct_all(Place(), choice, verb, is_agreed=says is None, wait=wait, timeout=timeout, output=output)
        out, self.said = self._capsys.readouterr()
        return code, out.splitlines()


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(monkeypatch, capsys)


def test_a_fleet_is_parked_and_counted(desk: Desk) -> None:
    effects = {"unknown": [{"callId": "t3-0-1", "tool": "refund", "at": "2026-01-01T00:00:00Z"}]}
    fleet = Ships(*(live(f"a{n}") for n in range(11)), live("b1", run={"effects": effects}))
    code, out = desk.type(fleet, mode_verb("Pause", "lunch"))

    assert code == 0
    assert out[0] == "a0: parked at turn 4"
    assert out[-1] == "b1: parked at turn 4, 1 effect unknown: pilothouse show b1 -n support"
    assert desk.said == "12/12 parked, 1 effect unknown\n"
    assert {json.dumps(patch) for _, patch in fleet.patches} == {
        json.dumps({"control": {"mode": "Pause", "reason": "lunch", "by": None}})
    }


def test_a_run_that_the_barrier_holds_is_told_to_go_on_by_what_it_has_not_heard(desk: Desk) -> None:
    held = {"journalLength": 40, "parked": {"reason": "Barrier", "turn": 3, "since": "2026-01-01T00:00:00Z"}}
    fleet = Ships(live("a1", mode="Run", run=held), live("a2", mode="Pause"))
    desk.type(fleet, mode_verb("Run"))

    reasons = {run: patch["control"]["reason"] for run, patch in fleet.patches}
    assert reasons == {"a1": "resumed at the barrier of turn 3 (40 facts)", "a2": None}


@pytest.mark.parametrize(
    ("choice", "want"),
    [
        (Choice("team=a"), {"a1", "a2"}),
        (Choice(workflow="other"), {"a2", "b2"}),
        (Choice("team=b", "triage"), {"b1"}),
        (EVERYTHING, {"a1", "a2", "b1", "b2"}),
    ],
)
def test_runs_are_meant_by_labels_and_by_workflow(desk: Desk, choice: Choice, want: set[str]) -> None:
    ended = live("a3", phase="Failed")
    fleet = Ships(live("a1"), live("a2", workflow="other"), live("b1"), live("b2", workflow="other"), ended)
    desk.type(fleet, mode_verb("Pause"), choice)

    assert {name for name, _ in fleet.patches} == want


def test_messages_and_limits_reach_all(desk: Desk) -> None:
    fleet = Ships(live("a1"), live("a2"))
    code, out = desk.type(fleet, steer_verb("Faster.", "s1"))
    assert (code, out[0], desk.said) == (0, "a1: steered at turn 4", "2/2 steered\n")
    code, out = desk.type(fleet, limit_verb(["maxIterations=4"]))
    assert (code, out[1], desk.said) == (0, "a2: limited at turn 4", "2/2 limited\n")
    assert fleet.runs["a2"].spec.to_raw()["limits"] == {"maxIterations": 4}


def test_answered_messages_make_room_in_each_run_of_a_fleet(desk: Desk) -> None:
    fleet = Ships(live("a1"), live("a2"))
    for _ in range(40):  # each answered at once
        code, _ = desk.type(fleet, steer_verb("Faster.", None))
        assert code == 0
    assert fleet.runs["a1"].spec.control is not None
    assert 0 < len(fleet.runs["a1"].spec.control.steer) <= MAX_STEERS // 2
    ids = [{key for key in patch["control"]["steer"] if patch["control"]["steer"][key]} for _, patch in fleet.patches]
    assert ids[0] == ids[1] != ids[2]  # one message has one id, whichever run it is for


@pytest.mark.parametrize(
    ("verb", "count", "is_asked"),
    [("Pause", 10, False), ("Pause", 11, True), ("Run", 11, True), ("Abort", 1, False), ("Abort", 2, True)],
)
def test_a_person_is_asked_above_a_number_of_runs(desk: Desk, verb: str, count: int, is_asked: bool) -> None:
    fleet = Ships(*(live(f"a{n}") for n in range(count)))
    if is_asked:
        with pytest.raises(CliError, match="nothing was asked of any run"):
            desk.type(fleet, mode_verb(verb), says="n")
        assert fleet.patches == []
    assert desk.type(fleet, mode_verb(verb), says="y")[0] == 0
    assert f"{count} runs in namespace support? [y/N]" in desk.said or not is_asked


def test_a_script_must_say_that_it_means_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "fleet", lambda place: Ships(live("a1"), live("a2")))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(CliError) as refused:
        direct_all(Place(), EVERYTHING, mode_verb("Abort"), is_agreed=False, wait=True, timeout=1, output="table")
    assert refused.value.next_step == "pilothouse abort … --yes"


def test_what_many_are_is_counted_before_a_person_agrees(desk: Desk) -> None:
    fleet = Ships(*(live(f"a{n:02}", workflow="triage" if n % 3 else "billing") for n in range(24)))
    desk.type(fleet, mode_verb("Pause"), says="yes")
    assert "and 4 more; in all: triage 16, billing 8" in desk.said
    assert "a19" in desk.said and "a20:" not in desk.said


def test_runs_that_end_meanwhile_are_no_failures(desk: Desk) -> None:
    fleet = Ships(live("a1"), live("a2"), live("a3"), is_slow=True)
    fleet.refuse["a1"] = lambda: CliError(str(fleet.change("a1", phase="Succeeded").metadata.name))
    fleet.script = [lambda: fleet.change("a2", phase="Failed"), lambda: fleet.runs.pop("a3")]
    code, out = desk.type(fleet, mode_verb("Pause"))

    assert code == 0
    assert out == [
        "a1: Pause came too late, the run has ended at turn 3",
        "a2: Pause came too late, the run has ended at turn 3",
        "a3: Pause came too late, the run is gone",
    ]
    assert desk.said == "0/3 parked, 2 ended first, 1 gone\n"


def test_each_failure_is_one_line_with_what_to_do_and_the_worst_decides(desk: Desk) -> None:

    fleet = Ships(live("a1"), live("broken"), live("finishing", mode="Finish"), live("slow", run={}))

    def refuse(message: str) -> Any:
        return lambda: CliError(message, "", EXIT_FAILED)

    fleet.refuse = {"broken": refuse("the cluster answered 500"), "finishing": refuse("Finish may only become Abort")}
    fleet.answer = lambda raw: None if raw["metadata"]["name"] == "slow" else Ships.answer(fleet, raw)  # type: ignore[method-assign]
    code, out = desk.type(fleet, mode_verb("Abort"), timeout=1)

    assert code == EXIT_FAILED
    assert out == [
        "a1: aborted at turn 3",
        "finishing: Abort superseded: Finish was asked for before and cannot be taken back",
        "broken: Abort failed: the cluster answered 500; next: pilothouse show broken -n support",
        "slow: Abort is kept until the operator is back; next: pilothouse watch slow -n support",
    ]
    assert "1/4 aborted" in desk.said
    assert "no new runs either: kubectl annotate namespace NAMESPACE pilothouse.dev/suspend=true" in desk.said


def test_a_missing_right_ends_with_its_own_code_and_what_did_not_land_with_another(desk: Desk) -> None:
    fleet = Ships(live("a1"), live("a2"))
    fleet.refuse["a1"] = lambda: Forbidden("jo may not patch", "", EXIT_NOT_FOUND)
    code, out = desk.type(fleet, mode_verb("Pause"))
    assert (code, out[-1]) == (EXIT_NOT_FOUND, "a1: Pause forbidden: jo may not patch")

    code, out = desk.type(Ships(live("a1"), is_slow=True), mode_verb("Pause"), timeout=1)
    assert (code, out) == (EXIT_PARKED, ["a1: Pause not landed yet; next: pilothouse watch a1 -n support"])


def test_what_is_not_waited_for_is_asked(desk: Desk) -> None:
    code, out = desk.type(Ships(live("a1"), is_slow=True), mode_verb("Pause"), wait=False)
    assert (code, out, desk.said) == (0, ["a1: Pause asked for"], "1/1 told to pause\n")


def test_a_program_gets_every_run_as_data(desk: Desk) -> None:
    code, out = desk.type(Ships(live("a1"), live("b1")), mode_verb("Abort"), output="json")
    data = json.loads("\n".join(out))
    assert code == 0
    assert data[0] == {
        "run": "a1",
        "namespace": "support",
        "workflow": "triage",
        "directive": "Abort",
        "outcome": "Landed",
        "turn": 3,
        "message": "",
        "phase": "Running",
        "effectsUnknown": [],
    }
    assert desk.type(Ships(live("a1")), mode_verb("Pause"), output="name")[1] == ["agentrun.pilothouse.dev/a1"]


def test_no_run_is_no_failure(desk: Desk) -> None:
    assert desk.type(Ships(), mode_verb("Abort")) == (0, [])
    assert desk.said == "no run is live in namespace support\n"
    assert desk.type(Ships(live("a1")), mode_verb("Abort"), Choice("team=x"), output="json") == (0, ["[]"])
    assert "no run of those is live" in desk.said


def test_a_place_that_is_away_for_a_while_is_looked_at_again(desk: Desk) -> None:
    fleet = Ships(live("a1"), is_slow=True)

    def lose() -> None:
        fleet.change("a1", run=landed("Pause"))
        raise CliError("the cluster does not answer", "", EXIT_FAILED)

    fleet.script = [lose]
    assert desk.type(fleet, mode_verb("Pause")) == (0, ["a1: parked at turn 4"])


def test_local_runs_that_no_process_advances_are_ended_here(desk: Desk) -> None:
    fleet = Ships(live("a1"), live("a2"), is_slow=True, is_advancing=False)
    code, out = desk.type(fleet, mode_verb("Abort"))
    assert (code, out[0]) == (0, "a1: aborted at turn 3")
    code, out = desk.type(Ships(live("a1"), is_slow=True, is_advancing=False), mode_verb("Run"))
    assert code == EXIT_PARKED
    assert out == ["a1: Run was asked for, and no process advances the run; next: pilothouse resume a1 -n support"]


# ---------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("pause",), "name one run, or choose many"),
        (("abort", "r1", "--all"), "either run r1 or many are meant"),
        (("abort", "r1", "-A"), "run r1 is in one namespace"),
        (("abort", "-A"), "name one run, or choose many"),
        (("abort", "--all", "-A", "-n", "x"), "either all namespaces are meant or x"),
        (("steer", "--all"), "a message is missing"),
        (("steer", "r1"), "a message is missing"),
        (("steer", "r1", "Faster.", "--all"), "either run r1 or many are meant"),
        (("steer", " ", "--all"), "a steer message cannot be blank"),
        (("limit", "--all"), "no limit is named"),
        (("limit", "r1", "maxIterations=3", "--all"), "either run r1 or many are meant"),
        (("limit", "x=3", "--all"), "'x=3' is no limit"),
    ],
)
def test_words_that_mean_no_runs_are_refused(inside: Inside, words: tuple[str, ...], what: str) -> None:
    assert what in inside.refuse(*words)
