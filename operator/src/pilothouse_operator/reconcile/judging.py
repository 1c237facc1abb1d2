"""From a judgement of `pilothouse_control` to conditions."""

from pilothouse_control.judgement import Judgement
from pilothouse_operator.conditions import Draft
from pilothouse_operator.watching.references import Unreadable

UNRESOLVED_RECHECK_SECONDS = 30.0
"""How often what is not resolved is judged again: ConfigMaps that are no artifacts are not watched."""


def to_drafts(judgement: Judgement) -> list[Draft]:
    """Return the conditions of a judgement."""
    return [Draft(draft.type, draft.status, draft.reason, draft.message) for draft in judgement.conditions]


def unreadable_drafts(error: Unreadable) -> list[Draft]:
    """Return the conditions of an object that this version does not understand, or of one that refers to such."""
    return [
        Draft("Ready", "False", "Unreadable", str(error)),
        Draft("Reconciling", "False", "Unreadable", str(error)),
        Draft("Stalled", "True", "Unreadable", str(error)),
    ]
