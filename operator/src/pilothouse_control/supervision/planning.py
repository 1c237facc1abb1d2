"""The state machine of supervision: one view of a run in, one step further out. Pure and total.

Each look judges the newest snapshot anew; what must not happen twice is in the record (what fired, which slots were
taken, what was done), so that a look may be repeated at any time, by any host.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pilothouse_api.observation import Observation
from pilothouse_api.v1alpha1.agentrun import (
    FINISHED_PHASES,
    Barrier,
    JudgeRecord,
    Snapshot,
    Supervision,
    SupervisionAction,
    SupervisionClock,
    SupervisorRecord,
)
from pilothouse_api.v1alpha1.supervisor import SupervisorSpec
from pilothouse_control.supervision.acting import (
    DONE,
    INTENDED,
    Standing,
    build_directive,
    choose,
    identity_of,
    intend,
    land,
    note_barrier,
    settle,
    trim,
    weigh,
)
from pilothouse_control.supervision.bindings import Binding
from pilothouse_control.supervision.cadence import JudgeLook, charge, forget, look_at_judge, of_visit
from pilothouse_control.supervision.digested import digest_spec
from pilothouse_control.supervision.findings import Finding, judge_rules, kept_marks, next_rule_time
from pilothouse_control.supervision.observing import observe
from pilothouse_control.supervision.values import (
    JudgeAsk,
    JudgeFailed,
    LogLine,
    SupervisionPlan,
    SupervisionView,
)

MAX_FIRED = 64
_ON_TIMEOUT: Mapping[str, int] = {"Continue": 0, "Pause": 1, "Abort": 2}


@dataclass(frozen=True, slots=True)
class _Look:
    """What one supervisor comes to in one look."""

    binding: Binding
    record: SupervisorRecord
    findings: tuple[Finding, ...] = ()
    ask: JudgeAsk | None = None
    failure: JudgeFailed | None = None
    log: tuple[LogLine, ...] = ()
    wake: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Moment:
    """What all supervisors of a run look at. `clock` None: there is no snapshot that could be judged now."""

    view: SupervisionView
    snapshot: Snapshot | None = None
    clock: SupervisionClock | None = None
    observation: Observation | None = None


def plan_supervision(view: SupervisionView) -> SupervisionPlan:
    """Return what is to be done now about the supervision of a run; see `SupervisionPlan` for the order.

    Without anybody who watches, nothing: the record is None. With no snapshot yet it says who watches and what the
    runner must wait for, which is written before the runner starts.
    """
    before = view.run.status.supervision
    if not view.bound and (before is None or not before.supervisors):
        return SupervisionPlan(before)
    old = before or Supervision()
    moment = _moment_of(view, old)
    looks = [_look(moment, binding, old.supervisors.get(uid)) for uid, binding in view.bound.items()]
    actions, acted = _act(view, old, looks)
    record = Supervision(
        clock=_clock(old.clock, looks, actions),
        barrier=_barrier([look.binding.spec for look in looks]),
        supervisors={**_unread(old, looks), **_counted(looks, acted)},
        actions=actions,
    )
    is_changed = before is None or record != old
    intents = [action for action in actions if action.state == INTENDED]
    known = {identity_of(action) for action in old.actions}
    return SupervisionPlan(
        record=record,
        is_changed=is_changed,
        intended=tuple(action.id for action in intents if identity_of(action) not in known),
        directive=None if is_changed else build_directive(intents, Standing.of(view), record.supervisors.values()),
        asks=tuple(look.ask for look in looks if look.ask is not None),
        acted=acted,
        failures=tuple(look.failure for look in looks if look.failure is not None),
        log=tuple(line for look in looks for line in look.log),
        next_look=min((look.wake for look in looks if look.wake is not None), default=None),
    )


def is_over(view: SupervisionView) -> bool:
    """Tell whether the run has ended, so that nothing is judged and nothing lands any more."""
    status = view.run.status
    has_exit = view.snapshot is not None and view.snapshot.exit is not None
    return has_exit or status.exit is not None or status.phase in FINISHED_PHASES


def _moment_of(view: SupervisionView, old: Supervision) -> _Moment:
    """Return what is looked at; a snapshot that is older than one that was judged is none."""
    snapshot = view.snapshot
    if snapshot is None or view.plan is None or is_over(view):
        return _Moment(view)
    newest = max((record.seen.journal_length for record in old.supervisors.values()), default=0)
    if snapshot.journal_length < newest:
        return _Moment(view)
    clock = SupervisionClock(visit=snapshot.visit, turn=snapshot.turn, journal_length=snapshot.journal_length)
    return _Moment(view, snapshot, clock, observe(snapshot, view.plan, view.now))


# ---------------------------------------------------------------- one supervisor


def _look(moment: _Moment, binding: Binding, record: SupervisorRecord | None) -> _Look:
    record = _in_force(binding, record)
    if moment.observation is not None and moment.snapshot is not None and moment.clock is not None:
        return _look_at(moment, moment.snapshot, moment.clock, moment.observation, binding, record)
    judged = _charged(moment.view, binding, record)
    if moment.clock is None and not is_over(moment.view):
        return _Look(binding, judged)
    record = judged
    if record.judge is not None and record.judge.asked_at is not None:  # what it was asked about has ended
        record = record.model_copy(update={"judge": forget(record.judge)})
    return _Look(binding, _seen(binding, record, moment.clock, is_changed=record is not judged))


def _in_force(binding: Binding, record: SupervisorRecord | None) -> SupervisorRecord:
    """Return the record with the copy that is in force from now on."""
    copy = {
        "namespace": binding.namespace,
        "name": binding.name,
        "generation": binding.generation,
        "spec": digest_spec(binding.spec).raw,
        "is_deleted": binding.is_deleted,
    }
    return SupervisorRecord(**copy) if record is None else record.model_copy(update=copy)


def _charged(view: SupervisionView, binding: Binding, record: SupervisorRecord) -> SupervisorRecord:
    """Return the record with the tokens of a verdict that came too late to be of use."""
    came = view.verdicts.get(binding.uid)
    if came is None or record.judge is None:
        return record
    return record.model_copy(update={"judge": charge(record.judge, came.answer)})


def _look_at(
    moment: _Moment,
    snapshot: Snapshot,
    clock: SupervisionClock,
    observation: Observation,
    binding: Binding,
    record: SupervisorRecord,
) -> _Look:
    """Judge a visit that is open: by the rules, and by the judge where a slot of it is due."""
    is_same_visit = record.visit == observation.visit
    fired = tuple(record.fired) if is_same_visit else ()
    rules = judge_rules(binding, observation, fired)
    judged = _look_at_judge(moment.view, binding, observation, clock.journal_length, record)
    is_changed = rules.fired != fired or (judged.record if judged else None) != record.judge
    if is_changed:
        changes = {"visit": observation.visit, "fired": kept_marks(binding, rules.fired, MAX_FIRED)}
        record = record.model_copy(update={**changes, "judge": judged.record if judged else None})
    findings = rules.findings
    if judged is not None and judged.finding is not None:
        findings = (*findings, judged.finding)
    if judged is None or not judged.is_waiting or binding.spec.enforcement == "Async":
        record = _seen(binding, record, clock, is_changed=is_changed)
    wakes = (next_rule_time(binding, snapshot, rules.fired), judged.wake if judged else None)
    return _Look(
        binding,
        record,
        findings,
        ask=judged.ask if judged else None,
        failure=judged.failure if judged else None,
        log=tuple(LogLine("supervisor.rule_failed", binding.name, f"rule {name}: {why}") for name, why in rules.failed),
        wake=min((wake for wake in wakes if wake is not None), default=None),
    )


def _look_at_judge(
    view: SupervisionView, binding: Binding, observation: Observation, journal_length: int, record: SupervisorRecord
) -> JudgeLook | None:
    """Return the look at a judge; of one that is no more, what it has used."""
    if binding.spec.judge is None and record.judge is None:
        return None
    known = of_visit(record.judge or JudgeRecord(), record.visit == observation.visit)
    if binding.spec.judge is not None:
        return look_at_judge(view, binding, binding.spec.judge, observation, journal_length, known)
    came = view.verdicts.get(binding.uid)
    return JudgeLook(forget(known if came is None else charge(known, came.answer)))


def _seen(
    binding: Binding, record: SupervisorRecord, clock: SupervisionClock | None, *, is_changed: bool
) -> SupervisorRecord:
    """Return the record with the snapshot as judged; where no turn waits for that, only if it is written anyway."""
    if clock is None or not (is_changed or binding.spec.enforcement == "Sync"):
        return record
    return record.model_copy(update={"seen": clock})


# ---------------------------------------------------------------- all of them


def _act(
    view: SupervisionView, old: Supervision, looks: Sequence[_Look]
) -> tuple[list[SupervisionAction], tuple[SupervisionAction, ...]]:
    """Return the actions as they are to be recorded, and those of them that are settled now."""
    standing = Standing.of(view)
    actions = settle(old.actions, standing, view, is_over=is_over(view))
    findings = [finding for look in looks for finding in choose(look.findings)]
    if findings and view.snapshot is not None:
        actions += intend(findings, view.snapshot, standing.generation, view.now)
    actions += _barrier_actions(view, old, looks)
    actions = land(weigh(actions, standing.room), view.snapshot)
    settled = {identity_of(action) for action in old.actions if action.state != INTENDED}
    acted = (action for action in actions if action.state != INTENDED and identity_of(action) not in settled)
    return trim(actions), tuple(acted)


def _barrier_actions(view: SupervisionView, old: Supervision, looks: Iterable[_Look]) -> list[SupervisionAction]:
    """Return what the runner did because it waited too long, as the doing of the supervisor that was most behind."""
    sync = [look for look in looks if look.binding.spec.enforcement == "Sync"]
    if view.snapshot is None or not sync:
        return []
    seen = {uid: record.seen.journal_length for uid, record in old.supervisors.items()}
    latest = min(sync, key=lambda look: seen.get(look.binding.uid, 0))
    action = note_barrier(latest.binding, view.snapshot, view.now)
    known = {(one.source, one.turn, one.action) for one in old.actions}
    return [] if action is None or (action.source, action.turn, action.action) in known else [action]


def _unread(old: Supervision, looks: Iterable[_Look]) -> dict[str, SupervisorRecord]:
    """Return records of nobody who is bound, such as of a newer version; not of one that was made anew."""
    uids = {look.binding.uid for look in looks}
    names = {(look.binding.namespace, look.binding.name) for look in looks}
    return {
        uid: record
        for uid, record in old.supervisors.items()
        if uid not in uids and (record.namespace, record.name) not in names
    }


def _counted(looks: Iterable[_Look], acted: Iterable[SupervisionAction]) -> dict[str, SupervisorRecord]:
    """Return the records with what was done counted, by uid."""
    records = {look.binding.uid: look.record for look in looks}
    for action in acted:
        record = records.get(action.supervisor_uid)
        if action.state == DONE and record is not None:
            word = action.action.lower()
            counts = record.actions.model_copy(update={word: getattr(record.actions, word) + 1})
            records[action.supervisor_uid] = record.model_copy(update={"actions": counts})
    return records


def _clock(
    old: SupervisionClock | None, looks: Iterable[_Look], actions: Iterable[SupervisionAction]
) -> SupervisionClock | None:
    """Return the least that every Sync supervisor has seen, once all that was found is carried out."""
    seen = [look.record.seen for look in looks if look.binding.spec.enforcement == "Sync"]
    if not seen or any(action.state == INTENDED for action in actions):
        return old
    least = min(seen, key=lambda clock: clock.journal_length)
    return least if least.journal_length > (old.journal_length if old is not None else 0) else old


def _barrier(specs: Iterable[SupervisorSpec]) -> Barrier | None:
    """Return what the runner waits for: the longest time of the Sync supervisors, then their most severe word."""
    sync = [spec for spec in specs if spec.enforcement == "Sync"]
    if not sync:
        return None
    return Barrier(
        timeout_seconds=max(spec.barrier_timeout_seconds for spec in sync),
        on_timeout=max((spec.on_barrier_timeout for spec in sync), key=lambda word: _ON_TIMEOUT[word]),
    )
