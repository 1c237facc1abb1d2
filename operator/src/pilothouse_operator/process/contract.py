"""Whether the installed CRDs have the fields that this operator needs: what limits or controls must not be pruned."""

from collections.abc import Mapping
from typing import Any

from pilothouse_api.names import GROUP, VERSION
from pilothouse_api.v1alpha1 import KINDS
from pilothouse_kubernetes.client import KubernetesClient, NotFound

NEEDED_FIELDS: Mapping[str, tuple[str, ...]] = {
    "AgentRun": (
        "spec.workflowRef",
        "spec.input",
        "spec.overrides",
        "spec.limits",
        "spec.control.mode",
        "spec.control.steer",
        "spec.control.approvals",
        "status.attempt",
        "status.attempts",
        "status.pod",
        "status.plan",
        "status.conditions",
        "status.run",
        "status.supervision.barrier",
    ),
    "Workflow": ("spec.steps", "spec.limits", "spec.policy", "spec.supervisorRefs", "spec.suspend", "status"),
    "Agent": ("spec.limits", "spec.policy", "spec.tools", "spec.guardrails", "status"),
    "Supervisor": ("spec.selector", "spec.enforcement", "spec.rules", "spec.judge", "status.ended"),
}
"""Fields without which a run could not be limited, steered, fenced or reported on."""


def find_missing_fields(raw_crd: Mapping[str, Any], kind: str) -> list[str]:
    """Return the needed fields that the schema of a CRD does not have."""
    for version in raw_crd.get("spec", {}).get("versions", ()):
        if version.get("name") == VERSION and version.get("served"):
            schema = version.get("schema", {}).get("openAPIV3Schema", {})
            return [field for field in NEEDED_FIELDS[kind] if not _has(schema, field.split("."))]
    return [f"version {VERSION}"]


def _has(schema: Mapping[str, Any], path: list[str]) -> bool:
    for name in path:
        properties = schema.get("properties", {})
        if name not in properties:
            return bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        schema = properties[name]
    return True


async def check_contract(client: KubernetesClient) -> str | None:
    """Return what is wrong with the installed CRDs, or None. Raises ApiError where that cannot be known."""
    problems = []
    for kind, model in KINDS.items():
        name = f"{model.PLURAL}.{GROUP}"
        try:
            raw = await client.get_path(f"apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        except NotFound:
            problems.append(f"CRD {name} is not installed")
            continue
        missing = find_missing_fields(raw, kind)
        if missing:
            problems.append(f"CRD {name} has no {', '.join(missing)}")
    return "; ".join(problems) + ": install the CRDs of this version" if problems else None


async def check_served(client: KubernetesClient) -> str | None:
    """Return which kinds are not served, for who may not read CRDs (an installation without cluster-wide rights)."""
    try:
        raw = await client.get_path(f"apis/{GROUP}/{VERSION}")
    except NotFound:
        return f"{GROUP}/{VERSION} is not served: install the CRDs"
    served = {entry["name"] for entry in raw.get("resources", ())}
    missing = sorted(model.PLURAL for model in KINDS.values() if model.PLURAL not in served)
    return f"{', '.join(missing)} of {GROUP} are not served: install the CRDs" if missing else None
