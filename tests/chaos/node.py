"""Chaos on a real node: the project installed by Helm, runners in pods, and everybody is killed from outside."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.journals import RedisShelf, Shelf
from chaos.kubelet import Container
from chaos.person import Person
from chaos.plans import Blow, Strike
from chaos.play import Play, Say, Show
from chaos.services import ControlPlane, ToolServer, Trouble
from chaos.witness import Witness
from pilothouse_api import names
from pilothouse_kubernetes.client import PODS, ApiError, Conflict, KubernetesClient, NotFound, Raw
from pilothouse_kubernetes.connection import Connection, find_credentials
from support.cluster import NODE_IP, LocalCluster
from support.installation import REDIS, SYSTEM, Installation

POLL_SECONDS = 0.02
ON_A_NODE: dict[Blow, Blow] = {"oom": "crash", "zombie": "force", "lostnode": "delete"}
"""A real kubelet does not let a process live whose pod is gone, and calls nothing OOM that was none."""


@dataclass
class NodeHand:
    """Strikes runners on a node that belongs to this machine: their processes are seen in /proc."""

    api: KubernetesClient
    namespace: str
    folder: Path
    shelf: Shelf
    next_strike: Callable[[str], Strike | None]
    containers: dict[str, Container] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    struck: list[Raw] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def notice(self, kind: str, pod: Raw) -> None:
        """Take an event of a pod."""
        if pod["metadata"].get("labels", {}).get(names.LABEL_MANAGED_BY) != names.MANAGED_BY:
            return
        uid = pod["metadata"]["uid"]
        container = self.containers.get(uid)
        states = [entry.get("state", {}) for entry in pod.get("status", {}).get("containerStatuses", ())]
        has_begun = any("running" in state or "terminated" in state for state in states)
        if container is None and has_begun and kind != "DELETED":
            container = Container(pod, self.folder / pod["metadata"]["name"], started_at=time.time())
            self.containers[uid] = container
            strike = self.next_strike(container.run)
            if strike is not None:
                self._start(self._strike(container, strike))
        if container is None:
            return
        ended = next((state["terminated"] for state in states if "terminated" in state), None)
        if ended is not None and container.code is None:
            code = int(ended["exitCode"])
            container.code = 128 - code if code > 128 else code
            container.ended_at = time.time()
            container.ended.set()
            self._start(self._keep_log(container))
        if kind == "DELETED":
            container.is_gone = True
            if container.code is None:  # gone at once, and nobody was told how it ended
                container.code, container.ended_at = -signal.SIGKILL, time.time()
                container.blow = container.blow or "unseen"
                container.ended.set()

    def alive(self, run: str) -> list[Container]:
        return [one for one in self.containers.values() if one.run == run and one.code is None]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.faults.append(f"a blow failed: {task.exception()!r}")

    async def _keep_log(self, container: Container) -> None:
        path = f"api/v1/namespaces/{self.namespace}/pods/{container.name}/log"
        connection = self.api._connection
        try:
            async with connection.session().get(f"{connection.credentials.server}/{path}") as response:
                text = await response.text() if response.status == 200 else ""
        except OSError:
            return  # the API server is away: this log is not missed
        container.folder.mkdir(parents=True, exist_ok=True)
        (container.folder / "log").write_text(text)

    async def _strike(self, container: Container, strike: Strike) -> None:
        before = self.shelf.count(container.run_uid)
        if strike.batches is not None:
            while container.code is None and self.shelf.count(container.run_uid) < before + strike.batches:
                await asyncio.sleep(POLL_SECONDS)
        await asyncio.sleep(strike.seconds)
        if container.code is not None or container.is_gone:
            return
        blow = ON_A_NODE.get(strike.blow, strike.blow)
        struck = {"at": time.time(), "run": container.run, "attempt": container.attempt, "blow": blow}
        self.struck.append({**struck, "batches": self.shelf.count(container.run_uid)})
        container.blow = blow
        if await self._do(blow, container):
            self.kills[blow] += 1

    async def _do(self, blow: Blow, container: Container) -> bool:
        if blow in ("crash", "term"):
            pid = find_runner(self.namespace, container.run, container.attempt)
            if pid is None:
                container.blow = ""
                return False
            os.kill(pid, signal.SIGKILL if blow == "crash" else signal.SIGTERM)
            return True
        path = f"api/v1/namespaces/{self.namespace}/pods/{container.name}"
        uid = {"preconditions": {"uid": container.pod["metadata"]["uid"]}}
        options: Raw = {"apiVersion": "v1", "kind": "DeleteOptions", **uid}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": container.name}}
        while container.code is None:
            try:
                if blow == "evict":
                    await self.api._request("POST", f"{path}/eviction", body={**eviction, "deleteOptions": uid})
                else:
                    grace = {"gracePeriodSeconds": 0} if blow == "force" else {}
                    await self.api._request("DELETE", path, body={**options, **grace})
            except (NotFound, Conflict):
                return False
            except ApiError:
                await asyncio.sleep(0.3)
            else:
                return True
        return False


def find_runner(namespace: str, run: str, attempt: int) -> int | None:
    """Return the pid of an attempt's process on this machine."""
    wanted = {
        f"{names.ENV_RUN_NAMESPACE}={namespace}".encode(),
        f"{names.ENV_RUN_NAME}={run}".encode(),
        f"{names.ENV_ATTEMPT}={attempt}".encode(),
    }
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = set((entry / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if wanted <= environment:
            return int(entry.name)
    return None


def find_container(container_id: str) -> int | None:
    """Return the pid of the first process of a container."""
    for entry in sorted((e for e in Path("/proc").iterdir() if e.name.isdigit()), key=lambda e: int(e.name)):
        try:
            if container_id in (entry / "cgroup").read_text() and (entry / "cmdline").read_bytes().strip(b"\0"):
                return int(entry.name)
        except OSError:
            continue
    return None


@dataclass
class InstalledServices:
    """The chart's pods."""

    installation: Installation
    cluster: LocalCluster
    api: KubernetesClient
    dice: random.Random

    def start(self) -> None:
        """The chart has started them."""

    async def stop(self) -> None:
        """They go with the cluster."""

    async def delete(self, component: str, grace: int | None) -> None:
        """Delete one of a component's pods."""
        pod = await self._pick(component)
        if pod is None:
            return
        path = f"api/v1/namespaces/{SYSTEM}/pods/{pod['metadata']['name']}"
        body: Raw = {"apiVersion": "v1", "kind": "DeleteOptions"}
        try:
            await self.api._request(
                "DELETE", path, body=body | ({} if grace is None else {"gracePeriodSeconds": grace})
            )
        except ApiError:
            return

    async def kill(self, component: str) -> None:
        """Kill the process in one of a component's pods; its kubelet starts another one."""
        pod = await self._pick(component)
        for status in (pod or {}).get("status", {}).get("containerStatuses", ()):
            pid = find_container(status.get("containerID", "//").split("//")[1])
            if pid is not None:
                os.kill(pid, signal.SIGKILL)

    async def _pick(self, component: str) -> Raw | None:
        label = f"app.kubernetes.io/component={component}"
        try:
            pods = [raw async for page in self.api.list_pages(PODS, SYSTEM, label) for raw in page]
        except ApiError:
            return None
        return self.dice.choice(pods) if pods else None

    def faults(self) -> list[str]:
        return [line for line in self._lines() if '"reconcile.fault"' in line or "Traceback" in line]

    def drift(self) -> int:
        return sum('"sweep.drift"' in line for line in self._lines())

    def keep_logs(self, folder: Path) -> None:
        (folder / "audit.log").write_bytes(self.cluster.audit_log.read_bytes())
        (folder / "operators.log").write_text("\n".join(self._lines()))

    def _lines(self) -> list[str]:
        found = self.installation.kubectl("get", "pods", "-n", SYSTEM, "-o", "json")
        lines: list[str] = []
        for pod in json.loads(found)["items"]:
            if pod["metadata"]["labels"].get("app.kubernetes.io/component") != "operator":
                continue
            for which in ((), ("--previous",)):
                try:
                    text = self.installation.kubectl("logs", "-n", SYSTEM, pod["metadata"]["name"], *which)
                except AssertionError:
                    continue  # it was never restarted
                lines += text.splitlines()
        return lines


@asynccontextmanager
async def open_node(
    show: Show, cluster: LocalCluster, installation: Installation, folder: Path, say: Say
) -> AsyncIterator[Play]:
    """Set the stage on a node in whose network this process is."""
    connection = Connection(find_credentials(str(cluster.kubeconfig)))
    api = KubernetesClient(connection, timeout=10.0)
    namespace = "default"  # the chart knows it: its user of Redis is there again when Redis has restarted
    tools = ToolServer(folder / "tools.jsonl", NODE_IP)
    await tools.start()
    dice = random.Random(f"{show.seed}/services")
    services = InstalledServices(installation, cluster, api, dice)
    redis = json.loads(installation.kubectl("get", "service", REDIS, "-n", SYSTEM, "-o", "json"))
    login = installation.secret(SYSTEM, f"{REDIS}-admin")
    shelf = RedisShelf(redis["spec"]["clusterIP"], 6379, namespace, (login["username"], login["password"]))
    play: Play
    hand = NodeHand(api, namespace, folder / "pods", shelf, next_strike=lambda run: play.next_strike(run))
    witness = Witness(lambda run: [one.name for one in hand.alive(run) if not one.is_gone])
    person = Person(api, namespace, witness, show.seed)
    control_plane = ControlPlane(cluster)
    blows: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = [
        ("operator-pod", lambda: services.delete("operator", None)),
        ("operator-pod", lambda: services.delete("operator", 0)),
        ("operator", lambda: services.kill("operator")),
        ("apiserver", lambda: control_plane.crash()),
        ("redis-pod", lambda: services.delete("redis", 0)),
        ("redis", lambda: services.kill("redis")),
    ]
    trouble = Trouble(dice, blows, show.pause)
    play = Play(
        *(show, connection, api, namespace, folder, shelf, tools, services, hand, witness, person, trouble, say)
    )
    try:
        yield play
    finally:
        await tools.stop()
        await connection.close()
