"""What must hold, in words and as predicates. Each raises `Violation` with its words."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from model.checker import Violation
from model.runner_process import Entries, fact_of
from pilothouse_engine.facts import (
    ApprovalAnswered,
    AttemptStarted,
    BarrierTimedOut,
    CallFinished,
    CallStarted,
    Fact,
    ModelStarted,
    ParkBegan,
    ParkEnded,
    RunEnded,
)
from pilothouse_engine.state import RunState

if TYPE_CHECKING:
    from model.operator_process import Look
    from model.world import Pod, World

ONCE = "a call with effect Once is carried out at most once"
STARTED = "a call is carried out only after its start by that attempt is journaled"
ENDED_IS_QUIET = (
    "nothing is carried out after a run is reported as ended, but on a cut off node whose runner has not read so since,"
    " and then it is listed as unknown"
)
ABORTED_IS_QUIET = (
    "a run is reported as ended while a pod runs, but on a node that is cut off, only where its journal says that it"
    " has ended, not by an abort, and no effect is unknown"
)
SETTLED = "a run that is reported as ended knows what its calls did, or lists them as unknown"
STALE_WRITER = "a stale attempt never writes status.run"
NEWER_FIRST = "an older snapshot never replaces a newer one"
APPROVED = "a call that needs an approval is carried out only with an approval of its own id and arguments"
APPROVAL_ONCE = "an approval starts one call, once"
NOT_DENIED = "a call that was denied, or whose time was up, is never carried out"
EXIT_STAYS = "an exit that is journaled or reported never changes"
EXIT_AGREES = "the exit that is reported is the one that is journaled, unless a settling attempt could not say so"
NUMBERS_GROW = "attempt numbers only grow, and one number belongs to one pod at a time"
ONE_AT_A_TIME = "a new attempt is numbered only when the old pod runs nothing, but on a node that is cut off"
CRASHES = "an attempt is counted as crashed only if it crashed"
SEEN = (
    "under Sync no model call of the next turn, and no call behind a Once, begins before the clock of supervision has"
    " come to the turn, or its time is up"
)
OBEYED = "what supervision asks for when it has seen a turn stands before the next turn begins, or its time is up"
NO_FAULT = "no process ends by a fault of its own"
PROPERTIES = (
    ONCE, STARTED, ENDED_IS_QUIET, ABORTED_IS_QUIET, SETTLED, STALE_WRITER, NEWER_FIRST, APPROVED, APPROVAL_ONCE,
    NOT_DENIED, EXIT_STAYS, EXIT_AGREES, NUMBERS_GROW, ONE_AT_A_TIME, CRASHES, SEEN, OBEYED, NO_FAULT,
)  # fmt: skip


@cache
def _load(text: str) -> Any:
    return json.loads(text)


def _status(run: str) -> dict[str, Any]:
    status: dict[str, Any] = _load(run)["status"]
    return status


@cache
def facts_of(journal: Entries) -> tuple[Fact, ...]:
    return tuple(fact_of(text) for text in journal)


def park_of(journal: Entries) -> ParkBegan | None:
    """Return the park that is under way."""
    for fact in reversed(facts_of(journal)):
        if isinstance(fact, ParkEnded | RunEnded):
            return None
        if isinstance(fact, ParkBegan):
            return fact
    return None


def _is_of(call: tuple[str, str], started: CallStarted) -> bool:
    """Whether a start is that of a call: by its tool's name."""
    return call[0].split(":")[1].replace("_", "-") == started.tool


def _effects_are_unknown(status: dict[str, Any]) -> bool:
    effects = [one for one in status.get("conditions", ()) if one["type"] == "EffectsSettled"]
    return any(one["status"] != "True" for one in effects)


# ---------------------------------------------------------------- when a call is carried out


def check_call(world: World, pod: Pod, call: tuple[str, str]) -> None:
    facts = facts_of(world.journal)
    starts = [fact for fact in facts if isinstance(fact, CallStarted) and _is_of(call, fact)]
    if not any(started.attempt == pod.attempt for started in starts):
        raise Violation(STARTED, f"{call} is carried out by attempt {pod.attempt}")
    times = dict(world.done)[call]
    if times > 1 and starts[-1].effect == "Once":
        raise Violation(ONCE, f"{call} was carried out {times} times")
    status = _status(world.run)
    if "exit" in status and not (pod.is_cut_off and _effects_are_unknown(status)):
        raise Violation(ENDED_IS_QUIET, f"{call} is carried out by attempt {pod.attempt} after {status['exit']}")
    if pod.saw_end and starts[-1] not in facts[: world.ended_at or 0]:
        raise Violation(ENDED_IS_QUIET, f"{call} begins after {status['exit']}")
    if call[0].endswith("gated"):
        _check_approval(facts, starts[-1], call)


def _check_approval(facts: tuple[Fact, ...], started: CallStarted, call: tuple[str, str]) -> None:
    answers = [fact for fact in facts if isinstance(fact, ApprovalAnswered) and fact.id == started.id]
    landed = [fact for fact in answers if fact.state in ("Landed", "Expired")]
    if not landed:
        raise Violation(APPROVED, f"{call} had no answer")
    if landed[-1].state == "Expired" or landed[-1].decision == "Deny":
        raise Violation(NOT_DENIED, f"{call} was answered {landed[-1].state} {landed[-1].decision}")
    edited = landed[-1].arguments
    if edited is not None and json.loads(call[1]).get("amount") != edited.get("amount"):
        raise Violation(APPROVED, f"{call} was approved with {dict(edited)}")


# ---------------------------------------------------------------- when facts are journaled


def check_facts(world: World, journal: Entries, texts: Entries) -> None:
    facts, new = facts_of(journal), [fact_of(text) for text in texts]
    ends = [fact for fact in facts if isinstance(fact, RunEnded)]
    if len(ends) > 1:
        raise Violation(EXIT_STAYS, f"the run has ended as {ends[0].reason} and ends as {ends[-1].reason}")
    for fact in new:
        if isinstance(fact, CallStarted):
            starts = [one for one in facts if isinstance(one, CallStarted) and one.id == fact.id]
            if len(starts) > 1 and fact.effect == "Once":
                raise Violation(APPROVAL_ONCE if fact.is_approved else ONCE, f"{fact.id} starts again")
        if ends and isinstance(fact, CallStarted | CallFinished) and facts.index(ends[0]) < facts.index(fact):
            raise Violation(EXIT_STAYS, f"{type(fact).__name__} stands after the end")
    attempts = [fact.attempt for fact in facts if isinstance(fact, AttemptStarted)]
    if attempts != sorted(attempts):
        raise Violation(NUMBERS_GROW, f"the journal is of the attempts {attempts}")
    supervision = _status(world.run).get("supervision") or {}
    if "barrier" in supervision:
        _check_barrier(world, facts, len(facts) - len(new), (supervision.get("clock") or {}).get("journalLength", 0))


def _check_barrier(world: World, facts: tuple[Fact, ...], begin: int, clock: int) -> None:
    """Judge what begins: which facts must supervision have seen, and has it asked for an Abort on seeing them."""
    state = RunState()
    timed_out = 0
    for number, fact in enumerate(facts):
        visit = state.visit
        needed = 0
        if isinstance(fact, ModelStarted):
            needed = state.turn_length
        elif isinstance(fact, CallStarted) and visit is not None:
            needed = visit.once_length
        if number >= begin and needed and needed > timed_out:
            if needed > clock:
                raise Violation(SEEN, f"{type(fact).__name__} needs {needed} facts seen, the clock says {clock}")
            aborts = [length for length, mode in world.judged if mode == "Abort" and length > needed]
            if aborts:
                raise Violation(OBEYED, f"{type(fact).__name__} begins, and an Abort was judged on {aborts[0]} facts")
        state.apply(fact)
        if isinstance(fact, BarrierTimedOut):
            timed_out = number + 1


# ---------------------------------------------------------------- when status is written


def check_snapshot(world: World, status: dict[str, Any], written: dict[str, Any], attempt: int) -> None:
    """Judge a runner's write that the API server takes."""
    if status.get("attempt") != attempt or written["attempt"] != attempt:
        raise Violation(STALE_WRITER, f"attempt {attempt} writes, the run is at {status.get('attempt')}")
    old = status.get("run")
    if old is None:
        return
    if old.get("exit") is not None and written.get("exit") != old["exit"]:
        raise Violation(EXIT_STAYS, f"{old['exit']} becomes {written.get('exit')}")
    if written.get("journalLength", 0) < old.get("journalLength", 0):
        lengths = f"{written.get('journalLength', 0)} facts after one of {old['journalLength']}"
        raise Violation(NEWER_FIRST, f"attempt {attempt} publishes a snapshot of {lengths}")


def check_write(before: World, after: World) -> None:
    """Judge any change of the run."""
    old, new = _status(before.run), _status(after.run)
    if (new.get("attempt") or 0) < (old.get("attempt") or 0):
        raise Violation(NUMBERS_GROW, f"{old['attempt']} becomes {new.get('attempt')}")
    if "exit" in old and new.get("exit") != old["exit"]:
        raise Violation(EXIT_STAYS, f"{old['exit']} becomes {new.get('exit')}")
    if (new.get("attempt") or 0) > (old.get("attempt") or 0):
        alive = [pod.attempt for pod in after.pods if pod.is_alive and not pod.is_cut_off]
        if alive:
            raise Violation(ONE_AT_A_TIME, f"attempt {new['attempt']} is numbered while attempts {alive} run")
    crashes = (new.get("attempts") or {}).get("crashes", 0)
    if crashes > after.crashed:
        raise Violation(CRASHES, f"{crashes} crashes are counted, {after.crashed} were: {new['attempts']}")
    if "exit" in new and "exit" not in old:
        _check_end(after, new)


def _check_end(world: World, status: dict[str, Any]) -> None:
    alive = [pod.attempt for pod in world.pods if pod.is_alive and not pod.is_cut_off]
    facts = facts_of(world.journal)
    ends = [fact for fact in facts if isinstance(fact, RunEnded)]
    is_unknown = _effects_are_unknown(status)
    if alive and (not ends or is_unknown or status["exit"]["reason"] == "Aborted"):
        raise Violation(ABORTED_IS_QUIET, f"{status['exit']} while attempts {alive} run")
    if ends and ends[0].reason != status["exit"]["reason"] and not is_unknown:
        raise Violation(EXIT_AGREES, f"the journal says {ends[0].reason}, status {status['exit']}")
    for call, _ in world.done:
        starts = {fact.id for fact in facts if isinstance(fact, CallStarted) and _is_of(call, fact)}
        known = {fact.id for fact in facts if isinstance(fact, CallFinished) and not fact.is_unknown}
        if starts - known and not is_unknown:
            raise Violation(SETTLED, f"{call} was carried out, and nothing says so at {status['exit']}")


# ---------------------------------------------------------------- the rest


def check_state(world: World) -> None:
    attempts = [pod.attempt for pod in world.pods if pod.exists]
    if len(set(attempts)) < len(attempts):
        raise Violation(NUMBERS_GROW, f"there are pods of the attempts {attempts}")


def check_pod(world: World, pod: Pod) -> None:
    """Judge a pod that is made."""
    alive = [
        other.attempt
        for other in world.pods
        if other is not pod and other.attempt == pod.attempt and other.is_alive and not other.is_cut_off
    ]
    if alive:
        raise Violation(NUMBERS_GROW, f"a second pod of attempt {pod.attempt} is made while the first one runs on")


def check_exit(pod: Pod) -> None:
    """Judge how a runner's process ends by itself."""
    assert pod.runner is not None
    if pod.runner.end.startswith("fault"):
        raise Violation(NO_FAULT, f"attempt {pod.attempt}: {pod.runner.end}")


def check_look(look: Look) -> None:
    if look.fault:
        raise Violation(NO_FAULT, f"an operator: {look.fault}")
