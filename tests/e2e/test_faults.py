"""What breaks, on real pods: nothing is stuck, and the reason says what to do."""

import json

import pytest

from e2e.test_steering import apply_workflow, start
from support.cluster import LocalCluster
from support.installation import DEPLOYMENT, SYSTEM, Installation, wait_until


def test_a_run_goes_on_when_its_runner_is_killed(installation: Installation, namespace: str) -> None:
    apply_workflow(installation, namespace)
    start(installation, namespace, "killed", lookup_seconds=3)
    installation.wait_for(namespace, "killed", ".status.run.step", "investigate")

    installation.kubectl("delete", "pod", "killed-1", "-n", namespace, "--grace-period=0", "--force")
    ended = installation.wait_finished(namespace, "killed", seconds=240)

    assert ended["status"]["phase"] == "Succeeded"
    assert ended["status"]["attempt"] == 2


def test_a_missing_workflow_is_waited_for_and_heals(installation: Installation, namespace: str) -> None:
    start(installation, namespace, "early")
    waiting = installation.wait_for(namespace, "early", ".status.phase", "Pending")
    ready = next(c for c in waiting["status"]["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "WorkflowNotFound"
    assert "support-triage" in ready["message"]

    apply_workflow(installation, namespace)
    assert installation.wait_finished(namespace, "early")["status"]["phase"] == "Succeeded"


def test_a_wrong_workflow_is_stalled_with_the_field(installation: Installation, namespace: str) -> None:
    agent = {
        "mode": "Completion",
        "model": {"name": "scripted", "script": {"inline": "turns: [{text: one}]"}, "maxOutputTokens": 10},
        "system": {"inline": "Sort."},
        "prompt": {"inline": "Sort."},
        "outcome": {"enum": ["one", "two"]},
    }
    step = {"id": "answer", "kind": "Agent", "agent": agent, "routes": {"one": "end"}}
    installation.apply(
        namespace,
        {
            "apiVersion": "pilothouse.dev/v1alpha1",
            "kind": "Workflow",
            "metadata": {"name": "asks"},
            "spec": {"steps": [step]},
        },
    )

    def stalled() -> dict[str, str] | None:
        raw = json.loads(installation.kubectl("get", "pwf", "asks", "-n", namespace, "-o", "json"))
        conditions = raw.get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == "Stalled" and c["status"] == "True"), None)

    wait_until(lambda: stalled() is not None)
    found = stalled()
    assert found is not None
    assert "the agent may end with two, and routes do not map it" in found["message"]
    assert "spec.steps[0].routes" in found["message"]


def test_a_run_goes_on_when_the_operator_is_killed(installation: Installation, namespace: str) -> None:
    apply_workflow(installation, namespace)
    start(installation, namespace, "alone", lookup_seconds=3)
    installation.wait_for(namespace, "alone", ".status.run.step", "investigate")

    selector = "app.kubernetes.io/component=operator"
    installation.kubectl("delete", "pod", "-n", SYSTEM, "-l", selector, "--grace-period=0", "--force")
    ended = installation.wait_finished(namespace, "alone", seconds=240)

    assert ended["status"]["phase"] == "Succeeded"
    installation.kubectl("rollout", "status", f"deployment/{DEPLOYMENT}", "-n", SYSTEM, "--timeout=240s")


def test_a_run_goes_on_when_the_api_server_restarts(installation: Installation, namespace: str) -> None:
    if not isinstance(installation.cluster, LocalCluster):
        pytest.skip("only a cluster of hack/cluster can be restarted from here")
    apply_workflow(installation, namespace)
    start(installation, namespace, "patient", lookup_seconds=3)
    installation.wait_for(namespace, "patient", ".status.run.step", "investigate")

    installation.cluster.restart_apiserver()
    ended = installation.wait_finished(namespace, "patient", seconds=240)

    assert ended["status"]["phase"] == "Succeeded"
