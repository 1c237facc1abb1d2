"""Masking: what detectors find is replaced by the name of what it was. Masking what is masked changes nothing.

The one place for it: the checks PiiMask and SecretMask, and whatever shows values to people (snapshots, errors).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from pilothouse_engine.guardrails.detectors.cards import find_cards
from pilothouse_engine.guardrails.detectors.emails import find_emails
from pilothouse_engine.guardrails.detectors.ibans import find_ibans
from pilothouse_engine.guardrails.detectors.phones import find_phones
from pilothouse_engine.guardrails.detectors.secrets import find_secrets, is_secret_name
from pilothouse_engine.guardrails.detectors.views import Finding, View
from pilothouse_engine.guardrails.patterns import compile_pattern
from pilothouse_engine.values import Value

Entity = Literal["Email", "CreditCard", "Phone", "Iban"]
Detector: TypeAlias = Callable[[View], Iterator[Finding]]

ENTITIES: tuple[Entity, ...] = ("Email", "CreditCard", "Phone", "Iban")
LONGEST_SHOWN = 200
"""Longest string that `mask_value` shows (api.md, what is masked)."""

_LONGEST_SECRET = 12_288
_LONGEST_PERSONAL = 512
"""How far around a cut is looked for what it splits."""
_CUT_REACH = 256
"""How far from a cut something may stand that is not found any more: what announces it is on the other side."""
_LONGEST_READ = 16_384
_MOST_PASSES = 8

DETECTORS: Mapping[Entity, Detector] = {
    "Email": find_emails,
    "CreditCard": find_cards,
    "Phone": find_phones,
    "Iban": find_ibans,
}

_STRING = compile_pattern(r'"(?:[^"\\]|\\.)*"')


class Masked(Value):
    """A masked text, and how many of each kind were masked."""

    text: str
    counts: Mapping[str, int]

    @property
    def note(self) -> str:
        """What was masked: kinds and counts, nothing of the text."""
        return ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))


def find_and_mask(text: str, detectors: Iterable[Detector]) -> Masked:
    """Return the text with everything masked that the detectors find.

    What is found is looked at again: a value that was glued to another one can stand free once that one is masked.
    """
    detectors = tuple(detectors)
    masked = _mask_once(text, detectors)
    if not masked.counts:
        return masked
    counts = Counter(masked.counts)
    for _ in range(_MOST_PASSES - 1):
        masked = _mask_once(masked.text, detectors)
        if not masked.counts:
            break
        counts.update(masked.counts)
    return Masked(masked.text, counts)


def finds_nothing(text: str, detectors: Iterable[Detector]) -> bool:
    """Tell whether nothing of a text would be masked, as of most texts."""
    view = View(text)
    return all(next(find(view), None) is None for find in detectors)


def _mask_once(text: str, detectors: tuple[Detector, ...]) -> Masked:
    view = View(text)
    found = [finding for find in detectors for finding in find(view)]
    if not found:
        return Masked(text, {})
    findings = _merged(sorted(found, key=lambda f: (f.start, -f.end)))
    bare = _bare_numbers(text, findings)
    pieces, done = [], 0
    for finding in findings:
        mask = f"[{finding.kind}]"
        pieces += [text[done : finding.start], f'"{mask}"' if finding in bare else mask]
        done = finding.end
    pieces.append(text[done:])
    return Masked("".join(pieces), Counter(finding.kind for finding in findings))


def mask_ends(text: str, start: int, end: int, detectors: Iterable[Detector]) -> str:
    """Return `text[start:end]`; what is found beside the rest of the text and not in the stretch alone is masked.

    Half a card, and a password whose name was cut off, are found by nobody who judges the stretch. A limit: what
    begins further before a cut than is looked, as a private key of more than 16,384 bits may.
    """
    lost = [
        finding
        for cut in (start, end)
        if 0 < cut < len(text)
        for find in detectors
        for finding in _lost_at(text, cut, start, end, find)
    ]
    pieces, done = [], start
    for finding in _merged(sorted(lost, key=lambda f: (f.start, -f.end))):
        pieces += [text[done : finding.start], f"[{finding.kind}]"]
        done = finding.end
    return "".join([*pieces, text[done:end]])


def _lost_at(text: str, cut: int, start: int, end: int, find: Detector) -> Iterator[Finding]:
    """Yield what is found around a cut and not on the stretch's side of it alone, as far as it is in the stretch."""
    margin = _LONGEST_SECRET if find is find_secrets else _LONGEST_PERSONAL
    low, high = max(0, cut - margin), min(len(text), cut + margin)
    alone_low, alone_high = (cut, min(end, high)) if cut == start else (max(start, low), cut)
    alone: list[Finding] | None = None
    for finding in _find_in(text, low, high, find):
        first, last = max(finding.start, start), min(finding.end, end)
        if first >= last or finding.start >= cut + _CUT_REACH or finding.end <= cut - _CUT_REACH:
            continue
        if alone is None:
            alone = list(_find_in(text, alone_low, alone_high, find))
        if not any(own.start <= first and last <= own.end for own in alone):
            yield Finding(first, last, finding.kind)


def _find_in(text: str, low: int, high: int, find: Detector) -> Iterator[Finding]:
    return (Finding(low + f.start, low + f.end, f.kind) for f in find(View(text[low:high])))


def mask_pii(text: str, entities: Iterable[Entity] = ENTITIES) -> str:
    """Return the text with personal data masked: `[Email]`, `[CreditCard]`, `[Phone]`, `[Iban]`."""
    return find_and_mask(text, [DETECTORS[entity] for entity in entities]).text


def mask_secrets(text: str) -> str:
    """Return the text with keys, tokens and passwords masked: `[Secret]`."""
    return find_and_mask(text, [find_secrets]).text


def mask_text(text: str) -> str:
    """Return a text of others that people may be shown, in status, logs and notifications.

    Secrets and personal data are masked. The journal and the context keep what was said.
    """
    return mask_secrets(mask_pii(text)) if text else text


def mask_value(value: Any) -> Any:
    """Return a JSON value that may be shown: secrets and personal data masked, long strings cut, keys kept."""
    if isinstance(value, str):
        shown = mask_text(value[:_LONGEST_READ])
        return shown if len(shown) <= LONGEST_SHOWN else f"{shown[: LONGEST_SHOWN - 1]}…"
    if isinstance(value, Mapping):
        return {key: "[Secret]" if _is_announced(key, item) else mask_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_value(item) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        masked = mask_pii(str(value))
        return masked if masked != str(value) else value
    return value


def _is_announced(key: Any, value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and is_secret_name(str(key))


def _merged(findings: list[Finding]) -> list[Finding]:
    """Join findings that overlap: what is left of one must not stand beside the mask of the other."""
    merged: list[Finding] = []
    for finding in findings:
        if merged and finding.start < merged[-1].end:
            last = merged[-1]
            merged[-1] = Finding(last.start, max(last.end, finding.end), last.kind)
        else:
            merged.append(finding)
    return merged


def _bare_numbers(text: str, findings: list[Finding]) -> frozenset[Finding]:
    """Return the findings that are a number of a JSON text: their mask needs quotes for it to stay JSON."""
    if text.lstrip()[:1] not in ("{", "["):
        return frozenset()
    numbers = [f for f in findings if text[f.start : f.end].isdigit() and _stands_between(text, f)]
    if not numbers:
        return frozenset()
    strings = [match.span() for match in _STRING.finditer(_readable(text))]
    bare, index = set(), 0
    for number in numbers:
        while index < len(strings) and strings[index][1] <= number.start:
            index += 1
        if index == len(strings) or strings[index][0] > number.start:
            bare.add(number)
    return frozenset(bare)


def _stands_between(text: str, finding: Finding) -> bool:
    before, after = (
        text[max(0, finding.start - 32) : finding.start].rstrip(),
        text[finding.end : finding.end + 32].lstrip(),
    )
    return before[-1:] in (":", ",", "[") and after[:1] in (",", "}", "]")


def _readable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
