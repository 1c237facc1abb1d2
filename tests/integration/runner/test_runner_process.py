"""The runner's process on a real API server: status after each turn, steered by patch, stopped, killed, fenced."""

import time
from collections.abc import Callable

from pilothouse_api import names
from support.agentruns import Administrator
from support.cluster import LocalCluster
from support.runner_process import RunnerPod, finish, napping_plan, read_frames_until, run_status, until

StartPod = Callable[..., RunnerPod]


def test_a_run_publishes_its_turns_its_exit_and_its_log_and_exits_zero(
    administrator: Administrator, pod_of: StartPod
) -> None:
    pod = pod_of(napping_plan(3, delay=0.1))
    code, lines = finish(pod.start())

    assert code == 0
    snapshot = run_status(administrator, pod)
    assert (snapshot["attempt"], snapshot["turn"]) == (1, 4)
    assert snapshot["exit"]["reason"] == "Complete"
    assert snapshot["result"] == {"talk_result": "done"}
    assert snapshot["toolCalls"] == {"note": 3}
    assert [line["frame"]["turn"] for line in lines if line.get("frame", {}).get("kind") == "Iteration"] == [1, 2, 3, 4]
    assert [line["turn"] for line in lines if line["event"] == "agent.turn"] == [1, 2, 3, 4]
    assert [line["tool"] for line in lines if line["event"] == "agent.tool_call"] == ["note"] * 3
    assert {(line["run"], line["attempt"]) for line in lines} == {(pod.run.name, "1")}
    assert (lines[-1]["event"], lines[-1]["exitCode"]) == ("runner.exit", 0)
    assert "the run ended with default (Complete)" in lines[-1]["message"]


def test_a_run_is_paused_steered_resumed_and_finished_by_patches(
    administrator: Administrator, pod_of: StartPod
) -> None:
    pod = pod_of(napping_plan(60, delay=0.2))
    process = pod.start()
    read_frames_until(process, "Iteration", iteration=2)

    administrator.set_spec(pod.run.name, control={"mode": "Pause"})
    paused = until(administrator, pod, lambda run: (run.get("parked") or {}).get("reason") == "Paused")
    assert paused["control"]["mode"]["value"] == "Pause"
    administrator.set_spec(pod.run.name, control={"mode": "Run", "steer": {"a1": {"message": "Faster."}}})
    landed = until(administrator, pod, lambda run: "a1" in run["control"].get("steer", {}))
    assert landed["control"]["steer"]["a1"]["state"] == "Landed"
    assert landed["control"]["steer"]["a1"]["turn"] >= paused["turn"]
    administrator.set_spec(pod.run.name, control={"mode": "Finish"})

    code, _ = finish(process)
    assert code == 0
    assert run_status(administrator, pod)["exit"]["reason"] == "FinishedEarly"


def test_sigterm_releases_a_run_and_the_next_attempt_goes_on_with_its_journal(
    administrator: Administrator, pod_of: StartPod
) -> None:
    pod = pod_of(napping_plan(6, delay=0.8))
    first = pod.start()
    read_frames_until(first, "Iteration", iteration=2)
    began = time.monotonic()
    first.terminate()
    code, lines = finish(first)
    assert code == 0
    assert time.monotonic() - began < 60
    assert lines[-1]["message"].startswith("released at turn ")
    assert run_status(administrator, pod)["parked"]["released"] is True

    administrator.set_status(pod.run.name, attempt=2)
    code, lines = finish(pod.start(attempt=2))
    assert code == 0
    snapshot = run_status(administrator, pod)
    assert (snapshot["attempt"], snapshot["turn"]) == (2, 7)
    assert snapshot["toolCalls"] == {"note": 6}


def test_a_killed_runner_loses_no_turn(administrator: Administrator, pod_of: StartPod) -> None:
    pod = pod_of(napping_plan(6, delay=0.4))
    for attempt in (1, 2, 3):
        administrator.set_status(pod.run.name, attempt=attempt)
        process = pod.start(attempt=attempt)
        read_frames_until(process, "Iteration")
        process.kill()
        process.communicate()
    administrator.set_status(pod.run.name, attempt=4)

    assert finish(pod.start(attempt=4))[0] == 0

    snapshot = run_status(administrator, pod)
    assert (snapshot["attempt"], snapshot["turn"], snapshot["toolCalls"]) == (4, 7, {"note": 6})
    assert snapshot["effects"].get("unknown", []) == []


def test_an_attempt_that_lost_the_fence_stops_and_writes_nothing_more(
    administrator: Administrator, pod_of: StartPod
) -> None:
    pod = pod_of(napping_plan(60, delay=0.1))
    process = pod.start()
    read_frames_until(process, "Iteration", iteration=2)
    administrator.set_status(pod.run.name, attempt=2, run={"attempt": 2, "turn": 99})

    code, lines = finish(process)

    assert code == 3
    assert lines[-1]["message"] == "Fenced: the run is at attempt 2, this is attempt 1"
    assert run_status(administrator, pod)["turn"] == 99


def test_a_run_that_is_deleted_stops_its_runner(administrator: Administrator, pod_of: StartPod) -> None:
    pod = pod_of(napping_plan(60, delay=0.1))
    process = pod.start()
    read_frames_until(process, "Iteration", iteration=1)
    administrator.delete(pod.run.name)

    code, lines = finish(process)

    assert code == 3
    assert lines[-1]["message"].startswith("Gone: ")


def test_a_journal_that_did_not_survive_ends_the_run_with_a_reason(
    administrator: Administrator, pod_of: StartPod
) -> None:
    pod = pod_of(napping_plan(60, delay=0.1))
    process = pod.start(journal="File")
    read_frames_until(process, "Iteration", iteration=3)
    process.kill()
    process.communicate()
    (pod.folder / "journal" / f"{pod.run.uid}.jsonl").unlink()
    administrator.set_status(pod.run.name, attempt=2)

    code, _ = finish(pod.start(attempt=2, journal="File"))

    assert code == 0
    assert run_status(administrator, pod)["exit"]["reason"] == "JournalLost"


def test_a_settling_attempt_closes_a_run_with_the_given_reason(administrator: Administrator, pod_of: StartPod) -> None:
    pod = pod_of(napping_plan(60, delay=0.1))
    process = pod.start()
    read_frames_until(process, "Iteration", iteration=2)
    process.kill()
    process.communicate()
    administrator.set_status(pod.run.name, attempt=2)

    code, _ = finish(pod.start(attempt=2, **{names.ENV_SETTLE: "DeadlineExceeded"}))

    assert code == 0
    snapshot = run_status(administrator, pod)
    assert snapshot["exit"]["reason"] == "DeadlineExceeded"
    assert snapshot["turn"] <= 4


def test_an_api_server_that_goes_away_for_a_while_costs_no_turn(
    administrator: Administrator, pod_of: StartPod, crds: LocalCluster
) -> None:
    pod = pod_of(napping_plan(20, delay=0.3))
    process = pod.start()
    read_frames_until(process, "Iteration", iteration=1)
    crds.restart_apiserver()

    code, _ = finish(process)

    assert code == 0
    snapshot = run_status(administrator, pod)
    assert (snapshot["turn"], snapshot["toolCalls"]) == (21, {"note": 20})
