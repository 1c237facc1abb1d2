"""What a Supervisor is told about itself, by the rules of kstatus."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pilothouse_api.judging import JudgeFailure, Verdict
from pilothouse_api.v1alpha1 import Supervisor
from pilothouse_control.judgement import GRACE, Judgement
from pilothouse_control.supervision import JudgeUnavailable
from pilothouse_control.supervisors import JudgeHealth, evaluate_supervisor, read_criteria
from pilothouse_control.texts import MissingText
from pilothouse_control.world import ConfigMap, References

NOW = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
POLICY = ConfigMap("policy", {"text": "Be good."})
CRITERIA = {"configMapKeyRef": {"name": "policy", "key": "text"}}
NO_MODEL = JudgeHealth(problem=JudgeUnavailable("UnknownModel", "the platform's table has large"))
AWAY = JudgeHealth(problem=JudgeUnavailable("Unavailable", "nobody there"))
Raw = dict[str, Any]


def a_supervisor(conditions: list[Raw] | None = None, **spec: Any) -> Raw:
    rules = [{"name": "long", "when": "IterationReached"}]
    return {
        "apiVersion": "pilothouse.dev/v1alpha1",
        "kind": "Supervisor",
        "metadata": {"name": "careful", "namespace": "ns", "generation": 3},
        "spec": {"rules": rules, **spec},
        "status": {"conditions": conditions or []},
    }


def a_judge(**more: Any) -> Raw:
    return {"judge": {"model": "small", "criteria": {"inline": "Be good."}, **more}}


def was(kind: str, status: str, reason: str, seconds: float = 0, generation: int = 3) -> Raw:
    since = (NOW - timedelta(seconds=seconds)).isoformat()
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "as it was",
        "lastTransitionTime": since,
        "observedGeneration": generation,
    }


def judge(raw: Raw, health: JudgeHealth | None = None, *maps: ConfigMap) -> Judgement:
    known = References(config_maps={one.name: one for one in maps})
    return evaluate_supervisor(raw, Supervisor.model_validate(raw), known, health or JudgeHealth(), NOW)


def truths(judgement: Judgement) -> tuple[str, ...]:
    found = {condition.type: condition.status for condition in judgement.conditions}
    return tuple(found.get(kind, "-") for kind in ("Ready", "Reconciling", "Stalled", "JudgeReady"))


WITH_REF = a_supervisor(**a_judge(criteria=CRITERIA))


@pytest.mark.parametrize(
    ("raw", "health", "maps", "want", "reason"),
    [
        (a_supervisor(), None, (), ("True", "False", "False", "-"), "Valid"),
        (a_supervisor(**a_judge()), None, (), ("True", "False", "False", "True"), "Valid"),
        (WITH_REF, None, (POLICY,), ("True", "False", "False", "True"), "Valid"),
        (WITH_REF, None, (), ("False", "True", "False", "False"), "ConfigMapNotFound"),
        (a_supervisor(**a_judge()), NO_MODEL, (), ("False", "True", "False", "False"), "ModelNotFound"),
        (a_supervisor(**a_judge()), AWAY, (), ("True", "False", "False", "False"), "Valid"),
        (a_supervisor(**a_judge()), JudgeHealth(is_known=False), (), ("True", "False", "False", "Unknown"), "Valid"),
        (
            a_supervisor([was("Ready", "False", "ModelNotFound", GRACE.total_seconds())], **a_judge()),
            NO_MODEL,
            (),
            ("False", "False", "True", "False"),
            "ModelNotFound",
        ),
        (
            a_supervisor(rules=[{"name": "odd", "when": "Expression", "expression": {"cel": "run.nothing > 1"}}]),
            None,
            (),
            ("False", "False", "True", "-"),
            None,
        ),
    ],
)
def test_a_supervisor_is_judged(
    raw: Raw, health: JudgeHealth | None, maps: tuple[ConfigMap, ...], want: tuple[str, ...], reason: str | None
) -> None:
    judgement = judge(raw, health, *maps)
    assert truths(judgement) == want
    assert reason is None or judgement.conditions[0].reason == reason


def test_a_missing_model_is_judged_again_when_its_grace_ends() -> None:
    raw = a_supervisor([was("Ready", "False", "ModelNotFound", 20)], **a_judge())
    assert judge(raw, NO_MODEL).judge_again_at == NOW - timedelta(seconds=20) + GRACE
    other = a_supervisor([was("Ready", "False", "ConfigMapNotFound", 20)], **a_judge())
    assert judge(other, NO_MODEL).judge_again_at == NOW + GRACE


@pytest.mark.parametrize(
    ("newest", "old", "want"),
    [
        (Verdict(passed=False, reason="no"), [], ("True", "Askable")),
        (JudgeFailure(type="BadAnswer", message="garbage"), [], ("False", "JudgeBadAnswer")),
        (None, [was("JudgeReady", "False", "JudgeTimeout")], ("False", "JudgeTimeout")),
        (None, [was("JudgeReady", "False", "JudgeTimeout", generation=2)], ("True", "Askable")),
        (None, [was("JudgeReady", "False", "JudgeUnavailable")], ("True", "Askable")),
        (Verdict(passed=True, reason=""), [was("JudgeReady", "False", "JudgeTimeout")], ("True", "Askable")),
    ],
)
def test_judge_ready_follows_the_newest_verdict_over_restarts(
    newest: Any, old: list[Raw], want: tuple[str, str]
) -> None:
    judgement = judge(a_supervisor(old, **a_judge()), JudgeHealth(newest=newest))
    found = judgement.conditions[-1]
    assert (found.type, found.status, found.reason) == ("JudgeReady", *want)


@pytest.mark.parametrize(
    ("criteria", "maps", "want"),
    [
        ({"inline": "Be good."}, {}, "Be good."),
        (CRITERIA, {"policy": POLICY}, "Be good."),
        (CRITERIA, {}, None),
        ({"artifact": "tone@2"}, {"tone": ConfigMap("tone", {"2": "Kind."}, "steering")}, "Kind."),
        ({"artifact": "tone@2"}, {"tone": ConfigMap("tone", {"2": "Kind."}, "skill")}, None),
    ],
)
def test_criteria_are_read_from_where_they_stand(criteria: Raw, maps: dict[str, ConfigMap], want: str | None) -> None:
    supervisor = Supervisor.model_validate(a_supervisor(**a_judge(criteria=criteria)))
    assert supervisor.spec.judge is not None
    found = read_criteria(supervisor.spec.judge, maps)
    assert found == want or (want is None and isinstance(found, MissingText))
