"""Account numbers: IBANs of the countries that have them, by length and checksum (ISO 13616, ISO 7064)."""

from collections.abc import Iterator, Mapping

from pilothouse_engine.guardrails.detectors.views import Finding, View
from pilothouse_engine.guardrails.patterns import compile_pattern

_START = compile_pattern(r"\b[A-Za-z]{2}[ \-]?[0-9]{2}")
_SEPARATORS = " -"
_LONGEST_GAP = 2

_LENGTHS: Mapping[str, int] = {
    **dict.fromkeys(("NO",), 15),
    **dict.fromkeys(("BE",), 16),
    **dict.fromkeys(("DK", "FK", "FO", "FI", "GL", "NL", "SD"), 18),
    **dict.fromkeys(("MK", "SI"), 19),
    **dict.fromkeys(("AT", "BA", "EE", "KZ", "LT", "LU", "MN", "XK"), 20),
    **dict.fromkeys(("CH", "HR", "LI", "LV"), 21),
    **dict.fromkeys(("BG", "BH", "CR", "DE", "GB", "GE", "IE", "ME", "RS", "VA"), 22),
    **dict.fromkeys(("AE", "GI", "IL", "IQ", "OM", "SO", "TL"), 23),
    **dict.fromkeys(("AD", "CZ", "ES", "MD", "PK", "RO", "SA", "SE", "SK", "TN", "VG"), 24),
    **dict.fromkeys(("LY", "PT", "ST"), 25),
    **dict.fromkeys(("IS", "TR"), 26),
    **dict.fromkeys(("BI", "DJ", "FR", "GR", "IT", "MC", "MR", "SM"), 27),
    **dict.fromkeys(("AL", "AZ", "BY", "CY", "DO", "GT", "HN", "HU", "LB", "NI", "PL", "SV"), 28),
    **dict.fromkeys(("BR", "EG", "PS", "QA", "UA"), 29),
    **dict.fromkeys(("JO", "KW", "MU", "YE"), 30),
    **dict.fromkeys(("MT", "SC"), 31),
    **dict.fromkeys(("LC",), 32),
    **dict.fromkeys(("RU",), 33),
}


def find_ibans(view: View) -> Iterator[Finding]:
    """Yield IBANs, in groups or in one piece, in capital or in small letters."""
    if not view.has_digit:
        return
    for match in _START.finditer(view.folded):
        taken = _take(view.folded, match.start())
        if taken is not None and is_iban(taken[0]):
            yield view.original(match.start(), taken[1], "Iban")


def _take(text: str, start: int) -> tuple[str, int] | None:
    """Return as many letters and digits as the country's IBANs have, and where they end."""
    length = _LENGTHS.get(text[start : start + 2].upper())
    if length is None:
        return None
    taken, position, gap = "", start, 0
    while len(taken) < length and position < len(text):
        char = text[position]
        if char.isascii() and char.isalnum():
            taken, gap = taken + char, 0
        elif char not in _SEPARATORS or gap == _LONGEST_GAP:
            return None
        else:
            gap += 1
        position += 1
    if len(taken) < length or text[position : position + 1].isalnum():
        return None
    return taken.upper(), position


def is_iban(text: str) -> bool:
    """Tell whether capital letters and digits are an IBAN: the country's length, and the remainder 1 of 97."""
    if _LENGTHS.get(text[:2]) != len(text) or not text[2:4].isdigit():
        return False
    moved = text[4:] + text[:4]
    return int("".join(str(int(char, 36)) for char in moved)) % 97 == 1
