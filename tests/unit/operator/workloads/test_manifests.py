"""Manifests: a pod of an attempt, held against a golden file, and what an author may not change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from pilothouse_api import names
from pilothouse_api.digests import text_digest
from pilothouse_api.plan import Origin, Plan, RunIdentity
from pilothouse_api.v1alpha1.agentrun import PlanReport
from pilothouse_api.v1alpha1.workflow import WorkflowSpec
from pilothouse_operator.workloads.manifests import PodSettings, RedisForPods, build_plan_configmap, build_pod
from support.golden import Golden

GOLDEN = Path(__file__).parents[3] / "golden" / "runner-pod.yaml"
STEPS = [{"id": "say", "kind": "Agent", "agentRef": {"name": "worker"}}]


def make_plan(secrets: list[str] | None = None, audiences: list[str] | None = None, **pod: Any) -> Plan:
    return Plan(
        run=RunIdentity(namespace="ns", name="r1", uid="u1"),
        workflow=Origin(name="flow", digest="d"),
        spec=WorkflowSpec.model_validate({"steps": STEPS}),
        secrets=secrets or [],
        audiences=audiences or [],
        pod={"image": "runner:1", "serviceAccountName": "prun", **pod},
    )


REPORT = PlanReport(name="r1-plan", digest="abc")


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    entries = pod["spec"]["containers"][0]["env"]
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in entries}


def volumes(pod: dict[str, Any]) -> dict[str, Any]:
    return {volume["name"]: volume for volume in pod["spec"]["volumes"]}


def test_the_pod_is_the_golden_one(golden: Golden) -> None:
    pod = build_pod(
        make_plan(
            ["llm/api-key", "llm/other", "crm/token"],
            ["https://mcp.example", "mcp-gateway"],
            resources={"requests": {"cpu": "50m"}, "limits": {"memory": "512Mi"}},
            env=[{"name": "REGION", "value": "eu"}],
            nodeSelector={"pool": "agents"},
            tolerations=[{"key": "agents", "operator": "Exists"}],
            runtimeClassName="gvisor",
            labels={"team": "payments"},
        ),
        REPORT,
        2,
        settings=PodSettings(redis=RedisForPods("redis://pilothouse-redis.pilothouse-system:6379", "pilothouse-redis")),
    )

    golden.check(GOLDEN, yaml.safe_dump(pod, sort_keys=False))


def test_a_pod_is_locked_down() -> None:
    pod = build_pod(make_plan(), REPORT, 1)

    spec, container = pod["spec"], pod["spec"]["containers"][0]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    sources = volumes(pod)["token"]["projected"]["sources"]
    assert sources[0] == {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}


def test_a_pod_without_audiences_has_no_other_token() -> None:
    pod = build_pod(make_plan(), REPORT, 1)
    assert "tokens" not in volumes(pod)
    assert names.AUDIENCE_TOKENS_PATH not in [
        mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]
    ]


def test_an_author_cannot_tell_a_runner_that_it_is_another_run() -> None:
    plan = make_plan(
        env=[{"name": names.ENV_RUN_NAME, "value": "other"}, {"name": names.ENV_ATTEMPT, "value": "9"}],
        labels={names.LABEL_RUN: "other", "team": "x"},
    )

    pod = build_pod(plan, REPORT, 1)

    assert environment(pod)[names.ENV_RUN_NAME] == "r1"
    assert len(environment(pod)) == len(pod["spec"]["containers"][0]["env"])
    assert pod["metadata"]["labels"][names.LABEL_RUN] == "r1"
    assert pod["metadata"]["labels"]["team"] == "x"


def test_a_runner_has_telemetry_where_the_installation_says_so_and_no_author_leads_it_elsewhere() -> None:
    plan = make_plan(
        env=[
            {"name": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "value": "http://elsewhere/v1/traces"},
            {"name": "OTEL_TRACES_EXPORTER", "value": "none"},
            {"name": "REGION", "value": "eu"},
        ]
    )
    sampler = {"OTEL_TRACES_SAMPLER": "always_on"}
    settings = PodSettings(telemetry_endpoint="http://collector:4318/", telemetry_env=sampler)

    own = environment(build_pod(plan, REPORT, 1, settings=settings))
    without = environment(build_pod(plan, REPORT, 1))

    assert {name: value for name, value in own.items() if name.startswith("OTEL_")} == {
        **sampler,
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318/v1/metrics",
    }
    assert own["REGION"] == "eu"
    assert without["OTEL_TRACES_EXPORTER"] == "none", "an author's own telemetry is the author's"


def test_a_runner_is_told_how_long_an_abort_may_take() -> None:
    pod = build_pod(make_plan(), REPORT, 1, settings=PodSettings(abort_grace_seconds=7))
    assert environment(pod)[names.ENV_ABORT_GRACE] == "7"


def test_a_journal_on_a_claim_is_durable_and_one_on_an_emptydir_is_not() -> None:
    fleeting = build_pod(make_plan(), REPORT, 1)
    durable = build_pod(make_plan(), REPORT, 1, settings=PodSettings(journal_claim="journals"))

    assert environment(fleeting)[names.ENV_JOURNAL] == "File"
    assert "emptyDir" in volumes(fleeting)["journal"]
    assert environment(durable)[names.ENV_JOURNAL] == "DurableFile"
    assert volumes(durable)["journal"]["persistentVolumeClaim"] == {"claimName": "journals"}


def test_a_journal_in_redis_is_opened_with_the_secret_of_the_namespace_and_needs_no_volume() -> None:
    redis = RedisForPods("redis://redis:6379", "pilothouse-redis", 1000, 60)
    pod = build_pod(make_plan(), REPORT, 1, settings=PodSettings(redis=redis))

    own = environment(pod)
    assert (own[names.ENV_JOURNAL], own[names.ENV_REDIS_URL]) == ("Redis", "redis://redis:6379")
    assert (own[names.ENV_REDIS_KEEP], own[names.ENV_REDIS_KEEP_FINISHED]) == ("1000", "60")
    assert volumes(pod)["redis"]["secret"] == {"secretName": "pilothouse-redis"}
    assert "journal" not in volumes(pod)
    mounts = {mount["name"]: mount for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["redis"] == {"name": "redis", "mountPath": names.REDIS_LOGIN_PATH, "readOnly": True}

    open_to_all = build_pod(make_plan(), REPORT, 1, settings=PodSettings(redis=RedisForPods("redis://redis")))
    assert "redis" not in volumes(open_to_all)


def test_only_a_settling_attempt_is_told_to_settle() -> None:
    assert environment(build_pod(make_plan(), REPORT, 1))[names.ENV_SETTLE] == ""
    assert environment(build_pod(make_plan(), REPORT, 2, "Aborted"))[names.ENV_SETTLE] == "Aborted"


def test_a_secret_is_one_file_a_key_and_no_other_key_is_mounted() -> None:
    pod = build_pod(make_plan(["a/x", "a/y", "b/z"]), REPORT, 1)

    assert volumes(pod)["secrets"]["projected"]["sources"] == [
        {"secret": {"name": "a", "items": [{"key": "x", "path": "a/x"}, {"key": "y", "path": "a/y"}]}},
        {"secret": {"name": "b", "items": [{"key": "z", "path": "b/z"}]}},
    ]
    assert "secrets" not in volumes(build_pod(make_plan(), REPORT, 1))


def test_the_plan_is_stored_whole_immutable_and_owned() -> None:
    plan = make_plan()

    body = build_plan_configmap(plan)

    text = body["data"][names.PLAN_KEY]
    assert Plan.decode(text, text_digest(text)) == Plan.decode(plan.encode())
    assert json.loads(text)["run"]["uid"] == "u1"
    assert body["immutable"] is True
    assert body["metadata"]["ownerReferences"][0]["uid"] == "u1"
