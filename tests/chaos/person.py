"""A person with a seed: pauses, steers, decides, finishes and aborts by patches, as others do by kubectl."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from chaos.plans import RunPlan, decide
from chaos.witness import Witness
from pilothouse_kubernetes.client import AGENTRUNS, ApiError, KubernetesClient, Raw, Throttled, Unavailable

LOOK_SECONDS = 0.1
RETRY_SECONDS = 0.3


@dataclass
class Person:
    """One person for all runs of a namespace."""

    api: KubernetesClient
    namespace: str
    witness: Witness
    seed: int

    async def attend(self, plan: RunPlan) -> None:
        """Do to a run what was planned, until it has ended."""
        began: float | None = None
        deeds = list(plan.deeds)
        pending: dict[str, float] = {}
        decided: set[str] = set()
        while not self.witness.is_finished(plan.name):
            now = time.monotonic()
            if began is None and self.witness.phase(plan.name) not in ("None", "Pending"):
                began = now
            if began is not None and deeds and now - began >= deeds[0].seconds:
                deed = deeds.pop(0)
                spec: Raw = {"limits": deed.limits} if deed.limits else {"control": deed.control}
                await self.patch(plan.name, spec)
            for call, tool in self._pending(plan.name):
                seen = pending.setdefault(call, now)
                if call not in decided and now - seen >= plan.approve_after:
                    decided.add(call)
                    decision = decide(self.seed, plan.name, call, tool)
                    await self.patch(plan.name, {"control": {"approvals": {call: decision}}})
            await asyncio.sleep(LOOK_SECONDS)

    async def patch(self, name: str, spec: Raw) -> None:
        """Patch until the API server answers; what it refuses (a run that has ended) is refused."""
        while True:
            try:
                await self.api.merge_patch(AGENTRUNS, self.namespace, name, {"spec": spec})
            except (Unavailable, Throttled):
                await asyncio.sleep(RETRY_SECONDS)
            except ApiError:
                return
            else:
                return

    def _pending(self, name: str) -> list[tuple[str, str]]:
        run = (self.witness.newest.get(name) or {}).get("status", {}).get("run") or {}
        return [(entry["callId"], entry["tool"]) for entry in run.get("pendingApprovals", ())]
