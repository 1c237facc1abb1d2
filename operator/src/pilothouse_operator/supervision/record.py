"""Supervision of runs, as status and Events show it, and which of its news may wait for another write. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pilothouse_api.judging import Verdict
from pilothouse_api.v1alpha1.agentrun import (
    JudgeRecord,
    Parked,
    Snapshot,
    Supervision,
    SupervisionAction,
    SupervisionClock,
    SupervisorRecord,
)
from pilothouse_api.v1alpha1.common import ActionCounts, Condition
from pilothouse_control.supervision import JudgeAvailability, JudgeUnavailable, NewVerdict, SupervisionPlan
from pilothouse_operator.conditions import Draft, Truth, find_condition, parse_time

BARRIER = "Barrier"
"""The park of a run that waits for its Sync supervisors, and the source of what a runner does when none comes."""
BARRIER_PATIENCE = timedelta(seconds=2)
"""How long a wait at the barrier is not reported: each turn of a Sync run has one, and most end within it."""
SUPERVISED = "Supervised"
JUDGE_READY = "JudgeReady"
STANDS = frozenset({"Intended", "Done"})
_TRUTHS: Mapping[str, Truth] = {"True": "True", "False": "False", "Unknown": "Unknown"}


@dataclass(frozen=True, slots=True)
class Watch:
    """What a look at a run found out about its supervision.

    `record` is `status.supervision` as it should be now; `is_news`: it differs from what stands there; `is_put_off`:
    what is new of it may wait for the next write that is made for another reason. `judges` tells of each supervisor
    with a judge whether it can be asked, as far as that is known yet.
    """

    record: Supervision
    plan: SupervisionPlan
    judges: Mapping[str, JudgeAvailability] = field(default_factory=dict)
    verdicts: Mapping[str, NewVerdict] = field(default_factory=dict)
    is_news: bool = True
    is_put_off: bool = False

    def moments(self, snapshot: Snapshot | None) -> list[datetime]:
        """Return when time alone may change what is to be done, or what is shown."""
        parked = snapshot.parked if snapshot is not None else None
        since = parse_time(parked.since) if parked is not None and parked.reason == BARRIER else None
        moments = [since + BARRIER_PATIENCE] if since is not None else []
        return moments if self.plan.next_look is None else [*moments, self.plan.next_look]

    def holds(self, snapshot: Snapshot, parked: Parked, now: datetime) -> bool:
        """Tell whether the barrier holds a run for so long that people should see it."""
        clock = self.record.clock
        if clock is not None and clock.journal_length >= snapshot.journal_length:
            return False
        since = parse_time(parked.since)
        return since is None or now - since >= BARRIER_PATIENCE


# ---------------------------------------------------------------- the record


def to_raw(record: Supervision) -> dict[str, Any]:
    """Return a record as it is written: what is not set or as by default is left out, so that one form is one text."""
    return record.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)


def note_failures(record: Supervision, plan: SupervisionPlan, verdicts: Mapping[str, NewVerdict]) -> Supervision:
    """Return the record that says of each judge whether its newest answer was none."""
    failed = {failure.uid for failure in plan.failures}
    judged = {uid for uid, verdict in verdicts.items() if isinstance(verdict.answer, Verdict)}
    supervisors = {uid: _with_health(uid, known, failed, judged) for uid, known in record.supervisors.items()}
    return record.model_copy(update={"supervisors": supervisors})


def _with_health(uid: str, record: SupervisorRecord, failed: set[str], judged: set[str]) -> SupervisorRecord:
    if record.judge is None or uid not in failed | judged or record.judge.is_failing == (uid in failed):
        return record
    judge = record.judge.model_copy(update={"is_failing": uid in failed})
    return record.model_copy(update={"judge": judge})


def may_wait(
    old: Supervision | None, new: Supervision, *, is_landing: bool = False, awaited: int | None = None
) -> bool:
    """Tell whether all that is new of a record may be lost with this process, and so need not be written by itself.

    - That a verdict is awaited, and that a visit has begun: whoever comes after finds it out again.
    - That an intent is carried out (`is_landing`: it was a moment ago, and the runner has not answered yet): it stands
      in `spec.control` for whoever comes after, and the run's new generation is acknowledged in a moment.
    - That a snapshot was seen, unless the runner waits at the barrier for the clock to come there (`awaited`).
    """
    before = old or Supervision()
    if before == new:  # as most looks at most runs find it
        return True
    if awaited is not None and _length(before) < awaited <= _length(new):
        return False
    return to_raw(_lasting(before, new, is_landing)) == to_raw(_lasting(new, before, is_landing))


def _length(record: Supervision) -> int:
    return record.clock.journal_length if record.clock is not None else 0


def _lasting(record: Supervision, other: Supervision, is_landing: bool) -> Supervision:
    """Return what of a record must not be lost, as compared with the other one."""
    supervisors = {uid: _lasting_of(one, other.supervisors.get(uid)) for uid, one in record.supervisors.items()}
    changes: dict[str, Any] = {"clock": None, "supervisors": supervisors}
    if is_landing:
        uncounted = {"actions": ActionCounts()}
        changes["supervisors"] = {uid: one.model_copy(update=uncounted) for uid, one in supervisors.items()}
        changes["actions"] = [
            action.model_copy(update={"state": "Done"}) if action.state in STANDS else action
            for action in record.actions
        ]
    return record.model_copy(update=changes)


def _lasting_of(record: SupervisorRecord, other: SupervisorRecord | None) -> SupervisorRecord:
    changes: dict[str, Any] = {"seen": SupervisionClock()}
    if record.judge is not None:
        kept = record.judge.model_copy(update={"iteration": 0, "asked_at": None, "asked_length": 0, "calls": 0})
        changes["judge"] = kept if kept != JudgeRecord() else None
    fired = [one.fired for one in (record, other) if one is not None]
    is_new_visit = other is not None and other.visit != record.visit
    if not all(fired) and (is_new_visit or not any(fired)):
        changes |= {"visit": 0, "fired": []}  # nothing has fired in the newer visit: it is as good as unseen
    return record.model_copy(update=changes)


# ---------------------------------------------------------------- the barrier


def awaited_length(snapshot: Snapshot | None) -> int | None:
    """Return the length that the runner waits for the clock to come to; None where it does not wait."""
    is_held = snapshot is not None and snapshot.parked is not None and snapshot.parked.reason == BARRIER
    return snapshot.journal_length if snapshot is not None and is_held else None


# ---------------------------------------------------------------- conditions


def draft_supervised(watch: Watch | None, old: Sequence[Condition]) -> Draft | None:
    """Supervised: who watches the run, and what was done last; one that is not asked any more keeps what it said."""
    if watch is None:
        return _kept(old, SUPERVISED)
    if not watch.record.supervisors:
        return None
    newest = next((action for action in reversed(watch.record.actions) if action.state in STANDS), None)
    if newest is not None:
        return Draft(SUPERVISED, "True", "Intervened", describe(newest))
    return Draft(SUPERVISED, "True", "Watched", f"watched by {describe_supervisors(watch.record)}")


def _kept(old: Sequence[Condition], kind: str) -> Draft | None:
    known = find_condition(old, kind)
    if known is None or known.status not in _TRUTHS:
        return None
    return Draft(kind, _TRUTHS[known.status], known.reason, known.message)


def describe(action: SupervisionAction) -> str:
    """Return what was done, by whom and why, in one line; the same when it is meant as when it is done."""
    who = f"{action.supervisor} ({action.source}, generation {action.generation})"
    return f"{action.action} by {who} at turn {action.turn}: {action.reason}"


def describe_supervisors(record: Supervision) -> str:
    """Return who watches, in words."""
    known = sorted(record.supervisors.values(), key=lambda one: one.name)
    words = [f"{one.name}{_marks(one)}" for one in known[:8]]
    return ", ".join(words) + (f" and {len(known) - 8} more" if len(known) > 8 else "")


def _marks(record: SupervisorRecord) -> str:
    marks = ["Sync"] if record.spec.get("enforcement") == "Sync" else []
    marks += ["deleted, its last copy is in force"] if record.is_deleted else []
    return f" ({', '.join(marks)})" if marks else ""


def draft_judge_ready(watch: Watch | None, old: Sequence[Condition]) -> Draft | None:
    """JudgeReady: every judge that watches the run can be asked, and answered when it was asked last."""
    if watch is None:
        return _kept(old, JUDGE_READY)
    with_judge = {uid: one for uid, one in watch.record.supervisors.items() if one.spec.get("judge")}
    if not with_judge:
        return None
    for uid, record in with_judge.items():
        known = watch.judges.get(uid)
        if isinstance(known, JudgeUnavailable):
            what = f"the judge of {record.name} cannot be asked, rules go on: {known.message}"
            return Draft(JUDGE_READY, "False", f"Judge{known.type}", what)
        if record.judge is not None and record.judge.is_failing:
            error = record.judge.last_error or "Unavailable"
            return Draft(
                JUDGE_READY, "False", f"Judge{error.partition(':')[0]}", f"the judge of {record.name}: {error}"
            )
    if any(uid not in watch.judges for uid in with_judge):
        return _kept(old, JUDGE_READY) or Draft(
            JUDGE_READY, "Unknown", "Starting", "which models there are is not known"
        )
    return Draft(JUDGE_READY, "True", "Askable", "the judges of its supervisors can be asked")


def describe_wait(record: Supervision) -> str:
    """Return for whom a run waits at the barrier."""
    sync = sorted(one.name for one in record.supervisors.values() if one.spec.get("enforcement") == "Sync")
    return f"for the word of {', '.join(sync[:8])} (Sync)"
