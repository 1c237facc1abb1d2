"""Two attempts of one run alive at once: the older can write no status, append nothing, and start no effect."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from support.agentruns import Administrator
from support.runner_process import RunnerPod, finish, read_frames_until, run_status, until

StartPod = Callable[..., RunnerPod]
TURNS = 8


class ToolServer:
    """Counts what it did, by the key of the call; `gate` holds the answers back."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.done.append((self.headers["Idempotency-Key"], body["n"]))
                server.gate.wait(150)
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(b'{"paid": true}')

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/pay"

    def close(self) -> None:
        self.gate.set()
        self._http.shutdown()


@pytest.fixture
def tools() -> Iterator[ToolServer]:
    server = ToolServer()
    yield server
    server.close()


def paying_plan(url: str, delay: float) -> dict[str, Any]:
    """An agent that pays in each turn, with a call that runs once, and then answers."""
    usage = {"usage": {"input": 10, "output": 5}}
    paying = [
        {"toolCalls": [{"name": "pay", "arguments": {"n": n}}], "delaySeconds": delay, **usage} for n in range(TURNS)
    ]
    script = {"turns": [*paying, {"text": "done", **usage}], "repeat": "None"}
    call = {"url": url, "method": "POST", "body": {"n": "{{ n }}"}}
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = {"name": "pay", "step": "pay", "effect": "Once", "parameters": parameters}
    agent = {
        "mode": "Autonomous",
        "model": {"name": "scripted", "script": {"inline": json.dumps(script)}, "maxOutputTokens": 50},
        "steering": {"inline": "Pay."},
        "tools": [tool],
        "limits": {"maxIterations": TURNS + 2, "maxToolCalls": TURNS + 1},
    }
    steps = [
        {"id": "talk", "kind": "Agent", "agent": agent},
        {"id": "pay", "kind": "APICall", "description": "Pays.", "toolOnly": True, "apiCall": call},
    ]
    return {"spec": {"steps": steps}}


def test_an_attempt_that_sleeps_through_the_next_one_does_nothing_when_it_wakes(
    administrator: Administrator, pod_of: StartPod, tools: ToolServer
) -> None:
    pod = pod_of(paying_plan(tools.url, delay=0.4))
    older = pod.start()
    read_frames_until(older, "ToolCall", turn=2)
    os.kill(older.pid, signal.SIGSTOP)
    administrator.set_status(pod.run.name, attempt=2)
    newer = pod.start(attempt=2)
    until(administrator, pod, lambda run: run.get("attempt") == 2 and run.get("turn", 0) >= 4)
    os.kill(older.pid, signal.SIGCONT)

    code, lines = finish(older)
    assert finish(newer)[0] == 0

    assert code == 3
    assert lines[-1]["message"].startswith("Fenced: ")
    assert [line for line in lines if line.get("frame", {}).get("kind") == "ToolCall"] == []
    check_paid_once(administrator, pod, tools)


def test_an_attempt_that_loses_the_fence_in_a_call_leaves_it_unknown_and_no_call_is_made_twice(
    administrator: Administrator, pod_of: StartPod, tools: ToolServer
) -> None:
    pod = pod_of(paying_plan(tools.url, delay=0.2))
    older = pod.start()
    read_frames_until(older, "ToolCall", turn=1)
    tools.gate.clear()
    until(administrator, pod, lambda run: len(tools.done) >= 2)
    administrator.set_status(pod.run.name, attempt=2)
    newer = pod.start(attempt=2)
    until(administrator, pod, lambda run: run.get("attempt") == 2)
    tools.gate.set()

    code, lines = finish(older)
    assert finish(newer)[0] == 0

    assert (code, lines[-1]["message"][:8]) == (3, "Fenced: ")
    snapshot = check_paid_once(administrator, pod, tools)
    assert [effect["tool"] for effect in snapshot["effects"]["unknown"]] == ["pay"]


def check_paid_once(administrator: Administrator, pod: RunnerPod, tools: ToolServer) -> dict[str, Any]:
    """Every call was made once, under a key of its own, and the newer attempt has written the end."""
    assert Counter(n for _, n in tools.done) == Counter(range(TURNS))
    assert len({key for key, _ in tools.done}) == TURNS
    snapshot = run_status(administrator, pod)
    assert (snapshot["attempt"], snapshot["exit"]["reason"]) == (2, "Complete")
    assert snapshot["toolCalls"] == {"pay": TURNS}
    return snapshot
