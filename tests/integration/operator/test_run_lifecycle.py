"""A run from apply to its end, as people see it."""

from __future__ import annotations

import pytest

from integration.operator.stage import Stage, answered, condition, eventually, now, park, stays
from pilothouse_api import names
from pilothouse_kubernetes.client import AGENTRUNS, CONFIGMAPS, PODS, Invalid, NotFound

pytest_plugins = ["support.cluster"]
pytestmark = pytest.mark.anyio


async def begin(stage: Stage, **settings: str) -> None:
    """An operator, a workflow, and a run whose runner has begun."""
    await stage.operator(**settings).start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run()
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")


async def test_a_run_becomes_a_pod_and_ends_succeeded(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run()

    pod = await stage.start_pod("r1-1")
    running = await stage.wait_phase("Running")
    await stage.succeed()
    ended = await stage.wait_phase("Succeeded")

    assert pod["metadata"]["labels"][names.LABEL_RUN] == "r1"
    assert running["status"]["attempt"] == 1
    assert running["status"]["pod"] == {"name": "r1-1", "node": "stand-in"}
    assert ended["status"]["exit"] == {"signal": "default", "reason": "Complete", "message": "done"}
    assert ended["status"]["result"] == {"answer": 42}
    for kind in ("Ready", "Complete", "Finished", "EffectsSettled", "Accepted", "Started"):
        found = condition(ended, kind)
        assert found is not None and found["status"] == "True", kind


async def test_an_agent_can_be_run_alone(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_agent()
    await stage.api.create(
        AGENTRUNS,
        stage.namespace,
        {
            "apiVersion": names.API_VERSION,
            "kind": "AgentRun",
            "metadata": {"name": "r1"},
            "spec": {"agentRef": {"name": "worker"}, "input": {"word": "hello"}},
        },
    )

    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")
    await stage.succeed()

    await stage.wait_phase("Succeeded")


async def test_the_plan_is_stored_with_the_digest_that_status_names(stage: Stage) -> None:
    await begin(stage)

    status = await stage.status()
    stored = await stage.api.get(CONFIGMAPS, stage.namespace, "r1-plan")

    digest = names.short_hash(stored["data"][names.PLAN_KEY], 64)
    assert status["plan"] == {"name": "r1-plan", "digest": digest}
    assert stored["immutable"] is True
    environment = {
        entry["name"]: entry.get("value") for entry in (await stage.pods())[0]["spec"]["containers"][0]["env"]
    }
    assert environment[names.ENV_PLAN_DIGEST] == digest


async def test_a_finished_run_is_labelled_and_can_be_steered_no_more(stage: Stage) -> None:
    await begin(stage)
    await stage.succeed()

    async def labelled() -> bool:
        labels = (await stage.run())["metadata"].get("labels", {})
        return bool(labels.get(names.LABEL_FINISHED) == "Succeeded")

    await eventually(labelled)
    await stage.wait_events("Started", "Succeeded")


async def test_an_end_waits_for_its_pod(stage: Stage) -> None:
    await begin(stage)

    await stage.publish(exit={"signal": "aborted", "reason": "Aborted"}, turn=2)
    await stays(lambda: phase(stage), "Running", 1.0)
    await stage.end_pod("r1-1", 0)

    ended = await stage.wait_phase("Aborted")
    assert ended["status"]["exit"]["reason"] == "Aborted"


async def phase(stage: Stage) -> str:
    return str((await stage.status()).get("phase"))


async def test_a_pause_is_shown_with_its_turn_and_a_resume_too(stage: Stage) -> None:
    await begin(stage)

    await stage.control(mode="Pause", reason="lunch")
    await stage.publish(turn=3, parked=park(turn=3), control=answered("Pause", 2, 3))
    await stage.wait_phase("Paused")
    paused = condition(await stage.run(), "Paused")
    await stage.control(mode="Run")
    await stage.publish(turn=3, control=answered("Run", 3, 3))
    running = await stage.wait_phase("Running")

    assert paused is not None and "turn 3" in paused["message"]
    resumed = condition(running, "Paused")
    assert resumed is not None and resumed["status"] == "False"
    await stage.wait_events("Started", "Paused", "Resumed")


async def test_a_directive_that_does_not_land_is_shown_as_pending(stage: Stage) -> None:
    await begin(stage)
    await stage.publish()

    await stage.control(steer={"a1": {"message": "Look at invoice 42 first."}})
    pending = await stage.wait_condition("ControlPending")
    await stage.publish(control={"observedGeneration": 2, "steer": {"a1": {"state": "Landed", "turn": 1}}})
    await stage.wait_condition("ControlPending", "False")

    assert "steer a1" in pending["message"]


async def test_an_abort_before_the_first_pod_ends_at_once(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_run(control={"mode": "Abort", "reason": "wrong customer"})

    ended = await stage.wait_phase("Aborted")

    assert "wrong customer" in ended["status"]["exit"]["message"]
    settled = condition(ended, "EffectsSettled")
    assert settled is not None and settled["status"] == "True"
    assert await stage.pods() == []


async def test_an_abort_of_a_pod_that_has_not_begun_takes_it_away(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run()
    await stage.wait_pod("r1-1")

    await stage.control(mode="Abort")

    await stage.wait_phase("Aborted")
    assert await stage.pods() == []


async def test_an_abort_that_does_not_land_ends_the_pod(stage: Stage) -> None:
    await begin(stage, ABORT_GRACE_SECONDS="1")

    await stage.control(mode="Abort")

    async def deleting() -> bool:
        return "deletionTimestamp" in (await stage.wait_pod("r1-1"))["metadata"]

    await eventually(deleting)
    assert await phase(stage) == "Running"
    await stage.publish(exit={"signal": "aborted", "reason": "Aborted", "message": "call cancelled"})
    await stage.end_pod("r1-1", 0)
    await stage.finalize_pod("r1-1")
    ended = await stage.wait_phase("Aborted")
    assert ended["status"]["exit"]["message"] == "call cancelled"


async def test_a_crash_without_a_durable_journal_ends_the_run_and_says_why(stage: Stage) -> None:
    await begin(stage)
    await stage.publish(turn=2, journalLength=9)

    await stage.end_pod("r1-1", 1, message="boom\nMemoryError: no more\n")

    ended = await stage.wait_phase("Failed")
    assert ended["status"]["exit"]["reason"] == "JournalLost"
    assert "MemoryError: no more" in ended["status"]["exit"]["message"]
    assert "emptyDir" in ended["status"]["exit"]["message"]
    effects = condition(ended, "EffectsSettled")
    assert effects is not None and effects["status"] == "Unknown"
    assert [pod["metadata"]["name"] for pod in await stage.pods()] == ["r1-1"]


async def test_a_crash_with_a_durable_journal_goes_on_in_the_next_attempt(stage: Stage) -> None:
    await begin(stage, JOURNAL_CLAIM="journals")
    await stage.publish(turn=2, journalLength=9)

    await stage.end_pod("r1-1", 137, reason="OOMKilled")
    await stage.start_pod("r1-2")
    running = await stage.wait_phase("Running")
    await stage.succeed(attempt=2)
    await stage.wait_phase("Succeeded")

    assert running["status"]["attempt"] == 2
    assert running["status"]["attempts"]["crashes"] == 1
    assert running["status"]["attempts"]["lastFailure"].startswith("OutOfMemory")
    with pytest.raises(Invalid):
        await stage.publish(attempt=1, turn=99)
    await stage.wait_events("Started", "AttemptFailed", "Succeeded")


async def test_a_deleted_pod_is_no_crash(stage: Stage) -> None:
    await begin(stage, JOURNAL_CLAIM="journals")

    await stage.api.delete(PODS, stage.namespace, "r1-1")
    await stays(lambda: phase(stage), "Running", 0.5)
    await stage.finalize_pod("r1-1")
    await stage.start_pod("r1-2")

    running = await stage.wait_phase("Running")
    assert running["status"]["attempt"] == 2
    assert running["status"]["attempts"]["crashes"] == 0


async def test_a_released_pause_holds_no_pod_and_wakes_by_patch(stage: Stage) -> None:
    await begin(stage, JOURNAL_CLAIM="journals")
    await stage.control(mode="Pause")
    await stage.publish(turn=1, parked=park(released=True), control=answered("Pause", 2))
    await stage.end_pod("r1-1", 0)
    await stage.wait_phase("Paused")
    await eventually(lambda: has_no_pod(stage))
    await stays(lambda: has_no_pod(stage), True, 1.0)

    await stage.control(mode="Run")
    await stage.start_pod("r1-2")
    await stage.succeed(attempt=2)

    ended = await stage.wait_phase("Succeeded")
    assert ended["status"]["attempts"]["crashes"] == 0


async def test_a_released_approval_holds_no_pod_and_wakes_by_the_decision(stage: Stage) -> None:
    await begin(stage, JOURNAL_CLAIM="journals")
    call = "t1-0-9f2c11ab"
    pending = {"callId": call, "tool": "refund", "requestedAt": now(), "expiresAt": "2999-01-01T00:00:00Z"}
    waits = park("AwaitingApproval", released=True, wake="2999-01-01T00:00:00Z")
    await stage.publish(turn=1, parked=waits, pendingApprovals=[pending])
    await stage.end_pod("r1-1", 0)
    waiting = condition(await stage.wait_phase("AwaitingApproval"), "AwaitingApproval")
    assert waiting is not None
    assert f"for a decision on refund ({call})" in waiting["message"]
    await eventually(lambda: has_no_pod(stage))
    await stays(lambda: has_no_pod(stage), True, 1.0)

    await stage.control(approvals={call: {"decision": "Approve"}})
    await stage.start_pod("r1-2")
    await stage.succeed(attempt=2)

    ended = await stage.wait_phase("Succeeded")
    assert ended["status"]["attempts"]["crashes"] == 0


async def has_no_pod(stage: Stage) -> bool:
    return await stage.pods() == []


async def test_the_last_crash_is_settled_and_the_run_fails(stage: Stage) -> None:
    await stage.operator(JOURNAL_CLAIM="journals").start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run(overrides={"maxAttempts": 1})
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")

    await stage.end_pod("r1-1", 1)
    pod = await stage.start_pod("r1-2")
    await stage.wait_condition("Settling", reason="MaxAttempts")
    await stage.publish(attempt=2, exit={"signal": "error", "reason": "MaxAttempts", "message": "closed"})
    await stage.end_pod("r1-2", 0)

    ended = await stage.wait_phase("Failed")
    environment = {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}
    assert environment[names.ENV_SETTLE] == "MaxAttempts"
    assert ended["status"]["exit"]["reason"] == "MaxAttempts"


async def test_a_missing_workflow_is_waited_for_and_heals_by_itself(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_run()
    missing = await stage.wait_condition("Ready", "False", "WorkflowNotFound")
    assert "flow" in missing["message"]
    await stage.wait_condition("Reconciling", "True")

    await stage.apply_workflow()
    await stage.wait_condition("Ready", "False", "AgentNotFound")
    await stage.apply_agent()

    await stage.wait_pod("r1-1")


async def test_a_wrong_input_is_stalled_with_its_field(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow(input={"schema": {"type": "object", "required": ["ticket"]}})
    await stage.apply_run()

    stalled = await stage.wait_condition("Stalled", reason="InputInvalid")

    assert "ticket" in stalled["message"]
    await stage.wait_events("Stalled")


async def test_a_refused_pod_is_shown_and_made_when_it_may_be(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow(runTemplate={"serviceAccountName": "prun-late"})
    await stage.apply_run()
    refused = await stage.wait_condition("Ready", "False", "ServiceAccountNotFound")
    assert "prun-late" in refused["message"]

    await stage.make_account("prun-late")

    await stage.wait_pod("r1-1")
    await stage.wait_condition("Ready", "False", "Starting")


async def test_a_run_that_is_deleted_takes_plan_and_pod_with_it(stage: Stage) -> None:
    await begin(stage)

    await stage.api.delete(AGENTRUNS, stage.namespace, "r1")

    async def gone() -> bool:
        try:
            await stage.api.get(CONFIGMAPS, stage.namespace, "r1-plan")
        except NotFound:
            return "deletionTimestamp" in (await stage.wait_pod("r1-1"))["metadata"]
        return False

    await eventually(gone)
    await stage.finalize_pod("r1-1")
    await stage.apply_run()
    fresh = await stage.start_pod("r1-1")
    running = await stage.wait_phase("Running")
    assert fresh["metadata"]["ownerReferences"][0]["uid"] == running["metadata"]["uid"]


async def test_time_to_live_deletes_a_finished_run(stage: Stage) -> None:
    await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run(overrides={"ttlSecondsAfterFinished": 1})
    await stage.start_pod("r1-1")
    await stage.succeed()

    async def gone() -> bool:
        return await stage.runs() == []

    await eventually(gone)
