"""What `helm test` runs: a workflow with the scripted model must reach its end on this installation.

Started in a pod with an ordinary ServiceAccount: `python -m pilothouse_runner.selftest NAMESPACE NAME`.
"""

import sys
import time
from pathlib import Path
from typing import Any

import httpx

from pilothouse_api import names
from pilothouse_api.names import API_VERSION
from pilothouse_runner.adapters.api_server import ApiServer

SECONDS = 120
STEP = {
    "id": "greet",
    "kind": "Agent",
    "agent": {
        "mode": "Completion",
        "model": {"name": "scripted", "script": {"inline": "turns: [{text: hello}]"}},
        "prompt": {"inline": "Say hello."},
        "outcome": {"format": "Text", "write": "greeting"},
    },
}


def build_workflow(name: str) -> dict[str, Any]:
    """Return a workflow of one completion and its answer."""
    answer = {"id": "answer", "kind": "Response", "response": {"mapping": {"greeting": "greeting"}}}
    return {
        "apiVersion": API_VERSION,
        "kind": "Workflow",
        "metadata": {"name": name},
        "spec": {"steps": [STEP, answer]},
    }


def build_run(name: str) -> dict[str, Any]:
    """Return a run of that workflow."""
    return {
        "apiVersion": API_VERSION,
        "kind": "AgentRun",
        "metadata": {"name": name},
        "spec": {"workflowRef": {"name": name}},
    }


def judge(run: dict[str, Any]) -> str | None:
    """Return what is wrong with a finished run, `""` when nothing is, None while it goes on."""
    status = run.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    if conditions.get("Finished", {}).get("status") == "True":
        result = status.get("result")
        return "" if result == {"greeting": "hello"} else f"{conditions['Finished']['message']} (result: {result})"
    stalled = conditions.get("Stalled", {})
    return str(stalled["message"]) if stalled.get("status") == "True" else None


def main(namespace: str, name: str) -> int:
    """Make the objects, wait for the end, delete them; print one sentence."""
    server = ApiServer.in_cluster()
    token = Path(names.TOKEN_PATH, "token").read_text().strip()
    base = f"{server.url}/apis/{API_VERSION}/namespaces/{namespace}"
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(verify=str(server.ca_path), headers=headers, timeout=10) as client:
        paths = [f"{base}/workflows", f"{base}/agentruns"]
        try:
            for path in paths:
                client.delete(f"{path}/{name}")
            client.post(paths[0], json=build_workflow(name)).raise_for_status()
            client.post(paths[1], json=build_run(name)).raise_for_status()
            wrong = _await_end(client, f"{paths[1]}/{name}")
        finally:
            for path in paths:
                client.delete(f"{path}/{name}")
    print(f"the run {name} succeeded" if not wrong else f"the run {name} did not succeed: {wrong}")
    return 1 if wrong else 0


def _await_end(client: httpx.Client, url: str) -> str:
    for _ in range(SECONDS):
        wrong = judge(client.get(url).raise_for_status().json())
        if wrong is not None:
            return wrong
        time.sleep(1)
    return f"it has not ended within {SECONDS} s; see: kubectl get prun, and the operator's log"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
