"""Kernel settings that a kubelet changes for the whole machine: noted before the first, restored after the last."""

from __future__ import annotations

import json
from pathlib import Path

from .state import Cluster, Level, clusters_folder, existing_clusters

SETTINGS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
"""What the kubelet's `protectKernelDefaults` speaks of; the two for keys only raise a limit and differ by kernel."""


def _remembered() -> Path:
    return clusters_folder() / ".kernel-settings.json"


def remember_settings() -> None:
    if not _remembered().exists():
        values = {name: Path("/proc/sys", name).read_text().strip() for name in SETTINGS}
        _remembered().write_text(json.dumps(values) + "\n")


def restore_settings(leaving: Cluster) -> None:
    """Put the settings back unless another cluster still has a kubelet."""
    others = [other for other in existing_clusters() if other != leaving and other.level is Level.NODE]
    if others or not _remembered().exists():
        return
    for name, value in json.loads(_remembered().read_text()).items():
        path = Path("/proc/sys", name)
        if path.read_text().strip() != value:
            path.write_text(value)
    _remembered().unlink()
