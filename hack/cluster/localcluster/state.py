"""Where a cluster keeps what it has, and what it is called."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path


class ClusterError(Exception):
    """A failure that a person can act on; its text says how."""


class Level(StrEnum):
    CONTROL_PLANE = "control-plane"
    NODE = "node"


NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
HERE = Path(__file__).resolve().parent.parent


def clusters_folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "pilothouse" / "clusters"


@dataclass(frozen=True)
class Cluster:
    """A cluster's name and, derived from it, everything on this machine that bears the name."""

    name: str

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ClusterError(f"cluster name {self.name!r}: want 1 to 40 of a-z, 0-9 and -, not at either end")

    @property
    def state(self) -> Path:
        return clusters_folder() / self.name

    @property
    def logs(self) -> Path:
        return self.state / "log"

    @property
    def run(self) -> Path:
        return self.state / "run"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def tools(self) -> Path:
        return self.state / "bin"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def kubectl_cache(self) -> Path:
        """A cache of its own, because all clusters have the same address and kubectl caches what it finds there."""
        return self.run / "kubectl-cache"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd.sock"

    @property
    def namespace(self) -> str:
        return f"pilothouse-{self.name}"

    @property
    def namespace_path(self) -> Path:
        return Path("/run/netns") / self.namespace

    @property
    def cgroup(self) -> str:
        return f"pilothouse-{self.name}"

    @cached_property
    def binaries(self) -> Path:
        """The folder of the built binaries, which may not be there yet."""
        return Path(subprocess.check_output([HERE / "build", "--dir"], text=True).strip())

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.state / f"{user}.kubeconfig"

    @property
    def exists(self) -> bool:
        return self.state.is_dir()

    @property
    def level(self) -> Level:
        return Level((self.state / "level").read_text().strip())

    def make(self, level: Level) -> None:
        for folder in (self.logs, self.run, self.pki, self.tools):
            folder.mkdir(parents=True, exist_ok=True)
        self.state.chmod(0o700)
        (self.state / "level").write_text(level)


def existing_clusters() -> list[Cluster]:
    folder = clusters_folder()
    if not folder.is_dir():
        return []
    return [Cluster(entry.name) for entry in sorted(folder.iterdir()) if (entry / "level").is_file()]


@contextmanager
def exclusive() -> Iterator[None]:
    """Let one `up` or `down` at a time change this machine."""
    folder = clusters_folder()
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
