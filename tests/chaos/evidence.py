"""What was seen of one run, from every side, once it is over: the input of `chaos.verdict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pilothouse_engine.ports import RawEntry


@dataclass(frozen=True, slots=True)
class Sight:
    """A status as it was published."""

    at: float
    status: Mapping[str, Any]
    alive: tuple[str, ...] = ()
    """Pods whose processes lived at that moment, those not counted whose pods are gone."""

    @property
    def run(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.status.get("run") or {}
        return found


@dataclass(frozen=True, slots=True)
class Mark:
    """How long a journal was at some moment, and the digest of what it held."""

    length: int
    digest: str


@dataclass(frozen=True, slots=True)
class Process:
    """One attempt's process."""

    attempt: int
    started_at: float
    ended_at: float | None
    code: int | None
    blow: str = ""
    was_lost: bool = False
    lines: tuple[Mapping[str, Any], ...] = ()
    """What it logged."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One run."""

    name: str
    journal: Sequence[RawEntry]
    sights: Sequence[Sight]
    """Statuses in the order in which they were published; the last one is the final one."""
    done: Sequence[Mapping[str, Any]]
    """The tool server's lines about the run."""
    processes: Sequence[Process] = ()
    marks: Sequence[Mark] = ()
    token_budget: int | None = None
    max_attempts: int = 3
    effects: Mapping[str, str] = field(default_factory=dict)
    """Declared effects of tools and steps that call the tool server."""

    @property
    def final(self) -> Mapping[str, Any]:
        return self.sights[-1].status if self.sights else {}

    @property
    def final_run(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.final.get("run") or {}
        return found

    def facts(self, kind: str) -> list[RawEntry]:
        return [entry for entry in self.journal if entry["fact"] == kind]
