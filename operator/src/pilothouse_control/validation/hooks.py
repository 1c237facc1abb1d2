"""Checks of hooks: what they notify, when they can fire, and what a notification's templates may name."""

from collections.abc import Iterator
from typing import NamedTuple

from pilothouse_api.hooks import PAYLOAD_KEYS, HookTextError, parse_hooks
from pilothouse_api.templates import is_path
from pilothouse_api.v1alpha1.common import Hook
from pilothouse_api.v1alpha1.workflow import Step
from pilothouse_control.findings import FieldPath
from pilothouse_control.texts import MissingText, resolve_text, text_sites
from pilothouse_control.tree import walk
from pilothouse_control.validation.scene import Check, Problem, Scene, SpecSubject, WorkflowSubject
from pilothouse_control.validation.sentences import did_you_mean
from pilothouse_control.validation.specs import templates_of

TOOL_EVENTS = frozenset({"BeforeTool", "AfterTool"})


class PlacedHook(NamedTuple):
    """A hook where it stands; one of an artifact stands where the artifact is named. `step` is None for all steps."""

    path: FieldPath
    prefix: str
    hook: Hook
    step: Step | None


def judge_hook_artifacts(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """An artifact of type hook whose text is no list of hooks."""
    for path, node in walk(subject.spec, subject.path):
        if isinstance(node, Hook) and isinstance(found := _hooks_of(scene, node), str):
            yield Problem(path, f"the artifact {node.artifact} holds no hooks: {found}")


def _hooks_of(scene: Scene, hook: Hook) -> tuple[Hook, ...] | str:
    """Return a hook, or those of its artifact as far as it is known; a string says why there are none."""
    if hook.artifact is None:
        return (hook,)
    site = next(text_sites(hook))
    resolved = resolve_text(site, scene.config_maps) if site.takes else None
    if resolved is None or isinstance(resolved, MissingText):
        return ()  # said by the checks of texts
    try:
        return parse_hooks(resolved[1].text)
    except HookTextError as error:
        return str(error)


def placed_hooks(scene: Scene, subject: WorkflowSubject) -> Iterator[PlacedHook]:
    """Yield the hooks of a workflow, of its steps and of their agents."""
    lists: list[tuple[FieldPath, bool, list[Hook], Step | None]] = [(("spec", "hooks"), True, subject.spec.hooks, None)]
    lists += [((*path, "hooks"), True, step.hooks, step) for path, step in subject.steps()]
    for used in subject.used:
        place = (*used.path, "hooks") if used.is_inline else used.path
        lists.append((place, used.is_inline, used.spec.hooks, used.step))
    for path, is_here, hooks, step in lists:
        for index, hook in enumerate(hooks):
            found = _hooks_of(scene, hook)
            for one in () if isinstance(found, str) else found:
                prefix = f"the artifact {hook.artifact}: " if hook.artifact else ""
                yield PlacedHook((*path, index) if is_here else path, prefix, one, step)


def judge_notified_steps(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A notification through a step that does not exist, or that is no call."""
    steps = {step.id: step for step in subject.spec.steps}
    for path, prefix, hook, _ in placed_hooks(scene, subject):
        if hook.notify is None:
            continue
        target = steps.get(hook.notify.step)
        if target is None:
            hint = did_you_mean(hook.notify.step, steps) or "add an APICall step with toolOnly: true"
            yield Problem(path, f"{prefix}notify.step names {hook.notify.step}, which is no step of the workflow", hint)
        elif target.kind != "APICall":
            what = f"{prefix}notify.step names {target.id}, a step of kind {target.kind}"
            yield Problem(path, what, "name a step of kind APICall")


def judge_never_fires(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A hook on tools at a step that has none."""
    with_tools = {used.step.id for used in subject.used if used.spec.tools}
    known = {used.step.id for used in subject.used}
    for path, prefix, hook, step in placed_hooks(scene, subject):
        if hook.event not in TOOL_EVENTS or step is None:
            continue
        if step.kind != "Agent" or (step.id in known and step.id not in with_tools):
            yield Problem(path, f"{prefix}{hook.event} never fires: step {step.id} has no tools", "remove it")


def notified_steps(scene: Scene, subject: WorkflowSubject) -> frozenset[str]:
    """Return the steps that notifications run."""
    hooks = (placed.hook for placed in placed_hooks(scene, subject))
    return frozenset(hook.notify.step for hook in hooks if hook.notify is not None)


def judge_payload_paths(scene: Scene, subject: WorkflowSubject) -> Iterator[Problem]:
    """A template of a notification that names what its payload does not have."""
    notified = notified_steps(scene, subject)
    for place, step in subject.steps():
        if step.id not in notified:
            continue
        for path, found in templates_of(step, place):
            if is_path(found) and found.split(".")[0] not in PAYLOAD_KEYS:
                what = f"{found} can never resolve where a hook runs the step: it sees the payload, not the context"
                hint = did_you_mean(found, PAYLOAD_KEYS) or f"it has {', '.join(sorted(PAYLOAD_KEYS))}"
                yield Problem(path, what, hint)


HOOK_ARTIFACT: Check[SpecSubject] = Check("HookArtifactInvalid", "Error", judge_hook_artifacts)

HOOK_CHECKS: tuple[Check[WorkflowSubject], ...] = (
    Check("NotifyStepInvalid", "Error", judge_notified_steps),
    Check("HookNeverFires", "Warning", judge_never_fires),
    Check("PayloadPathUnknown", "Error", judge_payload_paths),
)
