"""Checks that are kept as an artifact of type guardrail: one reading of its text, for validation and for the engine."""

from typing import TYPE_CHECKING, Any

from pilothouse_api.artifacts import ArtifactTextError, load_artifact

if TYPE_CHECKING:
    from pilothouse_api import structs
    from pilothouse_api.v1alpha1.agent import GuardrailCheck

MAX_ARTIFACT_CHECKS = 64

PARAMETERS = {
    "JsonSchema": "json_schema",
    "RegexDeny": "regex_deny",
    "MaxChars": "max_chars",
    "PiiMask": "pii_mask",
    "SecretMask": "secret_mask",
    "LlmJudge": "llm_judge",
    "PromptInjection": "prompt_injection",
    "Artifact": "artifact",
}
"""The attribute of GuardrailCheck that holds the parameters of a check."""

_WITHOUT_PARAMETERS = frozenset({"SecretMask", "PromptInjection"})


class CheckTextError(ValueError):
    """The text of an artifact is no list of checks; the message says why."""


def parse_checks(text: str) -> "tuple[GuardrailCheck, ...]":
    """Return the checks of an artifact's text, a YAML list as it stands in a gate; raises CheckTextError.

    An artifact stands for itself: the criteria of its judges are inline, and it names no other artifact. What a pinned
    version means would else change with texts that nobody pinned.
    """
    raw_checks = _load(text)
    if not isinstance(raw_checks, list) or not raw_checks:
        raise CheckTextError("it is not a list of checks")
    if len(raw_checks) > MAX_ARTIFACT_CHECKS:
        raise CheckTextError(f"it has {len(raw_checks)} checks; the limit is {MAX_ARTIFACT_CHECKS}")
    return tuple(_parse(index, raw_check) for index, raw_check in enumerate(raw_checks))


def _load(text: str) -> Any:
    try:
        return load_artifact(text)
    except ArtifactTextError as error:
        raise CheckTextError(str(error)) from None


def _parse(index: int, raw_check: Any) -> "GuardrailCheck":
    # Loaded where a text is judged: most runs have no artifacts.
    from pydantic import ValidationError

    from pilothouse_api.v1alpha1.agent import GuardrailCheck

    try:
        check = GuardrailCheck.model_validate(raw_check)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = "".join(f".{part}" for part in first["loc"])
        raise CheckTextError(f"check {index}{place}: {first['msg']}") from None
    if check.check == "Artifact":
        raise CheckTextError(f"check {index} names an artifact; write the checks themselves")
    if (problem := parameter_problem(check)) is not None:
        raise CheckTextError(f"check {index}: {problem}")
    if check.llm_judge is not None and check.llm_judge.criteria.inline is None:
        raise CheckTextError(f"check {index}: llmJudge.criteria names a text elsewhere; write it inline")
    return check


def parameter_problem(check: "GuardrailCheck | structs.GuardrailCheck") -> str | None:
    """Return what is wrong with which parameters a check has, or None: exactly its own."""
    own = PARAMETERS[check.check]
    if getattr(check, own) is None and check.check not in _WITHOUT_PARAMETERS:
        return f"{check.check} needs {_alias(own)}"
    foreign = next((name for name in PARAMETERS.values() if name != own and getattr(check, name) is not None), None)
    return None if foreign is None else f"{check.check} takes no {_alias(foreign)}"


def _alias(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)
