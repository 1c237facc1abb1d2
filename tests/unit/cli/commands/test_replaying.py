"""`pilothouse replay`: a changed supervisor over runs of before, out of their journals and out of files."""

import json
from typing import Any

import pytest
import yaml

from support.terminal import Inside, workflow_manifest


def supervisor(count: int, name: str = "keeper", **spec: Any) -> str:
    rules = [{"name": "often", "when": "ToolRepeated", "toolRepeated": {"count": count}}]
    body = {"apiVersion": "pilothouse.dev/v1alpha1", "kind": "Supervisor", "metadata": {"name": name}}
    return yaml.safe_dump({**body, "spec": {"selector": {}, "rules": rules, **spec}})


@pytest.fixture
def ran(inside: Inside) -> Inside:
    """A folder with the run r1, which has called one tool in each of three turns."""
    inside.write("w.yaml", workflow_manifest(3, delay=0))
    inside.type("run", "w.yaml", "--name", "r1")
    return inside


def supervise(inside: Inside, manifest: str, *actions: dict[str, Any]) -> None:
    """Let a run have been watched."""
    path = inside.folder / ".pilothouse" / "runs" / "r1" / "run.json"
    raw, body = json.loads(path.read_text()), yaml.safe_load(manifest)
    record = {"namespace": "default", "name": body["metadata"]["name"], "generation": 1, "spec": body["spec"]}
    raw["status"]["supervision"] = {"supervisors": {"u-1": record}, "actions": list(actions)}
    path.write_text(json.dumps(raw))


def action(turn: int, **fields: Any) -> dict[str, Any]:
    known = {"id": f"a{turn}", "time": "2026-01-01T00:00:00Z", "supervisor": "keeper", "action": "Pause"}
    return {**known, "source": "Rule/often", "reason": "often", "turn": turn, "visit": 1, "state": "Done", **fields}


def test_turns_whose_verdict_changes_are_marked(ran: Inside) -> None:
    supervise(ran, supervisor(2), action(2))
    ran.write("s.yaml", supervisor(3))
    lines = ran.type("replay", "r1", "--supervisor", "s.yaml").splitlines()
    assert lines[0].split() == ["RUN", "TURN", "STEP", "ITER", "DID", "DOES", "WOULD", "DO", "WHY"]
    pause = ["Pause", "Rule/often"]
    assert [line.split()[: 5 + 5] for line in lines[1:]] == [
        ["*", "r1", "2", "talk", "2", *pause, *pause, "-"],
        ["*", "r1", "3", "talk", "3", "-", "-", *pause, "tool"],
    ]
    assert "2 of 3 looks change" in ran.said


def test_an_unchanged_supervisor_changes_nothing_whenever_it_acted(ran: Inside) -> None:
    """A live one acts on the snapshots that came, and they may have left a turn out."""
    supervise(ran, supervisor(2), action(3, state="Superseded"))
    ran.write("s.yaml", supervisor(2))
    rows = json.loads(ran.type("replay", "r1", "--supervisor", "s.yaml", "-o", "json"))
    assert [(row["turn"], row["isChanged"], len(row["did"])) for row in rows] == [(2, False, 0), (3, False, 1)]
    assert "0 of 3 looks change" in ran.said


def test_a_supervisor_that_watched_nobody_is_compared_with_none(ran: Inside) -> None:
    supervise(ran, supervisor(2, "other"), action(2, supervisor="other"))
    ran.write("s.yaml", supervisor(3))
    [row] = json.loads(ran.type("replay", "r1", "--supervisor", "s.yaml", "-o", "json"))
    assert (row["turn"], row["did"], row["current"]["actions"], row["isChanged"]) == (3, [], [], True)
    assert row["changed"]["actions"][0]["source"] == "Rule/often"


def test_all_looks_are_listed_where_that_is_asked_for_and_judges_are_only_said_to_be_asked(ran: Inside) -> None:
    judge = {"model": "careful", "criteria": {"inline": "Be kind."}, "everyNIterations": 2}
    ran.write("s.yaml", supervisor(9, judge=judge))
    assert [line.split()[1] for line in ran.type("replay", "r1", "--supervisor", "s.yaml").splitlines()[1:]] == ["2"]
    assert "the judge would be asked 1 time" in ran.said
    shown = ran.type("replay", "r1", "--supervisor", "s.yaml", "--all")
    assert [line.split()[1] for line in shown.splitlines()[1:]] == ["1", "2", "3"]
    assert "judge would be asked" in shown


def test_observations_that_were_kept_are_replayed_in_place_of_runs(ran: Inside) -> None:
    kept = ran.type("replay", "r1", "-o", "observations")
    lines = [json.loads(line) for line in kept.splitlines()]
    assert [line["observation"]["toolCalls"] for line in lines] == [{"nap": 1}, {"nap": 2}, {"nap": 3}]
    ran.write("kept.jsonl", kept)
    ran.write("old.yaml", supervisor(2))
    ran.write("s.yaml", supervisor(3))
    arguments = ("--observations", "kept.jsonl", "--supervisor", "s.yaml", "--against", "old.yaml")
    rows = json.loads(ran.type("replay", *arguments, "-o", "json"))
    assert [(row["run"], row["turn"], row["isChanged"]) for row in rows] == [("r1", 2, True), ("r1", 3, True)]


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (["r1"], "name the changed supervisor"),
        (["--supervisor", "s.yaml"], "name the runs to go through"),
        (["r1", "--supervisor", "w.yaml"], "there is no Supervisor in w.yaml"),
        (["r1", "--supervisor", "wrong.yaml"], "wrong.yaml: Supervisor keeper: spec.rules.0"),
        (["r1", "--supervisor", "gone.yaml"], "gone.yaml does not exist"),
        (["--observations", "odd.jsonl", "--supervisor", "s.yaml"], "odd.jsonl, line 1 is no observation of a run"),
        (["--observations", "none.jsonl", "--supervisor", "s.yaml"], "none.jsonl holds no observation"),
        (["r1", "--observations", "odd.jsonl", "--supervisor", "s.yaml"], "either runs or a file of observations"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_a_sentence(inside: Inside, arguments: list[str], want: str) -> None:
    inside.write("w.yaml", workflow_manifest(1, delay=0))
    inside.write("s.yaml", supervisor(3))
    inside.write("wrong.yaml", supervisor(0))
    inside.write("odd.jsonl", '{"run": "r1", "observation": {"step": 7}}\n')
    inside.write("none.jsonl", "\n")
    assert want in inside.refuse("replay", *arguments)


def test_a_run_that_is_not_there_is_said_to_be_so(inside: Inside) -> None:
    inside.write("s.yaml", supervisor(3))
    assert "there is no run r9" in inside.refuse("replay", "r9", "--supervisor", "s.yaml", code=5)
