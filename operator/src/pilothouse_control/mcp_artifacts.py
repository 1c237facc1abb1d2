"""MCP servers that are kept as artifacts: read when a plan is made, so that whoever runs it sees servers alone."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from pilothouse_api.artifacts import ArtifactTextError, load_artifact
from pilothouse_api.v1alpha1.base import Model
from pilothouse_api.v1alpha1.steps import McpServer
from pilothouse_control.findings import FieldPath
from pilothouse_control.texts import MissingText, resolve_text, text_sites
from pilothouse_control.tree import walk
from pilothouse_control.validation.shape import first_broken_rule
from pilothouse_control.world import ConfigMap

S = TypeVar("S", bound=Model)

FIELDS = ("transport", "url", "command", "headers", "auth")
"""What an artifact may say; name and required are the agent's."""


def expand_servers(spec: S, config_maps: Mapping[str, ConfigMap]) -> S:
    """Return a spec with the servers of its artifacts in place of their names; what is missing stays as it is."""
    raw: dict[str, Any] | None = None
    for path, node in walk(spec, ()):
        if not isinstance(node, McpServer) or node.artifact is None:
            continue
        server = server_of(node, config_maps)
        if isinstance(server, McpServer):
            raw = spec.to_raw() if raw is None else raw
            _put(raw, path, server.to_raw())
    return spec if raw is None else type(spec).model_validate(raw)


def server_of(entry: McpServer, config_maps: Mapping[str, ConfigMap]) -> McpServer | str | None:
    """Return the server that an entry means; a string says what is wrong with its artifact, None that it is missing."""
    if entry.artifact is None:
        return entry
    site = next(text_sites(entry))
    resolved = resolve_text(site, config_maps)
    if resolved is None or isinstance(resolved, MissingText):
        return None
    try:
        return _parse(entry, resolved[1].text)
    except ArtifactTextError as error:
        return str(error)


def _parse(entry: McpServer, text: str) -> McpServer:
    raw = load_artifact(text)
    if not isinstance(raw, dict):
        raise ArtifactTextError(f"it is {type(raw).__name__}, and an object with {', '.join(FIELDS)} is wanted")
    foreign = sorted(str(key) for key in raw if key not in FIELDS)
    if foreign:
        raise ArtifactTextError(f"it has {foreign[0]!r:.80}; it may have {', '.join(FIELDS)}")
    whole = {**raw, "name": entry.name, "required": entry.required}
    try:
        server = McpServer.model_validate(whole, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ArtifactTextError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
    broken = first_broken_rule(McpServer, whole)
    if broken is not None:
        raise ArtifactTextError(broken)
    return server


def _put(raw: Any, path: FieldPath, value: dict[str, Any]) -> None:
    *parents, last = path
    for part in parents:
        raw = raw[part]
    raw[last] = value
