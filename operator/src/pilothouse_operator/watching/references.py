"""Fetching what an object refers to: from the picture where it is watched, else from the API server."""

from collections import OrderedDict
from dataclasses import replace
from typing import TypeVar

from pydantic import ValidationError

from pilothouse_api.v1alpha1 import Agent, AgentRun, Supervisor, Workflow
from pilothouse_control.world import ConfigMap, Platform, Reference, References, needed_references
from pilothouse_kubernetes.client import (
    AGENTS,
    CONFIGMAPS,
    WORKFLOWS,
    KubernetesClient,
    NotFound,
    Raw,
    Resource,
)
from pilothouse_operator.watching.cache import Cache, Key

_RESOURCES: dict[str, Resource] = {"Workflow": WORKFLOWS, "Agent": AGENTS, "ConfigMap": CONFIGMAPS}
M = TypeVar("M", Workflow, Agent, Supervisor)


class Unreadable(Exception):
    """An object is not what this version understands; the message names object and field."""


async def gather_references(
    start: Workflow | Agent | AgentRun | Supervisor,
    namespace: str,
    cache: Cache,
    client: KubernetesClient,
    platform: Platform,
) -> References:
    """Return everything that an object needs, as far as it exists; raises Unreadable."""
    supervisors = _supervisors(namespace, cache) if isinstance(start, Workflow) else None
    known = References(supervisors=supervisors, platform=platform)
    asked: set[Reference] = set()
    while missing := needed_references(start, known) - asked:
        for reference in sorted(missing):
            asked.add(reference)
            raw = await _find(reference, namespace, cache, client)
            if raw is not None:
                known = _with(known, reference, raw)
    return known


def _supervisors(namespace: str, cache: Cache) -> frozenset[str]:
    return frozenset(key.name for key in cache.keys("Supervisor", namespace))


async def _find(reference: Reference, namespace: str, cache: Cache, client: KubernetesClient) -> Raw | None:
    """A miss is asked again of the API server: the watch of one kind may be behind the watch of another."""
    cached = cache.get(Key(reference.kind, namespace, reference.name))
    if cached is not None:
        return cached
    try:
        # Not put into the picture: the watch would then find nothing new, and nobody would look at the object itself.
        return await client.get(_RESOURCES[reference.kind], namespace, reference.name)
    except NotFound:
        return None


def _with(known: References, reference: Reference, raw: Raw) -> References:
    if reference.kind == "Workflow":
        return replace(known, workflows={**known.workflows, reference.name: read_object(Workflow, raw)})
    if reference.kind == "Agent":
        return replace(known, agents={**known.agents, reference.name: read_object(Agent, raw)})
    return replace(known, config_maps={**known.config_maps, reference.name: ConfigMap.of_raw(raw)})


_READ: OrderedDict[tuple[str, str], Workflow | Agent | Supervisor] = OrderedDict()
REMEMBERED_OBJECTS = 1024


def read_object(kind: type[M], raw: Raw) -> M:
    """Return an object of its raw form; raises Unreadable. A version is parsed once."""
    version = (raw["metadata"].get("uid", ""), raw["metadata"].get("resourceVersion", ""))
    known = _READ.get(version)
    if isinstance(known, kind):
        return known
    try:
        parsed = kind.model_validate(raw)
    except ValidationError as error:
        raise Unreadable(f"{raw['kind']} {raw['metadata']['name']}: {explain(error)}") from error
    _READ[version] = parsed
    if len(_READ) > REMEMBERED_OBJECTS:
        _READ.popitem(last=False)
    return parsed


def explain(error: ValidationError) -> str:
    """Return the first things that are wrong, with their fields, in one line."""
    problems = error.errors(include_url=False, include_input=False)
    shown = [f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}" for problem in problems[:3]]
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    return "; ".join(shown) + more
