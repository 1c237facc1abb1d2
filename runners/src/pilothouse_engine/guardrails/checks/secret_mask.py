"""SecretMask: masks keys, tokens and passwords; never refuses."""

from pilothouse_api.structs import SecretMask
from pilothouse_engine.guardrails.detectors.secrets import find_secrets
from pilothouse_engine.guardrails.masks import find_and_mask
from pilothouse_engine.guardrails.verdicts import Allow, CheckVerdict, Rewrite


def evaluate(subject: str, params: SecretMask) -> CheckVerdict:
    """Mask what gives access."""
    masked = find_and_mask(subject, [find_secrets])
    return Rewrite(masked.text, f"masked {masked.note}") if masked.counts else Allow()
