"""Starts processes by forking one that has the imports behind it: hundreds of starts would else be mostly imports.

A child is a process like any other: with its own pid, environment, log and signals. `python -m chaos.nursery KIND` (for
runners also the folder of journals) takes one JSON line a child on its input (`id`, `environment`, `log`, `arguments`)
and answers `{"id", "pid"}`, and `{"id", "code"}` when the child has ended (negative: by that signal).
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import selectors
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

PR_SET_PDEATHSIG = 1
Kind = Literal["runner", "operator"]


# ---------------------------------------------------------------- who asks


@dataclass
class Child:
    """A process of a nursery, with the face of asyncio's own."""

    pid: int
    returncode: int | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> int:
        await self.ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return  # it has ended, and the news is under way

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@dataclass
class Nursery:
    """Starts children of one kind."""

    kind: Kind
    arguments: tuple[str, ...] = ()
    process: asyncio.subprocess.Process | None = None
    _ids: count[int] = field(default_factory=count)
    _born: dict[int, asyncio.Future[Child]] = field(default_factory=dict)
    _children: dict[int, Child] = field(default_factory=dict)
    _reader: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "chaos.nursery", self.kind, *self.arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def start(self, environment: Mapping[str, str], log: Path, arguments: Sequence[str] = ()) -> Child:
        assert self.process is not None
        assert self.process.stdin is not None
        id = next(self._ids)
        self._born[id] = asyncio.get_running_loop().create_future()
        order = {"id": id, "environment": dict(environment), "log": str(log), "arguments": list(arguments)}
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        await self.process.stdin.drain()
        return await self._born[id]

    async def close(self) -> None:
        """Kill what is left."""
        for child in self._children.values():
            child.kill()
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            await self.process.wait()
        if self._reader is not None:
            await self._reader

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            told = json.loads(line)
            if "pid" in told:
                child = self._children[told["id"]] = Child(told["pid"])
                asked = self._born.pop(told["id"])
                if asked.done():  # nobody waits for it any more
                    child.kill()
                else:
                    asked.set_result(child)
            else:
                child = self._children.pop(told["id"])
                child.returncode = told["code"]
                child.ended.set()


# ---------------------------------------------------------------- the process that forks


def load_runner() -> Callable[[Sequence[str]], None]:
    from pilothouse_api import names

    # A pod has its mounts at fixed paths; here they are where the test may write. This one becomes a default below.
    names.JOURNAL_PATH = sys.argv[2]
    import pilothouse_runner.__main__
    import pilothouse_runner.adapters.models.openai

    def run(arguments: Sequence[str]) -> None:
        names.TOKEN_PATH = arguments[0]
        pilothouse_runner.__main__.main()

    return run


def load_operator() -> Callable[[Sequence[str]], None]:
    import pilothouse_operator.__main__
    import pilothouse_operator.process.host

    def run(arguments: Sequence[str]) -> None:
        sys.argv = ["pilothouse-operator"]
        sys.exit(pilothouse_operator.__main__.main())

    return run


def serve(run: Callable[[Sequence[str]], None]) -> None:
    """Fork a child for each order until the input ends."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    os.set_blocking(read_end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write_end)
    ids: dict[int, int] = {}
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(read_end, selectors.EVENT_READ)
    pending = b""
    while True:
        for key, _ in selector.select():
            if key.fd == read_end:
                os.read(read_end, 4096)
                continue
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = fork(order, run)
                ids[pid] = order["id"]
                tell({"id": order["id"], "pid": pid})
        reap(ids)


def reap(ids: dict[int, int]) -> None:
    while ids:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        tell({"id": ids.pop(pid), "code": os.waitstatus_to_exitcode(status)})


def tell(what: dict[str, Any]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def fork(order: dict[str, Any], run: Callable[[Sequence[str]], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nothing of a play outlives it
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.closerange(3, 64)
        os.environ.clear()
        os.environ.update(order["environment"])
        run(order["arguments"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    serve({"runner": load_runner, "operator": load_operator}[sys.argv[1]]())
