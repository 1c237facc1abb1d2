"""Supervision of local runs: hosted beside the attempt, kept for the next one, and never left out by mistake."""

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pilothouse_api.judging import JudgeAnswer, JudgeFailure, JudgeRequest, Verdict
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import Snapshot
from pilothouse_cli.authoring.manifests import Manifests
from pilothouse_cli.exits import CliError
from pilothouse_cli.local.creation import LOCAL_PLATFORM, create_run, new_run
from pilothouse_cli.local.state import SUPERVISORS, RunFolder
from pilothouse_cli.local.supervision import (
    LocalSupervision,
    keep_supervisors,
    read_supervisors,
    supervisors_text,
)
from pilothouse_control.documents import parse_documents
from pilothouse_control.resolution import resolve_plan
from support.installation import wait_until
from support.terminal import Terminal, finish, read_until, workflow_manifest
from unit.cli.local.test_children import a_call, an_agent
from unit.control.manifests import ROUTES, Raw, a_run, a_supervisor, a_workflow, an_object
from unit.control.supervision.worlds import a_judge, at_barrier, calling

OFTEN = {"name": "often", "when": "ToolRepeated", "then": "Pause"}


class FakeJudge:
    """Answers as it is told, once it is told."""

    def __init__(self, answer: JudgeAnswer) -> None:
        self.answer = answer
        self.asked: list[JudgeRequest] = []

    async def ask(self, request: JudgeRequest) -> JudgeAnswer:
        self.asked.append(request)
        await asyncio.sleep(0)
        return self.answer

    async def models(self) -> frozenset[str] | JudgeFailure:
        return frozenset({"small"})


class Stage:
    """A local run that nobody advances: a test publishes its snapshots."""

    def __init__(self, folder: Path, supervisor: Raw, judge: FakeJudge | None = None) -> None:
        text = yaml.safe_dump_all([supervisor, a_workflow()])
        manifests = Manifests.of(parse_documents(text))
        kept = keep_supervisors(manifests, None, folder)
        run = new_run(AgentRun.model_validate(a_run()), "r1", "triage")
        plan = resolve_plan(run, manifests.references(LOCAL_PLATFORM))
        self.folder = create_run(run, plan, folder, {SUPERVISORS: supervisors_text(kept)})
        self.told: list[dict[str, Any]] = []
        self.host = LocalSupervision(
            self.folder, plan, read_supervisors(self.folder), judge, self.told.append, frozenset({"small"})
        )

    def publish(self, snapshot: Snapshot) -> None:
        self.edit(lambda raw: {**raw, "status": {**raw["status"], "run": snapshot.to_raw()}})

    def edit(self, change: Callable[[Raw], Raw]) -> None:
        self.folder.edit(change)

    @property
    def run(self) -> AgentRun:
        return self.folder.read()

    @property
    def mode(self) -> str | None:
        control = self.run.spec.control
        return control.mode if control is not None else None

    @property
    def states(self) -> list[tuple[str, str]]:
        record = self.run.status.supervision
        return [(action.action, action.state) for action in record.actions] if record is not None else []


def a_guard(**changes: Any) -> Raw:
    return a_supervisor(**{"rules": [OFTEN], "selector": {}, **changes})


def test_a_look_does_all_that_is_to_be_done_and_tells_it_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path, a_guard(enforcement="Sync"))
    stage.host.look()
    record = stage.run.status.supervision
    assert record is not None
    assert record.barrier is not None
    stage.publish(calling(3, 3))
    stage.host.look()
    stage.host.look()
    assert stage.mode == "Pause"
    assert stage.states == [("Pause", "Done")]
    assert [(frame["kind"], frame["action"], frame["state"]) for frame in stage.told] == [
        ("Supervisor", "Pause", "Done")
    ]
    assert stage.run.metadata.generation == 2
    record = stage.run.status.supervision
    assert record is not None
    assert record.clock is not None
    assert record.clock.turn == 3


def test_a_write_that_comes_between_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path, a_guard())
    stage.host.look()
    stage.publish(calling(3, 3))
    edit, meddled = RunFolder.edit, []

    def meddle(self: RunFolder, change: Callable[[Raw], Raw], *, sync: bool = False) -> Raw:
        if len(meddled) < 2:  # once before the intent is written, once before it is carried out
            meddled.append(sync)
            edit(self, lambda raw: {**raw, "spec": {**raw["spec"], "limits": {"maxToolCalls": 5 + len(meddled)}}})
        return edit(self, change, sync=sync)

    monkeypatch.setattr(RunFolder, "edit", meddle)
    stage.host.look()
    assert len(meddled) == 2
    assert stage.run.spec.limits is not None
    assert stage.run.spec.limits.max_tool_calls == 7
    assert stage.mode == "Pause"
    assert stage.states == [("Pause", "Done")]


def test_a_write_that_comes_just_behind_a_look_is_looked_at(tmp_path: Path) -> None:
    stage = Stage(tmp_path, a_guard())
    look, published = stage.host.look, calling(3, 3)

    def meddle() -> None:
        look()
        if stage.run.status.run != published.to_raw():
            stage.publish(published)

    async def scene() -> None:
        told = asyncio.Event()
        stage.host.look, stage.host.tell = meddle, lambda frame: told.set()  # type: ignore[method-assign]
        watching = asyncio.create_task(stage.host.watch())
        await asyncio.wait_for(told.wait(), 30)
        watching.cancel()

    asyncio.run(scene())
    assert stage.mode == "Pause"


def test_what_the_run_refuses_is_superseded(tmp_path: Path) -> None:
    stage = Stage(tmp_path, a_guard())
    stage.host.look()
    stage.publish(calling(3, 3))
    stage.edit(lambda raw: {**raw, "spec": {**raw["spec"], "control": {"mode": "Finish"}}})
    stage.host.look()
    assert stage.mode == "Finish"
    assert stage.states == [("Pause", "Superseded")]


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        (Verdict(passed=True, reason="fine", tokens=3), []),
        (Verdict(passed=False, reason="it pays twice", tokens=3), [("Abort", "Done")]),
        (JudgeFailure(type="Timeout", message="none"), [("Pause", "Done")]),
    ],
)
def test_a_judge_is_asked_beside_the_run(tmp_path: Path, answer: JudgeAnswer, want: list[tuple[str, str]]) -> None:
    judge = FakeJudge(answer)
    guard = a_guard(judge=a_judge(onError="Pause"), rules=[], onViolation="Abort", enforcement="Sync")
    stage = Stage(tmp_path, guard, judge)

    async def scene() -> None:
        stage.publish(at_barrier(1))
        stage.host.look()
        record = stage.run.status.supervision
        assert record is not None
        assert record.clock is None
        await asyncio.gather(*stage.host.asking.values())
        stage.host.look()
        await stage.host.close()

    asyncio.run(scene())
    record = stage.run.status.supervision
    assert record is not None
    assert record.clock is not None
    assert [request.criteria for request in judge.asked] == ["Be fair."]
    assert stage.states == want


def test_a_judge_without_a_table_is_off_and_it_is_said(tmp_path: Path) -> None:
    stage = Stage(tmp_path, a_guard(judge=a_judge(), enforcement="Sync"))
    stage.host.say_unready()
    assert [frame["message"] for frame in stage.told] == [
        "JudgeReady=False: no judge is known here: give --judge-models FILE, or write .pilothouse/judge-models.yaml"
    ]
    stage.publish(calling(1, 1))
    stage.host.look()
    record = stage.run.status.supervision
    assert record is not None
    assert record.clock is not None


def test_supervisors_that_cannot_be_read_again_stop_the_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path, a_guard())
    (stage.folder.path / SUPERVISORS).write_text('{"supervisors": [{}]}')
    with pytest.raises(CliError, match=r"supervisors\.json cannot be read"):
        read_supervisors(stage.folder)


# ---------------------------------------------------------------- in processes


def with_supervisor(manifest: str, **changes: Any) -> str:
    return f"{manifest}\n---\n{yaml.safe_dump(a_guard(**changes))}"


@pytest.mark.slow
def test_a_supervised_run_is_paused_resumed_by_a_person_and_not_paused_again(terminal: Terminal) -> None:
    manifest = with_supervisor(workflow_manifest(5, delay=0.0), enforcement="Sync")
    run = terminal.start("run", terminal.write("w.yaml", manifest), "--name", "r1", "-o", "json")
    path = terminal.folder / ".pilothouse/runs/r1/run.json"

    def phase() -> str:
        return str(json.loads(path.read_text())["status"]["phase"]) if path.exists() else ""

    wait_until(lambda: phase() == "Paused", every=0.05)
    shown = terminal.type("show", "r1")
    assert "Watched by" in shown
    assert "careful (generation 1, Sync)" in shown
    assert "Pause by Rule/often" in shown
    assert "supervisor careful: Pause by Rule/often" in terminal.type("trace", "r1")
    terminal.type("resume", "r1")
    code, out, _ = finish(run)
    assert code == 0
    status = json.loads(out)["status"]
    assert status["run"]["toolCalls"] == {"nap": 5}
    assert [action["state"] for action in status["supervision"]["actions"]] == ["Done"]
    assert status["supervision"]["actions"][0]["landedTurn"] is not None


@pytest.mark.slow
def test_a_run_that_is_let_go_of_is_supervised_when_it_goes_on_and_nothing_is_done_twice(terminal: Terminal) -> None:
    rules = [{**OFTEN, "then": "Steer"}, {**OFTEN, "name": "late", "toolRepeated": {"count": 6}, "then": "Abort"}]
    manifest = with_supervisor(workflow_manifest(8, delay=1.0), enforcement="Sync", rules=rules)
    run = terminal.start("run", terminal.write("w.yaml", manifest), "--name", "r1")
    read_until(run, "supervisor careful: Steer")
    run.send_signal(signal.SIGINT)
    assert finish(run)[0] == 4
    code, out, said = finish(terminal.start("resume", "r1", "-o", "json"))
    assert code == 3, said
    status = json.loads(out)["status"]
    assert [action["source"] for action in status["supervision"]["actions"]] == ["Rule/often", "Rule/late"]
    assert status["run"]["toolCalls"] == {"nap": 6}


@pytest.mark.slow
def test_a_scripted_judge_stops_a_run(terminal: Terminal) -> None:
    verdicts = [(True, ""), (True, ""), (False, "It naps too much.")]
    turns = [{"text": json.dumps({"passed": passed, "reason": reason})} for passed, reason in verdicts]
    model = {"name": "small", "model": "scripted", "script": json.dumps({"turns": turns})}
    models = terminal.write("models.yaml", yaml.safe_dump({"models": [model]}))
    judged = {"rules": [], "judge": a_judge(), "onViolation": "Abort", "enforcement": "Sync"}
    manifest = terminal.write("w.yaml", with_supervisor(workflow_manifest(6, delay=0.0), **judged))
    code, out, said = finish(terminal.start("run", manifest, "--name", "r1", "-o", "json", "--judge-models", models))
    assert code == 3, said
    status = json.loads(out)["status"]
    assert status["run"]["toolCalls"] == {"nap": 3}
    [action] = status["supervision"]["actions"]
    assert (action["source"], action["action"], action["reason"]) == ("Judge", "Abort", "It naps too much.")


@pytest.mark.slow
def test_a_child_is_watched_by_the_supervisors_of_its_parent(terminal: Terminal) -> None:
    ask = {"name": "ask", "description": "Asks.", "agentRef": {"name": "helper"}}
    boss = an_agent("boss", [a_call("ask", what="all"), {"text": "done"}], ask)
    note = {"kind": "Router", "router": {"conditions": [{"cel": "true", "signal": "default"}]}}
    tool = {"name": "note", "description": "Notes.", "inlineStep": note}
    helper = an_agent("helper", [a_call("note", n=1), {"text": "noted"}], tool)
    steps = [{"id": "work", "kind": "Agent", "agentRef": {"name": "boss"}, "routes": ROUTES}]
    workflow = an_object("Workflow", "desk", {"steps": steps, "supervisorRefs": [{"name": "careful"}]})
    first = {"name": "first", "when": "Expression", "expression": {"cel": "run.turn >= 0"}, "then": "Steer"}
    guard = a_guard(selector=None, rules=[first], enforcement="Sync")
    manifest = terminal.write("w.yaml", yaml.safe_dump_all([boss, helper, workflow, guard]))
    code, out, said = finish(terminal.start("run", manifest, "--name", "r1", "--workflow", "desk", "-o", "json"))
    assert code == 0, said
    parent = json.loads(out)["status"]
    [folder] = (terminal.folder / ".pilothouse/runs").glob("r1-*")
    child = json.loads((folder / "run.json").read_text())["status"]
    for status in (parent, child):
        assert [it["name"] for it in status["supervision"]["supervisors"].values()] == ["careful"]
        assert status["supervision"]["barrier"]["onTimeout"] == "Pause"
        assert [action["source"] for action in status["supervision"]["actions"]] == ["Rule/first"]
