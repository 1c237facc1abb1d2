"""What the models refuse, in sentences for people."""

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pilothouse_api.signals import YAML_BOOLEANS

_MAX_VALUE_CHARS = 60

_PATTERNS: Mapping[str, str] = {
    r"^[a-z]([-a-z0-9_]*[a-z0-9])?$": "small letters, digits, - and _, beginning with a letter",
    r"^[a-z][a-z0-9_]*$": "small letters, digits and _, beginning with a letter",
    r"^[A-Za-z][A-Za-z0-9_]*$": "letters, digits and _, beginning with a letter",
    r"^[A-Za-z_][A-Za-z0-9_-]*$": "letters, digits, _ and -, beginning with a letter or _",
    r"^[-._a-zA-Z0-9]+$": "letters, digits, -, _ and .",
    r"^[0-9]{1,12}(\.[0-9]{1,9})?$": 'an amount of US dollars as text, such as "0.50"',
    r"^prun[-a-z0-9]*$": "a name that begins with prun: by that the admission policies know a runner",
    r"^pilothouse.dev/v1alpha1$": "pilothouse.dev/v1alpha1",
    r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?(@[1-9][0-9]{0,8})?$": "name@version, such as refund-policy@2",
    r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$": "module:function",
    r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$": "the name of an HTTP header",
}
_KINDS: Mapping[str, str] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def show(value: Any) -> str:
    """Return a value as it is quoted in a message: compact JSON, at most 60 characters."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = str(type(value).__name__)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[: _MAX_VALUE_CHARS - 1]}…"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `did you mean x?` for the nearest known word, or an empty text."""
    by_lower = {candidate.lower().replace("_", ""): candidate for candidate in known}
    near = difflib.get_close_matches(word.lower().replace("_", ""), by_lower, n=1, cutoff=0.7)
    return f"did you mean {by_lower[near[0]]}?" if near else ""


def describe(error: Mapping[str, Any], written: str | None) -> tuple[str, str]:
    """Return what is wrong and what to do for one error of pydantic; `written` is the scalar as it stands in YAML."""
    kind = str(error["type"])
    if kind == "missing":
        return "it is required and missing", ""
    if kind in _KINDS:
        return _wrong_kind(error, written, _KINDS[kind])
    if kind in _SENTENCES:
        return _SENTENCES[kind](error["input"], error.get("ctx", {}))
    return f"it is {show(error['input'])}; {error['msg']}", ""


def _wrong_kind(error: Mapping[str, Any], written: str | None, wanted: str) -> tuple[str, str]:
    value = error["input"]
    if wanted == "text" and written is not None and written.lower() in YAML_BOOLEANS:
        return f"YAML reads {written} as {show(value)}, and this must be text", "quote it and choose another word"
    if wanted == "text" and isinstance(value, bool | int | float):
        return f"it is {show(value)}; it must be text", f'quote it: "{written if written is not None else value}"'
    return f"it is {show(value)}; it must be {wanted}", ""


def _one_of(value: Any, context: Mapping[str, Any]) -> tuple[str, str]:
    expected = str(context["expected"]).replace("'", "")
    words = expected.replace(" or ", ", ").split(", ")
    return f"it is {show(value)}; it must be {expected}", did_you_mean(value, words) if isinstance(value, str) else ""


def _pattern(value: Any, context: Mapping[str, Any]) -> tuple[str, str]:
    pattern = str(context["pattern"])
    return f"it is {show(value)}; it must be {_PATTERNS.get(pattern, f'text that matches {pattern}')}", ""


_SENTENCES: Mapping[str, Callable[[Any, Mapping[str, Any]], tuple[str, str]]] = {
    "literal_error": _one_of,
    "string_pattern_mismatch": _pattern,
    "string_too_long": lambda v, c: (f"it has {len(v)} characters; the limit is {c['max_length']}", "shorten it"),
    "string_too_short": lambda v, c: (f"it is {show(v)}; at least {c['min_length']} characters are needed", ""),
    "too_long": lambda v, c: (f"it has {len(v)} entries; the limit is {c['max_length']}", ""),
    "too_short": lambda v, c: (f"it has {len(v)} entries; at least {c['min_length']} are needed", ""),
    "greater_than_equal": lambda v, c: (f"it is {show(v)}; the smallest value is {c['ge']}", ""),
    "less_than_equal": lambda v, c: (f"it is {show(v)}; the largest value is {c['le']}", ""),
}
