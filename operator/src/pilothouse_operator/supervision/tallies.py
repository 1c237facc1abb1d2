"""The counters of a Supervisor: the sum over its runs, exact over restarts of the operator and ends of runs. Pure.

What a supervisor did to a run is counted in that run's record (`status.supervision`), in the very write that records
it: there it can neither be lost nor be counted twice. The counters are the sum over the runs that are watched, and
over those that have ended, kept in `status.ended`. A run is moved from one part to the other by one write of the
Supervisor, which names it in `ended.runs`; only then does it get the label by which it leaves the operator's watch
(`RunReconciler` asks `is_counted`), so that an operator that dies in between neither misses it nor counts it again.

A run that somebody deletes before its end is moved over when its deletion is seen. While no operator ran, nobody saw
it: then the sum is smaller than what was published, and as counters never go back the difference is what it came to.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pilothouse_api.v1alpha1.common import ActionCounts
from pilothouse_api.v1alpha1.supervisor import EndedRuns, JudgeStatus, SupervisorStatus

MAX_LEAVING = 9_000
"""How many ended runs may wait for their label: what comes on top is counted with the runs until it is its turn."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What was done, counted."""

    pause: int = 0
    steer: int = 0
    abort: int = 0
    calls: int = 0
    failures: int = 0
    tokens: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def missing_to(self, other: "Tally") -> "Tally":
        """Return what has to be added so that no count is below another's."""
        return Tally(*(max(getattr(other, f.name) - getattr(self, f.name), 0) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class RunTally:
    """What one supervisor did to one run. `newest`: its newest action of that run, as the record has it."""

    uid: str
    tally: Tally
    name: str = ""
    is_ended: bool = False
    newest: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """What status says of it: the sum, the part of it that is kept, and how many runs are watched."""

    total: Tally
    ended: Tally
    leaving: tuple[str, ...]
    watched: int


def read_tally(raw_run: Mapping[str, Any], supervisor_uid: str) -> RunTally | None:
    """Return what a supervisor did to a run, of the run's raw form; None where it does not watch it."""
    status = raw_run.get("status", {})
    supervision = status.get("supervision") or {}
    record = supervision.get("supervisors", {}).get(supervisor_uid)
    if record is None:
        return None
    conditions = status.get("conditions", ())
    is_ended = any(entry.get("type") == "Finished" and entry.get("status") == "True" for entry in conditions)
    done = [
        action
        for action in supervision.get("actions", ())
        if action.get("supervisorUid") == supervisor_uid and action.get("state") == "Done"
    ]
    metadata = raw_run["metadata"]
    newest = done[-1] if done else None
    return RunTally(metadata.get("uid", ""), _tally_of(record), metadata.get("name", ""), is_ended, newest)


def _tally_of(record: Mapping[str, Any]) -> Tally:
    actions, judge = record.get("actions") or {}, record.get("judge") or {}
    return Tally(
        actions.get("pause", 0),
        actions.get("steer", 0),
        actions.get("abort", 0),
        judge.get("calls", 0),
        judge.get("failures", 0),
        judge.get("tokensUsed", 0),
    )


def count(status: SupervisorStatus, present: Iterable[RunTally], departed: Iterable[RunTally]) -> Counters:
    """Return the counters. `present` are runs that the operator sees, `departed` those that it saw and are gone."""
    present = list(present)
    kept = status.ended or EndedRuns()
    counted = set(kept.runs)
    here = {run.uid for run in present}
    ended, live, watched = _read(kept.actions, kept.judge), Tally(), 0
    leaving = [uid for uid in kept.runs if uid in here]
    for run in present:
        watched += not run.is_ended
        if run.uid in counted:
            continue
        if run.is_ended and run.tally != Tally() and len(leaving) < MAX_LEAVING:
            ended += run.tally
            leaving.append(run.uid)
        else:
            live += run.tally
    for run in departed:
        if run.uid not in counted and run.uid not in here:
            ended += run.tally
    published = _read(status.actions or ActionCounts(), status.judge or JudgeStatus())
    ended += (ended + live).missing_to(published)
    return Counters(ended + live, ended, tuple(leaving), watched)


def _read(actions: ActionCounts, judge: JudgeStatus) -> Tally:
    return Tally(actions.pause, actions.steer, actions.abort, judge.calls, judge.failures, judge.tokens_used)


def is_counted(raw_supervisor: Mapping[str, Any], raw_run: Mapping[str, Any]) -> bool:
    """Tell whether a run that has ended is in the kept part of a Supervisor's counters, or needs not be."""
    ended = raw_supervisor.get("status", {}).get("ended") or {}
    run = read_tally(raw_run, raw_supervisor["metadata"].get("uid", ""))
    return run is None or run.tally == Tally() or run.uid in ended.get("runs", ())


def render_counters(counters: Counters, old: SupervisorStatus, last_error: str | None) -> dict[str, Any]:
    """Return the counters as status has them; nothing for what there is none of."""
    status: dict[str, Any] = {"watchedRuns": counters.watched, "actions": _actions(counters.total)}
    if _has_judged(counters.total) or old.judge is not None:
        error = last_error or (old.judge.last_error if old.judge is not None else None)
        status["judge"] = _judge(counters.total) | ({"lastError": error} if error else {})
    ended: dict[str, Any] = {}
    if counters.ended != Tally():
        ended = {"actions": _actions(counters.ended), "judge": _judge(counters.ended)}
    if counters.leaving:
        ended["runs"] = list(counters.leaving)
    return status | ({"ended": ended} if ended else {})


def _has_judged(tally: Tally) -> bool:
    return bool(tally.calls or tally.failures or tally.tokens)


def _actions(tally: Tally) -> dict[str, int]:
    return {"pause": tally.pause, "steer": tally.steer, "abort": tally.abort}


def _judge(tally: Tally) -> dict[str, int]:
    return {"calls": tally.calls, "failures": tally.failures, "tokensUsed": tally.tokens}


def newest_action(runs: Iterable[RunTally], old: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return `lastAction`: the newest of all runs, or the one that was reported."""
    found = dict(old) if old is not None else None
    for run in runs:
        action = run.newest
        if action is None or (found is not None and str(action.get("time", "")) <= str(found.get("time", ""))):
            continue
        found = {"run": run.name, **{name: action[name] for name in ("action", "source", "reason", "turn", "time")}}
    return found
