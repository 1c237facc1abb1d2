"""Protocols that are wrong in one thing: each must be caught, else the model proves nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from model import properties
from model.scenarios import APPROVAL_CRASH, CRASH, SYNC_ABORT, TWO, ZOMBIE, decisions
from model.world import Left, Parts, Scenario
from pilothouse_api.names import pod_name
from pilothouse_engine.actions import Execution
from pilothouse_engine.driver import Driver
from pilothouse_operator.reconcile.runs import RunReconciler
from pilothouse_operator.runs.attempts import AttemptPlan, BeginAttempt
from pilothouse_operator.runs.situation import Situation
from pilothouse_operator.runs.view import RunView
from pilothouse_operator.workloads.manifests import build_pod


class StartsBeforeJournaling(Driver):
    """Carries a call out and journals its start with its end."""

    async def _execute(self, executions: tuple[Execution, ...]) -> None:
        results = [await self._run_call(execution) for execution in executions]
        self._commit(tuple(execution.started for execution in executions))
        self._commit(self._judged(tuple(result for result in results if result is not None)))
        await self._flush()


class RepeatsOpenCalls(Driver):
    """Takes every effect for one that may be repeated when a call is found open."""

    async def _perform(self) -> Any:
        visit = self._state.visit
        for call in visit.calls if visit is not None else ():
            if call.started is not None and call.finished is None and call.started.attempt != self._attempt.number:
                call.started = None
        return await super()._perform()


class SpendsAfterwards(Driver):
    """Journals the start of an approved call when it has returned: a crash leaves the approval unspent."""

    async def _execute(self, executions: tuple[Execution, ...]) -> None:
        await self._flush()
        results = [await self._run_call(execution) for execution in executions]
        self._commit(tuple(execution.started for execution in executions))
        self._commit(self._judged(tuple(result for result in results if result is not None)))
        await self._flush()


class TakesNoForYes(Driver):
    """Takes every decision for an approval."""

    async def _perform(self) -> Any:
        visit = self._state.visit
        for call in visit.calls if visit is not None else ():
            if call.answer is not None and call.answer.decision == "Deny":
                call.answer = structs.replace(call.answer, decision="Approve")
        return await super()._perform()


class WaitsForNobody(Driver):
    """Does not hear of the barrier."""

    async def _perform(self) -> Any:
        directives = self._inputs.directives
        if directives is not None and directives.barrier is not None:
            self._inputs.directives = structs.replace(directives, barrier=None)
        return await super()._perform()


class LooksAtNoPod(RunReconciler):
    """Trusts its picture of the pod."""

    def _needs_proof(self, view: RunView, situation: Situation, plan: AttemptPlan) -> bool:
        return False


class MakesThePodFirst(RunReconciler):
    """Makes the pod of an attempt before its number is in status."""

    async def _report(self, key: Any, raw: Any, view: RunView, situation: Situation, plan: AttemptPlan) -> Any:
        if isinstance(plan, BeginAttempt):
            stored = await self._desk.plans.load()  # type: ignore[call-arg]
            body = build_pod(stored.plan, stored.report, plan.number, plan.settle, self._desk.settings.pods())  # type: ignore[union-attr]
            await self._desk.client.create(None, "ns", body)  # type: ignore[arg-type]
            assert body["metadata"]["name"] == pod_name("run-1", plan.number)
        return await super()._report(key, raw, view, situation, plan)


@dataclass(frozen=True)
class Mutation:
    """What is wrong, where it shows, and which property says so."""

    parts: Parts
    scenario: Scenario
    caught_by: frozenset[str]


BEHIND = replace(CRASH, name="behind", left=Left(lost=1, stale=1))
TWO_BEHIND = replace(TWO, name="two-behind", left=Left(crashes=1, stale=1))
WATCHED = replace(SYNC_ABORT, name="watched", left=Left())
DENIED = replace(APPROVAL_CRASH, name="denied", left=Left(wishes=1), wishes=decisions("Deny"))

MUTATIONS: dict[str, Mutation] = {
    "a call is carried out before its start is journaled": Mutation(
        Parts(driver=StartsBeforeJournaling), CRASH, frozenset({properties.STARTED})
    ),
    "a Once call that is found open is repeated": Mutation(
        Parts(driver=RepeatsOpenCalls), CRASH, frozenset({properties.ONCE})
    ),
    "the journal takes whatever comes": Mutation(
        Parts(has_journal_fence=False),
        ZOMBIE,
        frozenset({properties.EXIT_STAYS, properties.ONCE, properties.NUMBERS_GROW}),
    ),
    "the API server does not test the attempt of a snapshot": Mutation(
        Parts(has_status_test=False), ZOMBIE, frozenset({properties.STALE_WRITER})
    ),
    "status is written over whatever stands there": Mutation(
        Parts(has_precondition=False), TWO_BEHIND, frozenset({properties.NUMBERS_GROW})
    ),
    "the old pod is not looked at": Mutation(
        Parts(reconciler=LooksAtNoPod), BEHIND, frozenset({properties.ONE_AT_A_TIME})
    ),
    "the pod is made before its number is written": Mutation(
        Parts(reconciler=MakesThePodFirst), CRASH, frozenset({properties.ONE_AT_A_TIME})
    ),
    "an approval is spent after its call": Mutation(
        Parts(driver=SpendsAfterwards), APPROVAL_CRASH, frozenset({properties.STARTED, properties.ONCE})
    ),
    "a run waits for no supervision": Mutation(Parts(driver=WaitsForNobody), WATCHED, frozenset({properties.SEEN})),
    "the clock is raised before the directive stands": Mutation(
        Parts(host_writes=("clock", "directive")), WATCHED, frozenset({properties.OBEYED})
    ),
    "a denied call is carried out": Mutation(Parts(driver=TakesNoForYes), DENIED, frozenset({properties.NOT_DENIED})),
}
