"""Text that tries to give orders to a model: how such attempts are usually worded, and how they are hidden.

Heuristics: they find what is common, and say so by a word for the kind of attempt. A text that merely writes about such
attempts may be found too, which is why the check wraps by default and does not refuse.
"""

import base64
import binascii
import re

from pilothouse_engine.guardrails.detectors.views import View
from pilothouse_engine.guardrails.patterns import compile_pattern

_RULES = (
    "instructions?|directions?|directives?|prompts?|rules?|guidelines?|guardrails?|constraints?|commands?|orders?|context"
    "|messages?|policy|policies|restrictions?|programming|training"
)
_SECRETS = (
    "api keys?|credentials?|secrets?|passwords?|tokens?|conversation|chat history|system prompt|environment variables?"
    "|private keys?"
)
_GAP = r"[\w ,'\"`-]{0,40}?"


def _near(*groups: str) -> str:
    """Return a pattern of words that follow each other, a few others between them."""
    return _GAP.join(rf"\b(?:{words})\b" for words in groups)


_PATTERNS: tuple[tuple[str, str], ...] = (
    (
        "override",
        _near(
            "ignore|disregard|forget|override|bypass|neglect|discard|do not (?:follow|obey)",
            "previous|prior|above|preceding|earlier|former|foregoing|existing|original|initial|system|your|all|any|these",
            _RULES,
        ),
    ),
    ("override", _near("ignoriere|vergiss|missachte", "anweisung|anweisungen|instruktionen|regeln|vorgaben")),
    ("override", _near("ignorez|ignore|oubliez|oublie", "instructions|consignes|règles", "précédentes|antérieures")),
    ("override", _near("ignora|olvida|ignore|esqueça|dimentica", "instrucciones|instruções|istruzioni|reglas|regras")),
    ("override", r"\bnew (?:system )?(?:instructions?|task|rules?|objective)\s?:"),
    ("override", r"\b(?:end|stop) of (?:the )?(?:system )?(?:prompt|instructions)\b"),
    (
        "persona",
        _near(
            "you are (?:now|no longer)",
            "dan|unrestricted|unfiltered|jailbroken|free|developer|admin(?:istrator)?|root|god|evil|bound|restricted|limited"
            "|an? ai|an? assistant",
        ),
    ),
    ("persona", _near("developer mode|god mode|jailbreak mode|dan mode|sudo mode", "enabled|on|activated|active")),
    ("persona", _near("enter|enable|activate|switch to", "developer mode|god mode|jailbreak mode|dan mode|sudo mode")),
    ("persona", r"\bdo anything now\b"),
    ("persona", _near("pretend|act as if|behave as if", "no|without|not bound by", f"{_RULES}|limits?|filters?")),
    (
        "disclosure",
        _near(
            "reveal|print|show|repeat|output|display|disclose|leak|tell me|write out|dump|give me",
            "your|the",
            "(?:system|initial|hidden|secret|original|developer) ?(?:prompt|instructions?|message|rules)",
        ),
    ),
    ("disclosure", r"\brepeat (?:everything|all|the (?:text|words)) above\b"),
    (
        "concealment",
        _near(
            "do not|don't|never|without",
            "tell(?:ing)?|inform(?:ing)?|mention(?:ing)?|alert(?:ing)?|notify(?:ing)?",
            "user|users|human|operator|owner|anyone",
        ),
    ),
    ("order", _near("you (?:must|have to|need to)|immediately|instead", "call|invoke|execute", "tool|function")),
    ("order", _near("send|post|upload|forward|exfiltrate|transmit|email", _SECRETS, "to|at|via")),
    (
        "order",
        r"\b(?:attention|important|note|message|instructions?) (?:to|for) (?:the |all |any )?"
        r"(?:ai|llm|language model|chatbot|ai (?:agent|assistant|model))s?\b",
    ),
    (
        "role",
        r"<\|(?:im_start|im_end|system|assistant|user|endoftext|eot_id|(?:start|end)_header_id)\|>|<(?:start|end)_of_turn>",
    ),
    ("role", r"</?(?:system|assistant)>|\[/?(?:inst|system)\]|<</?sys>>"),
    ("role", r"(?:^|\n)\s*#{1,6} ?(?:system|assistant|developer)\s?:"),
    ("role", r"(?:^|\n)\s*(?:system|developer) (?:prompt|message|instructions?|override|note)\s?:"),
    ("role", r"(?:^|\n)\s*(?:human|assistant) ?:[^\n]{0,200}\n\s*(?:human|assistant) ?:"),
    ("delimiter", r"<\s?/\s?(?:material|guidance|untrusted|tool_result|function_results?)\s?>"),
)
_KINDS = tuple(kind for kind, _ in _PATTERNS)
_ANY = compile_pattern("(?i)" + "|".join(f"(?:{pattern})" for _, pattern in _PATTERNS))
_COMPILED = tuple(compile_pattern(f"(?i){pattern}") for _, pattern in _PATTERNS)
_SPACES = re.compile(r"[ \t\r\f\v]{2,}|[\t\r\f\v]")
_FLAG = compile_pattern("\U0001f3f4[\U000e0020-\U000e007e]{1,6}\U000e007f")
_FLAG_PARTS = compile_pattern("(\U0001f3f4[\U000e0020-\U000e007e]{1,6}\U000e007f)")
_TAG_LETTERS = compile_pattern("[\U000e0020-\U000e007e]{4,}")
_DIRECTIONS = compile_pattern("[\u202a-\u202e\u2066-\u2069]")
_ENCODED = compile_pattern(r"[A-Za-z0-9+/_-]{32,}={0,2}")
_MAX_ENCODED = 64
_MAX_ENCODED_CHARS = 8192
_LOOKALIKES = str.maketrans("аеорсухіѕјԁԛԝɡ’‘`´ο", "aeopcyxisjdqwg''''o")
"""Letters of other alphabets that look like Latin ones, and the kinds of apostrophes."""


def find_injections(text: str) -> tuple[str, ...]:
    """Return the kinds of attempts that stand in a text, each once; empty when none was found."""
    readable = text.encode("utf-8", "replace").decode()
    kinds = _kinds_of(readable)
    if not readable.isascii() and _is_hiding(readable):
        kinds.append("hidden")
    if any(_kinds_of(decoded) for decoded in _decoded(readable)):
        kinds.append("encoded")
    return tuple(dict.fromkeys(kinds))


def _is_hiding(readable: str) -> bool:
    """Tell whether there are letters that only a model reads, or an attempt that is shown backwards."""
    if _TAG_LETTERS.search(_FLAG.sub("", readable)) is not None:
        return True
    plain = _DIRECTIONS.sub("", readable)
    return plain != readable and bool(_kinds_of(plain[::-1]))


def visible(text: str) -> str:
    """Return the text without letters that only a model reads (tag characters of Unicode that are no flag)."""
    readable = text.encode("utf-8", "replace").decode()
    return "".join(
        part if _FLAG.fullmatch(part) else _TAG_LETTERS.sub("", part) for part in _FLAG_PARTS.split(readable)
    )


def _kinds_of(text: str) -> list[str]:
    flat = _SPACES.sub(" ", View(text).folded.lower().translate(_LOOKALIKES))
    found = _match(flat)
    return found or (_match(flat.replace("\n", " ")) if "\n" in flat else [])  # an order may be broken over lines


def _match(flat: str) -> list[str]:
    if _ANY.search(flat) is None:
        return []
    return [kind for kind, pattern in zip(_KINDS, _COMPILED, strict=True) if pattern.search(flat) is not None]


def _decoded(text: str) -> list[str]:
    """Return what stands in the text in base64, as far as it is text."""
    decoded = []
    for _, match in zip(range(_MAX_ENCODED), _ENCODED.finditer(text), strict=False):
        raw = match.group().rstrip("=")[:_MAX_ENCODED_CHARS].replace("-", "+").replace("_", "/")
        raw = raw[: len(raw) - (len(raw) % 4 == 1)]
        try:
            plain = base64.b64decode(raw + "=" * (-len(raw) % 4)).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue
        if plain.isprintable() or "\n" in plain:
            decoded.append(plain)
    return decoded
