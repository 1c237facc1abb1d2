"""A node is drained in the middle of a run: it goes on elsewhere or later, and nobody counts a crash."""

from support.installation import Installation, wait_until
from support.runner_process import napping_plan

TURNS = 12


def test_a_drain_in_the_middle_of_a_run_loses_no_turn_and_counts_no_crash(
    installation: Installation, namespace: str
) -> None:
    spec = napping_plan(TURNS, delay=1.0)["spec"]
    api = {"apiVersion": "pilothouse.dev/v1alpha1"}
    workflow = {**api, "kind": "Workflow", "metadata": {"name": "napping"}, "spec": spec}
    run = {
        **api,
        "kind": "AgentRun",
        "metadata": {"name": "drained"},
        "spec": {"workflowRef": {"name": "napping"}},
    }
    installation.apply(namespace, workflow, run)
    installation.wait_for(namespace, "drained", ".status.run.turn", "3")
    node = installation.run(namespace, "drained")["status"]["pod"]["node"]
    selector = "--pod-selector=pilothouse.dev/run=drained"
    try:
        installation.kubectl("drain", node, selector, "--delete-emptydir-data", "--timeout=240s")
        released = installation.wait_for(namespace, "drained", ".status.pod.name", "drained-2")["status"]
        wait_until(lambda: ready(installation, namespace)["reason"] == "Unschedulable")
    finally:
        installation.kubectl("uncordon", node)

    ended = installation.wait_finished(namespace, "drained", seconds=240)["status"]

    assert released["run"]["parked"]["reason"] == "Stopped"
    assert released["run"]["parked"]["released"] is True
    assert released["run"]["turn"] < TURNS
    assert (ended["phase"], ended["attempt"], ended["attempts"]["crashes"]) == ("Succeeded", 2, 0)
    assert (ended["run"]["turn"], ended["run"]["toolCalls"]) == (TURNS + 1, {"note": TURNS})
    assert ended["run"]["effects"]["unknown"] == []


def ready(installation: Installation, namespace: str) -> dict[str, str]:
    conditions = installation.run(namespace, "drained")["status"]["conditions"]
    found: dict[str, str] = next(one for one in conditions if one["type"] == "Ready")
    return found


def test_a_secret_that_is_missing_is_named_before_anybody_looks_at_the_pod(
    installation: Installation, namespace: str
) -> None:
    """What cannot be mounted stands in no status of the pod: the operator reads its events."""
    plan = napping_plan(1, delay=0.1)["spec"]
    model = plan["steps"][0]["agent"]["model"]
    model["apiKeySecretRef"] = {"name": "keys", "key": "token"}
    api = {"apiVersion": "pilothouse.dev/v1alpha1"}
    run = {**api, "kind": "AgentRun", "metadata": {"name": "drained"}, "spec": {"workflowRef": {"name": "napping"}}}
    installation.apply(namespace, {**api, "kind": "Workflow", "metadata": {"name": "napping"}, "spec": plan}, run)

    wait_until(lambda: ready(installation, namespace)["reason"] == "FailedMount", seconds=240)

    assert 'secret "keys" not found' in ready(installation, namespace)["message"]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"token": "t"}}
    installation.apply(namespace, secret)
    installation.kubectl("delete", "pod", "drained-1", "-n", namespace, "--wait=false")
    assert installation.wait_finished(namespace, "drained", seconds=240)["status"]["attempts"]["crashes"] == 0
