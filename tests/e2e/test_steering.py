"""A person steers a live run by `kubectl patch`, and nothing else is needed."""

import json
from typing import Any

from support.installation import Installation, wait_until


def start(installation: Installation, namespace: str, name: str, **input_: Any) -> None:
    """Start the example once more under another name."""
    ticket = {"text": "I was charged twice for my order", "customer": "c-17"}
    installation.apply(
        namespace,
        {
            "apiVersion": "pilothouse.dev/v1alpha1",
            "kind": "AgentRun",
            "metadata": {"name": name},
            "spec": {"workflowRef": {"name": "support-triage"}, "input": {"ticket": ticket, **input_}},
        },
    )


def apply_workflow(installation: Installation, namespace: str) -> None:
    installation.apply_example(namespace, "support-triage")


def test_a_run_is_paused_steered_and_resumed(installation: Installation, namespace: str) -> None:
    apply_workflow(installation, namespace)
    start(installation, namespace, "steered", lookup_seconds=3)
    installation.wait_for(namespace, "steered", ".status.run.step", "investigate")

    installation.control(namespace, "steered", {"mode": "Pause", "reason": "lunch"})
    paused = installation.wait_for(namespace, "steered", ".status.phase", "Paused")
    parked = paused["status"]["run"]["parked"]
    assert parked["reason"] == "Paused"
    message = next(c["message"] for c in paused["status"]["conditions"] if c["type"] == "Paused")
    assert str(parked["turn"]) in message

    installation.control(namespace, "steered", {"steer": {"a1": {"message": "Look at invoice 42 too."}}})
    installation.control(namespace, "steered", {"mode": "Run"})
    ended = installation.wait_finished(namespace, "steered")

    assert ended["status"]["phase"] == "Succeeded"
    landing = ended["status"]["run"]["control"]["steer"]["a1"]
    assert landing["state"] == "Landed"
    assert landing["turn"] >= parked["turn"]
    assert "Invoice 42 is in order" in ended["status"]["result"]["answer"]


def test_finish_gives_the_run_one_last_turn(installation: Installation, namespace: str) -> None:
    apply_workflow(installation, namespace)
    start(installation, namespace, "hurried")
    installation.wait_for(namespace, "hurried", ".status.run.step", "investigate")

    installation.control(namespace, "hurried", {"mode": "Finish", "reason": "no time"})
    ended = installation.wait_finished(namespace, "hurried")

    assert ended["status"]["phase"] in ("Succeeded", "Failed", "Aborted")
    assert ended["status"]["run"]["exit"]["turnEnding"] == "Interrupted"
    assert ended["status"]["run"]["control"]["mode"]["value"] == "Finish"


def has_runner_ended(pod: dict[str, Any]) -> bool:
    """Tell whether a pod runs nothing any more; the kubelet says so a moment before its phase does."""
    return all("terminated" in status["state"] for status in pod["status"]["containerStatuses"])


def test_an_abort_between_two_tool_calls_stops_the_second(installation: Installation, namespace: str) -> None:
    apply_workflow(installation, namespace)
    start(installation, namespace, "stopped", lookup_seconds=6)
    # The second turn asks for a slow lookup and for a note; the abort comes while the lookup runs.
    installation.wait_for(namespace, "stopped", ".status.run.turn", "2", seconds=240)
    wait_until(lambda: installation.run(namespace, "stopped")["status"]["run"]["tokens"]["used"] > 600, seconds=240)

    installation.control(namespace, "stopped", {"mode": "Abort", "reason": "wrong customer"})
    ended = installation.wait_finished(namespace, "stopped")

    assert ended["status"]["phase"] == "Aborted"
    assert ended["status"]["exit"]["reason"] == "Aborted"
    assert ended["status"]["run"]["toolCalls"].get("add_note", 0) == 0
    assert ended["status"]["run"]["effects"]["unknown"] == []
    pods = json.loads(installation.kubectl("get", "pods", "-n", namespace, "-o", "json"))["items"]
    mine = [pod for pod in pods if pod["metadata"]["name"].startswith("stopped-")]
    assert all(has_runner_ended(pod) for pod in mine)
    refusal = installation.refused(
        *("patch", "prun", "stopped", "-n", namespace, "--type=merge", "-p", '{"spec":{"control":{"mode":"Run"}}}')
    )
    assert "cannot be taken back" in refusal or "finished" in refusal.lower()


def test_limits_are_changed_on_a_live_run(installation: Installation, namespace: str) -> None:
    apply_workflow(installation, namespace)
    start(installation, namespace, "poor", lookup_seconds=3)
    installation.wait_for(namespace, "poor", ".status.run.step", "investigate")

    patch = '{"spec":{"limits":{"tokenBudget":200}}}'
    installation.kubectl("patch", "prun", "poor", "-n", namespace, "--type=merge", "-p", patch)
    ended = installation.wait_finished(namespace, "poor")

    assert [s["signal"] for s in ended["status"]["run"]["steps"] if s["id"] == "investigate"] == ["budget_exceeded"]
    assert ended["status"]["run"]["control"]["limits"]["turn"] >= 1
