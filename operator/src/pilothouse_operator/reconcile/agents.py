"""Agents: references and validity, and how many workflows use them."""

from typing import Any

from pilothouse_api.v1alpha1 import Agent, Workflow
from pilothouse_api.v1alpha1.agent import AgentStatus
from pilothouse_control.judgement import evaluate_object, missing_since, used_by
from pilothouse_kubernetes.client import AGENTS, Raw
from pilothouse_operator.conditions import Draft, merge_conditions
from pilothouse_operator.reconcile.desk import Desk
from pilothouse_operator.reconcile.judging import UNRESOLVED_RECHECK_SECONDS, to_drafts, unreadable_drafts
from pilothouse_operator.reconcile.writing import write_status
from pilothouse_operator.watching.cache import Key
from pilothouse_operator.watching.references import Unreadable, gather_references, read_object

AT_ONCE = 0.0


class AgentReconciler:
    """Reconciles Agents."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def reconcile(self, key: Key) -> float | None:
        """Look at one agent; return after how many seconds to look again."""
        raw = self._desk.cache.get(key)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            return None
        old = AgentStatus.model_validate(raw.get("status", {}))
        try:
            drafts, warnings, pause = await self._judge(key, raw, old)
        except Unreadable as error:
            drafts, warnings, pause = unreadable_drafts(error), (), UNRESOLVED_RECHECK_SECONDS
        generation = raw["metadata"].get("generation", 0)
        conditions = merge_conditions(old.conditions, drafts, generation, self._desk.now())
        status: dict[str, Any] = {
            "observedGeneration": generation,
            "conditions": [condition.to_raw() for condition in conditions],
            "usedBy": self._count_users(key),
        }
        if warnings:
            status["warnings"] = list(warnings)
        written = await write_status(self._desk, AGENTS, key, raw, raw.get("status", {}), status)
        return AT_ONCE if written is None else pause

    async def _judge(self, key: Key, raw: Raw, old: AgentStatus) -> tuple[list[Draft], tuple[str, ...], float | None]:
        desk = self._desk
        agent = read_object(Agent, raw)
        known = await gather_references(agent, key.namespace, desk.cache, desk.client, desk.settings.platform())
        now = desk.now()
        judgement = evaluate_object(raw, agent, known, missing_since(old.conditions), now)
        waits = [] if judgement.is_ready else [UNRESOLVED_RECHECK_SECONDS]
        if judgement.judge_again_at is not None:
            waits.append(max((judgement.judge_again_at - now).total_seconds(), 0.05))
        return to_drafts(judgement), judgement.warnings, min(waits, default=None)

    def _count_users(self, key: Key) -> int:
        workflows = []
        for raw in self._desk.cache.objects("Workflow", key.namespace):
            try:
                workflows.append(read_object(Workflow, raw))
            except Unreadable:
                continue  # its own status says so
        return used_by(key.name, workflows)
