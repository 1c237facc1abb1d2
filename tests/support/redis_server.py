"""A real redis-server for tests, configured as the chart's: every acknowledged write is on disk, nothing is evicted."""

from __future__ import annotations

import atexit
import functools
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import hiredis

START_SECONDS = 20


class RedisServer:
    """One redis-server on a socket in `folder`; its data stays there when it ends, however that happens."""

    def __init__(self, folder: Path, *options: str) -> None:
        # Debian's redis-server is a name for one of its tools, which asks how it was called.
        self._program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
        assert self._program, "no redis-server on this machine: run hack/cluster/install-deps redis"
        # The name of a socket has at most 107 bytes, which folders of tests do not leave room for.
        self._short = Path(tempfile.mkdtemp(prefix="ph-redis-"))
        self.path = self._short / "s"
        self._command = [
            *("redis-server", "--port", "0", "--unixsocket", str(self.path), "--dir", str(folder)),
            *("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction"),
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def start(self) -> RedisServer:
        self._process = subprocess.Popen(self._command, executable=self._program, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            assert self._process.poll() is None, f"redis-server ended with {self._process.returncode}"
            assert time.monotonic() < deadline, f"redis-server is not ready after {START_SECONDS} s"
            time.sleep(0.01)
        return self

    def kill(self) -> None:
        """End it as a lost machine would."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Let it be there and do nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._end(signal.SIGKILL)
        shutil.rmtree(self._short, ignore_errors=True)

    def ask(self, *command: str | bytes | int) -> Any:
        """Return the reply to one command, errors as values."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(START_SECONDS)
            connection.connect(str(self.path))
            connection.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]  # its stub wants one word
            reader = hiredis.Reader()
            while (reply := reader.gets()) is False:
                data = connection.recv(65536)
                assert data, f"redis-server hung up on {command[0]!r}"
                reader.feed(data)
            return reply

    def _is_ready(self) -> bool:
        try:
            return not str(self.ask("PING")).startswith("LOADING")
        except OSError:
            return False

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait()


@functools.cache
def shared_redis() -> RedisServer:
    """The one server of this process's tests that only want a Redis; it ends with the process."""
    folder = tempfile.mkdtemp(prefix="ph-redis-data-")
    server = RedisServer(Path(folder)).start()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.close)
    return server
