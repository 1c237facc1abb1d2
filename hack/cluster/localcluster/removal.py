"""Taking a cluster down so that nothing of it is left: processes, mounts, control groups, namespace, files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from .cgroups import members, remove_cgroup
from .kernel import restore_settings
from .network import remove_namespace
from .processes import command_line, end, stop
from .state import Cluster, ClusterError

CONTAINER_LOGS = Path("/var/log/containers")
"""Where every kubelet puts links to its containers' logs, whatever its configuration says."""
NETWORK_RESULTS = Path("/var/lib/cni/results")
"""Where every containerd remembers what network it gave to which pod."""


def remove(cluster: Cluster) -> None:
    # Those first that would bring the others back to life.
    for name in ("kubelet", "containerd", "controller-manager", "scheduler", "proxy", "dns", "apiserver", "etcd"):
        stop(cluster, name, signal.SIGKILL)
    _end_pods(cluster)
    for path in mounts(cluster):
        subprocess.run(["umount", "--lazy", path], check=True)
    remove_cgroup(cluster)
    left = remove_namespace(cluster)
    if left:
        print(f"still in the cluster's network namespace, which ends with them: {' '.join(map(str, left))}")
    restore_settings(cluster)
    _remove_files(cluster)


def mounts(cluster: Cluster) -> list[Path]:
    """What is mounted below the cluster's state, innermost first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [Path(line.split()[4].encode().decode("unicode_escape")) for line in lines]
    return [point for point in reversed(points) if point.is_relative_to(cluster.state)]


def _end_pods(cluster: Cluster) -> None:
    """End every container, then the shims that watch over them, whose command lines name this containerd's socket."""
    for pid in members(cluster):
        os.kill(pid, signal.SIGKILL)
    shims = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _is_shim(int(entry.name))]
    end(shims, str(cluster.state))


def _is_shim(pid: int) -> bool:
    words = command_line(pid)
    return bool(words) and "containerd-shim" in words[0]


def _remove_files(cluster: Cluster) -> None:
    for address in cluster.run.glob("containerd/io.containerd.runtime.v2.task/*/*/address"):
        Path(address.read_text().removeprefix("unix://")).unlink(missing_ok=True)
    for link in CONTAINER_LOGS.glob("*.log"):
        if link.is_symlink() and link.readlink().is_relative_to(cluster.state):
            link.unlink()
    for result in NETWORK_RESULTS.glob("*"):
        if str(cluster.state) in result.read_text():
            result.unlink()
    if mounts(cluster):  # deleting through a mount would delete someone else's files
        raise ClusterError(f"still mounted: {', '.join(map(str, mounts(cluster)))}")
    shutil.rmtree(cluster.state)
