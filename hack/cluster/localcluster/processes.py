"""A cluster's processes: started, found again, and stopped by a pid that was proved to be ours."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .needs import SYSTEM_PATH
from .network import inside
from .state import Cluster, ClusterError

GRACE_SECONDS = 2.0
"""The API server would wait for its watchers to leave; a test that stops it does not want to."""
END_SECONDS = 10.0
POLL_SECONDS = 0.05
LOG_LINES_SHOWN = 15


@dataclass(frozen=True)
class Component:
    """A long-running process of a cluster. Its command line names the cluster's state folder: to prove whose it is."""

    name: str
    command: Sequence[str]


def command_line(pid: int) -> list[str]:
    """The command line of a process, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def pid_of(cluster: Cluster, name: str) -> int | None:
    """The pid of a component that is alive and of this cluster."""
    try:
        pid = int((cluster.run / f"{name}.pid").read_text())
    except (OSError, ValueError):
        return None
    return pid if any(str(cluster.state) in word for word in command_line(pid)) else None


def ensure_running(cluster: Cluster, component: Component) -> None:
    """Start the component unless it runs with exactly this command line; another command line means a restart."""
    pid = pid_of(cluster, component.name)
    if pid is not None and command_line(pid) == list(component.command):
        return
    stop(cluster, component.name)
    with (cluster.logs / f"{component.name}.log").open("ab") as log:
        process = subprocess.Popen(
            inside(cluster, component.command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            # Nothing of the caller's: a proxy variable would lead the components out of their network.
            env={"PATH": SYSTEM_PATH, "HOME": str(Path.home())},
        )
    (cluster.run / f"{component.name}.pid").write_text(f"{process.pid}\n")
    process.returncode = 0  # Not ours to wait for: it outlives this program.


def stop(cluster: Cluster, name: str, first: signal.Signals = signal.SIGTERM) -> None:
    pid = pid_of(cluster, name)
    if pid is not None:
        end([pid], str(cluster.state), first)
    (cluster.run / f"{name}.pid").unlink(missing_ok=True)


def end(pids: Sequence[int], mark: str, first: signal.Signals = signal.SIGKILL) -> None:
    """End the processes whose command line bears the mark and wait until they are gone."""
    handles = []
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        # Looked at after the handle is held: from here on the pid cannot become another process.
        if any(mark in word for word in command_line(pid)):
            handles.append(handle)
        else:
            os.close(handle)
    try:
        left = _signal_and_wait(handles, first, GRACE_SECONDS)
        if _signal_and_wait(left, signal.SIGKILL, END_SECONDS):
            raise ClusterError(f"processes do not end: {pids}")
    finally:
        for handle in handles:
            os.close(handle)


def _signal_and_wait(handles: Sequence[int], number: signal.Signals, seconds: float) -> list[int]:
    left = set(handles)
    for handle in handles:
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            left.discard(handle)
    poller = select.poll()
    for handle in left:
        poller.register(handle, select.POLLIN)
    deadline = time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        for handle, _ in poller.poll(1000 * POLL_SECONDS):
            poller.unregister(handle)
            left.discard(handle)
    return sorted(left)


def wait_until(cluster: Cluster, what: str, component: str, is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that a component brings about; fail at once, with its last words, when it dies."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if pid_of(cluster, component) is None:
            raise ClusterError(f"{component} ended while waiting for {what}; {_last_words(cluster, component)}")
        if time.monotonic() > deadline:
            raise ClusterError(f"waited {seconds:.0f} s in vain for {what}; {_last_words(cluster, component)}")
        time.sleep(POLL_SECONDS)


def _last_words(cluster: Cluster, component: str) -> str:
    path = cluster.logs / f"{component}.log"
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return f"the end of {path}:\n" + "\n".join(lines[-LOG_LINES_SHOWN:])


def succeeds(command: Sequence[str | Path]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
