"""The command line in real processes, in a folder of its own, without a cluster."""

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from pilothouse_cli.main import main

TIMEOUT = 200
PATIENT = ("-c", "import pilothouse_engine.parks as p, pilothouse_cli.main as m; p.HELD_SECONDS = 600.0; m.main()")
"""The program, in which a run that waits for a person does not let go of its process in this test."""


def workflow_manifest(
    turns: int, *, delay: float, nap: float = 0.0, ending: str = "done", approval: str = "Never"
) -> str:
    """An agent that calls a tool in each turn, with other arguments each time, and then answers."""
    script = {
        "turns": [
            {
                "toolCalls": [{"name": "nap", "arguments": {"seconds": nap, "n": n}}],
                "usage": {"input": 10, "output": 5},
                "delaySeconds": delay,
            }
            for n in range(turns)
        ]
        + [{"text": ending, "usage": {"input": 10, "output": 5}}],
        "repeat": "None",
    }
    arguments = {"seconds": {"type": "number"}, "n": {"type": "integer"}}
    documents = [
        {
            "apiVersion": "pilothouse.dev/v1alpha1",
            "kind": "Workflow",
            "metadata": {"name": "napping"},
            "spec": {
                "steps": [
                    {
                        "id": "talk",
                        "kind": "Agent",
                        "agentRef": {"name": "talker"},
                        "routes": {"max_iterations": "end", "budget_exceeded": "end", "unrecoverable": "end"},
                    },
                    {
                        "id": "nap",
                        "kind": "Function",
                        "description": "Sleeps.",
                        "toolOnly": True,
                        "effect": "Once",
                        "function": {
                            "callable": "naps:nap",
                            "source": {"configMapKeyRef": {"name": "code", "key": "naps.py"}},
                        },
                    },
                ]
            },
        },
        {
            "apiVersion": "pilothouse.dev/v1alpha1",
            "kind": "Agent",
            "metadata": {"name": "talker"},
            "spec": {
                "mode": "Autonomous",
                "model": {
                    "name": "scripted",
                    "maxOutputTokens": 100,
                    "script": {"inline": yaml.safe_dump(script)},
                },
                "steering": {"inline": "Sleep well."},
                "tools": [
                    {
                        "name": "nap",
                        "step": "nap",
                        "approval": approval,
                        "parameters": {"type": "object", "properties": arguments, "required": ["n"]},
                    }
                ],
                "limits": {"maxIterations": 500, "maxToolCalls": 500},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "code"},
            "data": {
                "naps.py": "import time\ndef nap(arguments):\n    time.sleep(arguments['seconds'])\n    return {}\n"
            },
        },
    ]
    return yaml.safe_dump_all(documents)


@dataclass
class Terminal:
    """A folder with the program in it, and the processes that were started there."""

    folder: Path
    started: list["subprocess.Popen[str]"] = field(default_factory=list)
    program: tuple[str, ...] = ("-m", "pilothouse_cli")

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "PILOTHOUSE"))}
        return {**kept, "HOME": str(self.folder), "COLUMNS": "160"}

    def command(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, *self.program, *arguments]

    def type(self, *arguments: str, code: int | None = 0) -> str:
        """Run a command to its end, check its exit code, and return what it printed (where it failed, what it said)."""
        done = subprocess.run(
            self.command(arguments),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert code is None or done.returncode == code, f"{arguments} ended with {done.returncode}:\n{done.stderr}"
        return done.stdout if done.returncode in (0, 3, 4) else done.stderr or done.stdout

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            self.command(arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    """Read what a process says until a line has the text; return all lines."""
    assert process.stderr is not None
    lines = ""
    for line in process.stderr:
        lines += line
        if text in line:
            return lines
    raise AssertionError(f"the process ended without saying {text!r}:\n{lines}")


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Wait for the end; return exit code, stdout, stderr."""
    out, err = process.communicate(timeout=TIMEOUT)
    assert "Traceback" not in err
    return process.returncode, out, err


class Inside:
    """The same folder, but commands run in this process: for what needs no second one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.said = ""
        for name in [*os.environ]:
            if name.startswith(("KUBE", "PILOTHOUSE")):
                monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("COLUMNS", "160")
        monkeypatch.chdir(folder)
        self._monkeypatch = monkeypatch

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def type(self, *arguments: str, code: int = 0) -> str:
        """Run a command to its end, check its exit code, and return stdout; `said` keeps stderr."""
        out, err = io.StringIO(), io.StringIO()
        self._monkeypatch.setattr(sys, "argv", ["pilothouse", *arguments])
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
        self.said = err.getvalue()
        assert "internal fault" not in self.said
        assert ended.value.code == code, f"{arguments} ended with {ended.value.code}:\n{self.said}"
        return out.getvalue()

    def refuse(self, *arguments: str, code: int = 2) -> str:
        """Run a command that must fail and print nothing; return what it said."""
        assert self.type(*arguments, code=code) == ""
        return self.said
