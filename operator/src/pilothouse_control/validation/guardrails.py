"""Checks of guardrails: what an artifact of type guardrail holds."""

from collections.abc import Iterator

from pilothouse_api.guardrails import CheckTextError, parse_checks
from pilothouse_api.v1alpha1.agent import ArtifactCheck, GuardrailCheck, Guardrails
from pilothouse_control.texts import MissingText, resolve_text, text_sites
from pilothouse_control.tree import walk
from pilothouse_control.validation.scene import Check, Problem, Scene, SpecSubject
from pilothouse_control.validation.specs import judge_patterns, judge_schemas


def judge_guardrail_artifacts(scene: Scene, subject: SpecSubject) -> Iterator[Problem]:
    """An artifact of type guardrail whose text is no list of checks, or has one that can judge nothing."""
    for path, node in walk(subject.spec, subject.path):
        if not isinstance(node, ArtifactCheck):
            continue
        checks = _checks_of(scene, node)
        if isinstance(checks, str):
            yield Problem((*path, "ref"), f"the artifact {node.ref} cannot be used: {checks}")
            continue
        inner = SpecSubject(subject.kind, Guardrails(tools=list(checks)), ())
        for judge in (judge_patterns, judge_schemas):
            for problem in judge(scene, inner):
                place = ".".join(str(part) for part in problem.path[1:])
                what = f"check {place} of the artifact {node.ref}: {problem.what}"
                yield Problem((*path, "ref"), what, problem.hint)


def _checks_of(scene: Scene, node: ArtifactCheck) -> tuple[GuardrailCheck, ...] | str:
    """Return the checks of an artifact as far as it is known; a string says why there are none."""
    resolved = resolve_text(next(text_sites(node)), scene.config_maps)
    if resolved is None or isinstance(resolved, MissingText):
        return ()  # said by the checks of texts
    try:
        return parse_checks(resolved[1].text)
    except CheckTextError as error:
        return str(error)


GUARDRAIL_CHECKS: tuple[Check[SpecSubject], ...] = (
    Check("GuardrailArtifactInvalid", "Error", judge_guardrail_artifacts),
)
