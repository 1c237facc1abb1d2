"""One namespace of a real API server with the contract in it, and those who act there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from integration.crds.kube_callers import Caller, must

OPERATOR_NAMESPACE = "pilothouse-system"
OPERATOR = "pilothouse-operator"


@dataclass
class World:
    """One namespace, and those who act in it."""

    admin: Caller
    namespace: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def user(self, name: str) -> Caller:
        return Caller(self.admin.cluster, self.admin.pool, self.admin.token, impersonated=name)

    def name(self, prefix: str = "run") -> str:
        return f"{prefix}-{next(self._numbers)}"

    def run(self, status: dict[str, Any] | None = None, **spec: Any) -> str:
        """Create a run, with this status; return its name."""
        name = self.name()
        raw_run = {
            "apiVersion": "pilothouse.dev/v1alpha1",
            "kind": "AgentRun",
            "metadata": {"name": name},
            "spec": {"workflowRef": {"name": "w"}, **spec},
        }
        must(self.admin.create(self.namespace, raw_run))
        if status:
            self.report(name, status)
        return name

    def report(self, run: str, status: dict[str, Any]) -> None:
        must(self.admin.patch(self.namespace, "AgentRun", run, {"status": status}, status=True))

    def read(self, run: str) -> dict[str, Any]:
        return must(self.admin.get(self.namespace, "AgentRun", run))

    def account(self, name: str, namespace: str | None = None) -> None:
        """Create a ServiceAccount, unless it is there."""
        path = f"/api/v1/namespaces/{namespace or self.namespace}/serviceaccounts"
        answer = self.admin.call("POST", path, {"metadata": {"name": name}})
        assert answer.status in (201, 409), answer.message

    def pod(self, name: str, account: str, namespace: str | None = None, labels: dict[str, str] | None = None) -> Any:
        raw_pod = {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"serviceAccountName": account, "containers": [{"name": "main", "image": "none"}]},
        }
        return must(self.admin.call("POST", f"/api/v1/namespaces/{namespace or self.namespace}/pods", raw_pod))

    def holder(self, account: str, pod: str | None = None, namespace: str | None = None) -> Caller:
        """Return a caller with a real token of a ServiceAccount; with `pod`, one that is bound to a new pod."""
        place = namespace or self.namespace
        self.account(account, place)
        spec: dict[str, Any] = {"expirationSeconds": 3600, "audiences": []}
        if pod:
            uid = self.pod(pod, account, place)["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}
        path = f"/api/v1/namespaces/{place}/serviceaccounts/{account}/token"
        token = must(self.admin.call("POST", path, {"spec": spec}))["status"]["token"]
        return Caller(self.admin.cluster, self.admin.pool, token)
