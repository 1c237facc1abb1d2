"""The examples run on real pods as they are."""

import json

from support.installation import ROOT, SYSTEM, Installation, wait_until


def test_helm_test_says_that_the_installation_works(installation: Installation) -> None:
    printed = installation.cluster.run_tool("helm", "test", "pilothouse", "-n", SYSTEM, "--logs", "--timeout", "3m")

    assert "the run pilothouse-selftest succeeded" in printed


def test_support_triage_succeeds_by_apply_and_wait(installation: Installation, namespace: str) -> None:
    installation.apply_example(namespace, "support-triage")

    run = installation.wait_finished(namespace, "support-triage-1")

    status = run["status"]
    assert status["phase"] == "Succeeded"
    assert status["result"]["answer"] == "Invoice 41 was charged twice, 30 EUR come back to you."
    assert status["exit"] == {"signal": "default", "reason": "Complete", "message": status["exit"]["message"]}
    assert [step["id"] for step in status["run"]["steps"]] == ["classify", "investigate", "reply"]
    assert status["run"]["toolCalls"] == {"account_lookup": 2, "add_note": 1}
    assert status["run"]["effects"]["unknown"] == []
    assert {c["type"]: c["status"] for c in status["conditions"]}["Complete"] == "True"


def test_review_router_takes_the_branch_of_its_rating(installation: Installation, namespace: str) -> None:
    installation.apply_example(namespace, "review-router")

    run = installation.wait_finished(namespace, "review-router-1")

    assert run["status"]["result"]["stars"] == 1
    assert [step["id"] for step in run["status"]["run"]["steps"]] == ["rate", "choose", "apologise", "answer"]


def test_daily_report_calls_a_service_of_its_namespace(installation: Installation, namespace: str) -> None:
    folder = ROOT / "examples" / "daily-report"
    service = (folder / "orders-service.yaml").read_text()
    # The node has no way to a registry: any image with Python serves the file.
    installation.kubectl(
        "apply", "-n", namespace, "-f", "-", stdin=service.replace("python:3.11-slim", installation.images["runner"])
    )
    installation.kubectl("apply", "-n", namespace, "-f", str(folder / "code.yaml"), "-f", str(folder / "workflow.yaml"))
    installation.kubectl("wait", "--for=condition=Ready", "pod/orders", "-n", namespace, "--timeout=240s")
    installation.apply(
        namespace,
        {
            "apiVersion": "pilothouse.dev/v1alpha1",
            "kind": "AgentRun",
            "metadata": {"name": "report"},
            "spec": {"workflowRef": {"name": "daily-report"}},
        },
    )

    run = installation.wait_finished(namespace, "report")

    assert run["status"]["phase"] == "Succeeded"
    assert run["status"]["result"]["totals"] == {
        "orders": 6,
        "cents": 21450,
        "byProduct": {"lamp": 13800, "rug": 4500, "mug": 3150},
    }
    workflow = json.loads(installation.kubectl("get", "pwf", "daily-report", "-n", namespace, "-o", "json"))
    assert workflow["status"]["nextScheduleTime"].endswith("Z")


def test_an_agent_that_never_stops_asking_is_told_so_and_then_stopped(
    installation: Installation, namespace: str
) -> None:
    installation.apply_example(namespace, "supervised")

    run = installation.wait_finished(namespace, "order-desk-1")

    status = run["status"]
    assert (status["phase"], status["exit"]["reason"]) == ("Aborted", "Aborted")
    assert status["run"]["toolCalls"] == {"order_status": 5}
    actions = [(action["action"], action["turn"], action["state"]) for action in status["supervision"]["actions"]]
    assert actions == [("Steer", 3, "Done"), ("Abort", 5, "Done")]


def test_a_change_of_the_workflow_starts_a_run(installation: Installation, namespace: str) -> None:
    installation.apply_example(namespace, "review-router")
    change = {"spec": {"trigger": {"type": "OnChange"}, "input": {"defaults": {"review": "great service"}}}}
    installation.kubectl("patch", "pwf", "review-router", "-n", namespace, "--type=merge", "-p", json.dumps(change))

    def started() -> list[str]:
        names = installation.kubectl("get", "prun", "-n", namespace, "-o", "name").split()
        return [name for name in names if "-g2-" in name]

    wait_until(lambda: len(started()) == 1)
    run = installation.wait_finished(namespace, started()[0].split("/")[1])
    assert run["status"]["result"]["stars"] == 5
