"""An agent with guardrails, a policy and an MCP server on real pods: what was masked, refused and read on."""

import json
from pathlib import Path
from typing import Any

from support.installation import ROOT, Installation

EXAMPLE = ROOT / "examples" / "incident-desk"
STUB_MODEL = ROOT / "runners" / "src" / "pilothouse_cli" / "authoring" / "stub_model.py"


def make_configmap(installation: Installation, namespace: str, name: str, *files: Path) -> None:
    installation.kubectl("create", "configmap", name, "-n", namespace, *(f"--from-file={file}" for file in files))


def start_servers(installation: Installation, namespace: str) -> None:
    services = EXAMPLE / "services"
    make_configmap(installation, namespace, "desk-ops", services / "ops_server.py")
    make_configmap(installation, namespace, "desk-model", services / "turns.yaml", STUB_MODEL)
    servers = (services / "servers.yaml").read_text().replace("pilothouse-runner", installation.images["runner"])
    installation.kubectl("apply", "-n", namespace, "-f", "-", stdin=servers)
    for name in ("desk-ops", "desk-model"):
        installation.kubectl("rollout", "status", f"deployment/{name}", "-n", namespace, "--timeout=240s")


def frames(status: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [frame for frame in status["run"]["trace"] if frame["kind"] == kind]


def test_the_incident_desk_masks_recovers_reads_on_and_is_refused(installation: Installation, namespace: str) -> None:
    start_servers(installation, namespace)
    installation.apply_example(namespace, "incident-desk")

    status = installation.wait_finished(namespace, "incident-desk-1")["status"]

    assert status["phase"] == "Succeeded", status
    assert status["result"] == {"findings": "Release 2026.11.3 of payments answers 502; a restart needs a person."}
    want = ["tool_error", "ok", "ok", "tool_policy_denied"]
    assert [frame["code"] for frame in frames(status, "ToolCall")] == want
    assert [frame["rule"] for frame in frames(status, "Policy")] == ["no-restarts"]
    assert {frame["check"] for frame in frames(status, "Guardrail")} == {"PiiMask"}
    assert status["run"]["effects"] == {"settled": 0, "unknown": []}
    assert "4111" not in json.dumps(status) and "ana@example.org" not in json.dumps(status)
