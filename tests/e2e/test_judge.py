"""The judge as pods: who it answers, what it may do, and what a run does while it is away."""

import json
from typing import Any

from support.installation import JUDGE, SYSTEM, Installation

POD = f"deployment/{JUDGE}"

ASK = """
import pathlib, urllib.error, urllib.request
token = pathlib.Path("/var/run/pilothouse/judge/token").read_text()
for given in (token, "another"):
    asked = urllib.request.Request("http://JUDGE:8080/v1/models", headers={"Authorization": "Bearer " + given})
    try:
        print(urllib.request.urlopen(asked, timeout=10).read().decode())
    except urllib.error.HTTPError as refused:
        print(refused.code)
""".replace("JUDGE", JUDGE)

WRITE = "import pathlib; pathlib.Path('/opt/pilothouse/x').write_text('x')"
LOOK = "import os; print(os.getuid(), os.path.exists('/var/run/secrets/kubernetes.io'))"


def python_in(installation: Installation, deployment: str, program: str) -> list[str]:
    """Run a program in a pod of a Deployment and return the lines that it prints."""
    command = ("exec", deployment, "-n", SYSTEM, "--", "python3", "-c", program)
    return installation.kubectl(*command).splitlines()


def test_the_judge_answers_the_operator_alone(installation: Installation) -> None:
    known, unknown = python_in(installation, "deployment/pilothouse-operator", ASK)

    assert json.loads(known) == {"models": ["watchful"]}
    assert unknown == "401"


def test_the_judge_has_no_token_of_the_api_server_and_writes_nowhere(installation: Installation) -> None:
    assert python_in(installation, POD, LOOK) == ["65532 False"]
    refused = installation.refused("exec", POD, "-n", SYSTEM, "--", "python3", "-c", WRITE)
    assert "Read-only file system" in refused


def test_the_judge_says_what_it_has_counted(installation: Installation) -> None:
    shown = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8080/metrics').read().decode())"

    assert "pilothouse_judge_under_way 0.0" in python_in(installation, POD, shown)


SHOP = """
import http.server
class Shop(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        print("charged", flush=True)
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(b"{}")
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("", 8080), Shop).serve_forever()
"""

CHARGE = {"kind": "APICall", "apiCall": {"method": "POST", "url": "http://shop:8080/charges", "body": {"amount": 1}}}
SCRIPT = """
turns:
- toolCalls: [{name: charge}]
- toolCalls: [{name: charge}]
- {text: '{"outcome": "resolved", "result": "charged"}'}
"""


def a_shop(image: str) -> list[dict[str, Any]]:
    container = {
        "name": "shop",
        "image": image,
        "command": ["python3", "-c", SHOP],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    safe = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    meta = {"name": "shop", "labels": {"app": "shop"}}
    service = {"selector": {"app": "shop"}, "ports": [{"port": 8080}]}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "shop"}, "spec": service},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": {"terminationGracePeriodSeconds": 0, "securityContext": safe, "containers": [container]},
        },
    ]


def a_watched_run() -> list[dict[str, Any]]:
    agent = {
        "mode": "Autonomous",
        "model": {"name": "scripted", "script": {"inline": SCRIPT}, "maxOutputTokens": 256},
        "steering": {"inline": "Charge what is due."},
        "tools": [{"name": "charge", "description": "Charges.", "effect": "Once", "inlineStep": CHARGE}],
        "outcome": {"enum": ["resolved"]},
    }
    ended = dict.fromkeys(("error", "max_iterations", "budget_exceeded", "aborted", "unrecoverable"), "failed")
    steps = [
        {"id": "charge", "kind": "Agent", "agent": agent, "routes": {"resolved": "end", **ended}},
        {"id": "failed", "kind": "Response", "response": {"mapping": {"error": "_last_error"}}},
    ]
    judge = {
        "model": "watchful",
        "criteria": {"inline": "No more than three charges."},
        "timeoutSeconds": 250,
        "onError": "Pause",
    }
    kinds = {
        "Supervisor": ("guard", {"enforcement": "Sync", "barrierTimeoutSeconds": 300, "judge": judge}),
        "Workflow": ("charges", {"supervisorRefs": [{"name": "guard"}], "steps": steps}),
        "AgentRun": ("charged", {"workflowRef": {"name": "charges"}}),
    }
    return [
        {"apiVersion": "pilothouse.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        for kind, (name, spec) in kinds.items()
    ]


def charges(installation: Installation, namespace: str) -> int:
    return installation.kubectl("logs", "shop", "-n", namespace).count("charged")


def wait_judge_ready(installation: Installation, namespace: str, status: str) -> None:
    wait = ("wait", f"--for=condition=JudgeReady={status}", "psup/guard", "-n", namespace, "--timeout=240s")
    installation.kubectl(*wait)


def scale_judge(installation: Installation, replicas: int) -> None:
    installation.kubectl("scale", POD, "-n", SYSTEM, f"--replicas={replicas}")
    if replicas == 0:
        selector = ("-l", "app.kubernetes.io/component=judge")
        installation.kubectl("delete", "pod", "-n", SYSTEM, *selector, "--grace-period=0", "--force")
    else:
        installation.kubectl("rollout", "status", POD, "-n", SYSTEM, "--timeout=240s")


def test_no_tool_runs_while_the_judge_is_away_and_the_run_goes_on_when_it_is_back(
    installation: Installation, namespace: str
) -> None:
    """The judge is killed while the run waits at the barrier for its verdict on the first turn."""
    installation.apply(namespace, *a_shop(installation.images["runner"]))
    installation.kubectl("wait", "--for=condition=Ready", "pod/shop", "-n", namespace, "--timeout=240s")
    installation.apply(namespace, *a_watched_run())
    parked = installation.wait_for(namespace, "charged", ".status.run.parked.reason", "Barrier", seconds=240)
    assert charges(installation, namespace) == 1, parked
    try:
        scale_judge(installation, 0)
        paused = installation.wait_for(namespace, "charged", ".status.phase", "Paused")
        wait_judge_ready(installation, namespace, "False")
    finally:
        scale_judge(installation, 1)

    [action] = paused["status"]["supervision"]["actions"]
    assert (action["action"], action["source"], action["supervisor"]) == ("Pause", "JudgeError", "guard")
    assert action["reason"] == "judge unavailable (Unavailable)"
    assert action["reason"] in paused["spec"]["control"]["reason"]
    wait_judge_ready(installation, namespace, "True")
    assert charges(installation, namespace) == 1, "a tool ran although no judge has seen its turn"

    installation.control(namespace, "charged", {"mode": "Run"})
    ended = installation.wait_finished(namespace, "charged")

    assert ended["status"]["phase"] == "Succeeded"
    assert charges(installation, namespace) == 2
    guard = json.loads(installation.kubectl("get", "psup", "guard", "-n", namespace, "-o", "json"))
    assert guard["status"]["actions"]["pause"] == 1
