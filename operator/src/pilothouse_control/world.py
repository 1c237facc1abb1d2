"""What decisions are made from: the objects that refer to each other, and what the platform sets."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pilothouse_api import names
from pilothouse_api.v1alpha1 import Agent, AgentRun, Supervisor, Workflow
from pilothouse_api.v1alpha1.agent import ArtifactCheck, ModelEndpoint, Skill
from pilothouse_api.v1alpha1.common import Hook, LocalRef, TextSource
from pilothouse_api.v1alpha1.steps import McpServer
from pilothouse_control.tree import walk

ReferenceKind = Literal["Workflow", "Agent", "ConfigMap"]


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """An object of the same namespace that another one names."""

    kind: ReferenceKind
    name: str


@dataclass(frozen=True, slots=True)
class ConfigMap:
    """The parts of a ConfigMap that are read here."""

    name: str
    data: Mapping[str, str] = field(default_factory=dict)
    artifact: str | None = None

    @staticmethod
    def of_raw(raw: Mapping[str, Any]) -> "ConfigMap":
        """Return the parts of a ConfigMap in its raw form; values that are no text are left out."""
        metadata = raw.get("metadata") or {}
        data = raw.get("data") or {}
        return ConfigMap(
            name=str(metadata.get("name", "")),
            data={key: value for key, value in data.items() if isinstance(value, str)},
            artifact=(metadata.get("labels") or {}).get(names.LABEL_ARTIFACT),
        )


def has_stated_price(endpoint: ModelEndpoint) -> bool:
    """Tell whether the manifest states the price: what is known without any table."""
    return endpoint.price is not None


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What no workflow may exceed, set by the platform; None is no ceiling."""

    tool_timeout_seconds: int | None = None
    pause_seconds: int | None = None
    approval_expires_seconds: int | None = None
    token_budget: int | None = None
    cost_budget_usd: str | None = None


@dataclass(frozen=True, slots=True)
class Platform:
    """What the installation, or the machine of a local run, sets."""

    runner_image: str = ""
    durable_journal: bool = False
    known_price: Callable[[ModelEndpoint], bool] = has_stated_price
    ceilings: Ceilings = Ceilings()


@dataclass(frozen=True, slots=True)
class References:
    """The objects that are there, by name; one that is not among them does not exist (yet).

    `supervisors` are their names, None where nobody has looked: they are bound to runs and stand in no plan.
    """

    workflows: Mapping[str, Workflow] = field(default_factory=dict)
    agents: Mapping[str, Agent] = field(default_factory=dict)
    config_maps: Mapping[str, ConfigMap] = field(default_factory=dict)
    supervisors: Collection[str] | None = None
    platform: Platform = Platform()


def artifact_name(reference: str) -> tuple[str, str | None]:
    """Return name and version of `name@version`; the version is None where it is not pinned."""
    name, _, version = reference.partition("@")
    return name, version or None


def newest_version(config_map: ConfigMap) -> str | None:
    """Return the newest version of an artifact: the largest key that is an integer."""
    versions = [key for key in config_map.data if key.isascii() and key.isdigit() and len(key) <= 9]
    return max(versions, key=int, default=None)


def references_of(obj: Workflow | Agent | AgentRun | Supervisor) -> frozenset[Reference]:
    """Return the objects that one object names itself."""
    if isinstance(obj, AgentRun):
        return frozenset(Reference(kind, ref.name) for kind, ref in _run_references(obj) if ref is not None)
    found: set[Reference] = set()
    for path, node in walk(obj.spec):
        if isinstance(node, TextSource | Skill):
            if node.artifact is not None:
                found.add(Reference("ConfigMap", artifact_name(node.artifact)[0]))
            if node.config_map_key_ref is not None:
                found.add(Reference("ConfigMap", node.config_map_key_ref.name))
        elif isinstance(node, ArtifactCheck):
            found.add(Reference("ConfigMap", artifact_name(node.ref)[0]))
        elif isinstance(node, Hook | McpServer) and node.artifact is not None:
            found.add(Reference("ConfigMap", artifact_name(node.artifact)[0]))
        elif isinstance(node, LocalRef) and path[-1] == "agentRef":
            found.add(Reference("Agent", node.name))
        elif isinstance(node, LocalRef) and path[-1] == "workflowRef":
            found.add(Reference("Workflow", node.name))
    return frozenset(found)


def _run_references(run: AgentRun) -> tuple[tuple[ReferenceKind, LocalRef | None], ...]:
    return ("Workflow", run.spec.workflow_ref), ("Agent", run.spec.agent_ref)


def needed_references(start: Workflow | Agent | AgentRun | Supervisor, known: References) -> frozenset[Reference]:
    """Return everything that an object needs, as far as it can be seen in what is known.

    Fetch what is not known yet and ask again, until nothing new is named: objects of workflows that are children
    are not followed, they are resolved in runs of their own.
    """
    direct = references_of(start)
    needed: set[Reference] = set()
    pending = set(direct)
    while pending:
        reference = pending.pop()
        needed.add(reference)
        is_child = reference.kind == "Workflow" and not (isinstance(start, AgentRun) and reference in direct)
        obj = None if is_child else _known(reference, known)
        if obj is not None:
            pending |= references_of(obj) - needed
    return frozenset(needed)


def _known(reference: Reference, known: References) -> Workflow | Agent | None:
    if reference.kind == "Agent":
        return known.agents.get(reference.name)
    if reference.kind == "Workflow":
        return known.workflows.get(reference.name)
    return None
