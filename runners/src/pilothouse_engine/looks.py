"""Looks: the moments at which supervision sees a run, and the slice of it that is seen (supervision.md "When").

They follow from the facts alone, so that a journal can be looked through long after, and a runner can keep its looks
beside a journal that is out of reach. What is seen of a look is judged by nobody here.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pilothouse_engine.account import Account, dollars
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.facts import (
    CallFinished,
    ChildDelivered,
    Fact,
    ParkBegan,
    ReplyReceived,
    StepFinished,
    decode_all,
)
from pilothouse_engine.limits import Limits
from pilothouse_engine.parks import iso
from pilothouse_engine.ports import RawEntry
from pilothouse_engine.state import RunState, Visit

IDLE_SECONDS = 10.0
"""The least that a rule about time may wait for (`noProgressFor.seconds`)."""
ENDS_OF_IDLENESS = (ReplyReceived, CallFinished, ChildDelivered, StepFinished, ParkBegan)

RawLook = dict[str, Any]
"""A look as it is kept: `now`, and in `run` the fields of a `Snapshot` that an Observation is made of."""


class Looks:
    """Finds the looks of a run; asked before each of its facts, in order, however many attempts they are of.

    One is at the end of each turn of an Agent step, one behind each call with effect Once while more calls of its reply
    follow, and one where a time of 10 seconds or more without progress ends: it is when a rule about time had the most
    reason to fire.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._turn = (0, 0)
        self._finished: str | None = None

    def before(self, state: RunState, fact: Fact | None) -> Iterator[RawLook]:
        """Yield the looks at `state` before the next fact, None where there is none any more."""
        for now in self._times(state, fact):
            yield build_look(self._catalog, state, now)

    def _times(self, state: RunState, fact: Fact | None) -> Iterator[float]:
        finished, self._finished = self._finished, fact.id if isinstance(fact, CallFinished) else None
        visit = state.visit
        if visit is None or not visit.is_agent:
            return
        if visit.stage == "Ready":
            turn = (visit.number, visit.replies)
            if visit.replies and turn != self._turn:
                self._turn = turn
                yield state.last_at
        elif finished is not None and _is_once_with_more(visit, finished):
            yield state.last_at
        if fact is None or state.park is not None or not isinstance(fact, ENDS_OF_IDLENESS):
            return
        if fact.at - state.last_progress_at >= IDLE_SECONDS:
            yield fact.at


def _is_once_with_more(visit: Visit, finished: str) -> bool:
    call = visit.call_ids.get(finished)
    if call is None or call.started is None or call.started.effect != "Once":
        return False
    return any(other.finished is None for other in visit.calls)


def build_look(catalog: Catalog, state: RunState, now: float) -> RawLook:
    """Return what is kept of a look at a state; a visit of an Agent step is open.

    It names nothing that a snapshot does not name, and of effects not even the tools.
    """
    visit = state.visit
    assert visit is not None, "there is nothing to see outside of a visit"
    limits, counts = catalog.limits(visit.step, state.limits), visit.counts
    tokens, cost = _spend(state.account, limits, is_visit=False), _spend(visit.account, limits, is_visit=True)
    return {
        "now": iso(now),
        "run": {
            "attempt": state.attempt,
            "journalLength": state.length,
            "step": visit.step,
            "visit": visit.number,
            "turn": state.turn,
            "iteration": state.iteration,
            "maxIterations": limits.max_iterations,
            "tokens": {**tokens[0], "visit": cost[0]},
            "cost": {**tokens[1], "visit": cost[1]},
            "visitCounts": {
                "toolCalls": dict(counts.tool_calls),
                "undeclaredToolCalls": counts.undeclared_tool_calls,
                "toolErrors": counts.tool_errors,
                "identicalCalls": counts.identical_calls,
            },
            "effects": {
                "unknown": [{"callId": it.call_id, "tool": "", "at": iso(it.at)} for it in state.effects_unknown]
            },
            "lastProgressTime": iso(state.last_progress_at),
        },
    }


def _spend(account: Account, limits: Limits, *, is_visit: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what was used of tokens and money, with the budgets where there are any."""
    budgets = (limits.visit_tokens, limits.visit_cost) if is_visit else (limits.run_tokens, limits.run_cost)
    tokens: dict[str, Any] = {"used": account.used}
    cost: dict[str, Any] = {"usedUSD": dollars(account.cost)} if account.cost else {}
    if budgets[0] is not None:
        tokens["budget"] = budgets[0]
    if budgets[1] is not None:
        cost["budgetUSD"] = dollars(budgets[1])
    return tokens, cost


def looks_of_journal(catalog: Catalog, entries: Sequence[RawEntry]) -> Iterator[RawLook]:
    """Yield the looks of a whole journal, oldest first; raises JournalCorrupt."""
    looks, state = Looks(catalog), RunState(context=dict(catalog.plan.input))
    for fact in decode_all(entries):
        yield from looks.before(state, fact)
        state.apply(fact)
    yield from looks.before(state, None)


def settle_looks(raw_looks: Sequence[RawLook]) -> list[RawLook]:
    """Return kept looks without those of facts that a crash took back: a later one of fewer facts tells of them.

    A runner keeps a look as soon as its facts are known, which is before they are journaled.
    """
    settled: list[RawLook] = []
    for look in raw_looks:
        while settled and settled[-1]["run"]["journalLength"] > look["run"]["journalLength"]:
            settled.pop()
        settled.append(look)
    return settled
