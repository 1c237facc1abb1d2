"""The stage on which operators are tested: a real API server, operator processes, and a kubelet that tests play."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import yaml

from pilothouse_api import names
from pilothouse_kubernetes.client import (
    AGENTRUNS,
    AGENTS,
    EVENTS,
    PODS,
    WORKFLOWS,
    AlreadyExists,
    KubernetesClient,
    NotFound,
    Raw,
    Resource,
)
from pilothouse_kubernetes.connection import Connection, find_credentials
from support.cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[3]
NAMESPACES = Resource("api/v1", "namespaces", "Namespace")
NODES = Resource("api/v1", "nodes", "Node")
SERVICE_ACCOUNTS = Resource("api/v1", "serviceaccounts", "ServiceAccount")
CLUSTER_ROLES = Resource("apis/rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole")
CLUSTER_ROLE_BINDINGS = Resource("apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding")
SYSTEM = "pilothouse-system"
OPERATOR = "pilothouse-operator"
NODE = "stand-in"

PATIENCE = 120.0
"""Seconds; on a machine that is busy with the other tests an operator takes a while to start."""

T = TypeVar("T")


async def eventually(look: Callable[[], Awaitable[T]], seconds: float = PATIENCE) -> T:
    """Return the first truthy answer; fail with the last one after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        found = await look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds} s; last answer: {found!r}"
        await asyncio.sleep(0.05)


async def stays(look: Callable[[], Awaitable[T]], want: T, seconds: float) -> None:
    """Fail when an answer is not what it was for so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert await look() == want
        await asyncio.sleep(0.1)


@dataclass
class OperatorProcess:
    """One operator, a process of its own."""

    kubeconfig: Path
    settings: Mapping[str, str]
    log_path: Path
    process: asyncio.subprocess.Process | None = None
    log_offset: int = 0

    async def start(self, wait: bool = True) -> OperatorProcess:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PILOTHOUSE_OPERATOR_")},
            "KUBECONFIG": str(self.kubeconfig),
            **{f"PILOTHOUSE_OPERATOR_{name}": value for name, value in self.settings.items()},
        }
        self.log_offset = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "pilothouse_operator", env=environment, stdout=log, stderr=log
            )
        if wait:
            await self.wait_logged("operator.loaded")
        return self

    async def wait_logged(self, event: str, seconds: float = PATIENCE) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            assert self.process is not None
            found = next((line for line in self.lines() if line.get("event") == event), None)
            if found is None and self.process.returncode is not None:
                raise AssertionError(f"the operator ended with {self.process.returncode}:\n{self.log()}")
            return found

        found = await eventually(look, seconds)
        assert found is not None
        return found

    def log(self) -> str:
        return self.log_path.read_bytes()[self.log_offset :].decode()

    def lines(self) -> list[dict[str, Any]]:
        """What it has logged since its last start."""
        found = []
        for line in self.log().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"event": line})
        return found

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    async def wait(self, seconds: float = PATIENCE) -> int:
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), seconds)

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.terminate()
            try:
                await self.wait()
            except TimeoutError:
                self.kill()
                await self.wait()

    async def get(self, path: str) -> tuple[int, str]:
        """Ask its HTTP server."""
        port = (await self.wait_logged("operator.serving"))["port"]
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
            return response.status, await response.text()

    def faults(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line.get("event") == "reconcile.fault"]


@dataclass
class Stage:
    """One namespace, with everything that a test does to it."""

    api: KubernetesClient
    cluster: LocalCluster
    namespace: str
    operator_kubeconfig: Path
    folder: Path
    processes: list[OperatorProcess] = field(default_factory=list)

    # ------------------------------------------------------------ operators

    def operator(self, **settings: str) -> OperatorProcess:
        merged = {
            "NAMESPACE": SYSTEM,
            "LEASE_NAME": self.namespace,
            "WATCH_NAMESPACES": self.namespace,
            "HTTP_PORT": "0",
            "HTTP_HOST": "127.0.0.1",
            "WORKERS": "4",
            **settings,
        }
        log = self.folder / f"operator-{len(self.processes)}.log"
        process = OperatorProcess(self.operator_kubeconfig, merged, log)
        self.processes.append(process)
        return process

    # ------------------------------------------------------------ objects

    async def apply_agent(self, name: str = "worker", **spec: Any) -> Raw:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "Agent",
            "metadata": {"name": name},
            "spec": {"mode": "Completion", "model": SCRIPTED, "prompt": {"inline": "Say {{ word }}."}, **spec},
        }
        return await self.api.create(AGENTS, self.namespace, body)

    async def apply_workflow(self, name: str = "flow", agent: str = "worker", **spec: Any) -> Raw:
        steps = [{"id": "say", "kind": "Agent", "agentRef": {"name": agent}, "routes": {"error": "end"}}]
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "Workflow",
            "metadata": {"name": name},
            "spec": {"input": {"defaults": {"word": "hello"}}, "steps": steps, **spec},
        }
        return await self.api.create(WORKFLOWS, self.namespace, body)

    async def apply_run(self, name: str = "r1", workflow: str = "flow", **spec: Any) -> Raw:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "AgentRun",
            "metadata": {"name": name},
            "spec": {"workflowRef": {"name": workflow}, **spec},
        }
        return await self.api.create(AGENTRUNS, self.namespace, body)

    async def make_account(self, name: str) -> None:
        body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        await self.api.create(SERVICE_ACCOUNTS, self.namespace, body)

    async def run(self, name: str = "r1") -> Raw:
        return await self.api.get(AGENTRUNS, self.namespace, name)

    async def status(self, name: str = "r1") -> Raw:
        found: Raw = (await self.run(name)).get("status", {})
        return found

    async def workflow(self, name: str = "flow") -> Raw:
        return await self.api.get(WORKFLOWS, self.namespace, name)

    async def runs(self) -> list[Raw]:
        return [raw async for page in self.api.list_pages(AGENTRUNS, self.namespace) for raw in page]

    async def pods(self) -> list[Raw]:
        return [raw async for page in self.api.list_pages(PODS, self.namespace) for raw in page]

    async def events(self, name: str = "r1") -> list[str]:
        found = [raw async for page in self.api.list_pages(EVENTS, self.namespace) for raw in page]
        return [raw["reason"] for raw in found if raw["involvedObject"]["name"] == name]

    async def wait_events(self, *want: str, name: str = "r1") -> None:
        """Wait until exactly these events are there: they are posted in the background."""

        async def look() -> bool:
            return sorted(await self.events(name)) == sorted(want)

        try:
            await eventually(look)
        except AssertionError:
            assert sorted(await self.events(name)) == sorted(want)

    async def control(self, name: str = "r1", **control: Any) -> None:
        await self.api.merge_patch(AGENTRUNS, self.namespace, name, {"spec": {"control": control}})

    async def wait_phase(self, phase: str, name: str = "r1", seconds: float = PATIENCE) -> Raw:
        async def look() -> Raw | None:
            raw = await self.run(name)
            return raw if raw.get("status", {}).get("phase") == phase else None

        try:
            found = await eventually(look, seconds)
        except AssertionError as error:
            status = json.dumps(await self.status(name), indent=1)
            raise AssertionError(f"{error}; wanted phase {phase} of {status}") from error
        assert found is not None
        return found

    async def wait_condition(
        self, kind: str, status: str = "True", reason: str | None = None, name: str = "r1", seconds: float = PATIENCE
    ) -> Raw:
        async def look() -> Raw | None:
            found = condition(await self.run(name), kind)
            fits = found is not None and found["status"] == status and (reason is None or found["reason"] == reason)
            return found if fits else None

        try:
            found = await eventually(look, seconds)
        except AssertionError as error:
            shown = json.dumps(await self.status(name), indent=1)
            raise AssertionError(f"{error}; wanted {kind}={status} {reason} of {shown}") from error
        assert found is not None
        return found

    # ------------------------------------------------------------ the kubelet's part

    async def wait_pod(self, name: str, seconds: float = PATIENCE) -> Raw:
        async def look() -> Raw | None:
            try:
                return await self.api.get(PODS, self.namespace, name)
            except NotFound:
                return None

        found = await eventually(look, seconds)
        assert found is not None
        return found

    async def start_pod(self, name: str) -> Raw:
        """Bind the pod and report its container as running."""
        pod = await self.wait_pod(name)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"kind": "Node", "name": NODE},
        }
        await self.api.create(
            Resource(f"api/v1/namespaces/{self.namespace}/pods/{name}", "binding", "Binding"), None, binding
        )
        running = {"phase": "Running", "containerStatuses": [container({"running": {"startedAt": now()}})]}
        await self.report_pod(name, running)
        return pod

    async def end_pod(self, name: str, code: int = 0, reason: str = "", message: str = "", **status: Any) -> None:
        """Report the container as ended."""
        ended = {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "message": message,
            "startedAt": now(),
            "finishedAt": now(),
        }
        report = {
            "phase": "Succeeded" if code == 0 else "Failed",
            "containerStatuses": [container({"terminated": ended})],
            **status,
        }
        await self.report_pod(name, report)

    async def report_pod(self, name: str, status: Mapping[str, Any]) -> None:
        await self.api.merge_patch(PODS, self.namespace, name, {"status": status}, "status")

    async def finalize_pod(self, name: str) -> None:
        """Let a pod that is being deleted go, as a kubelet does when its containers have ended."""
        path = f"api/v1/namespaces/{self.namespace}/pods/{name}"
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        await self.api._request("DELETE", path, body=body)

    # ------------------------------------------------------------ the runner's part

    async def publish(self, name: str = "r1", attempt: int = 1, **snapshot: Any) -> None:
        """Replace the snapshot as a runner does, fenced by the attempt."""
        run = {"attempt": attempt, "journalLength": 1, "turn": 0, **snapshot}
        operations: list[Raw] = [
            {"op": "test", "path": "/status/attempt", "value": attempt},
            {"op": "add", "path": "/status/run", "value": run},
        ]
        await self.api.json_patch(AGENTRUNS, self.namespace, name, operations, "status")

    async def succeed(self, name: str = "r1", attempt: int = 1, **snapshot: Any) -> None:
        """Publish a good end and end the pod."""
        run_exit = {"signal": "default", "reason": "Complete", "message": "done"}
        await self.publish(name, attempt, **{"turn": 1, "exit": run_exit, "result": {"answer": 42}, **snapshot})
        await self.end_pod(names.pod_name(name, attempt))


SCRIPTED = {"name": "scripted", "script": {"inline": "turns: [{text: hello}]"}}


def condition(raw: Raw, kind: str) -> Raw | None:
    found: list[Raw] = [entry for entry in raw.get("status", {}).get("conditions", ()) if entry["type"] == kind]
    return found[0] if found else None


def container(state: Raw) -> Raw:
    is_running = "running" in state
    return {
        "name": "runner",
        "image": "runner",
        "imageID": "",
        "ready": is_running,
        "restartCount": 0,
        "state": state,
    }


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def park(reason: str = "Paused", turn: int = 1, **more: Any) -> Raw:
    return {"reason": reason, "turn": turn, "since": now(), "released": False, **more}


def answered(mode: str, generation: int, turn: int = 1) -> Raw:
    return {"observedGeneration": generation, "mode": {"value": mode, "turn": turn, "time": now()}, "steer": {}}


# ---------------------------------------------------------------- the cluster, made ready once


def operator_rules() -> list[Raw]:
    """The rights that the chart gives the operator."""
    text = (ROOT / "charts" / "pilothouse" / "templates" / "_names.tpl").read_text()
    found = re.search(r'define "pilothouse.operatorRules" -?}}(.*?){{-? end', text, re.DOTALL)
    assert found is not None
    rules: list[Raw] = yaml.safe_load(found.group(1))
    return rules


async def prepare_cluster(cluster: LocalCluster, folder: Path) -> Path:
    """Install CRDs and the operator's account with its own rights and no others; return its kubeconfig."""
    crds = str(ROOT / "crds")
    cluster.run_tool("kubectl", "apply", "--server-side", "-f", crds)
    cluster.wait_established("--recursive=false", "-f", crds)
    connection = Connection(find_credentials(str(cluster.kubeconfig)))
    api = KubernetesClient(connection)
    try:
        await _make_account(api)
        path = f"api/v1/namespaces/{SYSTEM}/serviceaccounts/{OPERATOR}"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 86400},
        }
        token = (await api.create(Resource(path, "token", "TokenRequest"), None, request))["status"]["token"]
    finally:
        await connection.close()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    kubeconfig = folder / "operator.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    return kubeconfig


async def _make_account(api: KubernetesClient) -> None:
    rules = [
        *operator_rules(),
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"]},
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get"]},
    ]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": OPERATOR}
    subject = {"kind": "ServiceAccount", "name": OPERATOR, "namespace": SYSTEM}
    rbac = "rbac.authorization.k8s.io/v1"
    meta = {"metadata": {"name": OPERATOR}}
    wanted: list[tuple[Resource, str | None, Raw]] = [
        (NAMESPACES, None, {"metadata": {"name": SYSTEM}}),
        (SERVICE_ACCOUNTS, SYSTEM, meta),
        (CLUSTER_ROLES, None, {**meta, "apiVersion": rbac, "kind": "ClusterRole", "rules": rules}),
        (
            CLUSTER_ROLE_BINDINGS,
            None,
            {**meta, "apiVersion": rbac, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]},
        ),
        (NODES, None, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}),
    ]
    for resource, namespace, body in wanted:
        try:
            await api.create(resource, namespace, {"apiVersion": "v1", "kind": resource.kind, **body})
        except AlreadyExists:
            continue


async def make_namespace(api: KubernetesClient, name: str) -> None:
    await api.create(NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "prun"}}
    await api.create(SERVICE_ACCOUNTS, name, account)
