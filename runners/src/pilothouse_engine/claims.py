"""A question to a model that is answered by yes or no: its material between delimiters, its answer as JSON.

Guardrails ask whether a text meets criteria, the supervisors' judge whether a run keeps to a policy.
"""

import re

from pilothouse_engine.outcome import strip_fence
from pilothouse_engine.strict_json import JsonError, parse_json, printable
from pilothouse_engine.values import Value

MAX_REASON_CHARS = 300
NO_REASON = "no reason was given"


class Claim(Value):
    """What a judge said: yes or no, and why, on one line; no reason is empty where it said no."""

    is_true: bool
    reason: str


def without_delimiters(text: str, *names: str) -> str:
    """Return a text that can neither close nor open a delimiter of one of these names."""
    return re.sub(rf"<(?=\s*/?\s*(?:{'|'.join(names)})\b)", "&lt;", text, flags=re.IGNORECASE)


def read_claim(answer: str, name: str) -> Claim | str:
    """Return what is said in an answer `{<name>: true or false, "reason": text}`, or why it says nothing.

    Why never quotes the answer, which may quote what was judged.
    """
    try:
        said = parse_json(strip_fence(answer))
    except JsonError:
        return "the judge's answer is not valid JSON"
    is_true = said.get(name) if isinstance(said, dict) else None
    if not isinstance(is_true, bool):
        return f"the judge's answer does not say {name}: true or false"
    reason = said.get("reason")
    shown = printable(" ".join(reason.split()), MAX_REASON_CHARS) if isinstance(reason, str) else ""
    return Claim(is_true, shown or ("" if is_true else NO_REASON))
