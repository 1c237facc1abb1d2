"""What a Supervisor is told about itself: its validity, its references, its judge, in the terms of kstatus."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pilothouse_api.judging import JudgeAnswer, JudgeFailure
from pilothouse_api.v1alpha1 import Supervisor
from pilothouse_api.v1alpha1.common import Condition
from pilothouse_api.v1alpha1.supervisor import Judge
from pilothouse_control.judgement import GRACE, MAX_WARNINGS, ConditionDraft, Judgement
from pilothouse_control.supervision import JudgeUnavailable
from pilothouse_control.texts import MissingText, resolve_text, text_sites
from pilothouse_control.validation import Sources, as_document, validate
from pilothouse_control.world import ConfigMap, References

JUDGE_READY = "JudgeReady"
MODEL_NOT_FOUND = "ModelNotFound"
_FAILING = "Judge"
"""How the reason of JudgeReady begins where the judge was asked and did not judge: `JudgeTimeout`."""


@dataclass(frozen=True, slots=True)
class JudgeHealth:
    """What is known of a supervisor's judge besides its criteria.

    `is_known`: the platform's table was read, or cannot be. `problem`: why the model cannot be asked. `newest`: the
    newest answer that anybody got.
    """

    is_known: bool = True
    problem: JudgeUnavailable | None = None
    newest: JudgeAnswer | None = None


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """Why the judge cannot be asked as it is written. `is_missing`: it may come right by itself (apply order)."""

    reason: str
    message: str
    is_missing: bool = False


def read_criteria(judge: Judge, config_maps: Mapping[str, ConfigMap]) -> str | MissingText:
    """Return the criteria of a judge, or why they cannot be read."""
    site = next(iter(text_sites(judge, ("spec", "judge"))))
    found = resolve_text(site, config_maps)
    if found is None:
        return site.source.inline or ""
    return found if isinstance(found, MissingText) else found[1].text


def evaluate_supervisor(
    raw: Mapping[str, Any], supervisor: Supervisor, known: References, health: JudgeHealth, now: datetime
) -> Judgement:
    """Return the conditions Ready, Reconciling, Stalled and, with a judge, JudgeReady; warnings; when to judge again.

    A model that the platform does not have, and criteria that are not there, are missing references: Reconciling for
    the grace, Stalled after it. Rules go on all the while. A judge that is asked and does not answer is nothing that
    the author of a Supervisor could mend: only JudgeReady says it.
    """
    findings = validate(Sources([as_document(raw)], known), durable_journal=True)
    errors = [finding for finding in findings if finding.is_error and finding.check != "TextNotFound"]
    warnings = tuple(finding.sentence for finding in findings if not finding.is_error)[:MAX_WARNINGS]
    if errors:
        message = "\n".join(finding.sentence for finding in errors[:10])
        return _judgement(supervisor, _Obstacle(errors[0].check, message), health, now, warnings)
    return _judgement(supervisor, _find_obstacle(supervisor, known, health), health, now, warnings)


def _find_obstacle(supervisor: Supervisor, known: References, health: JudgeHealth) -> _Obstacle | None:
    judge = supervisor.spec.judge
    if judge is None:
        return None
    criteria = read_criteria(judge, known.config_maps)
    if isinstance(criteria, MissingText):
        return _Obstacle(criteria.reason, f"spec.judge.criteria: {criteria.message}", criteria.is_waiting)
    if health.problem is not None and health.problem.type == "UnknownModel":
        what = f"spec.judge.model: there is no model {judge.model}: {health.problem.message}"
        return _Obstacle(MODEL_NOT_FOUND, what, is_missing=True)
    return None


def _judgement(
    supervisor: Supervisor, obstacle: _Obstacle | None, health: JudgeHealth, now: datetime, warnings: tuple[str, ...]
) -> Judgement:
    old = supervisor.status.conditions
    judge = _draft_judge_ready(supervisor, obstacle, health, old)
    extra = (judge,) if judge is not None else ()
    if obstacle is None:
        ready = _kstatus("Valid", "valid; watches the runs that refer to it or that it selects", is_ready=True)
        return Judgement((*ready, *extra), warnings)
    deadline = (_not_ready_since(old, obstacle.reason) or now) + GRACE
    is_stalled = not obstacle.is_missing or deadline <= now
    failed = _kstatus(obstacle.reason, obstacle.message, is_stalled=is_stalled)
    return Judgement((*failed, *extra), warnings, None if is_stalled else deadline)


def _kstatus(
    reason: str, message: str, *, is_ready: bool = False, is_stalled: bool = False
) -> tuple[ConditionDraft, ...]:
    is_active = not is_ready and not is_stalled
    truths = (("Ready", is_ready), ("Reconciling", is_active), ("Stalled", is_stalled))
    return tuple(ConditionDraft(kind, "True" if truth else "False", reason, message) for kind, truth in truths)


def _not_ready_since(conditions: Sequence[Condition], reason: str) -> datetime | None:
    for condition in conditions:
        if condition.type == "Ready" and condition.status == "False" and condition.reason == reason:
            return datetime.fromisoformat(condition.last_transition_time)
    return None


def _draft_judge_ready(
    supervisor: Supervisor, obstacle: _Obstacle | None, health: JudgeHealth, old: Sequence[Condition]
) -> ConditionDraft | None:
    judge = supervisor.spec.judge
    if judge is None:
        return None
    if obstacle is not None:
        return ConditionDraft(
            JUDGE_READY, "False", obstacle.reason, f"the judge is off, rules go on: {obstacle.message}"
        )
    if health.problem is not None:
        return ConditionDraft(JUDGE_READY, "False", f"{_FAILING}{health.problem.type}", health.problem.message)
    if not health.is_known:
        return ConditionDraft(JUDGE_READY, "Unknown", "Starting", "which models the platform has is not known yet")
    if isinstance(health.newest, JudgeFailure):
        return ConditionDraft(JUDGE_READY, "False", f"{_FAILING}{health.newest.type}", health.newest.message)
    before = next((condition for condition in old if condition.type == JUDGE_READY), None)
    if health.newest is None and before is not None and _is_of_a_verdict(before, supervisor):
        # A restarted operator has asked nobody yet: what was said last holds until somebody has.
        return ConditionDraft(JUDGE_READY, "False", before.reason, before.message)
    return ConditionDraft(JUDGE_READY, "True", "Askable", f"asks {judge.model} of the platform's table")


def _is_of_a_verdict(before: Condition, supervisor: Supervisor) -> bool:
    is_failing = before.reason.startswith(_FAILING) and before.reason != f"{_FAILING}Unavailable"
    return is_failing and before.observed_generation == supervisor.metadata.generation
