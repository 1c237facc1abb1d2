"""Supervisors: validity and their judge, and what they did: counters, the newest action, how many runs they watch."""

from typing import Any

from pilothouse_api.judging import JudgeFailure
from pilothouse_api.v1alpha1 import Supervisor
from pilothouse_api.v1alpha1.supervisor import SupervisorStatus
from pilothouse_control.judgement import Judgement
from pilothouse_control.supervisors import JudgeHealth, evaluate_supervisor
from pilothouse_kubernetes.client import SUPERVISORS, Raw
from pilothouse_operator.conditions import merge_conditions
from pilothouse_operator.reconcile.desk import Desk
from pilothouse_operator.reconcile.judging import UNRESOLVED_RECHECK_SECONDS, to_drafts, unreadable_drafts
from pilothouse_operator.reconcile.writing import write_status
from pilothouse_operator.supervision.tallies import RunTally, count, newest_action, read_tally, render_counters
from pilothouse_operator.watching.cache import Key
from pilothouse_operator.watching.references import Unreadable, gather_references, read_object

AT_ONCE = 0.0


class SupervisorReconciler:
    """Reconciles Supervisors."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def reconcile(self, key: Key) -> float | None:
        """Look at one supervisor; return after how many seconds to look again."""
        raw = self._desk.cache.get(key)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            return None
        old = SupervisorStatus.model_validate(raw.get("status", {}))
        try:
            judgement = await self._judge(key, raw)
            drafts, pause = to_drafts(judgement), self._next_look(judgement)
        except Unreadable as error:
            drafts, pause = unreadable_drafts(error), UNRESOLVED_RECHECK_SECONDS
        generation = raw["metadata"].get("generation", 0)
        conditions = merge_conditions(old.conditions, drafts, generation, self._desk.now())
        report = {
            "observedGeneration": generation,
            "conditions": [condition.to_raw() for condition in conditions],
        }
        is_written = await self._write(key, raw, old, report)
        return pause if is_written else AT_ONCE

    async def _judge(self, key: Key, raw: Raw) -> Judgement:
        desk = self._desk
        supervisor = read_object(Supervisor, raw)
        known = await gather_references(supervisor, key.namespace, desk.cache, desk.client, desk.settings.platform())
        return evaluate_supervisor(raw, supervisor, known, self._health(supervisor), desk.now())

    def _health(self, supervisor: Supervisor) -> JudgeHealth:
        judge, judges = supervisor.spec.judge, self._desk.judges
        if judge is None:
            return JudgeHealth()
        newest = judges.newest_of(supervisor.metadata.uid or "")
        return JudgeHealth(judges.is_known, judges.find_problem(judge.model) or judges.outage, newest)

    def _next_look(self, judgement: Judgement) -> float | None:
        waits = [] if judgement.is_ready else [UNRESOLVED_RECHECK_SECONDS]
        if judgement.judge_again_at is not None:
            waits.append(max((judgement.judge_again_at - self._desk.now()).total_seconds(), 0.05))
        return min(waits, default=None)

    # ------------------------------------------------------------ what it did

    async def _write(self, key: Key, raw: Raw, old: SupervisorStatus, report: dict[str, Any]) -> bool:
        """Write status with the counters; then let those runs go that are counted for good."""
        desk, uid = self._desk, raw["metadata"]["uid"]
        present = self._tallies(key, uid)
        departed = desk.departed.of(uid)
        counters = count(old, present, departed)
        newest = desk.judges.newest_of(uid)
        error = f"{newest.type}: {newest.message}" if isinstance(newest, JudgeFailure) else None
        status = report | render_counters(counters, old, error)
        last = newest_action([*present, *departed], raw.get("status", {}).get("lastAction"))
        if last is not None:
            status["lastAction"] = last
        written = await write_status(desk, SUPERVISORS, key, raw, raw.get("status", {}), status)
        if written is None:
            return False
        desk.departed.set_counted(uid, departed)
        for run in present:
            if run.is_ended and run.uid in counters.leaving:
                desk.queue.add(Key("AgentRun", key.namespace, run.name))
        return True

    def _tallies(self, key: Key, uid: str) -> list[RunTally]:
        runs = self._desk.cache.objects("AgentRun", key.namespace)
        return [tally for raw in runs if (tally := read_tally(raw, uid)) is not None]
