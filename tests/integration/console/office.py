"""Where the operator API is tested: a real API server with the admission policies, and people with different rights."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from integration.crds.kube_callers import Caller, must
from pilothouse_console.host import Host
from pilothouse_console.settings import ApiSettings
from pilothouse_kubernetes.connection import Credentials
from support.cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[3]
SYSTEM = "pilothouse-system"
API = "pilothouse-api"
PEOPLE = ("nobody", "reader", "patcher", "decider")
"""May nothing; may see the runs of one namespace; may steer them too; may decide and change limits too."""
VERBS = {
    "reader": ["get", "list"],
    "patcher": ["get", "list", "patch"],
    "decider": ["get", "list", "patch", "approve", "limit"],
}


@dataclass
class Office:
    """A namespace that people have rights in, and another one in which none of them has any."""

    admin: Caller
    namespace: str
    elsewhere: str
    tokens: dict[str, str]
    count: int = field(default=0)

    def run(self, namespace: str | None = None, status: dict[str, Any] | None = None, **spec: Any) -> str:
        """Make a run, with a status; return its name."""
        self.count += 1
        name = f"run-{self.count}-{uuid.uuid4().hex[:6]}"
        place = namespace or self.namespace
        raw_run = {
            "apiVersion": "pilothouse.dev/v1alpha1",
            "kind": "AgentRun",
            "metadata": {"name": name},
            "spec": {"workflowRef": {"name": "triage"}, **spec},
        }
        must(self.admin.create(place, raw_run))
        self.report(name, {"phase": "Running", "run": {"attempt": 1, "turn": 1}, **(status or {})}, place)
        return name

    def report(self, name: str, status: dict[str, Any], namespace: str | None = None) -> None:
        must(self.admin.patch(namespace or self.namespace, "AgentRun", name, {"status": status}, status=True))

    def end(self, name: str, namespace: str | None = None) -> None:
        finished = {"type": "Finished", "status": "True", "reason": "Complete", "message": "It is done."}
        finished |= {"lastTransitionTime": "2026-01-01T00:00:00Z"}
        self.report(name, {"phase": "Succeeded", "conditions": [finished]}, namespace)

    def read(self, name: str, namespace: str | None = None) -> dict[str, Any]:
        return must(self.admin.get(namespace or self.namespace, "AgentRun", name))

    def control(self, name: str) -> dict[str, Any]:
        control: dict[str, Any] = self.read(name)["spec"].get("control", {})
        return control


@dataclass
class Desk:
    """A running operator API and its callers."""

    office: Office
    host: Host
    client: httpx.AsyncClient

    def path(self, name: str, rest: str = "", namespace: str | None = None) -> str:
        return f"/api/agents/runs/{namespace or self.office.namespace}/{name}{rest}"

    async def get(self, who: str, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(path, headers=self.headers(who), **options)

    async def post(self, who: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return await self.client.post(path, json=body, headers=self.headers(who), **options)

    def headers(self, who: str) -> dict[str, str]:
        token = self.office.tokens.get(who)
        return {"Authorization": f"Bearer {token}"} if token else {}


async def eventually(look: Callable[[], Any], seconds: float = 90.0) -> Any:
    """Return the first truthy answer; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.02)


def open_office(admin: Caller, cluster: LocalCluster) -> Office:
    """Make namespaces, people and their rights, and the account of the API with the rights that the chart gives it."""
    mark = uuid.uuid4().hex[:6]
    office = Office(admin, f"team-a-{mark}", f"team-b-{mark}", {})
    for namespace in (office.namespace, office.elsewhere, SYSTEM):
        answer = admin.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        assert answer.status in (201, 409), answer
    documents = [*_people(office), *_account_of_the_api()]
    text = yaml.safe_dump_all(documents)
    cluster.run_tool("kubectl", "apply", "-f", "-", stdin=text)
    for who in PEOPLE:
        office.tokens[who] = token_of(admin, office.namespace, who)
    office.tokens["runner"] = token_of(admin, office.namespace, "prun-eager")
    return office


def token_of(admin: Caller, namespace: str, account: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    token: str = must(admin.call("POST", path, {"spec": {"expirationSeconds": 3600}}))["status"]["token"]
    return token


def credentials_of_the_api(office: Office, cluster: LocalCluster) -> Credentials:
    token = token_of(office.admin, SYSTEM, API)
    return Credentials(server=cluster.url, ca_data=cluster.ca_path.read_text(), token=token)


def settings_of_the_api(**more: Any) -> ApiSettings:
    return ApiSettings(host="127.0.0.1", port=0, probe_port=0, **more)


def _people(office: Office) -> list[dict[str, Any]]:
    documents = []
    for who in (*PEOPLE, "prun-eager"):
        documents.append(_object("v1", "ServiceAccount", who, office.namespace))
        verbs = VERBS.get(who, VERBS["decider"] if who == "prun-eager" else [])
        if verbs:
            rule = {"apiGroups": ["pilothouse.dev"], "resources": ["agentruns"], "verbs": verbs}
            documents.append(_object(_RBAC, "Role", who, office.namespace, rules=[rule]))
            documents.append(_binding("Role", who, who, office.namespace, office.namespace))
    return documents


def _account_of_the_api() -> list[dict[str, Any]]:
    rules = [*chart_rules("pilothouse.apiRules"), *chart_rules("pilothouse.apiReviewRules")]
    return [
        _object("v1", "ServiceAccount", API, SYSTEM),
        _object(_RBAC, "ClusterRole", API, None, rules=rules),
        _binding("ClusterRole", API, API, SYSTEM, None),
    ]


def chart_rules(name: str) -> list[dict[str, Any]]:
    """The rights that the chart defines under a name."""
    text = (ROOT / "charts" / "pilothouse" / "templates" / "_names.tpl").read_text()
    found = re.search(rf'define "{name}" -?}}}}(.*?){{{{-? end', text, re.DOTALL)
    assert found is not None
    rules: list[dict[str, Any]] = yaml.safe_load(found.group(1))
    return rules


_RBAC = "rbac.authorization.k8s.io/v1"


def _object(version: str, kind: str, name: str, namespace: str | None, **more: Any) -> dict[str, Any]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


def _binding(kind: str, role: str, account: str, home: str, namespace: str | None) -> dict[str, Any]:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    subjects = [{"kind": "ServiceAccount", "name": account, "namespace": home}]
    return _object(_RBAC, f"{kind}Binding", role, namespace, roleRef=reference, subjects=subjects)
