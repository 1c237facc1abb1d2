"""A run that delegates, in real pods: each child in one of its own, under the parent's budget, gone with it."""

import json
from pathlib import Path
from typing import Any

import yaml

from support.installation import Installation, wait_until

DELEGATES = Path(__file__).parents[1] / "support" / "manifests" / "delegates.yaml"


def runs(installation: Installation, namespace: str) -> dict[str, dict[str, Any]]:
    found = json.loads(installation.kubectl("get", "prun", "-n", namespace, "-o", "json"))["items"]
    return {raw["metadata"]["name"]: raw for raw in found}


def test_a_run_asks_others_in_pods_of_their_own_and_takes_them_with_it(
    installation: Installation, namespace: str
) -> None:
    installation.apply(namespace, *yaml.safe_load_all(DELEGATES.read_text()))
    run = {"workflowRef": {"name": "desk"}}
    metadata = {"name": "desk-1", "labels": {"team": "pay"}}
    installation.apply(
        namespace,
        {"apiVersion": "pilothouse.dev/v1alpha1", "kind": "AgentRun", "metadata": metadata, "spec": run},
    )
    ended = installation.wait_finished(namespace, "desk-1", seconds=240)

    status = ended["status"]
    assert status["result"] == {"answer": "You will get your money back."}
    assert status["run"]["tokens"]["used"] == 310 + 25 + 2 * 120
    assert [report["exit"]["reason"] for report in status["children"]] == ["Complete"] * 3
    found = runs(installation, namespace)
    children = {report["name"]: found[report["name"]] for report in status["children"]}
    assert len(children) == 3
    for name, child in children.items():
        assert [owner["uid"] for owner in child["metadata"]["ownerReferences"]] == [ended["metadata"]["uid"]]
        assert child["metadata"]["labels"]["team"] == "pay"
        assert child["status"]["pod"]["name"] == f"{name}-1"
    # The workflow counts a moment after its run has ended.
    idle = ("wait", "--for=jsonpath={.status.activeRuns}=0", "pwf/desk", "-n", namespace, "--timeout=240s")
    installation.kubectl(*idle)

    refusal = installation.refused(
        *("label", "prun", next(iter(children)), "-n", namespace, "pilothouse.dev/parent=x", "--overwrite")
    )
    assert "pilothouse.dev/copied-mode are the operator's" in refusal
    installation.kubectl("delete", "prun", "desk-1", "-n", namespace)
    wait_until(lambda: runs(installation, namespace) == {}, seconds=240)


def asking_family() -> list[dict[str, Any]]:
    """A boss that asks one helper, whose only call waits for a person."""
    turns = {"helper": [{"toolCalls": [{"name": "note", "arguments": {}}]}, {"text": "noted"}]}
    turns["boss"] = [{"toolCalls": [{"name": "ask", "arguments": {}}]}, {"text": "done"}]
    router = {"kind": "Router", "router": {"conditions": [{"cel": "true", "signal": "default"}]}}
    note = {"name": "note", "description": "Notes.", "inlineStep": router, "approval": "Always"}
    ask = {"name": "ask", "description": "Asks.", "agentRef": {"name": "helper"}}
    return [
        {
            "apiVersion": "pilothouse.dev/v1alpha1",
            "kind": "Agent",
            "metadata": {"name": name},
            "spec": {
                "mode": "Autonomous",
                "model": {"name": "scripted", "script": {"inline": json.dumps({"turns": turns[name]})}},
                "steering": {"inline": "Do it."},
                "tools": [tool],
            },
        }
        for name, tool in (("helper", note), ("boss", ask))
    ]


def live_pods(installation: Installation, namespace: str) -> list[str]:
    pods = json.loads(installation.kubectl("get", "pods", "-n", namespace, "-o", "json"))["items"]
    return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]


def test_a_run_whose_child_waits_for_a_person_holds_no_pod_and_goes_on_with_the_answer(
    installation: Installation, namespace: str
) -> None:
    installation.apply(namespace, *asking_family())
    run = {"apiVersion": "pilothouse.dev/v1alpha1", "kind": "AgentRun", "metadata": {"name": "boss-1"}}
    installation.apply(namespace, {**run, "spec": {"agentRef": {"name": "boss"}}})
    asking = installation.wait_for(namespace, "boss-1", ".status.phase", "AwaitingApproval", seconds=240)

    [report] = asking["status"]["children"]
    [asked] = report["pendingApprovals"]
    assert (asked["run"], asked["tool"]) == (report["name"], "note")
    message = next(c["message"] for c in asking["status"]["conditions"] if c["type"] == "AwaitingApproval")
    assert f"pilothouse approve {asked['run']} {asked['callId']}" in message
    wait_until(lambda: live_pods(installation, namespace) == [], seconds=240)  # neither parent nor child

    installation.control(namespace, asked["run"], {"approvals": {asked["callId"]: {"decision": "Approve"}}})
    ended = installation.wait_finished(namespace, "boss-1")
    assert ended["status"]["phase"] == "Succeeded"
    assert ended["status"]["attempt"] == 2
    assert ended["status"]["run"]["children"][0]["state"] == "Delivered"
