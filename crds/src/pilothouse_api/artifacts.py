"""The one reading of artifacts that hold data (checks, hooks, MCP servers): YAML, bounded, without aliases."""

from typing import Any

MAX_ARTIFACT_CHARS = 65_536


class ArtifactTextError(ValueError):
    """The text of an artifact is not what its type holds; the message says why."""


def load_artifact(text: str) -> Any:
    """Return the value of an artifact's text; raises ArtifactTextError."""
    import yaml  # only who has such an artifact waits for it

    if len(text) > MAX_ARTIFACT_CHARS:
        raise ArtifactTextError(f"it has {len(text)} characters; the limit is {MAX_ARTIFACT_CHARS}")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        has_aliases = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=loader))
        value = None if has_aliases else yaml.load(text, Loader=loader)  # a SafeLoader either way
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = getattr(error, "problem", None) or "it cannot be read"
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise ArtifactTextError(f"it is no YAML: {problem}{where}") from None
    if has_aliases:
        raise ArtifactTextError("it uses YAML aliases; write what they stand for")
    return value
