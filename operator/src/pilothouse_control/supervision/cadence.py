"""When a judge is asked, and what its answer, or its silence, means (supervision.md "Judge")."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from pilothouse_api.judging import JudgeAnswer, JudgeFailure, JudgeFailureType, Verdict
from pilothouse_api.observation import Observation
from pilothouse_api.v1alpha1.agentrun import JudgeRecord
from pilothouse_api.v1alpha1.supervisor import Judge
from pilothouse_control.supervision.bindings import Binding
from pilothouse_control.supervision.findings import JUDGE, JUDGE_ERROR, Finding
from pilothouse_control.supervision.values import (
    JudgeAsk,
    JudgeFailed,
    JudgeUnavailable,
    SupervisionView,
)

ANSWER_GRACE = timedelta(seconds=10)
"""How long after its timeout a verdict may come: the way to the judge and back is not in it."""
MAX_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True)
class JudgeLook:
    """What one look at a judge comes to. `is_waiting`: a verdict is due that is not there; `wake`: when it is late."""

    record: JudgeRecord
    finding: Finding | None = None
    ask: JudgeAsk | None = None
    failure: JudgeFailed | None = None
    is_waiting: bool = False
    wake: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Slot:
    """One judge of a run at one look; `record` is of the visit that is open."""

    view: SupervisionView
    binding: Binding
    judge: Judge
    observation: Observation
    journal_length: int
    record: JudgeRecord

    @property
    def is_underway(self) -> bool:
        return self.binding.uid in self.view.underway


def charge(record: JudgeRecord, answer: JudgeAnswer) -> JudgeRecord:
    """Return the record with the tokens of an answer, which are spent whether it is still of use or not."""
    return record.model_copy(update={"tokens_used": record.tokens_used + answer.tokens})


def forget(record: JudgeRecord) -> JudgeRecord:
    """Return the record without the verdict that it awaits: its visit has ended, or it has a judge no more."""
    return record if record.asked_at is None else record.model_copy(update={"asked_at": None})


def of_visit(record: JudgeRecord, is_same_visit: bool) -> JudgeRecord:
    """Return the record for the visit that is open: slots are counted anew in each, and an old verdict is dropped."""
    return record if is_same_visit else record.model_copy(update={"iteration": 0, "asked_at": None})


def look_at_judge(
    view: SupervisionView,
    binding: Binding,
    judge: Judge,
    observation: Observation,
    journal_length: int,
    record: JudgeRecord,
) -> JudgeLook:
    """Return what is to be done about the judge of one supervisor; `record` is `of_visit`."""
    slot = _Slot(view, binding, judge, observation, journal_length, record)
    came = view.verdicts.get(binding.uid)
    if came is not None:
        slot = replace(slot, record=charge(record, came.answer))
        if _is_awaited(record, came.ask, observation.visit):
            return _answered(slot, came.answer)
    return _unanswered(slot)


def _is_awaited(record: JudgeRecord, ask: JudgeAsk, visit: int) -> bool:
    return record.asked_at is not None and ask.visit == visit and ask.journal_length == record.asked_length


def _answered(slot: _Slot, answer: JudgeAnswer) -> JudgeLook:
    done = replace(slot, record=forget(_taken(slot)))  # slots that came while it was awaited are skipped
    match answer:
        case Verdict():
            finding = None
            if not answer.passed:
                # A blank message is refused by the API server, and the whole directive with it.
                reason = answer.reason.strip() or "the judge gave no reason"
                finding = Finding(slot.binding, slot.binding.spec.on_violation, JUDGE, reason)
            return JudgeLook(done.record, finding)
        case JudgeFailure():
            return _failed(done, answer.type, answer.message)
        case _:
            assert_never(answer)


def _unanswered(slot: _Slot) -> JudgeLook:
    """Go on where no answer came: wait for the one that is awaited, ask again, or take the slot that is due."""
    if slot.record.asked_at is None:
        return _take_slot(slot) if _is_due(slot) else JudgeLook(slot.record)
    if not slot.is_underway:  # the host that asked is gone, and so is its answer
        return _ask(slot, is_repeated=True)
    late = datetime.fromisoformat(slot.record.asked_at) + timedelta(seconds=slot.judge.timeout_seconds) + ANSWER_GRACE
    if slot.view.now < late:
        return JudgeLook(slot.record, is_waiting=True, wake=late)
    gone = replace(slot, record=forget(_taken(slot)))
    return _failed(gone, "Timeout", f"no verdict within {slot.judge.timeout_seconds} s")


def is_slot_due(judge: Judge, iteration: int, taken: int) -> bool:
    """Tell whether a multiple of the cadence was crossed since the slot that the visit took last, 0 for none."""
    return iteration // judge.every_n_iterations > taken // judge.every_n_iterations


def _is_due(slot: _Slot) -> bool:
    """Tell whether a slot is to be taken now.

    Under Sync only while the run stands still, as it does at the barrier: a verdict on the beginning of a turn would be
    the only one of its iteration, and the barrier behind the turn would be passed by what nobody has judged.
    """
    snapshot = slot.view.snapshot
    if slot.binding.spec.enforcement == "Sync" and (snapshot is None or snapshot.parked is None):
        return False
    return is_slot_due(slot.judge, slot.observation.iteration, slot.record.iteration)


def _take_slot(slot: _Slot) -> JudgeLook:
    if not slot.is_underway:
        return _ask(slot, is_repeated=False)
    # An answer that nobody needs any more is still on its way, and one at a time is asked for.
    if slot.binding.spec.enforcement == "Sync":
        return JudgeLook(slot.record, is_waiting=True)
    return JudgeLook(_taken(slot))


def _taken(slot: _Slot) -> JudgeRecord:
    return slot.record.model_copy(update={"iteration": slot.observation.iteration})


def _ask(slot: _Slot, *, is_repeated: bool) -> JudgeLook:
    budget, used = slot.judge.token_budget, slot.record.tokens_used
    if budget is not None and used >= budget:
        return _off(slot, "BudgetExceeded", f"{used} tokens of judge.tokenBudget {budget} are used in this run")
    available = slot.view.judges.get(slot.binding.uid)
    if available is None:
        return JudgeLook(slot.record, is_waiting=True)
    if isinstance(available, JudgeUnavailable):
        return _off(slot, available.type, available.message)
    record = slot.record if is_repeated else _taken(slot)
    asked = {
        "asked_at": slot.view.now.isoformat(),
        "asked_length": slot.journal_length,
        "calls": record.calls + (not is_repeated),
    }
    ask = JudgeAsk(
        uid=slot.binding.uid,
        supervisor=slot.binding.name,
        visit=slot.observation.visit,
        journal_length=slot.journal_length,
        model=slot.judge.model,
        criteria=available.criteria,
        observation=slot.observation,
        timeout_seconds=slot.judge.timeout_seconds,
        is_repeated=is_repeated,
    )
    return JudgeLook(record.model_copy(update=asked), ask=ask, is_waiting=True)


def _off(slot: _Slot, kind: JudgeFailureType, message: str) -> JudgeLook:
    """Return what a judge that cannot be asked means: it is off, or as good as one that does not answer."""
    known = slot.record.last_error or ""
    is_told = kind != "BudgetExceeded" or known.startswith(kind)
    if slot.judge.on_error == "Ignore" and is_told:
        return JudgeLook(forget(slot.record))
    return _failed(replace(slot, record=forget(_taken(slot))), kind, message)


def _failed(slot: _Slot, kind: JudgeFailureType, message: str) -> JudgeLook:
    error = " ".join(f"{kind}: {message}".split())[:MAX_ERROR_CHARS]
    record = slot.record.model_copy(update={"failures": slot.record.failures + 1, "last_error": error})
    action = slot.judge.on_error
    finding = None
    if action != "Ignore":
        finding = Finding(slot.binding, action, JUDGE_ERROR, f"judge unavailable ({kind})")
    failure = JudgeFailed(slot.binding.uid, slot.binding.name, kind, message)
    return JudgeLook(record, finding, failure=failure)
