"""Journals in the chart's Redis: they outlive pods, that of Redis too, and each namespace has its own."""

from __future__ import annotations

import pytest

from e2e.test_steering import apply_workflow, start
from support.installation import REDIS, ROOT, SYSTEM, Installation

NAMESPACE = "default"
"""A namespace that the chart knows: its user of Redis is there again when Redis starts anew."""


@pytest.fixture
def namespace() -> str:
    return NAMESPACE


def test_a_run_survives_its_pod_and_the_pod_of_redis_with_all_turns(installation: Installation, namespace: str) -> None:
    apply_workflow(installation, NAMESPACE)
    start(installation, NAMESPACE, "durable", lookup_seconds=3)
    before = installation.wait_for(NAMESPACE, "durable", ".status.run.turn", "2", seconds=240)

    installation.kubectl("delete", "pod", f"{REDIS}-0", "-n", SYSTEM, "--grace-period=0", "--force", "--wait=false")
    installation.kubectl("delete", "pod", "durable-1", "-n", NAMESPACE, "--grace-period=0", "--force")
    ended = installation.wait_finished(NAMESPACE, "durable", seconds=240)

    assert ended["status"]["phase"] == "Succeeded"
    assert ended["status"]["attempt"] == 2
    steps = ended["status"]["run"]["steps"]
    assert steps[0] == before["status"]["run"]["steps"][0], "what was done before is kept, and not done again"
    assert len([step for step in steps if step["id"] == "classify"]) == 1
    uid = ended["metadata"]["uid"]
    key = f"ns:{NAMESPACE}:run:{uid}:journal"
    assert installation.redis("XINFO", "STREAM", key), "the journal is in Redis"
    assert 0 < int(installation.redis("TTL", key)) <= 7 * 86400


def test_a_user_of_a_namespace_cannot_reach_the_keys_of_another(installation: Installation) -> None:
    login = installation.secret(NAMESPACE, REDIS)

    def ask(*command: str) -> str:
        options = ("--no-auth-warning", "--user", login["username"], "--pass", login["password"])
        return installation.kubectl("exec", f"{REDIS}-0", "-n", SYSTEM, "--", "redis-cli", *options, *command)

    assert "NOPERM" not in ask("XRANGE", f"ns:{NAMESPACE}:run:u:journal", "-", "+")
    theirs = f"ns:{SYSTEM}:run:u:journal"
    assert "NOPERM" in ask("XRANGE", theirs, "-", "+")
    assert "NOPERM" in ask("EVAL", "return redis.call('XRANGE', KEYS[1], '-', '+')", "1", theirs)
    assert "can't access" in ask("EVAL", f"return redis.call('XRANGE', '{theirs}', '-', '+')", "0")
    for command in ("KEYS *", "SCAN 0", "FLUSHALL", "CONFIG GET *", "ACL LIST", "SCRIPT FLUSH", "DEL x"):
        assert "NOPERM" in ask(*command.split()), command


def test_an_upgrade_keeps_the_passwords(installation: Installation) -> None:
    before = installation.secret(NAMESPACE, REDIS)
    upgrade = ("helm", "upgrade", "pilothouse", str(ROOT / "charts" / "pilothouse"), "-n", SYSTEM, "--reuse-values")
    installation.cluster.run_tool(*upgrade, timeout=120)

    assert installation.secret(NAMESPACE, REDIS) == before
