"""What a level needs from the machine, and the line that installs what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .state import ClusterError, Level

CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"), Path("/usr/libexec/cni"))
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Need:
    program: str
    package: str
    level: Level = Level.CONTROL_PLANE

    @property
    def is_met(self) -> bool:
        if self.package == "containernetworking-plugins":
            return cni_folder() is not None
        return shutil.which(self.program, path=SYSTEM_PATH) is not None


NEEDS: Sequence[Need] = (
    Need("ip", "iproute2"),
    Need("nsenter", "util-linux"),
    Need("sysctl", "procps"),
    Need("openssl", "openssl"),
    Need("containerd", "containerd", Level.NODE),
    Need("runc", "runc", Level.NODE),
    Need("ptp", "containernetworking-plugins", Level.NODE),
    Need("iptables", "iptables", Level.NODE),
)


def cni_folder() -> Path | None:
    return next((folder for folder in CNI_FOLDERS if (folder / "ptp").exists()), None)


def check_machine(level: Level) -> None:
    """Raise unless this machine can run a cluster of this level."""
    if os.geteuid() != 0:
        raise ClusterError("a cluster makes a network namespace and mounts: run as root (sudo)")
    wanted = [need for need in NEEDS if level is Level.NODE or need.level is level]
    missing = sorted({need.package for need in wanted if not need.is_met})
    if missing:
        raise ClusterError(
            f"missing on this machine: {', '.join(missing)}\n"
            f"install with: apt-get install --no-install-recommends {' '.join(missing)}\n"
            "or with:      hack/cluster/install-deps"
        )
