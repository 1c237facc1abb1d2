"""Checks of a run's manifest."""

from collections.abc import Collection, Iterator

from pilothouse_api.v1alpha1.common import LocalRef
from pilothouse_control.inputs import InputRefused, resolve_input
from pilothouse_control.validation.pods import quantity_problems
from pilothouse_control.validation.scene import Check, Problem, RunSubject, Scene
from pilothouse_control.validation.sentences import did_you_mean
from pilothouse_control.validation.workflows import (
    deadlines_exceeded,
    totals_without_output_tokens,
    totals_without_price,
)


def _missing(scene: Scene, subject: RunSubject) -> Iterator[tuple[str, str, str]]:
    spec = subject.run.spec
    targets: tuple[tuple[str, str, LocalRef | None, Collection[str]], ...] = (
        ("workflowRef", "Workflow", spec.workflow_ref, scene.workflows),
        ("agentRef", "Agent", spec.agent_ref, scene.agents),
    )
    for field, kind, ref, known in targets:
        if ref is not None and ref.name not in known and (kind, ref.name) not in scene.refused:
            yield field, f"{kind} {ref.name}", did_you_mean(ref.name, known)


def judge_target_found(scene: Scene, subject: RunSubject) -> Iterator[Problem]:
    """What the run executes is nowhere."""
    for field, what, hint in _missing(scene, subject) if scene.is_complete else ():
        yield Problem(("spec", field, "name"), f"there is no {what}", hint)


def judge_target_elsewhere(scene: Scene, subject: RunSubject) -> Iterator[Problem]:
    """What the run executes is not among what was given."""
    for field, what, hint in () if scene.is_complete else _missing(scene, subject):
        sentence = f"{what} is not among what was given, so input and limits were not judged"
        yield Problem(("spec", field, "name"), sentence, hint or "give its file too, or see that the cluster has it")


def judge_steering_in_manifest(scene: Scene, subject: RunSubject) -> Iterator[Problem]:
    """Fields that people change while a run lives, written in a manifest."""
    for field, value in (("control", subject.run.spec.control), ("limits", subject.run.spec.limits)):
        if value is not None:
            what = f"{field} is what people change while it runs; from Git it would be set back at every apply"
            yield Problem(("spec", field), what, f"remove it and patch spec.{field} on the live run")


def judge_input(scene: Scene, subject: RunSubject) -> Iterator[Problem]:
    """An input that is too large or does not fit."""
    if subject.workflow is None:
        return
    outcome = resolve_input(subject.run.spec.input, subject.workflow.spec.input)
    if isinstance(outcome, InputRefused):
        yield Problem(("spec", "input", *outcome.path), outcome.message)


def judge_agent_tools(scene: Scene, subject: RunSubject) -> Iterator[Problem]:
    """A run of an Agent whose tools are steps of a workflow."""
    spec = subject.run.spec
    agent = scene.agents.get(spec.agent_ref.name) if spec.agent_ref is not None else None
    for tool in agent.spec.tools if agent is not None else ():
        if tool.step is not None:
            what = f"the tool {tool.name} is a step of a workflow, and a run of an Agent has none"
            yield Problem(("spec", "agentRef"), what, "run a Workflow, or make the tool an inlineStep")


def judge_release(scene: Scene, subject: RunSubject) -> Iterator[Problem]:
    """A release of the pod where the journal does not survive it."""
    limits = subject.run.spec.limits
    if limits is not None and limits.on_pause_timeout == "Release" and not scene.durable_journal:
        what = "Release needs a durable journal, and this installation has none: the run could not go on"
        yield Problem(("spec", "limits", "onPauseTimeout"), what, "set Abort, or install with a durable journal")


def judge_session(scene: Scene, subject: RunSubject) -> Iterator[Problem]:
    """A session where nothing keeps it."""
    if subject.run.spec.session is not None and not scene.durable_journal:
        what = "a session needs a durable journal, and this installation has none"
        yield Problem(("spec", "session"), what, "remove it, or install with a durable journal")


def judge_budgets(scene: Scene, subject: RunSubject) -> Iterator[Problem]:
    """Totals that cannot be reserved."""
    limits = subject.run.spec.limits
    used = subject.workflow.used if subject.workflow is not None else ()
    if limits is not None and limits.token_budget is not None:
        for _, what, hint in totals_without_output_tokens(used, "spec.limits.tokenBudget"):
            yield Problem(("spec", "limits", "tokenBudget"), what, hint)
    if limits is not None and limits.cost_budget_usd is not None:
        for _, what, hint in totals_without_price(scene, used, "spec.limits.costBudgetUSD"):
            yield Problem(("spec", "limits", "costBudgetUSD"), what, hint)


def judge_deadline(scene: Scene, subject: RunSubject) -> Iterator[Problem]:
    """A deadline that the tools' own ones exceed."""
    overrides = subject.run.spec.overrides
    if overrides is None or overrides.active_deadline_seconds is None or subject.workflow is None:
        return
    path = ("spec", "overrides", "activeDeadlineSeconds")
    deadline = overrides.active_deadline_seconds
    for _, what, hint in deadlines_exceeded(subject.workflow.used, deadline, "overrides.activeDeadlineSeconds"):
        yield Problem(path, what, hint)


def judge_resources(scene: Scene, subject: RunSubject) -> Iterator[Problem]:
    """A quantity that is none."""
    overrides = subject.run.spec.overrides
    if overrides is not None:
        yield from quantity_problems(overrides.resources, ("spec", "overrides", "resources"))


RUN_CHECKS: tuple[Check[RunSubject], ...] = (
    Check("TargetNotFound", "Error", judge_target_found),
    Check("TargetElsewhere", "Warning", judge_target_elsewhere),
    Check("SteeringInManifest", "Warning", judge_steering_in_manifest),
    Check("InputInvalid", "Error", judge_input),
    Check("ToolOfAgentRun", "Error", judge_agent_tools),
    Check("ReleaseOfRunWithoutDurableJournal", "Error", judge_release),
    Check("SessionWithoutDurableJournal", "Error", judge_session),
    Check("RunTotalUnreservable", "Error", judge_budgets),
    Check("ToolExceedsRunDeadline", "Error", judge_deadline),
    Check("OverrideQuantityInvalid", "Error", judge_resources),
)
