"""MCP servers as a run in a real pod reaches them: over HTTP with credentials, and as a program of its image."""

import inspect
from pathlib import Path
from typing import Any

from support.installation import Installation
from support.mcp_servers import whoami_server

INSIDE = """
import os
from mcp.server import MCPServer
server = MCPServer("inside", log_level="ERROR")
TOKEN, OURS, JOURNAL, PLAN = "/var/run/secrets", "/var/run/pilothouse", "/var/lib/pilothouse", "/etc/pilothouse"
@server.tool()
def look() -> dict:
    "Tells what this program sees of the runner."
    seen = []
    for folder in (TOKEN, OURS, JOURNAL, PLAN, f"/proc/{os.getppid()}/root{OURS}", "/etc", "/opt/pilothouse"):
        try:
            seen += [folder] if any(os.listdir(folder)) else []
        except OSError:
            pass
    return {"seen": seen, "environment": sorted(os.environ), "user": os.getuid()}
server.run("stdio")
"""
"""Short enough for one word of a command; the image's packages are found by a variable that it sets itself."""

SCRIPT = """
turns:
- toolCalls: [{name: inside__look}]
- {text: '{"outcome": "resolved", "result": "seen"}'}
"""


def a_server_pod(image: str) -> list[dict[str, Any]]:
    source = Path(inspect.getfile(whoami_server)).read_text()
    container = {
        "name": "whoami",
        "image": image,
        "command": ["python3", "/srv/whoami_server.py", "8080"],
        "ports": [{"containerPort": 8080}],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "source", "mountPath": "/srv"}],
    }
    safe = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    volumes = [{"name": "source", "configMap": {"name": "whoami"}}]
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "whoami"}, "data": {"whoami_server.py": source}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "whoami"},
            "spec": {"selector": {"app": "whoami"}, "ports": [{"port": 8080}]},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "whoami", "labels": {"app": "whoami"}},
            "spec": {"securityContext": safe, "containers": [container], "volumes": volumes},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "who"},
            "stringData": {"header": "Basic kept-secret"},
        },
    ]


def a_workflow() -> dict[str, Any]:
    at = {"transport": "StreamableHTTP", "url": "http://whoami:8080/mcp"}
    by_token = {"name": "by-token", **at, "auth": {"serviceAccountToken": {"audience": "https://mcp.example"}}}
    secret = {"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": "who", "key": "header"}}}
    by_secret = {"name": "by-secret", **at, "headers": [secret]}
    program = ["env", "PYTHONPATH=/opt/pilothouse/site", "python3", "-c", INSIDE]
    agent = {
        "mode": "Autonomous",
        "model": {"name": "scripted", "script": {"inline": SCRIPT}, "maxOutputTokens": 256},
        "steering": {"inline": "Look around."},
        "mcpServers": [{"name": "inside", "transport": "Stdio", "command": program}],
        "tools": [
            {
                "name": "look",
                "mcp": {"server": "inside", "allow": ["look"]},
                "effect": "ReadOnly",
                "writesContext": True,
            }
        ],
        "outcome": {"enum": ["resolved"]},
    }
    ended = dict.fromkeys(("error", "max_iterations", "budget_exceeded", "aborted", "unrecoverable"), "failed")
    mapping = {"token": "by_token", "secret": "by_secret", "inside": "inside__look_result"}
    return {
        "apiVersion": "pilothouse.dev/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "by-mcp"},
        "spec": {
            "steps": [
                {
                    "id": "token",
                    "kind": "MCP",
                    "effect": "ReadOnly",
                    "mcp": {"server": by_token, "tool": "whoami", "output": "by_token"},
                    "routes": {"error": "failed"},
                },
                {
                    "id": "secret",
                    "kind": "MCP",
                    "effect": "ReadOnly",
                    "mcp": {"server": by_secret, "tool": "whoami", "output": "by_secret"},
                    "routes": {"error": "failed"},
                },
                {"id": "look", "kind": "Agent", "agent": agent, "routes": {"resolved": "tell", **ended}},
                {"id": "tell", "kind": "Response", "response": {"mapping": mapping}, "routes": {"default": "end"}},
                {"id": "failed", "kind": "Response", "response": {"mapping": {"error": "_last_error"}}},
            ]
        },
    }


def test_a_run_shows_its_credentials_and_keeps_a_program_from_them(installation: Installation, namespace: str) -> None:
    installation.apply(namespace, *a_server_pod(installation.images["runner"]), a_workflow())
    installation.kubectl("wait", "--for=condition=Ready", "pod/whoami", "-n", namespace, "--timeout=240s")
    run = {
        "apiVersion": "pilothouse.dev/v1alpha1",
        "kind": "AgentRun",
        "metadata": {"name": "mcp"},
        "spec": {"workflowRef": {"name": "by-mcp"}},
    }
    installation.apply(namespace, run)

    result = installation.wait_finished(namespace, "mcp", seconds=240)["status"]["result"]

    token, inside = result["token"], result["inside"]
    assert token == {
        "scheme": "Bearer",
        "audiences": ["https://mcp.example"],
        "seconds": token["seconds"],
        "pod": "mcp-1",
    }
    assert 600 <= token["seconds"] <= 660
    assert result["secret"] == {"scheme": "Basic", "text": "terces-tpek"}
    assert inside["seen"] == ["/opt/pilothouse"]
    assert inside["user"] == 65532
    assert set(inside["environment"]) <= {"HOME", "LANG", "PATH", "PYTHONPATH", "LC_CTYPE"}
