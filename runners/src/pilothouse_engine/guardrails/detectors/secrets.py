"""Keys and tokens: in the forms that providers give them, in URLs and headers, and behind words that announce them.

What identifies without giving access (account ids, publishable keys, certificates, git hashes, UUIDs) is left alone.
"""

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pilothouse_engine.guardrails.detectors.views import Finding, View
from pilothouse_engine.guardrails.patterns import compile_pattern

_FORMS: tuple[tuple[str, str], ...] = (
    ("Anthropic", r"sk-ant-[\w-]{20,}"),
    ("OpenAI", r"sk-(?:proj|svcacct|admin|None)-[\w-]{20,}|sk-[A-Za-z0-9]{20,}"),
    ("OpenRouter", r"sk-or-v1-[0-9a-f]{64}"),
    ("AWS", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b|ABSK[A-Za-z0-9+/]{80,}={0,2}"),
    ("GCP", r"AIza[\w-]{35}|ya29\.[\w.-]{20,}|GOCSPX-[\w-]{28}|1//0[\w-]{30,}"),
    (
        "Azure",
        r"[\w.~-]{3}[0-9]Q~[\w.~-]{31,34}|[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}|[A-Za-z0-9]{52}JQQJ99[A-Za-z0-9]{26}"
        r"|[A-Za-z0-9+/]{76}\+ASt[A-Za-z0-9+/]{5}[AQgw]==",
    ),
    ("GitHub", r"gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255}"),
    ("GitLab", r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct)-[\w.-]{20,}"),
    (
        "Slack",
        r"xox[abeoprs]-[A-Za-z0-9-]{10,}|xoxe\.xox[bp]-[A-Za-z0-9-]{10,}|xapp-[0-9]-[A-Z0-9]+-[0-9]+-[a-f0-9]{20,}"
        r"|https://hooks\.slack\.com/(?:services|workflows|triggers)/[\w/-]{20,}",
    ),
    ("Stripe", r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/]{24,}={0,2}"),
    ("Twilio", r"SK[0-9a-f]{32}\b"),
    ("SendGrid", r"SG\.[\w-]{16,32}\.[\w-]{32,64}"),
    ("npm", r"npm_[A-Za-z0-9]{36}"),
    ("PyPI", r"pypi-Ag[\w-]{50,}"),
    ("HuggingFace", r"hf_[A-Za-z0-9]{30,}|api_org_[A-Za-z0-9]{30,}"),
    (
        "Models",
        r"gsk_[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{60,}|pplx-[A-Za-z0-9]{40,}|r8_[A-Za-z0-9]{36,}|nvapi-[\w-]{50,}"
        r"|lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}",
    ),
    (
        "Clouds",
        r"do[opr]_v1_[0-9a-f]{64}|dapi[0-9a-f]{32}|dckr_(?:pat|oat)_[\w-]{27,}|hv[sbr]\.[\w-]{24,}|glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}"
        r"|[A-Za-z0-9]{14}\.atlasv1\.[\w-]{60,}|pul-[0-9a-f]{40}|NRAK-[A-Z0-9]{27}|pscale_(?:tkn|pw|oauth)_[\w.-]{32,}"
        r"|sbp_[0-9a-f]{40}|sntry[su]_[\w+/=-]{40,}|AGE-SECRET-KEY-1[0-9A-Z]{58}|dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9.]{40,}",
    ),
    (
        "Services",
        r"rubygems_[0-9a-f]{48}|lin_api_[A-Za-z0-9]{40}|ntn_[A-Za-z0-9]{40,}|AT[AC]TT3[\w=-]{100,}|shp(?:at|ca|pa|ss)_[0-9A-Fa-f]{32}"
        r"|sq0(?:atp|csp|idp)-[\w-]{22,}|PMAK-[0-9a-f]{24}-[0-9a-f]{34}|figd_[\w-]{36,}|xkeysib-[0-9a-f]{64}-\w{16}"
        r"|key-[0-9a-f]{32}\b|[0-9a-f]{32}-us[0-9]{1,2}\b|[0-9]{8,10}:AA[\w-]{33}|[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}"
        r"|pat[A-Za-z0-9]{14}\.[0-9a-f]{64}",
    ),
    ("JWT", r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*(?:\.[\w-]+){0,2}"),
)
"""Provider and form; each begins at the beginning of a word."""

_PROVIDER = compile_pattern(r"\b(?:" + "|".join(form for _, form in _FORMS) + ")")
_KEY_BEGIN = compile_pattern(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = compile_pattern(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BODY = re.compile(r"[\w\s+/=:,.]*")  # one class: linear without RE2, and from a position
_URL_PASSWORD = compile_pattern(r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@\"'<>?#]*:([^\s/\"'<>]+)@[\w\[.-]")
_HEADER = compile_pattern(
    r"(?i)\b(?:authorization|x-api-key|api-key|x-auth-token|private-token|x-vault-token|cookie|set-cookie)[\"']?"
    r"(?:[ \t]*[:=][ \t]*|[ \t]+)[\"']?(?:(?:bearer|basic|token|digest|negotiate|apikey|bot)[ \t]+)?([^\s\"'\[\],]{8,})"
)
_BEARER = compile_pattern(r"(?i)\b(?:bearer|basic)[ \t]+([A-Za-z0-9._~+/-]{16,}={0,2})")

_WORD = (
    r"pass(?:word|wd|phrase|code)|passwort|contraseña|pwd|secret(?:[_-]?(?:access[_-]?)?key)?|token"
    r"|(?:api|access|private|secret|account|auth|shared[_-]?access|encryption|signing|master|ssh|storage|subscription|license)"
    r"[_-]?key|credentials?|client[_-]?secret|(?:x-(?:amz|goog)-)?signature|sig"
)
_SUFFIX = r"(?:[_-]?(?:value|text|string|data|b64|base64|hex|prod|dev|test|live|staging|old|new|[0-9]{1,3}))?"
_ANNOUNCED = compile_pattern(
    rf"(?i)([\w.-]*?(?:{_WORD}){_SUFFIX})[\"']?\]?([ \t]*(?::=|=>|==?|:)[ \t]*|[ \t]+(?:is|are|ist)[ \t]+:?[ \t]*)"
    r"(?:\"([^\"\n]{4,})\"|'([^'\n]{4,})'|`([^`\n]{4,})`|([^\s\"'`,;&<>(){}\[\]]{4,}))"
)
_ANY = compile_pattern(
    "|".join(f"(?:{form.pattern})" for form in (_PROVIDER, _KEY_BEGIN, _URL_PASSWORD, _HEADER, _BEARER, _ANNOUNCED))
)
"""Most texts hold no secret, and reading one once costs less than six times."""
_HARMLESS_PREFIX = compile_pattern(
    r"(?i)(?:page|next|prev(?:ious)?|continu(?:e|ation)|sync|resume|cursor|idempotency|eos|bos|pad|unk|stop|max|min|num|no|total)"
    r"[_.-]?token$"
)
_PASSWORD = compile_pattern(r"(?i)(?:pass|pwd|contraseña)")
_PLACEHOLDER = compile_pattern(
    r"(?i)(?:\$\{.*\}?|\$\(.*|\$[A-Z_]+|<.*>?|\{\{.*|%\w+%|\*+|x{3,}|\.{3,}|…+|-+|_+|[^A-Za-z0-9]+|none|null|nil|undefined|true|false"
    r"|required|optional|string|text|secret|password|token|str|bytes|redacted|masked|hidden|changeme|env|process\.env\S*"
    r"|os\.environ\S*|vault:\S*|secretkeyref\S*|file:\S*)"
)
_PROSE = frozenset(
    {
        "a",
        "an",
        "and",
        "are",
        "be",
        "been",
        "can",
        "cannot",
        "changed",
        "does",
        "expired",
        "field",
        "for",
        "forgotten",
        "from",
        "has",
        "have",
        "incorrect",
        "invalid",
        "is",
        "it",
        "login",
        "lost",
        "missing",
        "must",
        "my",
        "need",
        "needed",
        "needs",
        "new",
        "no",
        "not",
        "of",
        "ok",
        "old",
        "or",
        "protected",
        "reset",
        "sent",
        "set",
        "should",
        "that",
        "the",
        "this",
        "to",
        "unchanged",
        "unknown",
        "user",
        "username",
        "was",
        "will",
        "with",
        "wrong",
        "your",
    }
)
"""Words behind `password:` that are not one."""
_STRONG_ENTROPY = 3.0
_SHORTEST_RANDOM = 12


def find_secrets(view: View) -> Iterator[Finding]:
    """Yield what gives access: keys, tokens, passwords."""
    text = view.folded
    if _ANY.search(text) is None:
        return
    for match in _PROVIDER.finditer(text):
        yield _secret(view, match)
    yield from _find_private_keys(view)
    for pattern, is_strict in ((_URL_PASSWORD, False), (_HEADER, True), (_BEARER, True)):
        for match in pattern.finditer(text):
            value = match.group(1)
            if not is_placeholder(value) and (not is_strict or looks_random(value)):
                yield _secret(view, match, 1)
    yield from _find_announced(view)


def _find_private_keys(view: View) -> Iterator[Finding]:
    """Yield private keys to the end of their block, or where it was cut as far as it can be a key."""
    text = view.folded
    if "-----BEGIN " not in text:
        return
    begins = [match.span() for match in _KEY_BEGIN.finditer(text)]
    ends = [match.end() for match in _KEY_END.finditer(text)]
    for index, (start, body) in enumerate(begins):
        closed = bisect_right(ends, body)
        limit = begins[index + 1][0] if index + 1 < len(begins) else len(text)
        if closed < len(ends) and ends[closed] <= limit:
            yield view.original(start, ends[closed], "Secret")
        else:
            cut = _KEY_BODY.match(text, body, limit)
            yield view.original(start, cut.end() if cut else body, "Secret")


def _secret(view: View, match: Any, group: int = 0) -> Finding:
    start, end = match.span(group)
    return view.original(start, end, "Secret")


def _find_announced(view: View) -> Iterator[Finding]:
    for match in _ANNOUNCED.finditer(view.folded):
        name, is_prose = match.group(1), match.group(2).strip()[:1].isalpha()
        group = next(index for index in (3, 4, 5, 6) if match.group(index) is not None)
        value = match.group(group)
        if is_placeholder(value) or _HARMLESS_PREFIX.search(name) is not None:
            continue
        if looks_random(value) or (_PASSWORD.search(name) is not None and _may_be_password(value, is_prose=is_prose)):
            start, end = match.span(group)
            end -= len(value) - len(value.rstrip(".!?")) if is_prose and group == 6 else 0
            yield view.original(start, end, "Secret")


def _may_be_password(value: str, *, is_prose: bool) -> bool:
    """Tell whether the value behind a word for password is one: it may be a word itself, but not one of a sentence."""
    if " " in value or value.lower().rstrip(".!?") in _PROSE:
        return False
    return not is_prose or any(not char.isalpha() for char in value.rstrip(".!?"))


def is_secret_name(name: str) -> bool:
    """Tell whether a key of an object announces a secret value."""
    return _NAME.fullmatch(name) is not None and _HARMLESS_PREFIX.search(name) is None


_NAME = compile_pattern(rf"(?i)[\w.-]*?(?:{_WORD}|authorization|cookie){_SUFFIX}")


def is_placeholder(value: str) -> bool:
    """Tell whether a value stands for one: a variable, a template, a mask, a word of a schema."""
    return _PLACEHOLDER.fullmatch(value) is not None


def looks_random(value: str) -> bool:
    """Tell whether a value looks as if a machine had made it."""
    if len(value) < _SHORTEST_RANDOM or " " in value.strip():
        return False
    classes = sum(any(test(char) for char in value) for test in (str.islower, str.isupper, str.isdigit))
    return classes >= 2 and _entropy(value) >= _STRONG_ENTROPY


def _entropy(value: str) -> float:
    """Return the bits of a character, by how often each stands in the value."""
    size = len(value)
    return -sum(count / size * math.log2(count / size) for count in Counter(value).values())
