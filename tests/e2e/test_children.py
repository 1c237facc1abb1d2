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
    ended = installation.wait_finished(namespace, "desk-1", seconds=150)

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
    counts = json.loads(installation.kubectl("get", "pwf", "desk", "-n", namespace, "-o", "json"))["status"]
    assert counts["activeRuns"] == 0

    refusal = installation.refused(
        *("label", "prun", next(iter(children)), "-n", namespace, "pilothouse.dev/parent=x", "--overwrite")
    )
    assert "pilothouse.dev/copied-mode are the operator's" in refusal
    installation.kubectl("delete", "prun", "desk-1", "-n", namespace)
    wait_until(lambda: runs(installation, namespace) == {}, seconds=60)
