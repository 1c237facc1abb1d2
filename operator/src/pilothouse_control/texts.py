"""Texts of a workflow and its agents: where they stand, which artifacts a place takes, what they resolve to."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from pilothouse_api.digests import text_digest
from pilothouse_api.plan import PlannedText
from pilothouse_api.stored_plan import text_key
from pilothouse_api.v1alpha1.agent import ArtifactCheck, Skill
from pilothouse_api.v1alpha1.common import Hook, TextSource
from pilothouse_api.v1alpha1.steps import McpServer
from pilothouse_control.findings import FieldPath
from pilothouse_control.tree import walk
from pilothouse_control.world import ConfigMap, artifact_name, newest_version

ARTIFACT_TYPES = frozenset({"steering", "prompt", "skill", "guardrail", "hook", "mcp"})

_TYPES_OF_FIELD: Mapping[str, frozenset[str]] = {
    "steering": frozenset({"steering", "prompt"}),
    "criteria": frozenset({"steering", "prompt"}),
    "system": frozenset({"prompt"}),
    "prompt": frozenset({"prompt"}),
    "skills": frozenset({"skill"}),
    "artifact": frozenset({"guardrail"}),
    "script": frozenset(),
    "source": frozenset(),
    "hooks": frozenset({"hook"}),
    "mcpServers": frozenset({"mcp"}),
}
"""Which artifact types a text field takes; a script and the source of a function are kept in plain ConfigMaps."""


@dataclass(frozen=True, slots=True)
class TextSite:
    """One text field; `artifact_field` is what names an artifact there."""

    path: FieldPath
    source: TextSource
    takes: frozenset[str]
    artifact_field: str = "artifact"


@dataclass(frozen=True, slots=True)
class MissingText:
    """A text that cannot be resolved; `is_waiting` where an object or a version of it may still appear."""

    reason: str
    message: str
    is_waiting: bool


def text_sites(spec: BaseModel, path: FieldPath = ("spec",)) -> Iterator[TextSite]:
    """Yield the text fields of a spec that were set."""
    for place, node in walk(spec, path):
        if isinstance(node, Skill):
            yield TextSite(place, node.source(), _TYPES_OF_FIELD["skills"])
        elif isinstance(node, Hook):
            if node.artifact is not None:
                yield TextSite(place, node.source(), _TYPES_OF_FIELD["hooks"])
        elif isinstance(node, McpServer):
            if node.artifact is not None:
                yield TextSite(place, node.source(), _TYPES_OF_FIELD["mcpServers"])
        elif isinstance(node, ArtifactCheck):
            yield TextSite(place, TextSource(artifact=node.ref), _TYPES_OF_FIELD["artifact"], "ref")
        elif isinstance(node, TextSource):
            yield TextSite(place, node, _TYPES_OF_FIELD[str(place[-1])])


def resolve_text(site: TextSite, config_maps: Mapping[str, ConfigMap]) -> tuple[str, PlannedText] | MissingText | None:
    """Return key and text of a text field for the plan, why there is none, or None for a text that is inline."""
    if site.source.config_map_key_ref is not None:
        return _from_config_map(site, config_maps)
    return None if site.source.artifact is None else _from_artifact(site, config_maps)


def _from_config_map(site: TextSite, config_maps: Mapping[str, ConfigMap]) -> tuple[str, PlannedText] | MissingText:
    ref = site.source.config_map_key_ref
    if ref is None or ref.name not in config_maps:
        name = ref.name if ref else ""
        return MissingText("ConfigMapNotFound", f"there is no ConfigMap {name}", True)
    text = config_maps[ref.name].data.get(ref.key)
    if text is None:
        keys = ", ".join(sorted(config_maps[ref.name].data)[:10]) or "none"
        what = f"the ConfigMap {ref.name} has no key {ref.key}, it has: {keys}"
        return MissingText("ConfigMapNotFound", what, True)
    return text_key(site.source), _planned(text, f"configmap:{ref.name}/{ref.key}")


def _from_artifact(site: TextSite, config_maps: Mapping[str, ConfigMap]) -> tuple[str, PlannedText] | MissingText:
    name, pinned = artifact_name(site.source.artifact or "")
    config_map = config_maps.get(name)
    if config_map is None:
        return MissingText("ArtifactNotFound", f"there is no ConfigMap {name} for the artifact", True)
    if (wrong := wrong_type(site, config_map)) is not None:
        return MissingText("InvalidPlan", wrong, False)
    version = pinned or newest_version(config_map)
    if version is None or version not in config_map.data:
        versions = ", ".join(sorted((k for k in config_map.data if k.isdigit()), key=int)[-10:]) or "none"
        what = f"the artifact {name} has no version {version or 'at all'}, it has: {versions}"
        return MissingText("ArtifactNotFound", what, True)
    return text_key(site.source), _planned(config_map.data[version], f"artifact:{name}@{version}")


def wrong_type(site: TextSite, config_map: ConfigMap) -> str | None:
    """Return why an artifact does not fit the field that names it, or None."""
    wanted = " or ".join(sorted(site.takes))
    if not site.takes:
        return "this field takes inline or configMapKeyRef, no artifact"
    if config_map.artifact is None:
        return f"the ConfigMap {config_map.name} is no artifact: label it pilothouse.dev/artifact: {wanted}"
    if config_map.artifact not in site.takes:
        return f"the artifact {config_map.name} is of type {config_map.artifact}; this field takes {wanted}"
    return None


def _planned(text: str, resolved: str) -> PlannedText:
    return PlannedText(text=text, digest=text_digest(text), resolved=resolved)
