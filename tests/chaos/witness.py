"""Who watches the runs: every status that is published, in order, and what lived at that moment."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from chaos.evidence import Sight
from pilothouse_kubernetes.client import Raw

KEPT_OF_RUN = ("attempt", "turn", "journalLength", "parked", "exit", "result", "effects", "tokens", "control")
KEPT = ("attempt", "attempts", "phase", "conditions", "exit", "result", "pod")


@dataclass
class Witness:
    """What was published of each run."""

    alive: Callable[[str], list[str]]
    """Tells the pods of a run whose processes live."""
    sights: dict[str, list[Sight]] = field(default_factory=lambda: defaultdict(list))
    newest: dict[str, Raw] = field(default_factory=dict)

    def notice(self, kind: str, raw: Raw) -> None:
        """Take an event of an AgentRun."""
        if kind == "DELETED":
            return
        name, status = raw["metadata"]["name"], raw.get("status") or {}
        self.newest[name] = raw
        kept = {key: status[key] for key in KEPT if key in status}
        if status.get("run"):
            kept["run"] = {key: status["run"][key] for key in KEPT_OF_RUN if key in status["run"]}
        seen = self.sights[name]
        if seen and seen[-1].status == kept:
            return
        is_over = status.get("phase") in ("Succeeded", "Failed", "Aborted")
        seen.append(Sight(time.time(), kept, tuple(self.alive(name)) if is_over else ()))

    def phase(self, name: str) -> str:
        return str((self.newest.get(name) or {}).get("status", {}).get("phase"))

    def is_finished(self, name: str) -> bool:
        conditions = (self.newest.get(name) or {}).get("status", {}).get("conditions", ())
        return any(entry["type"] == "Finished" and entry["status"] == "True" for entry in conditions)
