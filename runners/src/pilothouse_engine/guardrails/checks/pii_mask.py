"""PiiMask: masks personal data; never refuses."""

from pilothouse_api.structs import PiiMask
from pilothouse_engine.guardrails.masks import DETECTORS, find_and_mask
from pilothouse_engine.guardrails.verdicts import Allow, CheckVerdict, Rewrite


def evaluate(subject: str, params: PiiMask) -> CheckVerdict:
    """Mask what the entities name."""
    masked = find_and_mask(subject, [DETECTORS[entity] for entity in params.entities])
    return Rewrite(masked.text, f"masked {masked.note}") if masked.counts else Allow()
