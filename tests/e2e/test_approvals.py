"""Many runs wait for a person and hold no pod; one command, and all of them end.

`RUNS` says how many there are (`make test-approvals RUNS=100`); what was measured is printed. With many runs the node
is measured first, in the same test: how long it takes to make and end so many pods that do nothing.
"""

import json
import os
import subprocess
import sys
import time
from datetime import datetime
from typing import Any

import pytest

from support.installation import Installation, wait_until
from support.node_floor import measure_node_floor

RUNS = int(os.environ.get("RUNS", "12"))
WITHIN_SECONDS = 60.0
"""How long it may take from the command to the end of the last run, whatever their number."""
NODE_FACTOR = 2.0
"""The same, in floors of the node, where it cannot start so many pods in half of that time: a run may then add as much
again to the pod that it needs, for a Python with an engine in it, a journal, a model's turn and a call that runs once.
"""
FLOOR_FROM_RUNS = 50
"""From how many runs on the node is measured: fewer end within the time on any node."""
HELD_SECONDS = 30
"""How long the engine keeps a pod before it lets go of it (engine.md §8)."""
PATIENCE_SECONDS = 240 + 3 * RUNS
IBAN = "DE89370400440532013000"

SCRIPT = f"""
turns:
- toolCalls: [{{name: refund, arguments: {{amount: 80, iban: {IBAN}, note: all of it}}}}]
  usage: {{input: 40, output: 9}}
- {{text: The customer was told., usage: {{input: 60, output: 5}}}}
repeat: None
"""
PARAMETERS = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}, "iban": {"type": "string"}, "note": {"type": "string"}},
    "required": ["amount", "iban"],
}
CODE = "def pay(arguments):\n    return {'paid': arguments['amount'], 'note': arguments.get('note', 'none')}\n"
OURS = {"apiVersion": "pilothouse.dev/v1alpha1"}


def refunds() -> list[dict[str, Any]]:
    """Return a workflow whose agent asks for a refund that needs a person, and one that asks the person itself."""
    tool = {"name": "refund", "step": "pay", "approval": "Always", "writesContext": True, "parameters": PARAMETERS}
    model = {"name": "scripted", "script": {"inline": SCRIPT}, "maxOutputTokens": 100}
    agent = {"mode": "Autonomous", "model": model, "steering": {"inline": "Be fair."}, "tools": [tool]}
    source = {"configMapKeyRef": {"name": "refunds", "key": "refunds.py"}}
    routes = dict.fromkeys(("max_iterations", "budget_exceeded", "aborted", "unrecoverable"), "end")
    steps = [
        {"id": "talk", "kind": "Agent", "agent": agent, "routes": {**routes, "default": "end"}},
        {
            "id": "pay",
            "kind": "Function",
            "description": "Pays a customer back.",
            "toolOnly": True,
            "effect": "Once",
            "function": {"callable": "refunds:pay", "source": source, "output": "pay"},
        },
    ]
    paid = {"id": "say", "kind": "Response", "response": {"mapping": {"paid": "pay.paid", "note": "pay.note"}}}
    telling = [{**steps[0], "routes": {**routes, "default": "say"}}, steps[1], paid]
    ask = {"title": "Refund?", "show": ["iban"], "expiresSeconds": HELD_SECONDS + 15}
    asking = [
        {"id": "ask", "kind": "Approval", "approval": ask, "routes": dict.fromkeys(("approved", "denied"), "end")},
        {"id": "late", "kind": "Response", "response": {"mapping": {"said": "iban"}}},
    ]
    asking[0]["routes"]["expired"] = "late"  # type: ignore[index]
    workflows = {"refunds": steps, "telling": telling, "asking": asking}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "refunds"}, "data": {"refunds.py": CODE}},
        *({**OURS, "kind": "Workflow", "metadata": {"name": n}, "spec": {"steps": s}} for n, s in workflows.items()),
    ]


def run(name: str, workflow: str, batch: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"batch": batch}}
    return {
        **OURS,
        "kind": "AgentRun",
        "metadata": metadata,
        "spec": {"workflowRef": {"name": workflow}, "input": {"iban": IBAN}},
    }


class Desk:
    """A person with the command line, in one namespace."""

    def __init__(self, installation: Installation, namespace: str) -> None:
        self.installation, self.namespace = installation, namespace

    def type(self, *arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "pilothouse_cli", *arguments, "-n", self.namespace]
        environment = {**self.installation.cluster.environment, "COLUMNS": "200"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == code, f"{arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def runs(self, batch: str) -> list[dict[str, Any]]:
        listed = self.installation.kubectl("get", "prun", "-l", f"batch={batch}", "-n", self.namespace, "-o", "json")
        found: list[dict[str, Any]] = json.loads(listed)["items"]
        return found

    def pods(self, prefix: str) -> list[dict[str, Any]]:
        listed = json.loads(self.installation.kubectl("get", "pods", "-n", self.namespace, "-o", "json"))
        return [pod for pod in listed["items"] if pod["metadata"]["name"].startswith(prefix)]

    def count_waiting(self) -> int:
        """Return how many runs wait; printed by the API server, which is cheap."""
        rows = self.installation.kubectl("get", "prun", "-n", self.namespace, "--no-headers")
        return sum(" AwaitingApproval " in row for row in rows.splitlines())

    def count_pods(self) -> int:
        """Return how many pods there are, but for the run that nobody decides on: it may have ended by now."""
        rows = self.installation.kubectl("get", "pods", "-n", self.namespace, "--no-headers").splitlines()
        return sum(not row.startswith("late-") for row in rows)


@pytest.mark.timeout(300 + 10 * RUNS + 480)
def test_runs_that_wait_hold_no_pod_and_all_end_within_a_minute_of_one_command(
    installation: Installation, namespace: str
) -> None:
    desk = Desk(installation, namespace)
    installation.apply(desk.namespace, *refunds())
    floor = measure_floor(desk) if RUNS >= FLOOR_FROM_RUNS else 0.0
    fleet = [run(f"refund-{number:03}", "refunds", "refunds") for number in range(RUNS)]
    others = [run("denied", "refunds", "others"), run("edited", "telling", "others"), run("late", "asking", "others")]
    began = time.time()
    installation.apply(desk.namespace, *others, *fleet)
    wait_until(lambda: desk.count_waiting() >= RUNS + len(others) - 1, seconds=PATIENCE_SECONDS, every=1)
    print(f"\n{RUNS} runs: all wait after {time.time() - began:.0f} s", end="")
    wait_until(lambda: desk.count_pods() == 0, seconds=PATIENCE_SECONDS + HELD_SECONDS, every=1)
    print(f", without a pod after {time.time() - began:.0f} s", flush=True)

    shown = json.loads(desk.type("approvals", "-l", "batch=refunds", "-o", "json"))
    assert len(shown) == RUNS
    assert {(call["tool"], call["arguments"]["amount"], call["arguments"]["iban"]) for call in shown} == {
        ("refund", 80, "[Iban]")
    }
    commanded = time.time()
    outcomes = json.loads(desk.type("approve", "-l", "batch=refunds", "--yes", "--no-wait", "-o", "json"))
    given = time.time()
    assert [one["outcome"] for one in outcomes] == ["Asked"] * RUNS
    wait = ("wait", "--for=condition=Finished", "prun", "-l", "batch=refunds", "-n", desk.namespace)
    installation.kubectl(*wait, f"--timeout={PATIENCE_SECONDS}s", timeout=PATIENCE_SECONDS + 30)
    took = max(completed_at(one["status"]) for one in desk.runs("refunds")) - commanded
    report(desk, commanded, given, took)
    if floor:
        print(f"the node alone takes {floor:.1f} s for so many pods that do nothing: {took / floor:.2f} times that")

    patience = ("--timeout", str(PATIENCE_SECONDS))
    desk.type("deny", "denied", "--reason", "closed", *patience)
    desk.type("approve", "edited", "--arguments", '{"amount": 40, "note": null}', *patience)
    installation.kubectl(*wait[:3], "-l", "batch=others", *wait[5:], "--timeout=120s", timeout=150)
    for one in desk.runs("refunds"):
        check_paid_once(one["status"])
    denied, edited, late = sorted(desk.runs("others"), key=lambda found: str(found["metadata"]["name"]))
    assert denied["status"]["run"]["effects"] == {"settled": 0, "unknown": []}
    assert edited["status"]["result"] == {"paid": 40, "note": "none"}
    assert [step["signal"] for step in late["status"]["run"]["steps"]] == ["expired", "default"]
    assert {found["status"]["phase"] for found in (denied, edited, late)} == {"Succeeded"}
    assert took <= max(WITHIN_SECONDS, NODE_FACTOR * floor)


def measure_floor(desk: Desk) -> float:
    """Return how long the node takes for so many pods that do nothing; the run whose pod they copy waits meanwhile."""
    desk.installation.apply(desk.namespace, run("denied", "refunds", "others"))
    wait_until(lambda: desk.count_waiting() == 1, seconds=PATIENCE_SECONDS, every=1)
    (pod,) = desk.pods("denied-")
    return measure_node_floor(desk.installation, desk.namespace, pod, RUNS, PATIENCE_SECONDS)


def completed_at(status: dict[str, Any]) -> float:
    """Return when a run has ended. `kubectl wait` tells it later, by a tenth of a second a run."""
    return datetime.fromisoformat(status["completionTime"]).timestamp()


def check_paid_once(status: dict[str, Any]) -> None:
    assert status["phase"] == "Succeeded"
    assert (status["attempt"], status["attempts"]["crashes"]) == (2, 0)
    assert status["run"]["toolCalls"] == {"refund": 1}
    assert status["run"]["effects"] == {"settled": 1, "unknown": []}
    (landing,) = status["run"]["control"]["approvals"].values()
    assert landing["state"] == "Landed"


def report(desk: Desk, commanded: float, given: float, took: float) -> None:
    """Print when the pods of the second attempts were made, started and ended, in seconds after the command."""
    moments: dict[str, list[float]] = {"made": [], "started": [], "ended": []}
    for pod in desk.pods("refund-"):
        (container,) = pod["status"].get("containerStatuses") or [{}]
        ended = container.get("state", {}).get("terminated", {})
        stamps = {
            "made": pod["metadata"]["creationTimestamp"],
            "started": ended.get("startedAt"),
            "ended": ended.get("finishedAt"),
        }
        for what, stamp in stamps.items():
            if stamp:
                moments[what].append(datetime.fromisoformat(stamp).timestamp() - commanded)
    print(f"decisions given after {given - commanded:.1f} s; the last run has ended after {took:.1f} s")
    for what, times in moments.items():
        if times:
            times.sort()
            middle = times[len(times) // 2]
            print(f"  pods {what:8} first {times[0]:5.1f}  half {middle:5.1f}  last {times[-1]:5.1f} s")
