"""The network namespace that holds a whole cluster: nothing of it leaves the machine, and no host rule is touched."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from .needs import SYSTEM_PATH
from .state import Cluster

NODE_IP = "10.200.0.1"
SERVICE_RANGE = "10.96.0.0/16"
FIRST_SERVICE_IP = "10.96.0.1"
POD_RANGE = "10.244.0.0/16"
NODE_POD_RANGE = "10.244.0.0/17"


def inside(cluster: Cluster, command: Sequence[str]) -> list[str]:
    """The command as it runs within the cluster's network.

    Not `ip netns exec`: it mounts a /sys of its own, in which the kubelet finds no cgroups.
    """
    return ["nsenter", f"--net={cluster.namespace_path}", "--", *command]


def ensure_namespace(cluster: Cluster) -> None:
    if cluster.namespace_path.exists():
        return
    _run(["ip", "netns", "add", cluster.namespace])
    for command in (
        "ip link set lo up",
        # A bridge because a dummy device is a kernel module that not every machine has.
        "ip link add ph0 type bridge",
        f"ip address add {NODE_IP}/24 dev ph0",
        "ip link set ph0 up",
        # kubelet and kube-proxy look for a default route; this one leads nowhere.
        "ip route add default via 10.200.0.2 dev ph0",
        "sysctl -qw net.ipv4.ip_forward=1",
    ):
        _run(inside(cluster, command.split()))


def remove_namespace(cluster: Cluster) -> list[int]:
    """Remove the namespace's name and return the processes that still live in it, which keep it alive."""
    if not cluster.namespace_path.exists():
        return []
    pids = subprocess.run(
        ["ip", "netns", "pids", cluster.namespace], capture_output=True, text=True, check=False
    ).stdout.split()
    _run(["ip", "netns", "delete", cluster.namespace])
    return [int(pid) for pid in pids]


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, env={"PATH": SYSTEM_PATH})
