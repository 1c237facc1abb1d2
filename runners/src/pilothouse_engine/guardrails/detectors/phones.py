"""Phone numbers: with a country code, in the forms of North America and of countries with a trunk zero, or after a
word that announces one.

Numbers with a country code are judged by libphonenumber (lite: 30 ms and 63 modules at the first candidate). Without
one the same digits are a number in one country and an order in another, so form and neighbourhood decide.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from pilothouse_engine.guardrails.detectors.views import Finding, View
from pilothouse_engine.guardrails.patterns import compile_pattern

_INTERNATIONAL_START = compile_pattern(r"(\+|\b00) ?\(?[1-9]")
_TRUNK_START = compile_pattern(r"\b0[1-9]")
_ANNOUNCED_START = compile_pattern(
    r"(?i)\b(?:(?:tele|mobile[ _-]?|cell[ _-]?|home[ _-]?|work[ _-]?)?phone|tel|mobile|cell|cellphone|fax|telefax"
    r"|telefon|fon|handy|mobil|móvil|téléfono|teléfono|téléphone|tél|telefono|cellulare|whatsapp|msisdn|sms|call|dial)"
    r"(?:[ _-]?(?:number|no|nr|num|me|us|him|her|them))?[.:#=\"' >]{1,5}(?:is |at |on )?[\"']?"
)
_NORTH_AMERICAN = compile_pattern(
    r"(?:\b1[ .\-])?(?:\([2-9][0-9]{2}\) ?|\b[2-9][0-9]{2}[ .\-])[2-9][0-9]{2}[ .\-][0-9]{4}\b"
)
_ANY_START = compile_pattern(
    "|".join(
        f"(?:{start.pattern})" for start in (_INTERNATIONAL_START, _TRUNK_START, _ANNOUNCED_START, _NORTH_AMERICAN)
    )
)
"""Most texts hold no number, and reading one once costs less than four times."""
# Matched in windows of fixed size, where `re` costs no copy.
_NUMBER = re.compile(r"\(?[0-9]{1,15}\)?(?: ?[.\-/ ]? ?\(?[0-9]{1,14}\)?){0,9}")
_EXTENSION = re.compile(r" {0,2}(?:(?i:ext\.?:?|x)|;ext=|#) ?[0-9]{1,6}\b")
_GROUP = re.compile(r"[0-9]+")
_DATE = re.compile(r"[0-9]{1,2}[./\-][0-9]{1,2}[./\-](?:19|20)?[0-9]{2}\b|(?:19|20)[0-9]{2}-[0-9]{2}-[0-9]{2}")

_LONGEST = 64
"""Characters that a number may take, separators counted; nothing behind them is looked at."""
_E164_DIGITS = range(7, 16)
_TRUNK_DIGITS = range(9, 14)
_ANNOUNCED_DIGITS = range(6, 16)
_MAX_JUDGED = 1000
"""Candidates of one text that the library judges (about 0.1 ms each); past it the form alone decides."""


def find_phones(view: View) -> Iterator[Finding]:
    """Yield phone numbers."""
    if not view.has_digit or _ANY_START.search(view.folded) is None:
        return
    for start, end in (*_international(view.folded), *_north_american(view.folded), *_national(view.folded)):
        if _stands_alone(view.folded, start, end):
            first, last = _with_parentheses(view.folded, start, end)
            yield view.original(first, last, "Phone")


def _international(text: str) -> Iterator[tuple[int, int]]:
    """Yield what stands behind a + or 00: the longest run of whole groups that is a number of the country it names."""
    judged, done = 0, 0
    for match in _INTERNATIONAL_START.finditer(text):
        if match.start() < done:
            continue
        first, is_certain = match.end(1) + (text[match.end(1)] == " "), match.group(1) == "+"
        for digits, end in _runs(text, first):
            is_grouped = end - match.end(1) > len(digits)
            if len(digits) not in _E164_DIGITS or not (is_certain or is_grouped):
                continue
            judged += 1
            if judged > _MAX_JUDGED or is_number(digits, is_certain=is_certain):
                done = _with_extension(text, end)
                yield match.start(), done
                break


def _north_american(text: str) -> Iterator[tuple[int, int]]:
    for match in _NORTH_AMERICAN.finditer(text):
        yield match.start(), _with_extension(text, match.end())


def _national(text: str) -> Iterator[tuple[int, int]]:
    """Yield numbers that begin with a trunk zero and are written in groups, and those that a word announces."""
    for pattern, lengths, is_announced in (
        (_TRUNK_START, _TRUNK_DIGITS, False),
        (_ANNOUNCED_START, _ANNOUNCED_DIGITS, True),
    ):
        done = 0
        for match in pattern.finditer(text):
            start = match.end() if is_announced else match.start()
            if start < done or _DATE.match(text, start, start + 12) is not None or _is_continued(text, match.start()):
                continue
            for digits, end in _runs(text, start):
                is_grouped = end - start > len(digits) and text[start + 1 : start + 2] != "."
                if len(digits) in lengths and (is_announced or is_grouped):
                    done = _with_extension(text, end)
                    yield start, done
                    break


def _is_continued(text: str, start: int) -> bool:
    """Tell whether digits and a separator stand before: this is the rest of a date, a version or an address."""
    return start > 1 and text[start - 1] in ".-/:" and (text[start - 2].isdigit() or text[start - 2] == "_")


def _runs(text: str, start: int) -> list[tuple[str, int]]:
    """Return the digits of a number that begins here and where it ends, the longest first: it may be shorter.

    Other numbers may stand right behind it, so it may end behind each of its groups.
    """
    number = _NUMBER.match(text, start, start + _LONGEST)
    if number is None:
        return []
    runs, digits = [], ""
    for group in _GROUP.finditer(text, start, number.end()):
        digits += group.group()
        end = group.end()
        runs.append((digits, end))
    return runs[::-1]


def _with_extension(text: str, end: int) -> int:
    extension = _EXTENSION.match(text, end, end + 16)
    return end if extension is None else extension.end()


def _with_parentheses(text: str, start: int, end: int) -> tuple[int, int]:
    """Take in the parenthesis that belongs to one within the number."""
    open_ones = text.count("(", start, end) - text.count(")", start, end)
    if open_ones > 0 and text[end : end + 1] == ")":
        return start, end + 1
    if open_ones < 0 and text[max(0, start - 1) : start] == "(":
        return start - 1, end
    return start, end


def _stands_alone(text: str, start: int, end: int) -> bool:
    before, after = text[max(0, start - 1) : start], text[end : end + 1]
    return not (before.isalnum() or before in ("_", "+") or after.isalnum() or after == "_")


@lru_cache(maxsize=1024)
def is_number(digits: str, *, is_certain: bool) -> bool:
    """Tell whether digits behind a + (or, where that is not certain, a 00) are a number of the country they name."""
    from phonenumbers import NumberParseException, is_possible_number, is_valid_number, parse

    try:
        number = parse(f"+{digits}", None)
    except NumberParseException:
        return False
    return is_possible_number(number) if is_certain else is_valid_number(number)
