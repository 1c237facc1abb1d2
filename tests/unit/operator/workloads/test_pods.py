"""What a pod's object says about an attempt, besides why it ended or does not start."""

from __future__ import annotations

from datetime import timedelta

from pilothouse_operator.workloads.pods import read_pod
from unit.operator.run_views import NOW, ago, containers, ended_pod, raw_pod, running_pod, text


def test_a_pod_runs_nothing_once_it_is_terminal_or_long_past_its_deletion() -> None:
    assert not running_pod().is_over(NOW)
    assert ended_pod().is_over(NOW)
    assert not running_pod(deletionTimestamp=text(ago(5))).is_over(NOW)
    assert running_pod(deletionTimestamp=text(ago(11))).is_over(NOW)


def test_a_pod_runs_nothing_of_the_run_once_its_runner_has_ended_whatever_runs_beside_it() -> None:
    mesh = {"name": "mesh", "state": {"running": {}}}
    runner = {"name": "runner", "state": {"terminated": {"exitCode": 0}}}

    pod = read_pod(raw_pod({"phase": "Running", "containerStatuses": [mesh, runner]}))
    alone = read_pod(raw_pod({"phase": "Pending", "containerStatuses": [mesh]}))

    assert (pod.is_over(NOW), pod.is_terminal, pod.exit_code) == (True, False, 0)
    assert (alone.is_over(NOW), alone.has_started) == (False, False)


def test_a_pod_tells_when_its_runner_started_and_ended() -> None:
    running = read_pod(raw_pod({"phase": "Running", **containers({"running": {"startedAt": text(ago(9))}})}))
    states = {"terminated": {"exitCode": 3, "startedAt": text(ago(9)), "finishedAt": text(ago(4))}}
    ended = read_pod(raw_pod({"phase": "Failed", **containers(states)}))

    assert (running.started, running.ended, running.exit_code) == (NOW - timedelta(seconds=9), None, None)
    assert (ended.started, ended.ended, ended.exit_code) == (ago(9), ago(4), 3)


def test_the_owner_is_the_controller_and_nobody_else() -> None:
    raw = raw_pod({}, metadata={"ownerReferences": [{"uid": "x"}, {"uid": "u9", "controller": True}]})

    assert read_pod(raw).owner_uid == "u9"
    assert read_pod(raw_pod({}, metadata={"ownerReferences": []})).owner_uid == ""
