"""`spec.control` by merge-patch and `status.run` by JSON patch, on a real API server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from integration.crds.contract_world import World
from integration.crds.kube_callers import Answer, must

RUN_AGAIN: list[Any] = [
    {"mode": "Run"},
    {"mode": "Pause"},
    {"mode": "Finish"},
    {"mode": None},
]


def _replace_control(world: World, run: str, control: Any) -> Answer:
    return world.admin.patch(world.namespace, "AgentRun", run, {"spec": {"control": control}})


def test_of_forty_steers_at_once_none_is_lost(world: World) -> None:
    run = world.run()

    def steer(number: int) -> Answer:
        return world.admin.control(world.namespace, run, steer={f"a{number}": {"message": f"message {number}"}})

    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(steer, range(40)))

    assert [answer.message for answer in answers if not answer.is_accepted] == []
    assert world.read(run)["spec"]["control"]["steer"] == {f"a{n}": {"message": f"message {n}"} for n in range(40)}


@pytest.mark.parametrize("control", [*RUN_AGAIN, None], ids=str)
def test_an_abort_cannot_be_taken_back(world: World, control: Any) -> None:
    run = world.run()
    must(world.admin.control(world.namespace, run, mode="Abort", reason="wrong customer"))

    refused = _replace_control(world, run, control)

    assert refused.status == 422
    assert "Finish may only become Abort, and Abort cannot be taken back" in refused.message
    assert world.read(run)["spec"]["control"]["mode"] == "Abort"


@pytest.mark.parametrize("control", [{"mode": "Run"}, {"mode": "Pause"}, {"mode": None}, None], ids=str)
def test_a_finish_cannot_be_taken_back(world: World, control: Any) -> None:
    run = world.run(control={"mode": "Finish"})

    assert _replace_control(world, run, control).status == 422


def test_a_finish_may_become_an_abort_and_an_aborted_run_can_still_be_steered(world: World) -> None:
    run = world.run(control={"mode": "Finish"})

    must(world.admin.control(world.namespace, run, mode="Abort"))
    must(world.admin.control(world.namespace, run, steer={"a1": {"message": "x"}}))


def test_a_run_that_was_never_steered_takes_every_mode(world: World) -> None:
    for mode in ("Run", "Pause", "Finish", "Abort"):
        must(world.admin.control(world.namespace, world.run(), mode=mode))


def test_an_entry_can_be_removed_and_set_again(world: World) -> None:
    run = world.run(control={"steer": {"a1": {"message": "x"}, "a2": {"message": "y"}}})

    must(world.admin.control(world.namespace, run, steer={"a1": None}))
    must(world.admin.control(world.namespace, run, steer={"a1": {"message": "z"}}))

    assert world.read(run)["spec"]["control"]["steer"] == {"a1": {"message": "z"}, "a2": {"message": "y"}}


def test_a_control_patch_raises_the_generation_and_a_report_does_not(world: World) -> None:
    run = world.run()
    world.report(run, {"attempt": 1})
    assert world.read(run)["metadata"]["generation"] == 1

    must(world.admin.control(world.namespace, run, mode="Pause"))

    assert world.read(run)["metadata"]["generation"] == 2


def _snapshot(world: World, run: str, attempt: int, **snapshot: Any) -> Answer:
    body = [
        {"op": "test", "path": "/status/attempt", "value": attempt},
        {"op": "add", "path": "/status/run", "value": {"attempt": attempt, **snapshot}},
    ]
    return world.admin.patch(world.namespace, "AgentRun", run, body, status=True)


def test_a_snapshot_replaces_the_one_before_it_whole(world: World) -> None:
    run = world.run({"attempt": 1, "phase": "Running"})
    must(_snapshot(world, run, 1, turn=1, parked={"reason": "Paused"}))

    must(_snapshot(world, run, 1, turn=2))

    assert world.read(run)["status"]["run"] == {"attempt": 1, "turn": 2}
    assert world.read(run)["status"]["phase"] == "Running"


def test_a_snapshot_of_a_stale_attempt_is_refused(world: World) -> None:
    run = world.run({"attempt": 2, "run": {"attempt": 2, "turn": 7}})

    refused = _snapshot(world, run, 1, turn=8)

    assert refused.status == 422
    assert world.read(run)["status"]["run"] == {"attempt": 2, "turn": 7}


def test_a_report_cannot_change_the_spec_and_a_steer_cannot_change_the_report(world: World) -> None:
    run = world.run({"attempt": 1})

    must(world.admin.patch(world.namespace, "AgentRun", run, {"spec": {"control": {"mode": "Abort"}}}, status=True))
    must(world.admin.patch(world.namespace, "AgentRun", run, {"status": {"attempt": 9}}))

    assert "control" not in world.read(run)["spec"]
    assert world.read(run)["status"]["attempt"] == 1


def test_runs_can_be_listed_by_phase(world: World) -> None:
    live, ended = world.run({"phase": "Running"}), world.run({"phase": "Succeeded"})
    path = f"/apis/pilothouse.dev/v1alpha1/namespaces/{world.namespace}/agentruns"

    answer = must(world.admin.call("GET", path, fieldSelector="status.phase!=Succeeded,status.phase!=Failed"))

    names = [item["metadata"]["name"] for item in answer["items"]]
    assert live in names
    assert ended not in names


def test_a_status_of_a_newer_operator_is_taken(world: World) -> None:
    run = world.run({"phase": "SomethingNew", "run": {"attempt": 1, "newField": {"a": 1}}})

    assert world.read(run)["status"]["run"]["newField"] == {"a": 1}
