"""Terminals: the program in processes of its own, and in this one."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.terminal import Inside, Terminal


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Inside:
    return Inside(monkeypatch, tmp_path)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    for process in terminal.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
