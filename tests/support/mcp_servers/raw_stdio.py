"""A server over stdio that breaks the rules: `python raw_stdio.py MODE [FILE]`. It knows nothing but the standard
library, so it starts at once.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **value}) + "\n")
    sys.stdout.flush()


def asked() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    message: dict[str, Any] = json.loads(line)
    return message


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def note(words: str) -> None:
    """Write a line into the file that the test reads."""
    with Path(sys.argv[2]).open("a") as file:
        file.write(words + "\n")


def opened(paths: list[str]) -> list[str]:
    """Return which of these can be read; `{parent}` stands for the process that started this one."""
    found = []
    for path in paths:
        try:
            with Path(path.format(parent=os.getppid())).open("rb") as file:
                file.read(1)
            found.append(path)
        except OSError:
            pass
    return found


def before_the_handshake(mode: str) -> None:
    if mode == "silent":
        time.sleep(600)
    if mode == "stubborn":  # neither the end of its input nor SIGTERM ends it
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "dies_at_once":
        sys.stderr.write("no licence\x1b[2J\n")
        sys.exit(7)
    if mode == "chatty":
        for _ in range(100):
            sys.stdout.write("starting up…\n{}\n[]\n\n")
        sys.stdout.flush()
    if mode == "grandchild":
        child = subprocess.Popen(["sleep", "600"])
        note(str(child.pid))


def version_for(mode: str, wanted: str) -> str:
    return "1999-01-01" if mode == "wrong_version" else wanted


def on_call(mode: str, request: dict[str, Any]) -> None:
    number, params = request["id"], request["params"]
    if mode == "hangs" and len(sys.argv) > 2:
        note("called")
    if mode == "dies":
        sys.exit(3)
    if mode == "dies_after" or mode == "grandchild":
        say({"id": number, "result": text("last words")})
        sys.exit(0)
    if mode == "hangs" or mode == "stubborn":
        return
    if mode == "endless_line":
        while True:
            sys.stdout.write("x" * 65_536)
    if mode == "endless_lines":
        while True:
            say({"method": "notifications/message", "params": {"level": "info", "data": "x" * 1000}})
    if mode == "no_result":
        say({"id": number, "result": {"content": "what?"}})
    elif mode == "deep":
        deep = "[" * 100_000 + "]" * 100_000
        sys.stdout.write(f'{{"jsonrpc":"2.0","id":{number},"result":{deep}}}\n')
        sys.stdout.flush()
        say({"id": number, "result": text("after all")})
    elif mode == "asks_back":
        say({"id": "s1", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})
        say({"id": "s2", "method": "roots/list"})
        answers = [asked(), asked()]
        say({"id": number, "result": text(json.dumps(sorted("error" in answer for answer in answers)))})
    elif mode == "opens":
        say({"id": number, "result": text(json.dumps(opened(params["arguments"]["paths"])))})
    elif mode == "environment":
        say({"id": number, "result": text(json.dumps(sorted(os.environ)))})
    else:
        say({"id": number, "result": text(json.dumps({"pid": os.getpid(), "arguments": params.get("arguments")}))})


def main() -> None:
    mode = sys.argv[1]
    before_the_handshake(mode)
    while True:
        message = asked()
        method = message.get("method")
        if method == "initialize":
            version = version_for(mode, message["params"]["protocolVersion"])
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
            say({"id": message["id"], "result": {"protocolVersion": version, **about}})
        elif method == "tools/list":
            say({"id": message["id"], "result": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}})
            if mode == "deaf":
                time.sleep(600)
            while mode == "floods_idle":
                note("line")
                say({"method": "notifications/message", "params": {"level": "info", "data": "x" * 900}})
        elif method == "tools/call":
            on_call(mode, message)
        elif method == "notifications/cancelled" and len(sys.argv) > 2:
            note("cancelled")


if __name__ == "__main__":
    main()
