"""MaxChars: refuses text that is longer."""

from pilothouse_api.structs import MaxChars
from pilothouse_engine.guardrails.verdicts import Allow, CheckVerdict, Refuse


def evaluate(subject: str, params: MaxChars) -> CheckVerdict:
    """Refuse a text with more characters than the limit."""
    if len(subject) <= params.limit:
        return Allow()
    return Refuse(f"the text has {len(subject)} characters; maxChars.limit is {params.limit}")
