"""A runner's process as a pod would run it, beside the test: with files in place of the pod's mounts."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilothouse_api import names
from pilothouse_api.digests import text_digest
from pilothouse_api.plan import Plan
from support.agentruns import Administrator, StoredRun
from support.cluster import LocalCluster

# A pod has its mounts at fixed paths; here they are where the test may write.
_START = """
import sys
from pathlib import Path
from pilothouse_api import names
folder = Path(sys.argv[1])
names.TOKEN_PATH, names.JOURNAL_PATH = str(folder / "token"), str(folder / "journal")
import pilothouse_runner.__main__
pilothouse_runner.__main__.main()
"""


@dataclass
class RunnerPod:
    """One run's files, and the processes of its attempts."""

    folder: Path
    cluster: LocalCluster
    run: StoredRun
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def write_plan(self, raw_plan: dict[str, Any]) -> None:
        """Store the plan of a spec with its texts and agents, and the token."""
        identity = {"namespace": "default", "name": self.run.name, "uid": self.run.uid}
        plan = Plan.model_validate({"run": identity, "workflow": {"name": "w", "digest": "0"}, **raw_plan})
        (self.folder / "plan.json").write_text(plan.encode())
        token = self.folder / "token"
        token.mkdir()
        (token / "token").write_text(self.cluster.token)
        (token / "ca.crt").write_bytes(self.cluster.ca_path.read_bytes())

    def start(self, attempt: int = 1, journal: str = "DurableFile", **environment: str) -> subprocess.Popen[str]:
        """Start an attempt."""
        host, port = self.cluster.url.removeprefix("https://").split(":")
        plan_path = self.folder / "plan.json"
        process = subprocess.Popen(
            [sys.executable, "-c", _START, str(self.folder)],
            env={
                "PATH": os.environ["PATH"],
                # Empty but where the sources under test are not the installed ones.
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                "KUBERNETES_SERVICE_HOST": host,
                "KUBERNETES_SERVICE_PORT": port,
                names.ENV_RUN_NAMESPACE: "default",
                names.ENV_RUN_NAME: self.run.name,
                names.ENV_RUN_UID: self.run.uid,
                names.ENV_ATTEMPT: str(attempt),
                names.ENV_PLAN_PATH: str(plan_path),
                names.ENV_PLAN_DIGEST: text_digest(plan_path.read_text()),
                names.ENV_JOURNAL: journal,
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def stop_all(self) -> None:
        """Kill what is left."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def read_frames_until(process: subprocess.Popen[str], kind: str, **fields: Any) -> list[dict[str, Any]]:
    """Read log lines until a frame of this kind has these fields; return all lines."""
    assert process.stdout is not None
    lines = []
    for text in process.stdout:
        line = json.loads(text)
        lines.append(line)
        frame = line.get("frame") or {}
        if frame.get("kind") == kind and fields.items() <= frame.items():
            return lines
    raise AssertionError(f"the runner ended without the frame {kind} {fields}: {lines}\n{process.communicate()[1]}")


def finish(process: subprocess.Popen[str], timeout: float = 150) -> tuple[int, list[dict[str, Any]]]:
    """Wait for the end; return the exit code and the rest of the log lines. stderr must be empty."""
    out, err = process.communicate(timeout=timeout)
    assert err == ""
    return process.returncode, [json.loads(line) for line in out.splitlines()]


def napping_plan(turns: int, delay: float, approval: str = "Never") -> dict[str, Any]:
    """A plan whose agent calls a tool in each turn, with other arguments each time, and then answers."""
    script = {
        "turns": [
            *(
                {"toolCalls": [{"name": "note", "arguments": {"n": n}}], "usage": {"input": 10, "output": 5}}
                | {"delaySeconds": delay}
                for n in range(turns)
            ),
            {"text": "done", "usage": {"input": 10, "output": 5}},
        ],
        "repeat": "None",
    }
    agent = {
        "mode": "Autonomous",
        "model": {"name": "scripted", "script": {"inline": json.dumps(script)}, "maxOutputTokens": 50},
        "steering": {"inline": "Do it."},
        "tools": [
            {
                "name": "note",
                "step": "note",
                "description": "Notes.",
                "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
                "approval": approval,
            }
        ],
        "limits": {"maxIterations": turns + 2, "maxToolCalls": turns + 1},
    }
    router = {"conditions": [{"cel": "true", "signal": "default"}]}
    return {
        "spec": {
            "steps": [
                {"id": "talk", "kind": "Agent", "agent": agent},
                {"id": "note", "kind": "Router", "description": "Notes.", "toolOnly": True, "router": router},
            ]
        }
    }


def run_status(administrator: Administrator, pod: RunnerPod) -> dict[str, Any]:
    snapshot: dict[str, Any] = administrator.get(pod.run.name)["status"].get("run", {})
    return snapshot


def until(administrator: Administrator, pod: RunnerPod, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the published snapshot is as wanted."""

    async def poll() -> dict[str, Any]:
        async with asyncio.timeout(90):
            while not condition(snapshot := run_status(administrator, pod)):  # noqa: ASYNC110 - another process's work
                await asyncio.sleep(0.05)
            return snapshot

    return asyncio.run(poll())
