"""A server of tools and of a model that writes down what it does, on disk, before it answers.

`python -m chaos.tool_server LOG [PORT]` prints its address. Nobody kills it: its log is what really happened outside,
by which journals and statuses are judged. It needs nothing but Python, so that it also runs in any pod.

- `GET|POST /do/<run>/<tool>/<n>?how=…` executes. `how`: `ok`; `slow` answers late; `late` executes late; `hang` drops
  the connection once after it has executed, `drop` always; `fail` answers 500.
- `POST /scripts/<run>` stores the script of a run's model; `POST /v1/chat/completions` plays it: the reply after the
  n-th follows from the request, as with a model that always says the same.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

SLOW_SECONDS = 0.6


class Log:
    """What was done, one JSON line each, on disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)

    def write(self, what: str, **more: Any) -> None:
        line = json.dumps({"at": time.time(), "what": what, **more}) + "\n"
        with self._lock:
            os.write(self._file, line.encode())
            os.fdatasync(self._file)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    log: Log
    scripts: dict[str, list[dict[str, Any]]] = {}  # noqa: RUF012 - one server, one table
    hung: set[str] = set()  # noqa: RUF012
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        self._do(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        if path == "/v1/chat/completions":
            self._reply(json.loads(body))
        elif path.startswith("/scripts/"):
            self.scripts[path.rsplit("/", 1)[1]] = json.loads(body)
            self._answer(200, {})
        else:
            self._do(body)

    # ------------------------------------------------------------ tools

    def _do(self, body: bytes) -> None:
        address = urlsplit(self.path)
        parts = address.path.strip("/").split("/")
        if len(parts) != 4 or parts[0] != "do":
            self._answer(404, {"error": self.path})
            return
        how = parse_qs(address.query).get("how", ["ok"])[0]
        done = {"run": parts[1], "tool": parts[2], "n": parts[3], "how": how}
        key = self.headers.get("Idempotency-Key")
        if how == "late":
            time.sleep(SLOW_SECONDS)
        self.log.write("executed", key=key, **done)
        if how == "slow":
            time.sleep(SLOW_SECONDS)
        mark = address.path
        if how == "drop" or (how == "hang" and mark not in self.hung):
            self.hung.add(mark)
            self._hang_up()
            return
        self._answer(500 if how == "fail" else 200, {"done": parts[3]})
        self.log.write("answered", key=key, **done)

    def _hang_up(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the client was faster

    # ------------------------------------------------------------ the model

    def _reply(self, request: dict[str, Any]) -> None:
        run = request["model"]
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        self.log.write("asked", run=run, n=turn)
        script = self.scripts[run]
        entry = script[min(turn, len(script) - 1)]
        time.sleep(entry.get("delaySeconds", 0.0))
        calls = [
            {
                "id": f"c{turn}-{index}",
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for index, call in enumerate(entry.get("toolCalls", ()))
        ]
        message: dict[str, Any] = {"role": "assistant", "content": entry.get("text")}
        if calls:
            message["tool_calls"] = calls
        usage = {"prompt_tokens": entry["usage"]["input"], "completion_tokens": entry["usage"]["output"]}
        usage["total_tokens"] = sum(usage.values())
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        self.log.write("replied", run=run, n=turn, **entry["usage"])
        raw = {"id": f"{run}-{turn}", "object": "chat.completion", "model": run, "created": 0}
        self._answer(200, {**raw, "choices": [choice], "usage": usage})

    # ------------------------------------------------------------ HTTP

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()
        except OSError:
            self.close_connection = True  # who asked is gone, as it is meant here

    def log_message(self, format: str, *args: Any) -> None:
        return


class Server(ThreadingHTTPServer):
    """Threads that die with the process, and a queue for a crowd."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # clients are killed: that they leave is no news
            super().handle_error(request, client_address)


def main() -> None:
    Handler.log = Log(Path(sys.argv[1]))
    server = Server(("0.0.0.0", int(sys.argv[2]) if len(sys.argv) > 2 else 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
