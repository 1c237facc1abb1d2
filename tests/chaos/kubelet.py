"""A kubelet that starts runners as processes of this machine, and lets them be killed at the moment that was drawn.

It binds pods, mounts the plan, a token that is really bound to the pod, and the journal; reports status as a kubelet
does; and ends pods by SIGTERM, then SIGKILL. What it does not do is restart anything: that is the operator's part.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chaos.journals import Shelf
from chaos.nursery import Child, Nursery
from chaos.plans import Strike
from pilothouse_api import names
from pilothouse_kubernetes.client import (
    CONFIGMAPS,
    PODS,
    AlreadyExists,
    ApiError,
    Conflict,
    Invalid,
    KubernetesClient,
    NotFound,
    Raw,
    Resource,
    Unavailable,
)

NODE = "stand-in"
POLL_SECONDS = 0.01
API_RETRY_SECONDS = 0.2
ZOMBIE_SECONDS = 10.0
"""How long a process whose pod is gone is left to itself."""
NEXT_ATTEMPT_SECONDS = 25.0
"""How long a stopped process waits for another attempt before it wakes anyway."""


@dataclass
class Container:
    """One attempt's process."""

    pod: Raw
    folder: Path
    process: Child | None = None
    started_at: float = 0.0
    ended_at: float | None = None
    code: int | None = None
    is_lost: bool = False
    """Its node does not speak any more: nobody ends it, and nobody reports it."""
    reason: str = ""
    status: Raw = field(default_factory=dict)
    blow: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_deleting: bool = False
    is_gone: bool = False

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def run(self) -> str:
        return str(self.pod["metadata"]["labels"][names.LABEL_RUN])

    @property
    def attempt(self) -> int:
        return int(self.pod["metadata"]["labels"][names.LABEL_ATTEMPT])

    @property
    def run_uid(self) -> str:
        return str(self.pod["metadata"]["ownerReferences"][0]["uid"])

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.code is None


@dataclass
class Kubelet:
    """One node for one namespace."""

    api: KubernetesClient
    namespace: str
    folder: Path
    nursery: Nursery
    server: str
    ca_path: Path
    shelf: Shelf
    next_strike: Callable[[str], Strike | None]
    """Is asked when an attempt of a run starts."""
    environment: dict[str, str] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    """By the pod's uid; those that have ended too."""
    kills: Counter[str] = field(default_factory=Counter)
    struck: list[Raw] = field(default_factory=list)
    """Every blow that hit, with the run, the attempt and the journal's batches at that moment."""
    faults: list[str] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    # ------------------------------------------------------------ what the API server says

    def notice(self, kind: str, pod: Raw) -> None:
        """Take an event of a pod."""
        uid = pod["metadata"]["uid"]
        if pod["metadata"].get("labels", {}).get(names.LABEL_MANAGED_BY) != names.MANAGED_BY:
            return
        container = self.containers.get(uid)
        if kind == "DELETED":
            if container is not None:
                container.is_gone = True
                self._start(self._end(container, 1.0))
            return
        if container is None:
            if "deletionTimestamp" in pod["metadata"] or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                return
            container = Container(pod, self.folder / f"{pod['metadata']['name']}-{uid[:8]}")
            self.containers[uid] = container
            self._start(self._live(container))
        elif "deletionTimestamp" in pod["metadata"] and not container.is_deleting:
            container.is_deleting = True
            self._start(self._end(container, float(pod["metadata"].get("deletionGracePeriodSeconds") or 1)))

    def alive(self, run: str) -> list[Container]:
        """Return the processes of a run that its pods still stand for."""
        return [one for one in self.containers.values() if one.run == run and one.is_alive and not one.is_lost]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for container in self.containers.values():
            if container.process is not None and container.process.returncode is None:
                container.process.kill()
                await container.process.wait()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.faults.append(f"the stand-in kubelet failed: {task.exception()!r}")

    # ------------------------------------------------------------ one pod

    async def _live(self, container: Container) -> None:
        if not await self._prepare(container) or container.is_deleting:
            if container.is_deleting:
                await self._finalize(container)
            return
        strike = self.next_strike(container.run)
        await self._run_process(container)
        self._start(self._report_running(container))
        if strike is not None:
            self._start(self._strike(container, strike))
        assert container.process is not None
        code = await container.process.wait()
        container.code, container.ended_at = code, time.time()
        container.ended.set()
        await self._report_end(container)

    async def _prepare(self, container: Container) -> bool:
        """Bind and mount; False when the pod has gone meanwhile."""
        pod, name = container.pod, container.name
        try:
            await self._insist(lambda: self._bind(name))
            plan = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "plan")["configMap"]["name"]
            text = (await self._insist(lambda: self.api.get(CONFIGMAPS, self.namespace, plan)))["data"][names.PLAN_KEY]
            token = await self._insist(lambda: self._token(pod))
        except (NotFound, Conflict, Invalid):
            return False  # it was deleted before it began, which leaves nothing to end
        (container.folder / "token").mkdir(parents=True)
        (container.folder / "plan.json").write_text(text)
        (container.folder / "token" / "token").write_text(token)
        (container.folder / "token" / "ca.crt").write_bytes(self.ca_path.read_bytes())
        return not container.is_gone

    async def _bind(self, name: str) -> None:
        path = f"api/v1/namespaces/{self.namespace}/pods/{name}"
        target = {"kind": "Node", "name": NODE}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        try:
            await self.api.create(Resource(path, "binding", "Binding"), None, body)
        except (Conflict, AlreadyExists) as error:
            if "already assigned" not in str(error):
                raise

    async def _token(self, pod: Raw) -> str:
        account = pod["spec"]["serviceAccountName"]
        path = f"api/v1/namespaces/{self.namespace}/serviceaccounts/{account}"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        spec = {"expirationSeconds": 3600, "boundObjectRef": bound}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = await self.api.create(Resource(path, "token", "TokenRequest"), None, body)
        return str(answer["status"]["token"])

    async def _run_process(self, container: Container) -> None:
        env = {entry["name"]: entry.get("value", "") for entry in container.pod["spec"]["containers"][0]["env"]}
        host, port = self.server.removeprefix("https://").split(":")
        own = {
            "PATH": os.environ["PATH"],
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            names.ENV_PLAN_PATH: str(container.folder / "plan.json"),
            names.ENV_SECRETS_PATH: str(container.folder / "secrets"),
        }
        container.started_at = time.time()
        container.process = await self.nursery.start(
            {**env, **own, **self.environment}, container.folder / "log", [str(container.folder / "token")]
        )

    async def _report_running(self, container: Container) -> None:
        state = {"running": {"startedAt": stamp()}}
        await self._report(container, {"phase": "Running", "containerStatuses": [container_status(state)]})

    async def _report_end(self, container: Container) -> None:
        if container.is_lost or container.is_gone:
            return
        code = container.code or 0
        code = 128 - code if code < 0 else code
        ended = {
            "exitCode": code,
            "reason": container.reason or ("Completed" if code == 0 else "Error"),
            "startedAt": stamp(container.started_at),
            "finishedAt": stamp(),
        }
        phase = "Succeeded" if code == 0 else "Failed"
        statuses = [container_status({"terminated": ended})]
        await self._report(container, {"phase": phase, "containerStatuses": statuses, **container.status})
        if container.is_deleting:
            await self._finalize(container)

    async def _report(self, container: Container, status: Raw) -> None:
        if container.is_lost or (container.code is not None and status["phase"] == "Running"):
            return
        body = {"metadata": {"uid": container.pod["metadata"]["uid"]}, "status": status}
        try:
            await self._insist(lambda: self.api.merge_patch(PODS, self.namespace, container.name, body, "status"))
        except (NotFound, Conflict, Invalid):
            container.is_gone = True  # no such pod any more

    async def _end(self, container: Container, grace: float) -> None:
        """SIGTERM, then SIGKILL, then let the object go."""
        if container.is_lost:
            return
        if container.is_alive:
            send(container, signal.SIGTERM)
            try:
                await asyncio.wait_for(container.ended.wait(), grace)
            except TimeoutError:
                send(container, signal.SIGKILL)
        elif container.process is not None and container.is_deleting:
            await self._finalize(container)

    async def _finalize(self, container: Container) -> None:
        path = f"api/v1/namespaces/{self.namespace}/pods/{container.name}"
        uid = {"uid": container.pod["metadata"]["uid"]}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": uid}
        try:
            await self._insist(lambda: self.api._request("DELETE", path, body=body))
        except (NotFound, Conflict):
            return

    async def _insist(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Do it until the API server answers; refusals are raised."""
        while True:
            try:
                return await work()
            except (NotFound, Conflict, AlreadyExists, Invalid):
                raise
            except (Unavailable, ApiError):
                await asyncio.sleep(API_RETRY_SECONDS)

    # ------------------------------------------------------------ blows

    async def _strike(self, container: Container, strike: Strike) -> None:
        before = self.shelf.count(container.run_uid)
        if strike.batches is not None:
            while container.is_alive and self.shelf.count(container.run_uid) < before + strike.batches:
                await asyncio.sleep(POLL_SECONDS)
        await asyncio.sleep(strike.seconds)
        if not container.is_alive:
            return
        batches = self.shelf.count(container.run_uid)
        self.kills[strike.blow] += 1
        container.blow = strike.blow
        self.struck.append(
            {
                "at": time.time(),
                "run": container.run,
                "attempt": container.attempt,
                "blow": strike.blow,
                "batches": batches,
            }
        )
        await BLOWS[strike.blow](self, container)

    async def _crash(self, container: Container) -> None:
        send(container, signal.SIGKILL)

    async def _oom(self, container: Container) -> None:
        container.reason = "OOMKilled"
        send(container, signal.SIGKILL)

    async def _term(self, container: Container) -> None:
        send(container, signal.SIGTERM)

    async def _delete(self, container: Container) -> None:
        await self._delete_pod(container, None)

    async def _force(self, container: Container) -> None:
        send(container, signal.SIGKILL)
        container.is_gone = True
        await self._delete_pod(container, 0)

    async def _evict(self, container: Container) -> None:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        container.status = {"conditions": [{**condition, "message": "drained", "lastTransitionTime": stamp()}]}
        await self._report(container, {"phase": "Running", **container.status})
        await self._delete_pod(container, None)

    async def _zombie(self, container: Container) -> None:
        await self._haunt(container, 0)

    async def _lose_node(self, container: Container) -> None:
        await self._haunt(container, 1)

    async def _haunt(self, container: Container, grace: int) -> None:
        send(container, signal.SIGSTOP)
        container.is_lost = True
        await self._delete_pod(container, grace)
        deadline = time.monotonic() + NEXT_ATTEMPT_SECONDS
        while time.monotonic() < deadline and not self._has_successor(container):
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.3)
        send(container, signal.SIGCONT)
        try:
            await asyncio.wait_for(container.ended.wait(), ZOMBIE_SECONDS)
        except TimeoutError:
            # Its token is refused, and it waits to be let in again, doing nothing. The node is back, and ends it.
            send(container, signal.SIGKILL)
            await container.ended.wait()
        await self._finalize(container)

    def _has_successor(self, container: Container) -> bool:
        return any(
            one.run_uid == container.run_uid and one.attempt > container.attempt and one.process is not None
            for one in self.containers.values()
        )

    async def _delete_pod(self, container: Container, grace: int | None) -> None:
        path = f"api/v1/namespaces/{self.namespace}/pods/{container.name}"
        uid = {"uid": container.pod["metadata"]["uid"]}
        body: Raw = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": uid}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            await self._insist(lambda: self.api._request("DELETE", path, body=body))
        except (NotFound, Conflict):
            return


BLOWS: dict[str, Callable[[Kubelet, Container], Coroutine[Any, Any, None]]] = {
    "crash": Kubelet._crash,
    "oom": Kubelet._oom,
    "term": Kubelet._term,
    "delete": Kubelet._delete,
    "force": Kubelet._force,
    "evict": Kubelet._evict,
    "zombie": Kubelet._zombie,
    "lostnode": Kubelet._lose_node,
}


def send(container: Container, number: signal.Signals) -> None:
    if container.process is not None and container.process.returncode is None:
        container.process.send_signal(number)


def container_status(state: Raw) -> Raw:
    is_running = "running" in state
    shown = {"name": "runner", "image": "runner", "imageID": "", "ready": is_running, "restartCount": 0}
    return {**shown, "state": state}


def stamp(at: float | None = None) -> str:
    return datetime.fromtimestamp(time.time() if at is None else at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
