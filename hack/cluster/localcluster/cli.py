"""The command line of `hack/cluster/cluster`."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from . import control_plane, node
from .needs import check_machine
from .network import inside
from .processes import Component, ensure_running, pid_of, stop
from .removal import remove
from .state import HERE, Cluster, ClusterError, Level, exclusive, existing_clusters

LOG_LINES = 200


def components(cluster: Cluster) -> dict[str, Component]:
    """The processes of a cluster of its level, in the order in which they start."""
    made = [
        control_plane.etcd(cluster),
        control_plane.apiserver(cluster),
        control_plane.controller_manager(cluster, cluster.level),
    ]
    if cluster.level is Level.NODE:
        parts = (node.containerd, node.scheduler, node.coredns, node.kubelet, node.kube_proxy)
        made.extend(part(cluster) for part in parts)
    return {component.name: component for component in made}


def up(arguments: argparse.Namespace) -> None:
    cluster, level = Cluster(arguments.name), Level(arguments.level)
    check_machine(level)
    subprocess.run([HERE / "build", level], check=True, stdout=subprocess.DEVNULL)
    began = time.monotonic()
    with exclusive():
        was_there = cluster.exists
        if was_there and cluster.level is Level.NODE:
            level = Level.NODE  # never take a node away from someone
        cluster.make(level)
        control_plane.start_control_plane(cluster, level)
        if level is Level.NODE:
            node.start_node(cluster)
    verb = "is up" if was_there else "came up"
    took = f"{verb} in {time.monotonic() - began:.1f} s"
    use = f'eval "$({shlex.quote(str(HERE / "cluster"))} env --name {cluster.name})"'
    print(f"cluster {cluster.name} ({level}) {took}; logs in {cluster.logs}\nuse it:  {use}")


def down(arguments: argparse.Namespace) -> None:
    cluster = Cluster(arguments.name)
    with exclusive():
        if not cluster.exists:
            print(f"cluster {cluster.name} is not up")
            return
        remove(cluster)
    print(f"cluster {cluster.name} is down")


def status(_: argparse.Namespace) -> None:
    clusters = existing_clusters()
    if not clusters:
        print("no cluster is up")
    for cluster in clusters:
        print(f"{cluster.name} ({cluster.level}), state in {cluster.state}")
        for name in components(cluster):
            pid = pid_of(cluster, name)
            print(f"  {name:<20} {f'running, pid {pid}' if pid else 'stopped'}")


def env(arguments: argparse.Namespace) -> None:
    cluster = _existing(arguments.name)
    print(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig()))}")
    print(f"export PILOTHOUSE_CLUSTER={cluster.name}")
    print(f'export PATH={shlex.quote(str(cluster.tools))}:"$PATH"')


def execute(arguments: argparse.Namespace) -> None:
    cluster = _existing(arguments.name)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise ClusterError("no command: cluster exec [--name NAME] -- COMMAND…")
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig())
    os.environ["PATH"] = f"{cluster.tools}:{os.environ['PATH']}"
    words = inside(cluster, command)
    os.execvp(words[0], words)


def load(arguments: argparse.Namespace) -> None:
    cluster = _existing(arguments.name)
    if cluster.level is not Level.NODE:
        raise ClusterError(f"cluster {cluster.name} has no node to load images into: cluster up --level node")
    node.load_images(cluster, arguments.archives)


def logs(arguments: argparse.Namespace) -> None:
    cluster = _existing(arguments.name)
    path = cluster.logs / f"{arguments.component}.log"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in cluster.logs.glob("*.log")))
        raise ClusterError(f"no log of {arguments.component!r}; there are: {names}")
    follow = ["-F"] if arguments.follow else []
    os.execvp("tail", ["tail", "-n", str(LOG_LINES), *follow, str(path)])


def switch(arguments: argparse.Namespace) -> None:
    """Stop, start or restart one component, as fault tests do."""
    cluster = _existing(arguments.name)
    parts = components(cluster)
    if arguments.component not in parts:
        raise ClusterError(f"no component {arguments.component!r}; there are: {', '.join(parts)}")
    if arguments.action in ("stop", "restart"):
        stop(cluster, arguments.component)
    if arguments.action in ("start", "restart"):
        ensure_running(cluster, parts[arguments.component])
        if arguments.component == "apiserver":
            control_plane.wait_for_apiserver(cluster)


def _existing(name: str) -> Cluster:
    cluster = Cluster(name)
    if not cluster.exists:
        raise ClusterError(f"cluster {name} is not up: run  {HERE / 'cluster'} up --name {name}")
    return cluster


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description="A Kubernetes cluster in one network namespace.")
    named = argparse.ArgumentParser(add_help=False)
    default = os.environ.get("PILOTHOUSE_CLUSTER") or "dev"
    named.add_argument(
        "--name", default=default, help=f"which cluster (default: $PILOTHOUSE_CLUSTER or dev; now {default})"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, text: str, action: object, *, of_one: bool = True) -> argparse.ArgumentParser:
        made = commands.add_parser(name, parents=[named] if of_one else [], help=text, description=text)
        made.set_defaults(run=action)
        return made

    made = command("up", "start a cluster, or what is missing of it", up)
    made.add_argument("--level", choices=[str(level) for level in Level], default=str(Level.NODE))
    command("down", "remove a cluster and all that is its", down)
    command("status", "show the clusters of this machine", status, of_one=False)
    command("env", 'print shell exports: eval "$(cluster env)"', env)
    made = command("exec", "run a command within the cluster's network", execute)
    made.add_argument("command", nargs=argparse.REMAINDER)
    made = command("load", "import image archives into the node", load)
    made.add_argument("archives", nargs="+", type=Path)
    made = command("logs", "show the end of a component's log", logs)
    made.add_argument("component")
    made.add_argument("-f", "--follow", action="store_true")
    for action in ("stop", "start", "restart"):
        made = command(action, f"{action} one component, such as apiserver", switch)
        made.add_argument("component")
        made.set_defaults(action=action)
    return parser


def main() -> int:
    arguments = _parser().parse_args()
    try:
        arguments.run(arguments)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"cluster: {shlex.join(map(str, error.cmd))} failed with {error.returncode}", file=sys.stderr)
        return 1
    return 0
