"""How attempts end and how they are refused, in the words of a real API server; and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from integration.operator.stage import Stage, answered, condition, eventually, now, park, stays
from integration.operator.test_run_lifecycle import begin
from pilothouse_api import names
from pilothouse_kubernetes.client import PODS, NotFound, Raw, Resource

pytest_plugins = ["support.cluster"]
pytestmark = pytest.mark.anyio

QUOTAS = Resource("api/v1", "resourcequotas", "ResourceQuota")
LIMIT_RANGES = Resource("api/v1", "limitranges", "LimitRange")
_ADMISSION = "apis/admissionregistration.k8s.io/v1"
WEBHOOKS = Resource(_ADMISSION, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration")

DURABLE = {"JOURNAL_CLAIM": "journals"}


async def create(stage: Stage, resource: Resource, **spec: Any) -> None:
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": stage.namespace}, **spec}
    is_global = resource.prefix != "api/v1"
    await stage.api.create(resource, None if is_global else stage.namespace, body)


# ---------------------------------------------------------------- pods that are not taken


async def test_a_quota_that_is_used_up_is_waited_for(stage: Stage) -> None:
    await create(stage, QUOTAS, spec={"hard": {"pods": "0"}})

    async def counted() -> bool:
        found = await stage.api.get(QUOTAS, stage.namespace, stage.namespace)
        return bool(found.get("status", {}).get("hard"))

    await eventually(counted)
    await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run()
    refused = await stage.wait_condition("Ready", "False", "QuotaExceeded")
    assert "exceeded quota" in refused["message"]
    stalled = condition(await stage.run(), "Stalled")
    assert stalled is not None and stalled["status"] == "False"

    await stage.api.delete(QUOTAS, stage.namespace, stage.namespace)

    await stage.wait_pod("r1-1")


async def refuse_by_limit_range(stage: Stage) -> None:
    await create(stage, LIMIT_RANGES, spec={"limits": [{"type": "Container", "max": {"memory": "64Mi"}}]})


async def refuse_by_a_webhook_that_is_away(stage: Stage) -> None:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {
        "name": "guard.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/"},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": stage.namespace}},
    }
    await create(stage, WEBHOOKS, webhooks=[hook])


@pytest.mark.parametrize(
    ("template", "prepare", "reason", "words", "stalls"),
    [
        (
            {"resources": {"limits": {"memory": "512Mi"}}},
            *(refuse_by_limit_range, "LimitRangeViolated", "64Mi", True),
        ),
        ({"runtimeClassName": "gvisor"}, None, "RuntimeClassNotFound", 'RuntimeClass "gvisor" not found', False),
        ({}, refuse_by_a_webhook_that_is_away, "WebhookUnavailable", "guard.example.com", False),
    ],
    ids=["limit range", "runtime class", "webhook away"],
)
async def test_a_pod_that_is_refused_says_who_refuses_it(
    stage: Stage, template: Raw, prepare: Any, reason: str, words: str, stalls: bool
) -> None:
    if prepare is not None:
        await prepare(stage)
    try:
        await stage.operator().start()
        await stage.apply_agent()
        await stage.apply_workflow(runTemplate=template)
        await stage.apply_run()

        refused = await stage.wait_condition("Ready", "False", reason)

        assert words in refused["message"]
        stalled = condition(await stage.run(), "Stalled")
        assert stalled is not None and (stalled["status"] == "True") is stalls
        await stage.control(mode="Abort")
        await stage.wait_phase("Aborted")
    finally:
        await stage.api.delete(WEBHOOKS, None, stage.namespace)


# ---------------------------------------------------------------- what the cluster does to a pod


async def test_a_drain_of_a_run_that_lets_go_counts_no_crash(stage: Stage) -> None:
    await begin(stage, **DURABLE)
    await stage.publish(turn=2, journalLength=9)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "r1-1"}}
    path = f"api/v1/namespaces/{stage.namespace}/pods/r1-1"
    await stage.api.create(Resource(path, "eviction", "Eviction"), None, eviction)
    pod = await stage.wait_pod("r1-1")
    assert "deletionTimestamp" in pod["metadata"]

    await stage.publish(turn=2, journalLength=11, parked=park("Stopped", turn=2, released=True))
    await stage.finalize_pod("r1-1")

    await stage.start_pod("r1-2")
    running = (await stage.wait_phase("Running"))["status"]
    assert (running["attempt"], running["attempts"].get("crashes", 0)) == (2, 0)


async def test_a_drained_pod_that_is_killed_before_it_lets_go_counts_no_crash_and_says_who_did_it(
    stage: Stage,
) -> None:
    await begin(stage, **DURABLE)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "r1-1"}}
    path = f"api/v1/namespaces/{stage.namespace}/pods/r1-1"
    await stage.api.create(Resource(path, "eviction", "Eviction"), None, eviction)
    await stage.finalize_pod("r1-1")

    await stage.start_pod("r1-2")
    running = (await stage.wait_phase("Running"))["status"]
    assert running["attempts"]["crashes"] == 0
    assert running["attempts"]["lastFailure"].startswith("Evicted: EvictionByEvictionAPI")


async def test_a_pod_whose_volume_is_missing_says_so_with_its_event(stage: Stage) -> None:
    """What the kubelet cannot mount stands in no status: only an event tells it."""
    await stage.operator().start()
    await stage.apply_agent()
    await stage.apply_workflow()
    await stage.apply_run()
    pod = await stage.wait_pod("r1-1")
    event = {
        "metadata": {"name": "r1-1.mount"},
        "involvedObject": {
            "kind": "Pod",
            "namespace": stage.namespace,
            "name": "r1-1",
            "uid": pod["metadata"]["uid"],
        },
        "type": "Warning",
        "reason": "FailedMount",
        "message": 'MountVolume.SetUp failed for volume "secrets" : secret "keys" not found',
        "lastTimestamp": now(),
    }
    await stage.api.create(
        Resource("api/v1", "events", "Event"), stage.namespace, {"apiVersion": "v1", "kind": "Event", **event}
    )

    found = await stage.wait_condition("Ready", "False", "FailedMount")

    assert 'secret "keys" not found' in found["message"]


# ---------------------------------------------------------------- released runs, aborts, settling


async def release_pause(stage: Stage) -> None:
    await begin(stage, ABORT_GRACE_SECONDS="2", **DURABLE)
    await stage.control(mode="Pause")
    await stage.publish(turn=1, parked=park(released=True), control=answered("Pause", 2))
    await stage.end_pod("r1-1", 0)
    await stage.wait_phase("Paused")


async def no_pod(stage: Stage, name: str) -> bool:
    try:
        await stage.api.get(PODS, stage.namespace, name)
    except NotFound:
        return True
    return False


async def test_finish_wakes_a_released_run_in_an_ordinary_attempt(stage: Stage) -> None:
    await release_pause(stage)

    await stage.control(mode="Finish")
    pod = await stage.start_pod("r1-2")
    await stage.publish(attempt=2, exit={"signal": "default", "reason": "FinishedEarly", "message": "done"})
    await stage.end_pod("r1-2", 0)

    ended = await stage.wait_phase("Succeeded")
    assert ended["status"]["exit"]["reason"] == "FinishedEarly"
    assert environment(pod)[names.ENV_SETTLE] == ""


async def test_abort_of_a_released_run_ends_it_only_when_its_pod_is_gone_and_its_effects_are_known(
    stage: Stage,
) -> None:
    await release_pause(stage)

    await stage.control(mode="Abort")
    await stage.start_pod("r1-2")
    await stage.publish(attempt=2, exit={"signal": "aborted", "reason": "Aborted", "message": "aborted at turn 1"})
    await stays(lambda: phase(stage), await phase(stage), 1.0)
    assert await phase(stage) not in ("Aborted", "Failed")
    await stage.end_pod("r1-2", 0)

    ended = await stage.wait_phase("Aborted")
    effects = condition(ended, "EffectsSettled")
    assert effects is not None and effects["status"] == "True"


async def phase(stage: Stage) -> str:
    return str((await stage.status()).get("phase"))


def environment(pod: Raw) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}


async def test_an_abort_that_no_runner_lands_is_settled_and_a_settling_attempt_that_is_drained_made_again(
    stage: Stage,
) -> None:
    await begin(stage, ABORT_GRACE_SECONDS="1", **DURABLE)
    await stage.publish(turn=3, journalLength=9)
    await stage.control(mode="Abort")

    async def deleting() -> bool:
        return "deletionTimestamp" in (await stage.wait_pod("r1-1"))["metadata"]

    await eventually(deleting)
    await stage.finalize_pod("r1-1")
    first = await stage.start_pod("r1-2")
    assert environment(first)[names.ENV_SETTLE] == "Aborted"
    await stage.wait_condition("Settling", reason="Aborted")
    await stage.report_pod("r1-2", {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."})

    second = await stage.start_pod("r1-3")
    assert environment(second)[names.ENV_SETTLE] == "Aborted"
    unknown = [{"callId": "t3-0-ab", "tool": "refund", "at": now()}]
    end = {"signal": "aborted", "reason": "Aborted", "message": "closed by a settling attempt"}
    await stage.publish(attempt=3, turn=3, exit=end, effects={"settled": 1, "unknown": unknown})
    await stage.end_pod("r1-3", 0)

    ended = await stage.wait_phase("Aborted")
    effects = condition(ended, "EffectsSettled")
    assert effects is not None and effects["status"] == "Unknown"
    assert "refund (t3-0-ab)" in effects["message"]
    assert ended["status"]["attempts"]["crashes"] == 0


async def test_an_abort_is_not_kept_up_by_an_attempt_that_cannot_start(stage: Stage) -> None:
    await begin(stage, ABORT_GRACE_SECONDS="2", **DURABLE)
    await stage.publish(turn=2, journalLength=9)
    await stage.end_pod("r1-1", 1)
    stuck = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off: ErrImagePull: no such image"}}
    status = {"name": "runner", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": stuck}
    await stage.wait_pod("r1-2")
    await stage.report_pod("r1-2", {"phase": "Pending", "containerStatuses": [status]})
    await stage.wait_condition("Ready", "False", "ImagePullBackOff")

    await stage.control(mode="Abort")
    settling = await stage.start_pod("r1-3")

    assert environment(settling)[names.ENV_SETTLE] == "Aborted"
    assert await no_pod(stage, "r1-2")
    await stage.end_pod("r1-3", 1, message="the journal is corrupt\n")
    ended = await stage.wait_phase("Aborted")
    effects = condition(ended, "EffectsSettled")
    assert effects is not None and effects["status"] == "Unknown"
    assert "the settling attempt failed" in ended["status"]["exit"]["message"]


# ---------------------------------------------------------------- outages that the runner reports


async def test_a_service_that_is_away_is_a_condition_that_heals(stage: Stage) -> None:
    await begin(stage, **DURABLE)
    said = "cannot reach redis://journal: connection refused"
    await stage.publish(turn=2, parked=park("JournalLost", turn=2, message=said))

    away = await stage.wait_condition("JournalLost", "True")
    assert said in away["message"]
    ready = condition(await stage.run(), "Ready")
    assert ready is not None and (ready["status"], ready["reason"]) == ("False", "JournalLost")
    await stage.publish(turn=3)

    await stage.wait_condition("JournalLost", "False", "NotJournalLost")
    await stage.wait_condition("Ready", "True", "Running")
