"""Gates: which checks stand at one, and what comes of a text that passes them in order (engine.md §4).

The checks are of linear time, so they have no deadline of their own: no thread could be ended. What bounds them is the
size of the text. A large one is judged beside the loop, so that a wait of seconds stops nobody else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from pilothouse_api.crossing import Written
from pilothouse_api.guardrails import PARAMETERS, CheckTextError, parameter_problem, parse_checks
from pilothouse_api.stored_plan import IntegrityError
from pilothouse_api.structs import (
    ArtifactCheck,
    GuardrailCheck,
    LlmJudge,
    PiiMask,
    PromptInjection,
    SecretMask,
    TextSource,
)
from pilothouse_engine.guardrails.detectors.secrets import find_secrets
from pilothouse_engine.guardrails.masks import DETECTORS, Detector, finds_nothing, mask_ends
from pilothouse_engine.guardrails.registry import CHECKS
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
from pilothouse_engine.values import Value

MAX_CHECKS = 64
"""Checks of one gate, those of its artifacts counted."""
MAX_SUBJECT_CHARS = 2_000_000
MAX_REASON_CHARS = 500
LARGE_CHARS = 32_768

_log = logging.getLogger("pilothouse.engine")


class PlannedCheck(Value):
    """One check of a gate: `artifact` is where it comes from, `criteria` the resolved text of an LlmJudge."""

    check: str
    params: Written
    artifact: str = ""
    criteria: str = ""


class Unresolvable(Value):
    """A gate cannot be made: the step exits `error`, reason GuardrailUnresolvable."""

    message: str


PlannedGate = tuple[PlannedCheck, ...]


class Gate(Value):
    """The checks of one gate and what follows from them."""

    checks: PlannedGate
    has_judge: bool
    detectors: tuple[Detector, ...]
    """What its masks look for."""
    unmasking: PlannedGate
    """Its checks that are no masks."""

    def passes(self, text: str) -> bool:
        """Tell whether a text goes on as it is, in one look for all of the masks; False: its checks must say why."""
        if self.has_judge or len(text) > LARGE_CHARS:
            return False
        try:
            is_bare = finds_nothing(text, self.detectors)
        except Exception:  # the check will fail on it again, and says so
            return False
        return is_bare and all(isinstance(_evaluate(check, text), Allow) for check in self.unmasking)

    def part(self, text: str, start: int, end: int) -> str:
        """Return a stretch of a text, without halves of what the masks of this gate would have found in the whole."""
        return mask_ends(text, start, end, self.detectors) if self.detectors else text[start:end]


TextOf = Callable[[TextSource], str]
"""Returns a text of the plan; raises IntegrityError."""
Judge = Callable[[PlannedCheck, str], Awaitable[JudgeVerdict]]
"""Asks a model whether the criteria of a planned LlmJudge hold for a text; failures and timeouts are JudgeFailed."""


class _CannotPlan(Exception):
    pass


def build_gate(checks: PlannedGate) -> Gate:
    """Return a gate of planned checks."""
    found: dict[Detector, None] = {}
    for check in checks:
        if isinstance(check.params, PiiMask):
            found |= dict.fromkeys(DETECTORS[entity] for entity in check.params.entities)
        elif isinstance(check.params, SecretMask):
            found[find_secrets] = None
    has_judge = any(check.check == "LlmJudge" for check in checks)
    unmasking = tuple(check for check in checks if not isinstance(check.params, PiiMask | SecretMask))
    return Gate(checks, has_judge, tuple(found), unmasking)


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
    if (problem := parameter_problem(check)) is not None:
        raise _CannotPlan(problem)
    params = getattr(check, PARAMETERS[check.check])
    if params is None:
        params = SecretMask() if check.check == "SecretMask" else PromptInjection()
    criteria = ""
    if isinstance(params, LlmJudge):
        try:
            criteria = text_of(params.criteria)
        except IntegrityError as error:
            raise _CannotPlan(f"the criteria of LlmJudge cannot be read: {error}") from None
    return PlannedCheck(check.check, params, artifact, criteria)


def _plan_artifact(check: GuardrailCheck, text_of: TextOf) -> list[PlannedCheck]:
    if not isinstance(check.artifact, ArtifactCheck):
        raise _CannotPlan("Artifact needs artifact")
    ref = check.artifact.ref
    try:
        checks = parse_checks(text_of(TextSource(artifact=ref)))
    except IntegrityError as error:
        raise _CannotPlan(f"artifact {ref} cannot be read: {error}") from None
    except CheckTextError as error:
        raise _CannotPlan(f"artifact {ref} cannot be used: {error}") from None
    return [_plan_check(GuardrailCheck.read(inner.to_raw()), text_of, ref) for inner in checks]


async def run_gate(checks: PlannedGate, subject: str, judge: Judge | None) -> GateResult:
    """Return what comes of a text: the first refusal wins, a transform's text goes on.

    `judge` may be None where no check is an LlmJudge. A check that raises refuses.
    """
    passage = _Passage(subject)
    for check in checks:
        verdict: CheckVerdict
        if check.check == "LlmJudge":
            answer = await judge(check, passage.text) if judge is not None else _UNASKED
            verdict = passage.hear(check, answer)
        elif len(passage.text) > LARGE_CHARS:
            verdict = await asyncio.to_thread(_evaluate, check, passage.text)
        else:
            verdict = _evaluate(check, passage.text)
        if not passage.take(check, verdict):
            break
    return passage.result()


def run_pure(checks: PlannedGate, subject: str) -> GateResult:
    """Return what comes of a text at once; an LlmJudge is not asked, which counts as one that gave no verdict."""
    passage = _Passage(subject)
    for check in checks:
        is_judge = check.check == "LlmJudge"
        verdict = passage.hear(check, _UNASKED) if is_judge else _evaluate(check, passage.text)
        if not passage.take(check, verdict):
            break
    return passage.result()


_UNASKED = JudgeFailed("there is no judge to ask")


class _Passage:
    """One text on its way through a gate."""

    __slots__ = ("notes", "refused", "text", "tokens")

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = 0
        self.notes: list[str] = []
        self.refused: Refused | None = None

    def take(self, check: PlannedCheck, verdict: CheckVerdict) -> bool:
        """Note what a check says; False where the text goes no further."""
        if isinstance(verdict, Refuse):
            self.refused = Refused(check.artifact, check.check, verdict.reason[:MAX_REASON_CHARS])
            return False
        if isinstance(verdict, Rewrite):
            self.text = verdict.text
            self.notes.append(f"{check.check}: {verdict.note}")
        return True

    def hear(self, check: PlannedCheck, answer: JudgeVerdict) -> Allow | Refuse:
        """Return what a judge's answer means; one that gives no verdict is noted or refuses, as onError says."""
        assert isinstance(check.params, LlmJudge)
        self.tokens += answer.tokens
        match answer:
            case JudgeHolds():
                return Allow()
            case JudgeViolated():
                return Refuse("the judge found that the criteria do not hold")
            case JudgeFailed(message):
                why = f"the judge gave no verdict ({message[:MAX_REASON_CHARS]}), and llmJudge.onError is"
                if check.params.on_error == "Violation":
                    return Refuse(f"{why} Violation")
                self.notes.append(f"{check.check}: {why} Ignore")
                return Allow()

    def result(self) -> GateResult:
        """Return what came of it."""
        return GateResult(self.refused or Passed(self.text, tuple(self.notes)), self.tokens)


def _evaluate(check: PlannedCheck, text: str) -> CheckVerdict:
    if len(text) > MAX_SUBJECT_CHARS and check.check != "MaxChars":
        return Refuse(f"the text has {len(text)} characters; a check judges at most {MAX_SUBJECT_CHARS}")
    try:
        return CHECKS[check.check](text, check.params)
    except Exception as error:  # engine.md §4: a check that throws refuses; what it threw is logged, never the text
        _log.error("agent.guardrail_failed check=%s error=%s", check.check, type(error).__name__)
        return Refuse(f"the check failed ({type(error).__name__})")
