"""What a Workflow or an Agent is told about itself, by the rules of kstatus."""

from datetime import UTC, datetime, timedelta

import pytest

from pilothouse_api.v1alpha1 import Agent, Workflow
from pilothouse_api.v1alpha1.common import Condition
from pilothouse_control.judgement import GRACE, Judgement, evaluate_object, missing_since, used_by
from unit.control.manifests import Raw, a_config_map, a_tool, a_workflow, an_agent, ref_step
from unit.control.test_resolution import known

NOW = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
TONE = {"artifact": "tone@2"}
Truths = tuple[str, str, str, str]

READY: Truths = ("True", "False", "False", "True")
WAITING: Truths = ("False", "True", "False", "False")
STALLED: Truths = ("False", "False", "True", "False")
INVALID: Truths = ("False", "False", "True", "True")


def judge(raw: Raw, *objects: Raw, since: datetime | None = None) -> Judgement:
    obj = Workflow.model_validate(raw) if raw["kind"] == "Workflow" else Agent.model_validate(raw)
    return evaluate_object(raw, obj, known(*objects), since, NOW)


def truths(judgement: Judgement) -> dict[str, str]:
    return {condition.type: condition.status for condition in judgement.conditions}


def named(want: Truths) -> dict[str, str]:
    return dict(zip(("Ready", "Reconciling", "Stalled", "ReferencesResolved"), want, strict=True))


@pytest.mark.parametrize(
    ("raw", "objects", "since", "want", "reason", "message"),
    [
        (a_workflow(), [], None, READY, "Valid", "valid"),
        (a_workflow(suspend=True), [], None, READY, "Suspended", "suspended"),
        (an_agent(), [], None, READY, "Valid", "valid"),
        (a_workflow(ref_step("helper")), [an_agent()], None, READY, "Valid", "valid"),
        (a_workflow(ref_step("helper")), [], None, WAITING, "AgentNotFound", "there is no Agent helper"),
        (a_workflow(ref_step("helper")), [], NOW - timedelta(seconds=59), WAITING, "AgentNotFound", "helper"),
        (a_workflow(ref_step("helper")), [], NOW - GRACE, STALLED, "AgentNotFound", "helper"),
        (an_agent(steering=TONE), [], None, WAITING, "ArtifactNotFound", "there is no ConfigMap tone"),
        (
            an_agent(steering=TONE),
            [a_config_map("tone", "steering", **{"1": "a"})],
            NOW - GRACE,
            STALLED,
            "ArtifactNotFound",
            "has no version 2",
        ),
        (
            a_workflow(ref_step("helper")),
            [an_agent(steering=TONE)],
            None,
            WAITING,
            "ArtifactNotFound",
            "there is no ConfigMap tone",
        ),
        (
            an_agent(steering=TONE),
            [a_config_map("tone", "skill", **{"2": "a"})],
            None,
            INVALID,
            "ArtifactType",
            "spec.steering: the artifact tone is of type skill",
        ),
        (
            a_workflow(ref_step("helper")),
            [an_agent(tools=[a_tool(description=None)])],
            None,
            INVALID,
            "AgentInvalid",
            "Agent helper: spec.tools[0].description: the tool lookup has no description",
        ),
        (
            a_workflow(ref_step("helper")),
            [an_agent(outcome={"enum": ["done"]})],
            None,
            INVALID,
            "OutcomeUnmapped",
            "Agent helper may end with done",
        ),
        (
            a_workflow(ref_step("helper"), ref_step("other", "more"), input={"defaults": {"_x": 1}}),
            [an_agent()],
            None,
            ("False", "False", "True", "False"),
            "ReservedKey",
            "spec.input.defaults._x",
        ),
    ],
)
def test_an_object_is_judged(
    raw: Raw, objects: list[Raw], since: datetime | None, want: Truths, reason: str, message: str
) -> None:
    judgement = judge(raw, *objects, since=since)
    assert truths(judgement) == named(want)
    ready = judgement.conditions[0]
    assert (ready.type, ready.reason) == ("Ready", reason)
    assert message in ready.message
    assert judgement.is_ready == (want is READY)


@pytest.mark.parametrize(
    ("since", "want"),
    [(None, NOW + GRACE), (NOW - timedelta(seconds=20), NOW + timedelta(seconds=40))],
)
def test_a_missing_reference_is_judged_again_when_its_grace_ends(since: datetime | None, want: datetime) -> None:
    assert judge(a_workflow(ref_step("helper")), since=since).judge_again_at == want


def test_a_stalled_object_waits_for_a_change_and_not_for_time() -> None:
    assert judge(a_workflow(ref_step("helper")), since=NOW - GRACE).judge_again_at is None


def test_warnings_are_listed_without_those_about_what_is_missing() -> None:
    tone = a_config_map("tone", "steering", **{"1": "a"})
    assert judge(an_agent(steering={"artifact": "tone"}), tone).warnings == (
        "spec.steering.artifact: the version of tone is not pinned: each run takes the newest one;"
        " write tone@<version>",
    )
    assert judge(a_workflow(ref_step("helper"))).warnings == ()


@pytest.mark.parametrize(
    ("conditions", "want"),
    [
        ([], None),
        ([("ReferencesResolved", "True")], None),
        ([("Ready", "False"), ("ReferencesResolved", "False")], NOW),
    ],
)
def test_the_moment_since_when_references_are_missing_is_read_from_conditions(
    conditions: list[tuple[str, str]], want: datetime | None
) -> None:
    made = [
        Condition(type=kind, status=status, reason="X", message="x", last_transition_time=NOW.isoformat())
        for kind, status in conditions
    ]
    assert missing_since(made) == want


def test_the_workflows_that_use_an_agent_are_counted() -> None:
    workflows = [
        Workflow.model_validate(raw) for raw in (a_workflow(ref_step("helper")), a_workflow(ref_step("other")))
    ]
    assert used_by("helper", workflows) == 1
