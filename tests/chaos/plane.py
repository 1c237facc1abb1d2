"""Chaos on a control plane: a real API server, two operators, runners as processes, and everybody is killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import yaml

from chaos.journals import FileShelf, RedisShelf, Shelf
from chaos.kubelet import Kubelet
from chaos.nursery import Nursery
from chaos.person import Person
from chaos.play import Play, Say, Show
from chaos.services import SHORT_LEASE, ControlPlane, Operators, Redis, ToolServer, Trouble
from chaos.witness import Witness
from integration.operator.stage import ROOT, SYSTEM, make_namespace, prepare_cluster
from pilothouse_kubernetes.client import KubernetesClient
from pilothouse_kubernetes.connection import Connection, find_credentials
from support.cluster import NODE_IP, LocalCluster
from support.redis_server import RedisServer

REDIS_PORT = 16379


@asynccontextmanager
async def open_plane(show: Show, cluster: LocalCluster, folder: Path, say: Say) -> AsyncIterator[Play]:
    """Set the stage on a control plane in whose network this process is."""
    kubeconfig = await prepare_cluster(cluster, folder)
    cluster.run_tool("kubectl", "apply", "--server-side", "-f", str(ROOT / "crds" / "policies"))
    connection = Connection(find_credentials(str(cluster.kubeconfig)))
    api = KubernetesClient(connection, timeout=10.0)
    namespace = f"chaos-{uuid.uuid4().hex[:8]}"
    await make_namespace(api, namespace)
    grant_runner_rights(cluster, namespace)
    journals = folder / "journals"
    journals.mkdir()
    redis = RedisServer(journals, "--port", str(REDIS_PORT), "--bind", NODE_IP, "--protected-mode", "no")
    await asyncio.to_thread(redis.start)
    tools = ToolServer(folder / "tools.jsonl", NODE_IP)
    await tools.start()
    dice = random.Random(f"{show.seed}/services")
    settings = {
        "NAMESPACE": SYSTEM,
        "LEASE_NAME": namespace,
        "WATCH_NAMESPACES": namespace,
        "HTTP_PORT": "0",
        "HTTP_HOST": "127.0.0.1",
        "WORKERS": "4",
        **({"JOURNAL_CLAIM": "journals"} if show.is_on_files else {"REDIS_URL": f"redis://{NODE_IP}:{REDIS_PORT}"}),
        "ABORT_GRACE_SECONDS": "5",
        "TERMINATION_GRACE_SECONDS": "10",
        "FINISHED_POD_SECONDS": "2",
        **SHORT_LEASE,
    }
    environment = {
        "PATH": os.environ["PATH"],
        "KUBECONFIG": str(kubeconfig),
        **{f"PILOTHOUSE_OPERATOR_{name}": value for name, value in settings.items()},
    }
    nurseries = Nursery("operator"), Nursery("runner", (str(journals),))
    for nursery in nurseries:
        await nursery.open()
    operators = Operators(api, nurseries[0], environment, namespace, folder, dice, cluster)
    shelf: Shelf = FileShelf(journals) if show.is_on_files else RedisShelf(NODE_IP, REDIS_PORT, namespace)
    plane: Play

    kubelet = Kubelet(
        *(api, namespace, folder / "pods", nurseries[1], cluster.url, cluster.ca_path, shelf),
        next_strike=lambda run: plane.next_strike(run),
    )
    witness = Witness(lambda run: [one.name for one in kubelet.alive(run) if not one.is_gone])
    person = Person(api, namespace, witness, show.seed)
    trouble = Trouble(
        dice, blows_to_services(operators, ControlPlane(cluster), Redis(redis, dice), dice, show), show.pause
    )
    plane = Play(
        *(show, connection, api, namespace, folder, shelf, tools, operators, kubelet, witness, person, trouble, say)
    )
    try:
        yield plane
    finally:
        for nursery in nurseries:
            await nursery.close()
        redis.close()
        await tools.stop()
        await connection.close()


def blows_to_services(
    operators: Operators, control_plane: ControlPlane, redis: Redis, dice: random.Random, show: Show
) -> list[tuple[str, Callable[[], Any]]]:
    blows: list[tuple[str, Callable[[], Any]]] = [
        ("operator", lambda: operators.strike(SIGKILL, is_leader=True)),
        ("operator", lambda: operators.strike(SIGKILL, is_leader=True)),
        ("operator-term", lambda: operators.strike(SIGTERM, is_leader=True)),
        ("standby", lambda: operators.strike(SIGKILL, is_leader=False)),
        ("apiserver", lambda: control_plane.crash()),
    ]
    if not show.is_on_files:
        blows += [("redis", redis.crash)] * 4
    if not show.is_brisk:
        blows += [("redis-frozen", redis.freeze)] * (not show.is_on_files)
        blows += [
            ("operator-frozen", operators.freeze),
            ("apiserver", lambda: control_plane.crash()),
            ("apiserver-term", control_plane.restart),
            ("apiserver-frozen", lambda: control_plane.freeze(dice.uniform(0.5, 8.0))),
            ("etcd", lambda: control_plane.crash("etcd")),
        ]
    return blows


def grant_runner_rights(cluster: LocalCluster, namespace: str) -> None:
    """Give `prun` the rights that the chart gives it."""
    text = (ROOT / "charts" / "pilothouse" / "templates" / "_names.tpl").read_text()
    found = re.search(r'define "pilothouse.runnerRules" -?}}(.*?){{-? end', text, re.DOTALL)
    assert found is not None
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "prun", "namespace": namespace}}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "prun"}
    subjects = [{"kind": "ServiceAccount", "name": "prun", "namespace": namespace}]
    role = {**rbac, "kind": "Role", "rules": yaml.safe_load(found.group(1))}
    binding = {**rbac, "kind": "RoleBinding", "roleRef": reference, "subjects": subjects}
    items = {"apiVersion": "v1", "kind": "List", "items": [role, binding]}
    cluster.run_tool("kubectl", "apply", "-f", "-", stdin=json.dumps(items))
