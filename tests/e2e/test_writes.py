"""The API server's audit log, counted: a run of five turns against the budget of writes."""

from collections import Counter

import pytest

from e2e.test_steering import apply_workflow, start
from support.cluster import LocalCluster
from support.installation import Installation, wait_until

WRITES = ("create", "update", "patch", "delete")


def count_writes(cluster: LocalCluster, namespace: str, run: str) -> Counter[str]:
    """Count who wrote what about one run: `who verb resource[/subresource]`."""
    found: Counter[str] = Counter()
    for event in cluster.audit_events():
        target = event.get("objectRef", {})
        if (
            event["verb"] not in WRITES
            or target.get("namespace") != namespace
            or event["responseStatus"]["code"] >= 300
        ):
            continue
        if not target.get("name", "").startswith(run):
            continue
        user = event["user"]["username"]
        who = "operator" if user.endswith(":pilothouse-operator") else "runner" if user.endswith(":prun") else "other"
        what = "/".join(filter(None, (target["resource"], target.get("subresource"))))
        found[f"{who} {event['verb']} {what}"] += 1
    return found


def test_a_run_of_five_turns_stays_within_the_budget_of_writes(installation: Installation, namespace: str) -> None:
    if not isinstance(installation.cluster, LocalCluster):
        pytest.skip("the audit log of another cluster cannot be read from here")
    apply_workflow(installation, namespace)
    start(installation, namespace, "counted")
    ended = installation.wait_finished(namespace, "counted")
    turns = ended["status"]["run"]["turn"]
    wait_until(lambda: count_writes(installation.cluster, namespace, "counted")["operator patch agentruns/status"] > 0)

    found = count_writes(installation.cluster, namespace, "counted")
    print("writes of a run of", turns, "turns:", dict(found))

    assert turns == 5
    assert found["operator create configmaps"] == 1
    assert found["operator create pods"] == 1
    # The attempt's number, its start, the end; and, on a slow node, what its pod waits for.
    assert found["operator patch agentruns/status"] <= 4
    # One status write a turn, and one each for the start and the end.
    assert found["runner patch agentruns/status"] <= turns + 2
