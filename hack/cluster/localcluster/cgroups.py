"""The control group below which every pod of a cluster lives, so that none can be missed when it is taken down."""

from __future__ import annotations

import time
from pathlib import Path

from .state import Cluster, ClusterError

MOUNT = Path("/sys/fs/cgroup")
REMOVAL_SECONDS = 10.0


def _roots() -> list[Path]:
    """The folders in which groups are made: one with version 2, one for each controller with version 1."""
    if (MOUNT / "cgroup.controllers").exists():
        return [MOUNT]
    folders = (folder for folder in sorted(MOUNT.iterdir()) if not folder.is_symlink())
    return [folder for folder in folders if (folder / "cgroup.procs").exists()]


def ensure_cgroup(cluster: Cluster) -> None:
    for root in _roots():
        group = root / cluster.cgroup
        group.mkdir(exist_ok=True)
        if root == MOUNT:
            _delegate(root)
            _delegate(group)
        # Version 1 starts a cpuset empty, and nothing can run in an empty one.
        for name in ("cpuset.cpus", "cpuset.mems"):
            if root != MOUNT and (group / name).exists() and not (group / name).read_text().strip():
                (group / name).write_text((root / name).read_text())


def _delegate(group: Path) -> None:
    """Let the groups below use every controller that this one has (version 2)."""
    available = (group / "cgroup.controllers").read_text().split()
    enabled = (group / "cgroup.subtree_control").read_text().split()
    for controller in sorted(set(available) - set(enabled)):
        try:
            (group / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            raise ClusterError(
                f"control group {group} cannot hand {controller} to the groups below it ({error.strerror}): "
                "within a container, move its processes into a group of their own first, or run on the host"
            ) from error


def members(cluster: Cluster) -> set[int]:
    """Every process in a pod of the cluster."""
    pids: set[int] = set()
    for root in _roots():
        for file in (root / cluster.cgroup).rglob("cgroup.procs"):
            try:
                pids.update(int(pid) for pid in file.read_text().split())
            except OSError:  # a group that went away, or a threaded one
                continue
    return pids


def remove_cgroup(cluster: Cluster) -> None:
    deadline = time.monotonic() + REMOVAL_SECONDS
    for root in _roots():
        group = root / cluster.cgroup
        while group.is_dir() and not _is_removed(group):
            if time.monotonic() > deadline:
                raise ClusterError(f"control group {group} stays busy; processes: {sorted(members(cluster))}")
            time.sleep(0.05)  # the kernel empties a group a little after its last process ended


def _is_removed(group: Path) -> bool:
    folders = [group, *(path for path in group.rglob("*") if path.is_dir())]
    try:
        for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
            folder.rmdir()
    except OSError:
        return False
    return True
