"""The verbs on runs of a real cluster: the same words, the same tables, the same exit codes as on a laptop."""

import json
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.agentruns import Administrator
from support.cluster import LocalCluster
from support.runner_process import RunnerPod, finish, napping_plan, read_frames_until, until
from support.terminal import Inside

StartPod = Callable[..., RunnerPod]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, crds: LocalCluster) -> Inside:
    folder = tmp_path / "terminal"
    folder.mkdir()
    inside = Inside(monkeypatch, folder)
    monkeypatch.setenv("KUBECONFIG", str(crds.kubeconfig))
    return inside


def test_a_run_is_paused_steered_limited_resumed_and_aborted(
    administrator: Administrator, pod_of: StartPod, terminal: Inside
) -> None:
    pod = pod_of(napping_plan(60, delay=0.2))
    name = pod.run.name
    process = pod.start()
    read_frames_until(process, "Iteration", iteration=2)

    assert f"{name}: Pause landed at turn " in terminal.type("pause", name, "--reason", "lunch")
    spec = administrator.get(name)["spec"]
    assert spec["control"] == {"mode": "Pause", "reason": "lunch"}
    assert "is kept and lands when the run goes on" in terminal.type("steer", name, "Faster.", "--id", "a1")
    assert f"{name}: Run landed at turn " in terminal.type("resume", name)
    assert administrator.get(name)["spec"]["control"] == {"mode": "Run", "steer": {"a1": {"message": "Faster."}}}
    assert "limits landed at turn " in terminal.type("limit", name, "maxIterations=70", "-n", "default")
    assert "steer a2 landed at turn " in terminal.type("steer", name, "Slower.", "--id", "a2")
    assert "Abort landed at turn " in terminal.type("abort", name, "--reason", "wrong")

    code, _ = finish(process)
    assert code == 0
    assert administrator.get(name)["status"]["run"]["exit"]["reason"] == "Aborted"


def test_calls_that_wait_for_a_person_are_approved_with_other_arguments_and_denied(
    administrator: Administrator, pod_of: StartPod, terminal: Inside
) -> None:
    pod = pod_of(napping_plan(2, delay=0.0, approval="Always"))
    name = pod.run.name
    process = pod.start()
    (pending,) = until(administrator, pod, lambda run: bool(run.get("pendingApprovals")))["pendingApprovals"]
    call = pending["callId"]
    assert (pending["tool"], pending["arguments"]) == ("note", {"n": 0})
    assert f"pilothouse approve {name} {call} (or deny)" in terminal.type("show", name)
    refused = terminal.type("approve", name, "--arguments", '{"n": "many"}', code=1)
    assert f"{name}: approval of {call} was answered NotLanded at turn 1: the arguments do not fit" in refused
    assert f"{name}: approval of {call} landed at turn 1" in terminal.type("approve", name, "--arguments", '{"n": 7}')

    until(administrator, pod, lambda run: run["turn"] == 2 and bool(run.get("pendingApprovals")))
    assert "landed at turn 2" in terminal.type("deny", name, "--reason", "enough")
    code, _ = finish(process)
    assert code == 0
    run = administrator.get(name)["status"]["run"]
    assert run["exit"]["reason"] == "Complete"
    assert run.get("pendingApprovals", []) == []
    assert {landing["state"] for landing in run["control"]["approvals"].values()} == {"Landed"}


def test_all_calls_that_wait_in_runs_with_a_label_are_decided_at_once_and_no_other(
    administrator: Administrator, crds: LocalCluster, terminal: Inside
) -> None:
    team = f"t{uuid.uuid4().hex[:8]}"
    runs = [administrator.create() for _ in range(12)]
    for number, run in enumerate(runs):
        labels = [f"team={team}"] if number else []
        labels += ["pilothouse.dev/finished=Succeeded"] if number == 1 else []
        crds.run_tool("kubectl", "label", "prun", run.name, f"all={team}", *labels)
        call = {"callId": f"t1-0-{number:08}", "tool": "refund", "requestedAt": "2026-01-01T00:00:00Z"}
        administrator.set_status(run.name, phase="AwaitingApproval", run={"attempt": 1, "pendingApprovals": [call]})
    meant = ("-n", "default", "-l", f"team={team}")

    assert len(terminal.type("approvals", *meant, "-o", "name").split()) == 10
    outcomes = json.loads(terminal.type("approve", *meant, "--yes", "--no-wait", "-o", "json"))

    assert {one["outcome"] for one in outcomes} == {"Asked"}
    assert sorted(one["run"] for one in outcomes) == sorted(run.name for run in runs[2:])
    for number, run in enumerate(runs):
        control = administrator.get(run.name)["spec"].get("control")
        want = {"approvals": {f"t1-0-{number:08}": {"decision": "Approve"}}}
        assert control == (want if number >= 2 else None)
    assert "no call of those waits for a person" in terminal.refuse("approve", *meant, "--yes", code=0)


def test_a_fleet_is_parked_with_one_watch_whatever_else_becomes_of_its_runs(
    administrator: Administrator, crds: LocalCluster, terminal: Inside
) -> None:
    team = f"t{uuid.uuid4().hex[:8]}"
    runs = [administrator.create() for _ in range(30)]
    for run in runs:
        crds.run_tool("kubectl", "label", "prun", run.name, f"team={team}")
        administrator.set_status(run.name, phase="Running", run={"attempt": 1, "turn": 3})
    ended, gone, released, *others = runs
    parked = {"reason": "AwaitingApproval", "turn": 3, "since": "2026-01-01T00:00:00Z", "released": True}
    administrator.set_status(released.name, run={"attempt": 1, "turn": 3, "parked": parked})

    def sail() -> None:
        """What their runners do; the operator is not there."""
        for run in runs:
            while not (spec := administrator.get(run.name))["spec"].get("control"):
                time.sleep(0.01)
            if run is ended:
                administrator.set_status(run.name, phase="Succeeded")
                crds.run_tool("kubectl", "label", "prun", run.name, "pilothouse.dev/finished=Succeeded")
            elif run is gone:
                administrator.delete(run.name)
            elif run is not released:
                answer = {"observedGeneration": spec["metadata"]["generation"], "mode": {"value": "Pause", "turn": 4}}
                administrator.set_status(run.name, run={"attempt": 1, "turn": 4, "control": answer})

    with ThreadPoolExecutor(1) as pool:
        sailing = pool.submit(sail)
        outcomes = json.loads(terminal.type("pause", "-l", f"team={team}", "-n", "default", "--yes", "-o", "json"))
        sailing.result()

    assert Counter(one["outcome"] for one in outcomes) == {"Landed": 27, "Ended": 1, "Gone": 1, "Kept": 1}
    assert {one["run"]: one["turn"] for one in outcomes if one["outcome"] == "Landed"} == {
        run.name: 4 for run in others
    }
    assert "27/30 parked" in terminal.said
    assert "1 kept until they go on" in terminal.said
    events = crds.audit_events()
    theirs = [event for event in events if "OpenAPI-Generator" in event.get("userAgent", "")]
    asked = Counter(event["verb"] for event in theirs if team in event["requestURI"])
    named = Counter(event["verb"] for event in theirs if event["objectRef"].get("name") in {run.name for run in runs})
    assert asked["list"] == 1
    assert asked["watch"] <= 3
    assert named["patch"] == 30
    assert named["get"] <= 2, "a run that the watch lost sight of is looked at once"


def test_runs_are_listed_shown_traced_and_watched(
    administrator: Administrator, pod_of: StartPod, terminal: Inside
) -> None:
    pod = pod_of(napping_plan(3, delay=0.1))
    name = pod.run.name
    finish(pod.start())

    rows = json.loads(terminal.type("trace", name, "-o", "json"))
    assert [(row["turn"], len(row["calls"]), row["tokens"]["input"]) for row in rows] == [
        (1, 1, 15),
        (2, 1, 15),
        (3, 1, 15),
        (4, 0, 15),
    ]
    assert "note" in terminal.type("trace", name)
    shown = json.loads(terminal.type("show", name, "-o", "json"))
    assert shown["metadata"]["uid"] == pod.run.uid
    assert "Result" in terminal.type("show", name)
    administrator.set_status(name, phase="Succeeded")
    assert name in terminal.type("list", "--cluster")
    assert f"agentrun.pilothouse.dev/{name}\n" in terminal.type("list", "-n", "default", "-o", "name")
    assert "turn 4: step talk finished with default" in terminal.type("watch", name)
    assert "has ended (Succeeded)" in terminal.refuse("pause", name, code=1)


def test_what_the_cluster_refuses_is_told_in_its_words(
    administrator: Administrator, crds: LocalCluster, terminal: Inside
) -> None:
    run = administrator.create()
    assert "there is no run nope in namespace default" in terminal.refuse("show", "nope", code=5)
    assert "there is no run nope in namespace elsewhere" in terminal.refuse("abort", "nope", "-n", "elsewhere", code=5)
    terminal.type("abort", run.name, "--no-wait")
    assert "Abort cannot be taken back" in terminal.refuse("pause", run.name, "--no-wait", code=2)
    crds.run_tool("kubectl", "create", "serviceaccount", "stranger")
    token = crds.run_tool("kubectl", "create", "token", "stranger").strip()
    config: dict[str, Any] = yaml.safe_load(crds.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = terminal.write("stranger.yaml", yaml.safe_dump(config))
    refused = terminal.refuse("show", run.name, "--kubeconfig", path, code=5)
    assert "cannot get resource" in refused
    assert "next:" in refused


def test_a_directive_that_nobody_answers_says_where_the_run_is(administrator: Administrator, terminal: Inside) -> None:
    run = administrator.create()
    said = terminal.type("pause", run.name, "--timeout", "1", code=4)
    assert f"{run.name}: Pause has not landed within 1 s, it has not begun: pilothouse watch {run.name}" in said


def test_a_workflow_is_submitted(administrator: Administrator, terminal: Inside) -> None:
    name = (
        terminal.type("submit", "triage", "--input", "ticket.text=hello")
        .strip()
        .removeprefix("agentrun.pilothouse.dev/")
    )
    assert name.startswith("triage-")
    assert administrator.get(name)["spec"] == {
        "workflowRef": {"name": "triage"},
        "input": {"ticket": {"text": "hello"}},
    }
    assert "already exists" in terminal.refuse("submit", "triage", "--name", name, code=2)


def test_kubectl_runs_the_same_program_on_the_cluster(administrator: Administrator, crds: LocalCluster) -> None:
    run = administrator.create()
    path = f"{Path(sys.executable).parent}:{crds.environment['PATH']}"
    done = subprocess.run(
        ["kubectl", "pilothouse", "list", "-o", "name"],
        env={**crds.environment, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"agentrun.pilothouse.dev/{run.name}" in done.stdout.split()
