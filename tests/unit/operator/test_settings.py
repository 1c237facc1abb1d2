"""Settings of an operator process, from its environment."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pilothouse_control.world import Ceilings
from pilothouse_operator.settings import OperatorSettings, process_identity
from pilothouse_operator.workloads.manifests import PodSettings, RedisForPods


def settings(monkeypatch: pytest.MonkeyPatch, **environment: str) -> OperatorSettings:
    for name, value in environment.items():
        monkeypatch.setenv(f"PILOTHOUSE_OPERATOR_{name}", value)
    return OperatorSettings()


def test_the_environment_is_read_as_the_chart_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings = (
        '{"costBudgetUSD": "0", "pauseSeconds": 3600, "tokenBudget": 0, "toolTimeoutSeconds": 3600,'
        ' "approvalExpiresSeconds": 604800}'
    )
    read = settings(
        monkeypatch,
        WATCH_NAMESPACES="a, b,",
        CEILINGS=ceilings,
        LOG_LEVEL="INFO",
        JOURNAL_CLAIM="",
        RUNNER_IMAGE="runner:2",
        RUNNER_TELEMETRY_ENDPOINT="http://collector:4318",
        RUNNER_TELEMETRY_ENV='{"OTEL_TRACES_SAMPLER":"always_on"}',
    )

    assert read.watch_namespaces == ("a", "b")
    assert read.log_level == "info"
    platform = read.platform()
    want = Ceilings(tool_timeout_seconds=3600, pause_seconds=3600, approval_expires_seconds=604800)
    assert platform.ceilings == want
    assert (platform.runner_image, platform.durable_journal) == ("runner:2", False)


def test_what_pods_are_built_with_is_what_the_installation_says(monkeypatch: pytest.MonkeyPatch) -> None:
    read = settings(
        monkeypatch,
        RUNNER_IMAGE_PULL_POLICY="Never",
        JOURNAL_CLAIM="journals",
        TERMINATION_GRACE_SECONDS="20",
        ABORT_GRACE_SECONDS="7",
        RUNNER_TELEMETRY_ENDPOINT="http://collector:4318",
        RUNNER_TELEMETRY_ENV='{"OTEL_TRACES_SAMPLER":"always_on"}',
    )
    assert read.pods() == PodSettings(
        "Never", "journals", None, 20, 7, "http://collector:4318", {"OTEL_TRACES_SAMPLER": "always_on"}
    )


def test_all_namespaces_are_watched_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings(monkeypatch, WATCH_NAMESPACES="").watch_namespaces == ()


def test_redis_makes_journals_durable_and_is_handed_to_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = {"REDIS_KEEP_SECONDS": "8640000", "REDIS_KEEP_FINISHED_SECONDS": "3600"}
    read = settings(
        monkeypatch, REDIS_URL="redis://redis.pilothouse-system:6379", REDIS_SECRET="pilothouse-redis", **terms
    )

    assert read.platform().durable_journal
    assert read.pods().redis == RedisForPods("redis://redis.pilothouse-system:6379", "pilothouse-redis", 8640000, 3600)


def test_a_claim_makes_journals_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings(monkeypatch, JOURNAL_CLAIM="journals").platform().durable_journal


@pytest.mark.parametrize(
    "environment",
    [
        {"RENEW_SECONDS": "15"},
        {"REDIS_URL": "redis://redis", "JOURNAL_CLAIM": "journals"},
        {"REDIS_URL": "redis://user:password@redis"},
        {"REDIS_URL": "http://redis"},
        {"REDIS_KEEP_SECONDS": "60"},
        {"RETRY_SECONDS": "11"},
        {"WORKERS": "0"},
        {"LOG_LEVEL": "loud"},
        {"CEILINGS": '{"pauseSecond": 1}'},
        {"CEILINGS": '{"costBudgetUSD": "much"}'},
        {"RUNNER_TELEMETRY_ENDPOINT": "collector:4318"},
        {"RUNNER_TELEMETRY_ENV": '{"PATH": "/"}'},
    ],
)
def test_a_wrong_value_is_refused(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        settings(monkeypatch, **environment)


def test_no_two_processes_have_one_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    read = settings(monkeypatch, IDENTITY="pod-1")

    assert process_identity(read).startswith("pod-1_")
    assert process_identity(read) != process_identity(read)
