"""Children of local runs: hosted beside their parent, let go with it, steered by a second process."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1 import Agent, AgentRun
from pilothouse_cli.local.children import MANIFESTS, LocalFamily, manifests_text, read_manifests
from pilothouse_cli.local.creation import LOCAL_PLATFORM, create_run, load_plan, new_run
from pilothouse_cli.local.state import RunFolder
from pilothouse_control.resolution import resolve_plan
from pilothouse_control.world import ConfigMap, References
from pilothouse_engine.attempt import Attempt, AttemptEnd, Lost, Stop
from support.installation import wait_until
from support.terminal import PATIENT, Terminal, finish, read_until

DELEGATES = Path(__file__).parents[3] / "support" / "manifests" / "delegates.yaml"


def an_agent(name: str, turns: list[dict[str, Any]], *tools: dict[str, Any]) -> dict[str, Any]:
    script = json.dumps({"turns": turns, "repeat": "None"})
    spec = {
        "description": name,
        "mode": "Autonomous",
        "model": {"name": "scripted", "script": {"inline": script}, "maxOutputTokens": 100},
        "steering": {"inline": "Do it."},
        "tools": list(tools),
    }
    return {"apiVersion": "pilothouse.dev/v1alpha1", "kind": "Agent", "metadata": {"name": name}, "spec": spec}


def a_call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"toolCalls": [{"name": tool, "arguments": arguments}], "usage": {"input": 10, "output": 5}}


def slow_family(turns: int = 12, approval: str = "Never", delay: float = 0.15) -> str:
    """A boss that asks one helper, who notes so many things, slowly."""
    router = {"kind": "Router", "router": {"conditions": [{"cel": "true", "signal": "default"}]}}
    note = {"name": "note", "description": "Notes.", "inlineStep": router, "approval": approval, "effect": "Once"}
    ask = {"name": "ask", "description": "Asks.", "agentRef": {"name": "helper"}}
    notes = [{**a_call("note", n=n), "delaySeconds": delay} for n in range(turns)]
    helper = an_agent("helper", [*notes, {"text": "noted"}], note)
    helper["spec"]["limits"] = {"maxIterations": turns + 2, "maxToolCalls": turns + 2}
    boss = an_agent("boss", [a_call("ask", what="all"), {"text": "done"}], ask)
    return yaml.safe_dump_all([helper, boss])


def show(terminal: Terminal, name: str) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(terminal.type("show", name, "-o", "json"))
    return run


def child_of(terminal: Terminal) -> str:
    [folder] = (terminal.folder / ".pilothouse/runs").glob("r1-*")
    return folder.name


def wait_for_child(terminal: Terminal, turn: int = 1) -> str:
    """Wait until the child has made so many turns."""
    runs = terminal.folder / ".pilothouse/runs"
    found: list[str] = []

    def look() -> bool:
        read = {path.parent.name: json.loads(path.read_text()) for path in runs.glob("r1-*/run.json")}
        found.extend(name for name, raw in read.items() if (raw["status"].get("run") or {}).get("turn", 0) >= turn)
        return bool(found)

    wait_until(look, every=0.05)
    return found[0]


@pytest.mark.slow
def test_a_run_asks_others_reads_what_they_found_and_is_listed_above_them(terminal: Terminal) -> None:
    code, out, _ = finish(terminal.start("run", str(DELEGATES), "--workflow", "desk", "--name", "d1", "-o", "json"))
    assert code == 0
    status = json.loads(out)["status"]
    assert status["result"] == {"answer": "You will get your money back."}
    assert {child["state"] for child in status["run"]["children"]} == {"Delivered"}
    assert [report["exit"]["signal"] for report in status["children"]] == ["default"] * 3
    assert status["run"]["tokens"]["used"] == 310 + 25 + 2 * 120  # its own, the checker's and the researchers'
    assert status["run"]["tokens"]["held"] == 0
    rows = [line.split() for line in terminal.type("list").splitlines()[1:]]
    assert rows[0][0] == "d1"
    assert [row[0] for row in rows[1:]] == ["└"] * 3
    assert sorted(row[2] for row in rows[1:]) == ["checker", "researcher", "researcher"]
    assert "search" in terminal.type("trace", rows[2][1])


@pytest.mark.slow
def test_ctrl_c_lets_go_of_the_child_too_and_resume_goes_on_with_both(terminal: Terminal) -> None:
    run = terminal.start("run", terminal.write("w.yaml", slow_family(delay=0.3)), "--workflow", "boss", "--name", "r1")
    child = wait_for_child(terminal, 2)
    run.send_signal(signal.SIGINT)
    assert finish(run)[0] == 4
    released = show(terminal, child)["status"]
    assert (released["run"]["parked"]["reason"], released["run"]["parked"]["released"]) == ("Stopped", True)

    code, out, _ = finish(terminal.start("resume", "r1", "-o", "json"))
    assert code == 0
    assert json.loads(out)["status"]["children"][0]["exit"]["reason"] == "Complete"
    ended = show(terminal, child)["status"]
    assert (ended["phase"], ended["attempt"]) == ("Succeeded", 2)
    assert ended["run"]["toolCalls"] == {"note": 12}  # none twice


@pytest.mark.slow
def test_a_task_outlives_its_run_and_the_next_run_of_the_session_hosts_it_and_tells_its_end(terminal: Terminal) -> None:
    text = slow_family(turns=8, delay=0.2)
    agents = list(yaml.safe_load_all(text))
    [tool] = agents[1]["spec"]["tools"]
    tool["background"] = True
    start = {"turns": [a_call("start_ask_task", what="all"), {"text": "begun"}], "repeat": "None"}
    agents[1]["spec"]["model"]["script"]["inline"] = json.dumps(start)
    first = terminal.write("first.yaml", yaml.safe_dump_all(agents))
    wait = [{**a_call("note", n=n), "delaySeconds": 0.4} for n in range(8)]
    agents[1]["spec"]["model"]["script"]["inline"] = json.dumps({"turns": [*wait, {"text": "ok"}], "repeat": "None"})
    agents[1]["spec"]["tools"] += agents[0]["spec"]["tools"]
    agents[1]["spec"]["limits"] = {"maxIterations": 20, "maxToolCalls": 20}
    second = terminal.write("second.yaml", yaml.safe_dump_all(agents))

    run = ("--workflow", "boss", "--session", "c-17", "-o", "json")
    code, out, _ = finish(terminal.start("run", first, *run, "--name", "r1"))
    assert code == 0
    assert [child["state"] for child in json.loads(out)["status"]["run"]["children"]] == ["HandedOn"]
    child = child_of(terminal)
    assert show(terminal, child)["status"]["phase"] != "Succeeded"

    code, out, _ = finish(terminal.start("run", second, *run, "--name", "r2"))
    assert code == 0
    status = json.loads(out)["status"]
    assert [(one["callId"], one["owner"], one["state"]) for one in status["run"]["children"]] == [
        (child, "r1", "Delivered")
    ]
    assert show(terminal, child)["status"]["run"]["toolCalls"] == {"note": 8}  # none twice


@pytest.mark.slow
def test_pause_and_abort_of_the_parent_reach_the_child(terminal: Terminal) -> None:
    manifest = terminal.write("w.yaml", slow_family(40, delay=2.0))
    run = terminal.start("run", manifest, "--workflow", "boss", "--name", "r1", "-o", "json")
    child = wait_for_child(terminal)
    terminal.type("pause", "r1", "--no-wait")
    read_mode(terminal, child, "Pause")
    terminal.type("resume", "r1", "--no-wait")
    read_mode(terminal, child, "Run")
    terminal.type("abort", "r1", "--no-wait")
    code, out, _ = finish(run)
    assert code == 3
    assert json.loads(out)["status"]["phase"] == "Aborted"
    ended = show(terminal, child)
    assert ended["status"]["phase"] == "Aborted"
    assert ended["spec"]["control"]["mode"] == "Abort"


def read_mode(terminal: Terminal, name: str, want: str) -> None:
    path = terminal.folder / ".pilothouse/runs" / name / "run.json"
    wait_until(lambda: json.loads(path.read_text())["spec"].get("control", {}).get("mode") == want, every=0.05)


@pytest.mark.slow
def test_what_a_child_asks_is_shown_by_its_parent_and_answered_by_a_second_process(terminal: Terminal) -> None:
    terminal.program = PATIENT
    manifest = terminal.write("w.yaml", slow_family(1, approval="Always"))
    run = terminal.start("run", manifest, "--workflow", "boss", "--name", "r1")
    read_until(run, "parked: AwaitingChild")
    path = terminal.folder / ".pilothouse/runs/r1/run.json"
    wait_until(lambda: '"pendingApprovals"' in path.read_text().partition('"children"')[2], every=0.05)
    shown = terminal.type("show", "r1")
    child = child_of(terminal)
    assert f"note of {child} waits for a person: pilothouse approve {child} t1-0-" in " ".join(shown.split())
    assert f"{child}: approval of t1-0-" in terminal.type("approve", "r1", "--no-wait")  # handed on to it
    assert finish(run)[0] == 0
    assert show(terminal, child)["status"]["phase"] == "Succeeded"


# ---------------------------------------------------------------- a child that crashes


def kept_child(folder: Path) -> RunFolder:
    helper = an_agent("helper", [])
    helper["spec"] = {"mode": "Completion", "model": helper["spec"]["model"], "prompt": {"inline": "Help."}}
    known = References(agents={"helper": Agent.model_validate(helper)}, platform=LOCAL_PLATFORM)
    template = AgentRun.model_validate({"kind": "AgentRun", "spec": {"agentRef": {"name": "helper"}}})
    run = new_run(template, "c1", "helper")
    plan = resolve_plan(run, known)
    assert isinstance(plan, Plan), plan
    return create_run(run, plan, folder, {MANIFESTS: manifests_text(known)})


async def advance_crashing(folder: RunFolder, crashes: int) -> list[Attempt]:
    """Host a child whose first attempts crash; return the attempts."""
    attempts: list[Attempt] = []

    async def once(one: RunFolder, plan: Plan, attempt: Attempt, stop: Stop) -> AttemptEnd:
        attempts.append(attempt)
        if len(attempts) > crashes:
            stop.release()
        raise RuntimeError("broken")

    family = LocalFamily(folder.path.parents[1], LOCAL_PLATFORM, once, Stop())
    await family._advance_child(folder)
    return attempts


def test_a_child_has_three_attempts_then_one_that_closes_it_and_an_end_whatever_comes(tmp_path: Path) -> None:
    folder = kept_child(tmp_path)
    attempts = asyncio.run(advance_crashing(folder, 99))
    assert [(attempt.number, attempt.settle) for attempt in attempts] == [
        (1, None),
        (2, None),
        (3, None),
        (4, "MaxAttempts"),
    ]
    status = folder.read().status
    assert status.exit is not None
    assert (status.phase, status.exit.reason) == ("Failed", "MaxAttempts")
    assert "RuntimeError: broken" in status.exit.message


def test_crashes_are_counted_over_processes(tmp_path: Path) -> None:
    folder = kept_child(tmp_path)
    asyncio.run(advance_crashing(folder, 1))
    attempts = folder.read().status.attempts
    assert attempts is not None
    assert attempts.crashes == 2


def test_what_children_are_made_from_is_kept_and_read_back(tmp_path: Path) -> None:
    folder = kept_child(tmp_path)
    known = read_manifests(folder, LOCAL_PLATFORM)
    assert sorted(known.agents) == ["helper"]
    config_maps = {"tone": ConfigMap("tone", {"1": "Be brief."}, "steering")}
    (folder.path / MANIFESTS).write_text(manifests_text(References(config_maps=config_maps)))
    assert read_manifests(folder, LOCAL_PLATFORM).config_maps == config_maps


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"workflows": 3}', "\udcff"])
def test_damaged_manifests_are_none(tmp_path: Path, text: str) -> None:
    folder = kept_child(tmp_path)
    (folder.path / MANIFESTS).write_text(text, errors="surrogateescape")
    assert read_manifests(folder, LOCAL_PLATFORM).agents == {}


def test_a_fault_while_children_are_looked_after_lets_go_of_the_run_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = kept_child(tmp_path)

    def break_down(self: LocalFamily, one: RunFolder) -> None:
        raise RuntimeError("broken")

    async def once(one: RunFolder, plan: Plan, attempt: Attempt, stop: Stop) -> AttemptEnd:
        await stop.wait()
        return Lost("Gone", "let go")

    async def advance() -> AttemptEnd:
        family = LocalFamily(tmp_path, LOCAL_PLATFORM, once, Stop())
        return await family.advance(folder, load_plan(folder), Attempt(1))

    monkeypatch.setattr(LocalFamily, "_tend", break_down)
    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(advance())
