"""Real clusters for tests: `control_plane` for integration tests, `node_cluster` for end-to-end tests.

Both live in a network namespace of their own, which the pytest process enters, so that everything a test starts from
then on (threads, child processes, servers) reaches the cluster, and the cluster's pods reach it at `NODE_IP`. A thread
that was started before stays outside. One process can enter one cluster, hence one level per pytest run.

- `PILOTHOUSE_CLUSTER=NAME`     `node_cluster` uses this cluster of `hack/cluster/cluster` and leaves it up.
- `PILOTHOUSE_KUBECONFIG=FILE`  `node_cluster` uses your own cluster: nothing is started and no namespace is entered.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

NODE_IP = "10.200.0.1"
HACK = Path(__file__).resolve().parents[2] / "hack" / "cluster"
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class ForeignCluster:
    """Somebody's cluster, of which a kubeconfig is all that is known."""

    kubeconfig: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment in which `kubectl` and `helm` talk to the cluster."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def run_tool(self, *command: str, stdin: str | None = None, timeout: float = 120) -> str:
        """Run `kubectl`, `helm` or another program against the cluster and return what it prints; raise if it fails."""
        done = subprocess.run(
            command, input=stdin, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def wait_established(self, *crds: str) -> None:
        """Wait until CRDs are served; kubectl fails at once for one that has no conditions yet, and is asked again."""
        for attempts_left in range(60, -1, -1):
            try:
                self.run_tool("kubectl", "wait", "--for=condition=Established", "--timeout=60s", *crds)
                return
            except AssertionError as error:
                if "accessor error" not in str(error) or not attempts_left:
                    raise
                time.sleep(0.5)

    def load(self, *archives: Path) -> None:
        """Do nothing: whoever brings a cluster loads the images into it (for kind, `hack/kind/up` does)."""


@dataclass(frozen=True)
class LocalCluster(ForeignCluster):
    """A cluster of `hack/cluster/cluster`."""

    name: str
    state: Path

    @property
    def url(self) -> str:
        return f"https://{NODE_IP}:6443"

    @property
    def ca_path(self) -> Path:
        return self.state / "pki" / "ca.crt"

    @property
    def token(self) -> str:
        """The bearer token of a cluster administrator."""
        return (self.state / "pki" / "tokens.csv").read_text().split(",", 1)[0]

    @property
    def logs(self) -> Path:
        return self.state / "log"

    @property
    def audit_log(self) -> Path:
        """One JSON event a line for every answered request, at level Metadata, without the stage RequestReceived."""
        return self.logs / "audit.log"

    def audit_events(self, holding: str = "") -> list[dict[str, Any]]:
        """Return what the audit log tells on lines that hold a word; one that is being written is left out."""
        lines = self.audit_log.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in lines if holding in line]

    @property
    def namespace_path(self) -> Path:
        return Path("/run/netns") / f"pilothouse-{self.name}"

    @property
    def environment(self) -> Mapping[str, str]:
        # In place of the wrappers of `cluster env`, which are for shells outside of the namespace.
        path = f"{_binaries()}:{os.environ['PATH']}"
        own = {"PATH": path, "KUBECACHEDIR": str(self.state / "run" / "kubectl-cache"), "PILOTHOUSE_CLUSTER": self.name}
        return {**super().environment, **own}

    def load(self, *archives: Path) -> None:
        """Import image archives into the node."""
        _hack("cluster", "load", "--name", self.name, *map(str, archives))

    def start_apiserver(self) -> None:
        """Return when the API server is ready."""
        _hack("cluster", "start", "--name", self.name, "apiserver")

    def stop_apiserver(self) -> None:
        """Return when the process is gone."""
        _hack("cluster", "stop", "--name", self.name, "apiserver")

    def restart_apiserver(self) -> None:
        """Return when the new process is ready."""
        _hack("cluster", "restart", "--name", self.name, "apiserver")


def start_cluster(level: str, name: str) -> LocalCluster:
    """Start the cluster or what is missing of it. Fails rather than builds, which takes longer than a test may."""
    _hack("build", "--check", level)
    _hack("cluster", "up", "--level", level, "--name", name)
    return local_cluster(name)


def stop_cluster(name: str) -> None:
    _hack("cluster", "down", "--name", name)


def local_cluster(name: str) -> LocalCluster:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    state = Path(home) / "pilothouse" / "clusters" / name
    return LocalCluster(kubeconfig=state / "admin.kubeconfig", name=name, state=state)


@contextmanager
def fresh_cluster(level: str, prefix: str) -> Iterator[LocalCluster]:
    """A cluster with a name of its own that is gone afterwards, even if it never came up."""
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    try:
        yield start_cluster(level, name)
    finally:
        stop_cluster(name)


@contextmanager
def entered(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Put this thread, and all that it starts, into the cluster's network namespace."""
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    within = os.open(cluster.namespace_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _is_in_a_cluster():
            raise RuntimeError(
                "this process is in the network of another test cluster already: run integration and end-to-end "
                "tests by pytest commands of their own"
            )
        _setns(within)
        try:
            yield cluster
        finally:
            _setns(outside)
    finally:
        os.close(within)
        os.close(outside)


def enter_for_good(cluster: LocalCluster) -> None:
    """Put this thread, and all that it starts, into a cluster's network namespace, whichever it was in before.

    For the threads of a test that has two clusters: the process itself stays in one.
    """
    within = os.open(cluster.namespace_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _setns(within)
    finally:
        os.close(within)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[LocalCluster]:
    """A real API server with etcd and the controller manager; no node: tests play the kubelet."""
    with fresh_cluster("control-plane", "test") as cluster, entered(cluster):
        yield cluster


@pytest.fixture(scope="session")
def node_cluster() -> Iterator[ForeignCluster]:
    """A whole cluster that runs pods: a fresh one, a standing one, or your own (see this module's docstring)."""
    kubeconfig = os.environ.get("PILOTHOUSE_KUBECONFIG")
    name = os.environ.get("PILOTHOUSE_CLUSTER")
    if kubeconfig:
        yield ForeignCluster(Path(kubeconfig))
    elif name:
        with entered(start_cluster("node", name)) as cluster:
            yield cluster
    else:
        with fresh_cluster("node", "e2e") as cluster, entered(cluster):
            yield cluster


def _is_in_a_cluster() -> bool:
    here = Path("/proc/thread-self/ns/net").stat().st_ino
    return any(path.stat().st_ino == here for path in Path("/run/netns").glob("pilothouse-*"))


def _setns(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter the network namespace: {os.strerror(number)}")


@cache
def _binaries() -> Path:
    return Path(_hack("build", "--dir").strip())


def _hack(program: str, *arguments: str) -> str:
    done = subprocess.run([HACK / program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{program} {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout
