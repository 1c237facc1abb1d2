"""Which function judges which check: one row for each that is pure; the gate itself resolves the others."""

from collections.abc import Callable, Mapping
from typing import Any

from pilothouse_engine.guardrails.checks import (
    json_schema,
    max_chars,
    pii_mask,
    prompt_injection,
    regex_deny,
    secret_mask,
)
from pilothouse_engine.guardrails.verdicts import CheckVerdict

Evaluate = Callable[[str, Any], CheckVerdict]
"""Judges a subject by the parameters of its check."""

CHECKS: Mapping[str, Evaluate] = {
    "JsonSchema": json_schema.evaluate,
    "RegexDeny": regex_deny.evaluate,
    "MaxChars": max_chars.evaluate,
    "PiiMask": pii_mask.evaluate,
    "SecretMask": secret_mask.evaluate,
    "PromptInjection": prompt_injection.evaluate,
}

RESOLVED_BY_GATE: frozenset[str] = frozenset({"LlmJudge", "Artifact"})
"""LlmJudge asks a model, Artifact stands for the checks that it holds."""
