"""Manifests of what a run needs: the ConfigMap of its plan, and one bare pod an attempt. Pure.

A bare pod instead of a Job: attempts, retries and deterministic names are the operator's own.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from pilothouse_api import names
from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1.agentrun import PlanReport

RUNNER_USER = 65532
TOKEN_SECONDS = 600
PLAN_FOLDER = str(PurePosixPath(names.PLAN_PATH).parent)


@dataclass(frozen=True, slots=True)
class RedisForPods:
    """The Redis that keeps journals; `secret`, in each namespace of runs, holds user, password and perhaps a CA.

    An empty `secret`: it asks for neither. Terms in seconds: see the runner's settings.
    """

    url: str
    secret: str = ""
    keep_seconds: int = 365 * 86400
    keep_finished_seconds: int = 7 * 86400


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What the installation sets of every pod.

    `redis` keeps journals; without it they lie on `journal_claim`, and where that is empty on an emptyDir.
    `telemetry_endpoint` empty: runners have no telemetry; `telemetry_env` are further OTEL_ variables beside it.
    """

    image_pull_policy: str = "IfNotPresent"
    journal_claim: str = ""
    redis: RedisForPods | None = None
    termination_grace_seconds: int = 30
    abort_grace_seconds: int = 30
    telemetry_endpoint: str = ""
    telemetry_env: Mapping[str, str] = field(default_factory=dict)


def build_plan_configmap(plan: Plan) -> dict[str, Any]:
    """Return the immutable ConfigMap that holds a plan, owned by its run."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.plan_name(plan.run.name),
            "namespace": plan.run.namespace,
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_PLAN_OF: plan.run.name},
            "ownerReferences": [names.owner_reference("AgentRun", plan.run.name, plan.run.uid)],
        },
        "immutable": True,
        "data": {names.PLAN_KEY: plan.encode()},
    }


def build_pod(
    plan: Plan, report: PlanReport, attempt: int, settle: str | None = None, settings: PodSettings | None = None
) -> dict[str, Any]:
    """Return the pod of an attempt. `settle`: it only closes the run, with this exit reason."""
    settings = settings or PodSettings()
    template = plan.pod
    spec: dict[str, Any] = {
        "serviceAccountName": template.get("serviceAccountName") or names.DEFAULT_RUNNER_SERVICE_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": settings.termination_grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": RUNNER_USER,
            "runAsGroup": RUNNER_USER,
            "fsGroup": RUNNER_USER,  # else the projected token is readable for root alone
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_build_container(plan, report, attempt, settle, settings)],
        "volumes": _build_volumes(plan, report, settings),
    }
    for name in ("nodeSelector", "tolerations", "runtimeClassName"):
        if template.get(name):
            spec[name] = template[name]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.pod_name(plan.run.name, attempt),
            "namespace": plan.run.namespace,
            "labels": {**template.get("labels", {}), **_labels(plan, attempt)},
            "ownerReferences": [names.owner_reference("AgentRun", plan.run.name, plan.run.uid)],
        },
        "spec": spec,
    }


def _labels(plan: Plan, attempt: int) -> dict[str, str]:
    return {
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        names.LABEL_RUN: plan.run.name,
        names.LABEL_ATTEMPT: str(attempt),
        names.LABEL_WORKFLOW: names.fit(plan.workflow.name, names.MAX_LABEL_VALUE),
    }


def _build_container(
    plan: Plan, report: PlanReport, attempt: int, settle: str | None, settings: PodSettings
) -> dict[str, Any]:
    template = plan.pod
    container: dict[str, Any] = {
        "name": names.RUNNER_CONTAINER,
        "image": template.get("image"),
        "imagePullPolicy": settings.image_pull_policy,
        "env": _build_env(plan, report, attempt, settle, settings),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "plan", "mountPath": PLAN_FOLDER, "readOnly": True},
            {"name": "token", "mountPath": names.TOKEN_PATH, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    mounts = container["volumeMounts"]
    if settings.redis is None:
        mounts.append({"name": "journal", "mountPath": names.JOURNAL_PATH})
    elif settings.redis.secret:
        mounts.append({"name": "redis", "mountPath": names.REDIS_LOGIN_PATH, "readOnly": True})
    if plan.secrets:
        mounts.append({"name": "secrets", "mountPath": names.SECRETS_PATH, "readOnly": True})
    if plan.audiences:
        mounts.append({"name": "tokens", "mountPath": names.AUDIENCE_TOKENS_PATH, "readOnly": True})
    for name in ("resources", "envFrom"):
        if template.get(name):
            container[name] = template[name]
    return container


def _build_env(
    plan: Plan, report: PlanReport, attempt: int, settle: str | None, settings: PodSettings
) -> list[dict[str, Any]]:
    own = {
        names.ENV_RUN_NAMESPACE: plan.run.namespace,
        names.ENV_RUN_NAME: plan.run.name,
        names.ENV_RUN_UID: plan.run.uid,
        names.ENV_ATTEMPT: str(attempt),
        names.ENV_PLAN_PATH: names.PLAN_PATH,
        names.ENV_PLAN_DIGEST: report.digest,
        **_journal_env(settings),
        names.ENV_SECRETS_PATH: names.SECRETS_PATH,
        # Always set, even if empty: else an author's envFrom could.
        names.ENV_SETTLE: settle or "",
        names.ENV_ABORT_GRACE: str(settings.abort_grace_seconds),
        **_telemetry_env(settings),
    }
    # Ours come last and win: an author cannot tell a runner that it is another run, nor lead its telemetry elsewhere.
    refused = (names.OTEL_PREFIX,) if settings.telemetry_endpoint else ()
    theirs = [
        entry
        for entry in plan.pod.get("env", [])
        if entry.get("name") not in own and not str(entry.get("name")).startswith(refused)
    ]
    return [*theirs, *({"name": name, "value": value} for name, value in own.items())]


def _journal_env(settings: PodSettings) -> dict[str, str]:
    if settings.redis is None:
        return {names.ENV_JOURNAL: "DurableFile" if settings.journal_claim else "File"}
    return {
        names.ENV_JOURNAL: "Redis",
        names.ENV_REDIS_URL: settings.redis.url,
        names.ENV_REDIS_KEEP: str(settings.redis.keep_seconds),
        names.ENV_REDIS_KEEP_FINISHED: str(settings.redis.keep_finished_seconds),
    }


def _telemetry_env(settings: PodSettings) -> dict[str, str]:
    if not settings.telemetry_endpoint:
        return {}
    base = settings.telemetry_endpoint.rstrip("/")
    return {
        **settings.telemetry_env,
        names.ENV_OTLP_ENDPOINT: base,
        # Those of the signals win over the general one: else an author's envFrom could lead a signal elsewhere.
        names.ENV_OTLP_TRACES_ENDPOINT: f"{base}/v1/traces",
        names.ENV_OTLP_METRICS_ENDPOINT: f"{base}/v1/metrics",
    }


def _build_volumes(plan: Plan, report: PlanReport, settings: PodSettings) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "plan", "configMap": {"name": report.name}},
        {"name": "token", "projected": {"sources": _token_sources()}},
        *_journal_volumes(settings),
        {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}},
    ]
    if plan.secrets:
        volumes.append({"name": "secrets", "projected": {"sources": _secret_sources(plan.secrets)}})
    if plan.audiences:
        volumes.append({"name": "tokens", "projected": {"sources": _audience_sources(plan.audiences)}})
    return volumes


def _journal_volumes(settings: PodSettings) -> list[dict[str, Any]]:
    if settings.redis is not None:
        # No keys are named: a rotated password and a CA come and go with the Secret, and nothing else lies in it.
        return [{"name": "redis", "secret": {"secretName": settings.redis.secret}}] if settings.redis.secret else []
    if settings.journal_claim:
        return [{"name": "journal", "persistentVolumeClaim": {"claimName": settings.journal_claim}}]
    return [{"name": "journal", "emptyDir": {"sizeLimit": "1Gi"}}]


def _token_sources() -> list[dict[str, Any]]:
    return [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]
            }
        },
    ]


def _audience_sources(audiences: list[str]) -> list[dict[str, Any]]:
    """Return tokens of the run's ServiceAccount that are good for one audience each, and not for the API server."""
    return [
        {
            "serviceAccountToken": {
                "path": names.audience_token_file(audience),
                "audience": audience,
                "expirationSeconds": TOKEN_SECONDS,
            }
        }
        for audience in audiences
    ]


def _secret_sources(secrets: list[str]) -> list[dict[str, Any]]:
    keys: dict[str, list[str]] = defaultdict(list)
    for secret in secrets:
        name, _, key = secret.partition("/")
        keys[name].append(key)
    return [
        {"secret": {"name": name, "items": [{"key": key, "path": names.secret_file(name, key)} for key in wanted]}}
        for name, wanted in keys.items()
    ]
