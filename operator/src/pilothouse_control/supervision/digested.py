"""What follows from the spec of a supervisor alone, worked out once: it is asked for at every look at every run."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pilothouse_api.digests import canonical_json, digest
from pilothouse_api.v1alpha1.supervisor import SupervisorRule, SupervisorSpec


@dataclass(frozen=True, slots=True)
class DigestedSpec:
    """A spec as it is written, its size in bytes, and its rules with what tells each from another."""

    raw: dict[str, Any]
    size: int
    rules: tuple[tuple[str, SupervisorRule], ...]


class _Same:
    """A spec by its identity; whoever remembers it keeps it alive, so that no other can have it."""

    __slots__ = ("spec",)

    def __init__(self, spec: SupervisorSpec) -> None:
        self.spec = spec

    def __hash__(self) -> int:
        return id(self.spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.spec is self.spec


def digest_spec(spec: SupervisorSpec) -> DigestedSpec:
    """Return what follows from a spec; nobody changes it."""
    return _digest(_Same(spec))


def rule_hash(rule: SupervisorRule) -> str:
    """Return what tells one rule of a supervisor from another: a changed rule is another one."""
    return digest(rule.to_raw())[:16]


@lru_cache(maxsize=1024)
def _digest(same: _Same) -> DigestedSpec:
    raw = same.spec.to_raw()
    size = len(canonical_json(raw).encode("utf-8", "surrogatepass"))
    return DigestedSpec(raw, size, tuple((rule_hash(rule), rule) for rule in same.spec.rules))
