"""RegexDeny: refuses text that matches. RE2, the engine by which patterns are validated: linear, whatever they are."""

from pilothouse_api.structs import RegexDeny
from pilothouse_engine.guardrails.patterns import compile_pattern
from pilothouse_engine.guardrails.verdicts import Allow, CheckVerdict, Refuse

_SHOWN = 80


def evaluate(subject: str, params: RegexDeny) -> CheckVerdict:
    """Refuse a text in which one of the patterns is found; a pattern that is none refuses too."""
    readable = subject.encode("utf-8", "replace").decode()  # RE2 reads UTF-8, which has no halves of surrogate pairs
    for index, pattern in enumerate(params.patterns):
        try:
            found = compile_pattern(pattern).search(readable) is not None
        except ValueError as error:
            return Refuse(f"regexDeny.patterns[{index}] is no regular expression of RE2 ({error}): {pattern[:_SHOWN]}")
        if found:
            return Refuse(f"the text matches regexDeny.patterns[{index}], {pattern[:_SHOWN]}")
    return Allow()
