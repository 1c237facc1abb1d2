"""AgentRuns on a real API server, as people and the operator make and change them."""

from __future__ import annotations

import ssl
import uuid
from dataclasses import dataclass
from typing import Any

import httpx

from pilothouse_api import names
from support.cluster import LocalCluster

RUNS = f"/apis/{names.API_VERSION}/namespaces/default/agentruns"


class Administrator:
    """Does to AgentRuns what people and the operator do."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._http = httpx.Client(
            base_url=cluster.url,
            verify=ssl.create_default_context(cafile=str(cluster.ca_path)),
            headers={"Authorization": f"Bearer {cluster.token}"},
            timeout=90,
        )

    def create(self, *, attempt: int = 1, **spec: Any) -> StoredRun:
        name = f"r{uuid.uuid4().hex[:10]}"
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "AgentRun",
            "metadata": {"name": name},
            "spec": {"workflowRef": {"name": "w"}, **spec},
        }
        made = self._call("POST", RUNS, body)
        self.set_status(name, attempt=attempt)
        return StoredRun(name, made["metadata"]["uid"])

    def set_status(self, name: str, **status: Any) -> dict[str, Any]:
        return self._call("PATCH", f"{RUNS}/{name}/status", {"status": status})

    def set_spec(self, name: str, **spec: Any) -> dict[str, Any]:
        return self._call("PATCH", f"{RUNS}/{name}", {"spec": spec})

    def get(self, name: str) -> dict[str, Any]:
        return self._call("GET", f"{RUNS}/{name}")

    def delete(self, name: str) -> None:
        self._call("DELETE", f"{RUNS}/{name}")

    def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        reply = self._http.request(method, path, json=body, headers=headers)
        assert reply.is_success, f"{method} {path}: {reply.status_code} {reply.text}"
        answer: dict[str, Any] = reply.json()
        return answer

    def close(self) -> None:
        self._http.close()


@dataclass(frozen=True)
class StoredRun:
    name: str
    uid: str
