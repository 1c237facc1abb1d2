"""The CustomResourceDefinition of each kind."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codegen.schema import described, structural
from pilothouse_api.names import GROUP, VERSION
from pilothouse_api.v1alpha1 import KINDS

CATEGORY = "pilothouse"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; wide ones are shown with `-o wide` only."""

    name: str
    type: str
    json_path: str
    wide: bool = False

    def raw(self) -> dict[str, Any]:
        """Return it as the CRD has it."""
        raw: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.json_path}
        return {**raw, "priority": 1} if self.wide else raw


def _condition(name: str, part: str) -> str:
    return f'.status.conditions[?(@.type=="{name}")].{part}'


AGE = Column("Age", "date", ".metadata.creationTimestamp")
READY = Column("Ready", "string", _condition("Ready", "status"))
REASON = Column("Reason", "string", _condition("Ready", "reason"), wide=True)

COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "Workflow": (
        READY,
        Column("Active", "integer", ".status.activeRuns"),
        Column("Last run", "string", ".status.lastRun.name"),
        Column("Last phase", "string", ".status.lastRun.phase"),
        Column("Suspended", "boolean", ".spec.suspend"),
        AGE,
        REASON,
    ),
    "Agent": (
        READY,
        Column("Mode", "string", ".spec.mode"),
        Column("Model", "string", ".spec.model.name"),
        Column("Used by", "integer", ".status.usedBy"),
        AGE,
        REASON,
    ),
    "Supervisor": (
        READY,
        Column("Enforcement", "string", ".spec.enforcement"),
        Column("Watched", "integer", ".status.watchedRuns"),
        AGE,
        Column("Last action", "string", ".status.lastAction.action", wide=True),
        REASON,
    ),
    "AgentRun": (
        Column("Workflow", "string", ".spec.workflowRef.name"),
        Column("Phase", "string", ".status.phase"),
        Column("Step", "string", ".status.run.step"),
        Column("Turn", "integer", ".status.run.turn"),
        Column("Tokens", "integer", ".status.run.tokens.used"),
        AGE,
        Column("Cost", "string", ".status.run.cost.usedUSD", wide=True),
        Column("Exit", "string", ".status.exit.signal", wide=True),
        Column("Pod", "string", ".status.pod.name", wide=True),
        REASON,
    ),
}

SELECTABLE: Mapping[str, tuple[str, ...]] = {"AgentRun": (".status.phase",)}


def definition(kind: str) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a kind."""
    model = KINDS[kind]
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [column.raw() for column in COLUMNS[kind]],
    }
    if kind in SELECTABLE:
        version["selectableFields"] = [{"jsonPath": path} for path in SELECTABLE[kind]]
    version["schema"] = {"openAPIV3Schema": object_schema(kind)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{model.PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": model.PLURAL,
                "singular": kind.lower(),
                "shortNames": [model.SHORT],
                "categories": [CATEGORY],
            },
            "versions": [version],
        },
    }


def object_schema(kind: str) -> dict[str, Any]:
    """Return the schema of the objects of a kind."""
    raw = described(KINDS[kind])
    definitions = raw.pop("$defs")
    parts = {name: structural(raw["properties"][name], definitions, f".{name}") for name in ("spec", "status")}
    return {
        "description": raw["description"],
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": parts["spec"],
            "status": {**parts["status"], "default": {"observedGeneration": -1}},
        },
        "x-kubernetes-validations": raw["x-kubernetes-validations"],
    }
