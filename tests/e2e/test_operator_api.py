"""The operator API on a real cluster: asked with a person's token, of runs in real pods, with frames from Redis."""

from __future__ import annotations

import json
from typing import Any

from e2e.test_steering import apply_workflow, start
from support.installation import SYSTEM, Installation

API = "deployment/pilothouse-api"
CALL = """
import json, sys, urllib.request
method, path, token, body, lines = sys.argv[1:6]
headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
request = urllib.request.Request("http://localhost:8443" + path, body.encode() or None, headers, method=method)
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        if not int(lines):
            print(json.dumps({"status": answer.status, "body": json.load(answer)}))
        for line in answer if int(lines) else ():
            print(line.decode(), end="")
            if line.startswith(b"event: end"):
                break
except urllib.error.HTTPError as error:
    print(json.dumps({"status": error.code, "body": json.load(error)}))
"""


class Person:
    """Somebody with a token and some rights in a namespace."""

    def __init__(self, installation: Installation, namespace: str, *roles: str) -> None:
        self.installation, self.namespace = installation, namespace
        installation.kubectl("create", "serviceaccount", "ada", "-n", namespace)
        for role in roles:
            words = ("create", "rolebinding", f"ada-{role}", f"--clusterrole=pilothouse-{role}")
            installation.kubectl(*words, f"--serviceaccount={namespace}:ada", "-n", namespace)
        self.token = installation.kubectl("create", "token", "ada", "-n", namespace).strip()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        text = "" if body is None else json.dumps(body)
        answer = json.loads(self._exec(method, path, text, "0"))
        return answer["status"], answer["body"]

    def follow(self, path: str) -> str:
        return self._exec("GET", path, "", "1")

    def run(self, name: str, rest: str = "") -> str:
        return f"/api/agents/runs/{self.namespace}/{name}{rest}"

    def _exec(self, method: str, path: str, body: str, lines: str) -> str:
        command = ("exec", API, "-n", SYSTEM, "--", "python3", "-c", CALL)
        return self.installation.kubectl(*command, method, path, self.token, body, lines)


def test_a_person_follows_and_steers_a_run_over_http(installation: Installation, namespace: str) -> None:
    apply_workflow(installation, namespace)
    ada = Person(installation, namespace, "edit")
    start(installation, namespace, "asked")
    installation.wait_for(namespace, "asked", ".status.run.step", "investigate")

    status, paused = ada.ask("POST", ada.run("asked", "/pause?wait=30"), {"reason": "lunch"})
    assert (status, paused["landing"]["state"]) == (200, "Landed")
    status, listed = ada.ask("GET", f"/api/agents/runs?namespace={namespace}")
    modes = {one["name"]: one["mode"] for one in listed["items"]}
    assert modes == {"asked": "Pause", "support-triage-1": "Run"}  # the example's own trigger made one
    assert ada.ask("POST", ada.run("asked", "/limits"), {"maxIterations": 3})[0] == 403
    assert ada.ask("GET", f"/api/agents/runs?namespace={SYSTEM}")[0] == 404
    assert ada.ask("POST", ada.run("asked", "/steer"), {"message": "Look at invoice 42 too."})[0] == 202
    assert ada.ask("POST", ada.run("asked", "/resume"))[0] == 202

    told = ada.follow(ada.run("asked", "/events"))
    ended = installation.wait_finished(namespace, "asked")
    assert ended["status"]["phase"] == "Succeeded"
    assert ended["spec"]["control"]["by"] == f"system:serviceaccount:{namespace}:ada"
    assert "Invoice 42 is in order" in ended["status"]["result"]["answer"]
    frames = [json.loads(line.removeprefix("data: ")) for line in told.splitlines() if line.startswith('data: {"kind"')]
    assert next(frame["event"] for frame in frames if frame["kind"] == "Step") == "Entered"
    assert frames[-1]["kind"] == "Outcome"
    assert told.rstrip().splitlines()[-1] == "event: end"

    status, trace = ada.ask("GET", ada.run("asked", "/trace"))
    assert trace["origin"] == "Stream"
    assert [item["detail"] for item in trace["items"]] == frames
    status, refused = ada.ask("POST", ada.run("asked", "/abort"))
    assert (status, refused["accepted"]) == (409, False)


def test_a_large_result_is_fetched_out_of_the_journal(installation: Installation, namespace: str) -> None:
    ada = Person(installation, namespace, "view")
    step = {"id": "say", "kind": "Response", "response": {"mapping": {"text": "text"}}, "routes": {"default": "end"}}
    workflow = {
        "apiVersion": "pilothouse.dev/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "echo"},
        "spec": {"steps": [step]},
    }
    run = {
        "apiVersion": "pilothouse.dev/v1alpha1",
        "kind": "AgentRun",
        "metadata": {"name": "long"},
        "spec": {"workflowRef": {"name": "echo"}, "input": {"text": "x" * 20_000}},
    }
    installation.apply(namespace, workflow, run)
    ended = installation.wait_finished(namespace, "long")
    assert ended["status"]["result"]["ref"] == "journal/result"

    status, answer = ada.ask("GET", ada.run("long", "/results/result"))
    assert status == 200, answer
    assert answer["result"]["text"] == "x" * 20_000
    assert answer["digest"] == ended["status"]["result"]["digest"]
