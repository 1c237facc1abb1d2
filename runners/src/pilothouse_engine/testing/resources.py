"""A cluster without a network: objects in memory, failures that a test orders."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from pilothouse_engine.ports import ResourceFailure, ResourceReply, ResourceRequest
from pilothouse_engine.resource_masks import mask_answer

Key = tuple[str, str, str, str]
Answer = ResourceReply | ResourceFailure


class MemoryResources:
    """Keeps objects by apiVersion, kind, namespace and name; `requests` holds what was asked.

    `kinds` are served besides those of the objects that a test puts in. `failures` are given to the next calls, before
    they do anything; `lost` to the next ones after they did it, as when an answer does not arrive.
    """

    def __init__(self, objects: Iterable[Mapping[str, Any]] = (), kinds: Iterable[tuple[str, str]] = ()) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.kinds = {("v1", "ConfigMap"), ("v1", "Secret"), *kinds}
        self.requests: list[ResourceRequest] = []
        self.failures: list[ResourceFailure] = []
        self.lost: list[ResourceFailure] = []
        for stored in objects:
            self.put(stored)

    def put(self, stored: Mapping[str, Any], namespace: str = "") -> None:
        """Store an object as it is, in its own namespace or the run's."""
        metadata = stored["metadata"]
        self.kinds.add((stored["apiVersion"], stored["kind"]))
        key = (stored["apiVersion"], stored["kind"], namespace or metadata.get("namespace", ""), metadata["name"])
        self.objects[key] = copy.deepcopy(dict(stored))

    async def call(self, request: ResourceRequest) -> Answer:
        """Do what is asked, or give the failure that was ordered."""
        self.requests.append(request)
        if self.failures:
            return self.failures.pop(0)
        answer = self._answer(request)
        return self.lost.pop(0) if self.lost else answer

    def _answer(self, request: ResourceRequest) -> Answer:
        if (request.api_version, request.kind) not in self.kinds:
            return ResourceFailure("UnknownKind", f"the API server serves no {request.kind} of {request.api_version}")
        key = (request.api_version, request.kind, request.namespace or "", request.name)
        stored = self.objects.get(key)
        match request.operation:
            case "List":
                return self._reply(request, {"kind": f"{request.kind}List", "items": self._selected(request)})
            case "Create":
                if stored is not None:
                    return ResourceFailure("AlreadyExists", "an object of this name exists already")
                self.put(request.body or {}, request.namespace or "")
                return self._reply(request, self.objects[key])
            case "Get" | "Patch" | "Delete" if stored is None:
                return ResourceFailure("NotFound", "there is no such object")
            case "Get":
                return self._reply(request, stored)
            case "Patch":
                self.objects[key] = merge(stored, request.body)
                return self._reply(request, self.objects[key])
            case "Delete":
                return self._reply(request, self.objects.pop(key))
            case _:
                assert_never(request.operation)

    def _selected(self, request: ResourceRequest) -> list[dict[str, Any]]:
        wanted = dict(part.split("=", 1) for part in request.label_selector.split(",") if part)
        place = (request.api_version, request.kind, request.namespace or "")
        return [
            stored
            for key, stored in self.objects.items()
            if key[:3] == place and wanted.items() <= stored["metadata"].get("labels", {}).items()
        ]

    def _reply(self, request: ResourceRequest, value: Any) -> ResourceReply:
        return ResourceReply(mask_answer(copy.deepcopy(value), is_secret=request.kind == "Secret"))


def merge(value: Any, patch: Any) -> Any:
    """Return a value with a JSON merge patch applied (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    merged = dict(value) if isinstance(value, Mapping) else {}
    for key, item in patch.items():
        if item is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), item)
    return merged
