"""Sessions on a laptop: a run goes on with what was said before, and one of a session goes on at a time."""

from pathlib import Path

import pytest

from pilothouse_api.plan import Origin, Plan, RunIdentity
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.workflow import WorkflowSpec
from pilothouse_cli.exits import CliError
from pilothouse_cli.local.creation import create_run, new_run
from pilothouse_cli.local.sessions import check_session_free
from pilothouse_cli.local.state import find_folder


def make(state: Path, name: str, session: str | None = "c-17") -> None:
    spec = {"workflowRef": {"name": "flow"}} | ({"session": session} if session else {})
    template = AgentRun.model_validate({"kind": "AgentRun", "metadata": {"name": name}, "spec": spec})
    run = new_run(template, name, "flow")
    steps = [{"id": "reply", "kind": "Response", "response": {"mapping": {"a": "b"}}}]
    plan = Plan(
        run=RunIdentity(namespace="default", name=name, uid=run.metadata.uid or ""),
        workflow=Origin(name="flow", digest="d"),
        spec=WorkflowSpec.model_validate({"steps": steps}),
    )
    create_run(run, plan, state)


def finish(state: Path, name: str) -> None:
    folder = find_folder(state, name)
    assert folder is not None
    folder.edit(lambda raw: {**raw, "status": {**raw["status"], "phase": "Failed"}})


def test_a_session_that_another_run_holds_is_refused_with_what_to_do(tmp_path: Path) -> None:
    make(tmp_path, "one")
    with pytest.raises(CliError) as refused:
        make(tmp_path, "two")
    assert "session c-17 is held by run one, which is not finished" in str(refused.value)
    assert find_folder(tmp_path, "two") is None


def test_other_sessions_and_runs_without_one_are_free(tmp_path: Path) -> None:
    make(tmp_path, "one")
    make(tmp_path, "two", "c-18")
    make(tmp_path, "three", None)
    make(tmp_path, "four", None)
    check_session_free("c-19", tmp_path)


def test_a_session_is_free_when_the_run_that_held_it_is_finished(tmp_path: Path) -> None:
    make(tmp_path, "one")
    finish(tmp_path, "one")
    make(tmp_path, "two")
    assert find_folder(tmp_path, "two") is not None
