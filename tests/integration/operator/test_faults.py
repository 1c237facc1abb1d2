"""What goes wrong around an operator: it is killed, the API server restarts, writes are refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from integration.operator.stage import Stage, answered, condition, eventually, now, park, stays
from pilothouse_api import names
from pilothouse_kubernetes.client import (
    AGENTRUNS,
    LEASES,
    PODS,
    NotFound,
    Resource,
)

pytest_plugins = ["support.cluster"]
pytestmark = pytest.mark.anyio

POLICIES = Resource("apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy")
BINDINGS = Resource(
    "apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"
)


SHORT_LEASE = {"LEASE_SECONDS": "5", "RENEW_SECONDS": "4", "RETRY_SECONDS": "0.5"}
"""For operators that are killed: the next one waits until the Lease runs out."""


async def apply_all(stage: Stage, **run: Any) -> None:
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run(**run)


# ---------------------------------------------------------------- an operator that dies


async def test_an_operator_killed_before_the_pod_was_made_makes_it_after_its_restart(stage: Stage) -> None:
    """The gap between the attempt's number in status and its pod is where a second pod could come from."""
    await stage.operator().start()
    await apply_all(stage)
    pod = await stage.wait_pod("r1-1")
    await stage.processes[0].stop()
    # As if it had died between the two writes: the number stands, the pod was never made.
    await stage.api.delete(PODS, stage.namespace, "r1-1", uid=pod["metadata"]["uid"])
    await stage.processes[0].start()

    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")

    assert [raw["metadata"]["name"] for raw in await stage.pods()] == ["r1-1"]
    assert (await stage.status())["attempt"] == 1


@pytest.mark.parametrize("delay", [0.02, 0.1, 0.25])
async def test_an_operator_killed_at_any_point_of_a_start_leaves_one_pod(stage: Stage, delay: float) -> None:
    operator = await stage.operator(**SHORT_LEASE).start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await asyncio.gather(*(stage.apply_run(f"r{n}") for n in range(6)))
    await asyncio.sleep(delay)
    operator.kill()
    await operator.wait()

    await operator.start()
    for n in range(6):
        await stage.start_pod(f"r{n}-1")
        await stage.wait_phase("Running", f"r{n}")
        await stage.succeed(f"r{n}")
    for n in range(6):
        await stage.wait_phase("Succeeded", f"r{n}")

    assert Counter(raw["metadata"]["labels"][names.LABEL_RUN] for raw in await stage.pods()) == Counter(
        f"r{n}" for n in range(6)
    )


async def test_what_happened_while_no_operator_ran_is_caught_up(stage: Stage) -> None:
    operator = await stage.operator(**SHORT_LEASE).start()
    await apply_all(stage)
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")
    operator.kill()
    await operator.wait()
    await stage.succeed()
    await stage.apply_run("r2")

    await operator.start()

    await stage.wait_phase("Succeeded")
    await stage.wait_pod("r2-1")


async def test_a_finished_run_that_was_not_labelled_is_labelled_after_a_restart(stage: Stage) -> None:
    operator = await stage.operator().start()
    await apply_all(stage)
    await stage.start_pod("r1-1")
    await stage.succeed()
    await stage.wait_phase("Succeeded")
    await operator.stop()
    await stage.api.merge_patch(
        AGENTRUNS, stage.namespace, "r1", {"metadata": {"labels": {names.LABEL_FINISHED: None}}}
    )

    await operator.start()

    async def labelled() -> bool:
        return names.LABEL_FINISHED in (await stage.run())["metadata"].get("labels", {})

    await eventually(labelled)


async def test_sigterm_ends_an_operator_in_good_order(stage: Stage) -> None:
    operator = await stage.operator().start()
    operator.terminate()

    assert await operator.wait() == 0
    lease = await stage.api.get(LEASES, "pilothouse-system", stage.namespace)
    assert lease["spec"].get("holderIdentity", "") == ""


# ---------------------------------------------------------------- two operators


async def test_a_second_operator_waits_ready_and_takes_over_when_the_first_is_told_to_stop(stage: Stage) -> None:
    # Longer than anything is waited for here: the second one leads only because the first one has let go.
    lease = {"LEASE_SECONDS": "300", "RENEW_SECONDS": "200"}
    first = await stage.operator(IDENTITY="first", **lease).start()
    second = await stage.operator(IDENTITY="second", **lease).start(wait=False)
    await second.wait_logged("operator.serving")

    async def ready() -> bool:
        return (await second.get("/readyz"))[0] == 200

    await eventually(ready)
    assert not any(line["event"] == "operator.leading" for line in second.lines())
    first.terminate()
    assert await first.wait() == 0
    await second.wait_logged("operator.loaded")

    await apply_all(stage)
    await stage.wait_pod("r1-1")
    held = await stage.api.get(LEASES, "pilothouse-system", stage.namespace)
    assert held["spec"]["holderIdentity"].startswith("second_")
    assert held["spec"]["leaseTransitions"] >= 1


async def test_a_second_operator_takes_over_from_a_dead_one_when_its_lease_runs_out(stage: Stage) -> None:
    first = await stage.operator(**SHORT_LEASE).start()
    second = await stage.operator(**SHORT_LEASE).start(wait=False)
    await apply_all(stage)
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")
    first.kill()
    await first.wait()

    await second.wait_logged("operator.loaded")
    await stage.succeed()

    await stage.wait_phase("Succeeded")


async def test_an_operator_that_loses_its_lease_ends_at_once(stage: Stage) -> None:
    operator = await stage.operator(**SHORT_LEASE).start()
    thief = {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 600}}
    await stage.api.merge_patch(LEASES, "pilothouse-system", stage.namespace, thief)

    assert await operator.wait(10) == 3
    lease = await stage.api.get(LEASES, "pilothouse-system", stage.namespace)
    assert lease["spec"]["holderIdentity"] == "thief"


# ---------------------------------------------------------------- an API server that is away


async def test_an_api_server_that_restarts_is_outlived(stage: Stage) -> None:
    operator = await stage.operator(LEASE_SECONDS="60", RENEW_SECONDS="50").start()
    await apply_all(stage)
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")

    await asyncio.to_thread(stage.cluster.restart_apiserver)
    await eventually(lambda: responds(stage))
    await stage.succeed()
    await stage.wait_phase("Succeeded")
    await stage.apply_run("r2")

    await stage.wait_pod("r2-1")
    assert operator.process is not None and operator.process.returncode is None


async def responds(stage: Stage) -> bool:
    try:
        await stage.runs()
    except Exception:
        return False
    return True


# ---------------------------------------------------------------- writes that are refused


async def test_a_status_write_that_is_refused_is_tried_again_and_starts_no_pod(stage: Stage) -> None:
    await forbid_attempts(stage)
    try:
        operator = await stage.operator().start()
        await apply_all(stage)
        await operator.wait_logged("reconcile.refused")
        await stays(lambda: count_pods(stage), 0, 1.0)
    finally:
        await stage.api.delete(BINDINGS, None, stage.namespace)
        await stage.api.delete(POLICIES, None, stage.namespace)

    await stage.wait_pod("r1-1", 60)


async def count_pods(stage: Stage) -> int:
    return len(await stage.pods())


async def forbid_attempts(stage: Stage) -> None:
    """Let the API server refuse every status with an attempt, in this namespace."""
    name = {"metadata": {"name": stage.namespace}}
    rule = {
        "apiGroups": [names.GROUP],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": ["agentruns/status"],
    }
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "!has(object.status.attempt)", "message": "not today"}],
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": stage.namespace}}
    binding = {
        "policyName": stage.namespace,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": selector},
    }
    version = POLICIES.api_version
    await stage.api.create(POLICIES, None, {"apiVersion": version, "kind": POLICIES.kind, **name, "spec": spec})
    await stage.api.create(BINDINGS, None, {"apiVersion": version, "kind": BINDINGS.kind, **name, "spec": binding})

    async def in_force() -> bool:
        probe = f"probe-{asyncio.get_running_loop().time():.3f}".replace(".", "-")
        await stage.apply_run(probe)
        try:
            await stage.api.merge_patch(AGENTRUNS, stage.namespace, probe, {"status": {"attempt": 1}}, "status")
        except Exception as error:
            assert "not today" in str(error)
            return True
        finally:
            await stage.api.delete(AGENTRUNS, stage.namespace, probe)
        return False

    await eventually(in_force)


async def test_a_pod_of_that_name_that_is_not_ours_is_left_alone(stage: Stage) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "r1-1"},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    made = await stage.api.create(PODS, stage.namespace, foreign)
    await stage.operator().start()
    await apply_all(stage)
    taken = await stage.wait_condition("Ready", "False", "PodNameTaken")
    assert "r1-1" in taken["message"]
    assert (await stage.wait_pod("r1-1"))["metadata"]["uid"] == made["metadata"]["uid"]

    await stage.api.delete(PODS, stage.namespace, "r1-1")

    async def ours() -> bool:
        try:
            pod = await stage.api.get(PODS, stage.namespace, "r1-1")
        except NotFound:
            return False
        return bool(pod["metadata"].get("ownerReferences"))

    await eventually(ours)


async def test_a_report_that_is_not_understood_stops_nothing(stage: Stage) -> None:
    await stage.operator(ABORT_GRACE_SECONDS="1").start()
    await apply_all(stage)
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")

    operations = [{"op": "add", "path": "/status/run", "value": {"attempt": "seven", "parked": [1], "turn": {}}}]
    await stage.api.json_patch(AGENTRUNS, stage.namespace, "r1", operations, "status")
    await stage.control(mode="Abort")

    async def deleting() -> bool:
        return "deletionTimestamp" in (await stage.wait_pod("r1-1"))["metadata"]

    await eventually(deleting)
    await stage.finalize_pod("r1-1")
    ended = await stage.wait_phase("Aborted")
    effects = condition(ended, "EffectsSettled")
    assert effects is not None and effects["status"] == "Unknown"


# ---------------------------------------------------------------- the budget of writes


async def test_an_unsupervised_run_stays_within_the_budget_of_writes(stage: Stage) -> None:
    await stage.operator(FINISHED_POD_SECONDS="0").start()
    await apply_all(stage)
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")
    for turn in range(1, 6):
        await stage.publish(turn=turn, journalLength=turn * 4)
    await stage.succeed(turn=5)
    await stage.wait_phase("Succeeded")

    await eventually(lambda: deleted_by_operator(stage))
    writes = await count_writes(stage)
    print(dict(writes))
    assert writes.pop("create events") <= 2
    assert writes.pop("patch agentruns/status") <= 3  # the attempt's number, its start, the end
    assert writes == {"create configmaps": 1, "create pods": 1, "delete pods": 1, "patch agentruns": 1}


async def test_a_decision_on_a_run_without_a_pod_costs_three_status_writes_until_its_end(stage: Stage) -> None:
    await stage.operator(JOURNAL_CLAIM="journals").start()
    await apply_all(stage)
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")
    waits = {"callId": "t1-0-9f2c11ab", "tool": "refund", "step": "talk", "requestedAt": now()}
    parked = {"turn": 1, "parked": park("AwaitingApproval"), "pendingApprovals": [waits]}
    await stage.publish(**parked)
    await stage.wait_phase("AwaitingApproval")
    await stage.publish(**{**parked, "parked": park("AwaitingApproval", released=True)})
    await stage.end_pod("r1-1", 0)
    await eventually(lambda: deleted_by_operator(stage))
    waiting = await count_writes(stage)

    await stage.control(approvals={"t1-0-9f2c11ab": {"decision": "Approve"}})
    await stage.wait_pod("r1-2")
    begun = await stage.status()
    await stays(lambda: phase(stage), "Pending", 2.5)  # past the patience with unanswered directives
    await stage.start_pod("r1-2")
    await stage.wait_phase("Running")
    await stage.succeed(attempt=2, turn=2, journalLength=9)
    await stage.wait_phase("Succeeded")

    assert waiting["patch agentruns/status"] == 3
    assert (await count_writes(stage))["patch agentruns/status"] == 6
    assert begun["observedGeneration"] == 2
    assert "ControlPending" not in {one["type"] for one in begun["conditions"]}


async def count_writes(stage: Stage) -> Counter[str]:
    """Count what the operator wrote about the run: `verb resource[/subresource]`."""
    about = [event for event in await audit(stage) if event["objectRef"]["name"].startswith("r1")]
    return Counter(f"{event['verb']} {resource_of(event)}" for event in about)


async def test_a_pause_and_a_resume_that_land_at_once_cost_one_status_write_each(stage: Stage) -> None:
    await stage.operator().start()
    await apply_all(stage)
    await stage.start_pod("r1-1")
    await stage.wait_phase("Running")
    before = len([event for event in await audit(stage) if resource_of(event) == "agentruns/status"])

    await stage.control(mode="Pause")
    await stage.publish(turn=1, parked=park(), control=answered("Pause", 2))
    await stage.wait_phase("Paused")
    await stage.control(mode="Run")
    await stage.publish(turn=1, control=answered("Run", 3))
    await stage.wait_phase("Running")
    await stays(lambda: phase(stage), "Running", 2.5)  # past the patience with unanswered directives

    after = len([event for event in await audit(stage) if resource_of(event) == "agentruns/status"])
    assert after - before == 2
    assert (await stage.status())["observedGeneration"] == 3


async def phase(stage: Stage) -> str:
    return str((await stage.status()).get("phase"))


async def deleted_by_operator(stage: Stage) -> bool:
    return any(event["verb"] == "delete" for event in await audit(stage))


def resource_of(event: dict[str, Any]) -> str:
    reference = event["objectRef"]
    return (
        f"{reference['resource']}/{reference['subresource']}" if "subresource" in reference else reference["resource"]
    )


async def audit(stage: Stage) -> list[dict[str, Any]]:
    """Successful writes of the operator in this namespace."""
    events = await asyncio.to_thread(stage.cluster.audit_events, f'"{stage.namespace}"')
    return [
        event
        for event in events
        if event["verb"] in ("create", "update", "patch", "delete")
        and event["user"]["username"].endswith(":pilothouse-operator")
        and event["responseStatus"]["code"] < 300
        and event["objectRef"].get("namespace") == stage.namespace
    ]
