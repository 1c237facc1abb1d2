"""Raw calls to a real API server under different identities, for tests that judge what it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import urllib3

from support.cluster import LocalCluster

GROUP_PATH = "/apis/pilothouse.dev/v1alpha1"
PLURALS = {"Agent": "agents", "Workflow": "workflows", "Supervisor": "supervisors", "AgentRun": "agentruns"}
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


@dataclass(frozen=True)
class Answer:
    """What the API server answered: the status, and the object or the refusal."""

    status: int
    body: dict[str, Any]
    warnings: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))

    @property
    def is_accepted(self) -> bool:
        return 200 <= self.status < 300


@dataclass(frozen=True)
class Caller:
    """Somebody who talks to the API server."""

    cluster: LocalCluster
    pool: urllib3.PoolManager
    token: str
    impersonated: str = ""

    def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: str
    ) -> Answer:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type}
        if self.impersonated:
            headers["Impersonate-User"] = self.impersonated
        payload = None if body is None else json.dumps(body).encode()
        parameters = "&".join(f"{key}={value}" for key, value in query.items())
        response = self.pool.request(
            method, f"{self.cluster.url}{path}?{parameters}", body=payload, headers=headers, timeout=90, retries=False
        )
        warnings = tuple(value for key, value in response.headers.items() if key == "Warning")
        return Answer(response.status, json.loads(response.data), warnings)

    def create(self, namespace: str, raw_object: Mapping[str, Any], dry_run: bool = False) -> Answer:
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        return self.call("POST", f"{_folder(namespace, raw_object['kind'])}", raw_object, **query)

    def get(self, namespace: str, kind: str, name: str) -> Answer:
        return self.call("GET", f"{_folder(namespace, kind)}/{name}")

    def delete(self, namespace: str, kind: str, name: str) -> Answer:
        return self.call("DELETE", f"{_folder(namespace, kind)}/{name}")

    def patch(
        self, namespace: str, kind: str, name: str, body: Any, status: bool = False, dry_run: bool = False
    ) -> Answer:
        """Merge-patch with a mapping, JSON-patch with a list."""
        path = f"{_folder(namespace, kind)}/{name}{'/status' if status else ''}"
        content_type = JSON_PATCH if isinstance(body, list) else MERGE
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        return self.call("PATCH", path, body, content_type, **query)

    def control(self, namespace: str, run: str, **control: Any) -> Answer:
        return self.patch(namespace, "AgentRun", run, {"spec": {"control": control}})


def _folder(namespace: str, kind: str) -> str:
    return f"{GROUP_PATH}/namespaces/{namespace}/{PLURALS[kind]}"


def must(answer: Answer) -> dict[str, Any]:
    """Return the object of an answer that should be a success."""
    assert answer.is_accepted, f"{answer.status}: {answer.message}"
    return answer.body
