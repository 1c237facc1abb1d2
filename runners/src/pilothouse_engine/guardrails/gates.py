"""Gates: which checks stand at one, and what comes of a text that passes them in order (engine.md §4).

The checks are of linear time, so they have no deadline of their own: no thread could be ended. What bounds them is the
size of the text. A large one is judged beside the loop, so that a wait of seconds stops nobody else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from pilothouse_api.plan import IntegrityError
from pilothouse_api.v1alpha1.agent import ArtifactCheck, GuardrailCheck, LlmJudge, PromptInjection, SecretMask
from pilothouse_api.v1alpha1.base import Model
from pilothouse_api.v1alpha1.common import TextSource
from pilothouse_engine.guardrails.registry import CHECKS, PARAMS
from pilothouse_engine.guardrails.verdicts import (
    Allow,
    CheckVerdict,
    GateResult,
    JudgeFailed,
    JudgeHolds,
    JudgeVerdict,
    JudgeViolated,
    Passed,
    Refuse,
    Refused,
    Rewrite,
)

MAX_CHECKS = 64
"""Checks of one gate, those of its artifacts counted."""
MAX_ARTIFACT_CHARS = 65_536
MAX_SUBJECT_CHARS = 2_000_000
MAX_REASON_CHARS = 500
LARGE_CHARS = 32_768

_log = logging.getLogger("pilothouse.engine")


@dataclass(frozen=True, slots=True)
class PlannedCheck:
    """One check of a gate: `artifact` is where it comes from, `criteria` the resolved text of an LlmJudge."""

    check: str
    params: Model
    artifact: str = ""
    criteria: str = ""


@dataclass(frozen=True, slots=True)
class Unresolvable:
    """A gate cannot be made: the step exits `error`, reason GuardrailUnresolvable."""

    message: str


PlannedGate = tuple[PlannedCheck, ...]
TextOf = Callable[[TextSource], str]
"""Returns a text of the plan; raises IntegrityError."""
Judge = Callable[[PlannedCheck, str], Awaitable[JudgeVerdict]]
"""Asks a model whether the criteria of a planned LlmJudge hold for a text; failures and timeouts are JudgeFailed."""


class _CannotPlan(Exception):
    pass


def plan_gate(gate: Sequence[GuardrailCheck], text_of: TextOf) -> PlannedGate | Unresolvable:
    """Return the checks of a gate in their order, artifacts replaced by what they hold, or why that cannot be done."""
    planned: list[PlannedCheck] = []
    try:
        for check in gate:
            if check.check == "Artifact":
                planned += _plan_artifact(check, text_of)
            else:
                planned.append(_plan_check(check, text_of, ""))
    except _CannotPlan as error:
        return Unresolvable(str(error))
    if len(planned) > MAX_CHECKS:
        return Unresolvable(
            f"the gate has {len(planned)} checks with those of its artifacts; the limit is {MAX_CHECKS}"
        )
    return tuple(planned)


def _plan_check(check: GuardrailCheck, text_of: TextOf, artifact: str) -> PlannedCheck:
    place = f" of artifact {artifact}" if artifact else ""
    params = getattr(check, PARAMS[check.check])
    if params is None:
        model = GuardrailCheck.model_fields[PARAMS[check.check]]
        params = _parameterless(check.check)
        if params is None:
            raise _CannotPlan(f"check {check.check}{place} needs {model.alias}")
    criteria = ""
    if isinstance(params, LlmJudge):
        try:
            criteria = text_of(params.criteria)
        except IntegrityError as error:
            raise _CannotPlan(f"the criteria of LlmJudge{place} cannot be read: {error}") from None
    return PlannedCheck(check.check, params, artifact, criteria)


def _parameterless(check: str) -> Model | None:
    """Return the parameters of a check that may be written without any."""
    return {"SecretMask": SecretMask(), "PromptInjection": PromptInjection()}.get(check)


def _plan_artifact(check: GuardrailCheck, text_of: TextOf) -> list[PlannedCheck]:
    if not isinstance(check.artifact, ArtifactCheck):
        raise _CannotPlan("check Artifact needs artifact")
    ref = check.artifact.ref
    try:
        text = text_of(TextSource(artifact=ref))
    except IntegrityError as error:
        raise _CannotPlan(f"artifact {ref} cannot be read: {error}") from None
    planned = []
    for index, raw in enumerate(_parse_artifact(ref, text)):
        try:
            inner = GuardrailCheck.model_validate(raw)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise _CannotPlan(f"check {index} of artifact {ref} is no check: {place}: {first['msg']}") from None
        if inner.check == "Artifact":
            raise _CannotPlan(f"check {index} of artifact {ref} names an artifact; write the checks themselves")
        planned.append(_plan_check(inner, text_of, ref))
    return planned


def _parse_artifact(ref: str, text: str) -> list[object]:
    """Return the entries of an artifact of type guardrail: YAML, a list of checks as they stand in a gate."""
    import yaml

    if len(text) > MAX_ARTIFACT_CHARS:
        raise _CannotPlan(f"artifact {ref} has {len(text)} characters; the limit is {MAX_ARTIFACT_CHARS}")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=loader)):
            raise _CannotPlan(f"artifact {ref} uses YAML aliases; write what they stand for")
        entries = yaml.load(text, Loader=loader)  # a SafeLoader either way
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise _CannotPlan(f"artifact {ref} is no YAML: {problem}{where}") from None
    if not isinstance(entries, list) or not entries:
        raise _CannotPlan(f"artifact {ref} is not a list of checks")
    return entries


async def run_gate(checks: PlannedGate, subject: str, judge: Judge | None) -> GateResult:
    """Return what comes of a text: the first refusal wins, a transform's text goes on.

    `judge` may be None where no check is an LlmJudge. A check that raises refuses.
    """
    text, tokens = subject, 0
    notes: list[str] = []
    for check in checks:
        verdict: CheckVerdict
        if check.check == "LlmJudge":
            verdict, used, note = await _ask(check, text, judge)
            tokens += used
        else:
            is_large = len(text) > LARGE_CHARS
            verdict = await asyncio.to_thread(_evaluate, check, text) if is_large else _evaluate(check, text)
            note = ""
        if isinstance(verdict, Refuse):
            reason = verdict.reason[:MAX_REASON_CHARS]
            return GateResult(Refused(check.artifact, check.check, reason), tokens)
        if isinstance(verdict, Rewrite):
            text, note = verdict.text, verdict.note
        if note:
            notes.append(f"{check.check}: {note}")
    return GateResult(Passed(text, tuple(notes)), tokens)


def _evaluate(check: PlannedCheck, text: str) -> CheckVerdict:
    if len(text) > MAX_SUBJECT_CHARS and check.check != "MaxChars":
        return Refuse(f"the text has {len(text)} characters; a check judges at most {MAX_SUBJECT_CHARS}")
    try:
        return CHECKS[check.check](text, check.params)
    except Exception as error:  # engine.md §4: a check that throws refuses; what it threw is logged, never the text
        _log.error("agent.guardrail_failed check=%s error=%s", check.check, type(error).__name__)
        return Refuse(f"the check failed ({type(error).__name__})")


async def _ask(check: PlannedCheck, text: str, judge: Judge | None) -> tuple[Allow | Refuse, int, str]:
    """Ask the judge; one that gives no verdict is noted or refuses, as onError says."""
    if judge is None:
        answer: JudgeVerdict = JudgeFailed("there is no judge to ask")
    else:
        answer = await judge(check, text)
    match answer:
        case JudgeHolds(tokens):
            return Allow(), tokens, ""
        case JudgeViolated(reason, tokens):
            return Refuse(f"the judge found a violation: {reason}"), tokens, ""
        case JudgeFailed(message, tokens):
            assert isinstance(check.params, LlmJudge)
            message = message[:MAX_REASON_CHARS]
            if check.params.on_error == "Violation":
                return Refuse(f"the judge gave no verdict ({message}), and llmJudge.onError is Violation"), tokens, ""
            return Allow(), tokens, f"the judge gave no verdict ({message}), and llmJudge.onError is Ignore"
