"""Payment cards: prefixes and lengths of the networks, the layouts in which numbers are printed, and Luhn's digit."""

import re
from collections.abc import Iterator

from pilothouse_engine.guardrails.detectors.views import Finding, View
from pilothouse_engine.guardrails.patterns import compile_pattern

_RUN = compile_pattern(r"[0-9](?:[ .\-]{0,2}[0-9]){11,}")
_GROUP = re.compile(r"[0-9]+")

_LAYOUTS = frozenset({(4, 4, 4, 4), (4, 4, 4, 4, 3), (4, 4, 5), (4, 6, 5), (4, 6, 4), (4, 4, 4, 1), (6, 13), (8, 8)})
_LONGEST_LAYOUT = 5
_LENGTHS = range(12, 20)
_FIRST_GROUPS = frozenset({layout[0] for layout in _LAYOUTS} | set(_LENGTHS))

_NETWORKS: tuple[tuple[str, str, frozenset[int]], ...] = (
    ("34", "34", frozenset({15})),  # American Express
    ("37", "37", frozenset({15})),
    ("4", "4", frozenset({13, 16, 19})),  # Visa
    ("51", "55", frozenset({16})),  # Mastercard
    ("2221", "2720", frozenset({16})),
    ("2200", "2204", frozenset({16, 17, 18, 19})),  # Mir
    ("300", "305", frozenset({14, 16, 19})),  # Diners Club
    ("309", "309", frozenset({14, 16, 19})),
    ("36", "36", frozenset({14, 15, 16, 17, 18, 19})),
    ("38", "39", frozenset({14, 16, 19})),
    ("3528", "3589", frozenset({16, 17, 18, 19})),  # JCB
    ("6011", "6011", frozenset({16, 17, 18, 19})),  # Discover
    ("644", "659", frozenset({16, 17, 18, 19})),
    ("62", "62", frozenset({16, 17, 18, 19})),  # UnionPay
    ("81", "82", frozenset({16, 17, 18, 19})),
    ("60", "60", frozenset({16})),  # RuPay
    ("508", "508", frozenset({16})),
    ("5018", "5018", frozenset(_LENGTHS)),  # Maestro
    ("5020", "5020", frozenset(_LENGTHS)),
    ("5038", "5038", frozenset(_LENGTHS)),
    ("5893", "5893", frozenset(_LENGTHS)),
    ("6304", "6304", frozenset(_LENGTHS)),
    ("6759", "6763", frozenset(_LENGTHS)),
)
"""First and last prefix, and the lengths of the numbers that begin with them."""


def find_cards(view: View) -> Iterator[Finding]:
    """Yield numbers of payment cards; they may stand among other numbers, in one of the printed layouts."""
    if not view.has_digit:
        return
    text = view.folded
    for run in _RUN.finditer(text):
        groups = [(group.start(), group.end()) for group in _GROUP.finditer(text, run.start(), run.end())]
        done = 0
        for index, (start, first_end) in enumerate(groups):
            if start < done or first_end - start not in _FIRST_GROUPS:
                continue
            for part in (groups[index : index + count] for count in range(1, _LONGEST_LAYOUT + 1)):
                end = part[-1][1]
                if (
                    _has_layout(part)
                    and is_card("".join(text[a:b] for a, b in part))
                    and _stands_alone(text, start, end)
                ):
                    yield view.original(start, end, "CreditCard")
                    done = end


def _has_layout(groups: list[tuple[int, int]]) -> bool:
    if len(groups) == 1:
        return groups[0][1] - groups[0][0] in _LENGTHS
    return tuple(end - start for start, end in groups) in _LAYOUTS


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Tell whether no letter touches the number, and no digit behind a point: a fraction is no card."""
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    if before[-1:].isalnum() or before[-1:] == "_" or after[:1].isalnum() or after[:1] == "_":
        return False
    is_fraction = len(before) == 2 and before[1] == "." and (before[0].isdigit() or before[0] == "_")
    has_fraction = len(after) == 2 and after[0] == "." and (after[1].isdigit() or after[1] == "_")
    return not is_fraction and not has_fraction


def is_card(digits: str) -> bool:
    """Tell whether digits are a card's number: a network's prefix and length, and the check digit."""
    fits = any(
        len(digits) in lengths and first <= digits[: len(first)] and digits[: len(last)] <= last
        for first, last, lengths in _NETWORKS
    )
    return fits and is_luhn(digits)


def is_luhn(digits: str) -> bool:
    """Tell whether the last digit is the check digit of the others."""
    total = 0
    for index, char in enumerate(reversed(digits)):
        value = int(char) * (1 + index % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0
