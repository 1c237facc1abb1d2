"""Writing status: only what differs, only onto the version that was judged."""

from collections.abc import Mapping
from typing import Any

from pilothouse_kubernetes.client import Conflict, NotFound, Raw, Resource
from pilothouse_operator.reconcile.desk import Desk
from pilothouse_operator.watching.cache import Key


def status_patch(raw: Raw, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON patch from one report to another, refused (409) when the object has changed meanwhile."""
    operations: list[dict[str, Any]] = [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": raw["metadata"]["resourceVersion"]}
    ]
    if "status" not in raw:
        operations.append({"op": "add", "path": "/status", "value": {}})
    for name, value in new.items():
        if old.get(name) != value:
            operations.append({"op": "add", "path": f"/status/{name}", "value": value})
    operations += [{"op": "remove", "path": f"/status/{name}"} for name in old if name not in new]
    return operations


async def write_status(
    desk: Desk, resource: Resource, key: Key, raw: Raw, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Raw | None:
    """Write a status where it differs and return the object; None when it must be looked at again."""
    if old == new:
        return raw
    try:
        written = await desk.client.json_patch(resource, key.namespace, key.name, status_patch(raw, old, new), "status")
    except Conflict:
        await refresh(desk, resource, key, raw)
        return None
    except NotFound:
        desk.notice(raw, True)
        return None
    desk.cache.apply(written)
    return written


async def refresh(desk: Desk, resource: Resource, key: Key, raw: Raw) -> None:
    """Read the object now: the watch is behind."""
    try:
        desk.notice(await desk.client.get(resource, key.namespace, key.name), False)
    except NotFound:
        desk.notice(raw, True)
