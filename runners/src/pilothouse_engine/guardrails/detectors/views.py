"""A text as detectors read it: without disguise, and with a way back to where things stand in the original.

Full-width digits, Arabic-Indic digits, letters of mathematical alphabets, zero-width characters, direction marks and
JSON escapes change how a text looks to a program, not what a person or a model reads in it.
"""

import re
import unicodedata
from bisect import bisect_right

from pilothouse_engine.values import Value

# These two are not RE2's: single classes and bounded runs are linear for `re` too, and ten times as fast.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\U000e0000-\U000e0fff]+"
)
_ESCAPE = re.compile(r"\\{1,8}(?:u[0-9A-Fa-f]{4}|[nrtbf\"'/])")
_MASK = re.compile(r"\[(?:Email|CreditCard|Phone|Iban|Secret)\]")
# A mask is read as a part of a word, as what it stands for was: what touched it does not stand alone now either.
_MASK_READS = "_"
_ESCAPED = {"n": "\n", "r": "\n", "t": "\t", "b": " ", "f": " "}
_DIGIT = re.compile("[0-9]")
_FULL_STOPS = "\u3002\uff61\u2024\u00b7"


class Finding(Value):
    """Something that was found, `start` to `end` of the original text."""

    start: int
    end: int
    kind: str


class View:
    """The text that detectors match; `original` maps a stretch of it back."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts: list[int] = [0]
        self._sources: list[tuple[int, int]] = [(0, 0)]
        self.folded = text if text.isascii() and "\\" not in text and "[" not in text else self._read(text)
        self.has_digit = _DIGIT.search(self.folded) is not None
        """Whether there is a digit: without one there is no number of any kind."""

    def _read(self, text: str) -> str:
        if not text.isascii():
            text = _plain(text)
        cuts = _cuts(text)
        return self._fold(text, cuts) if cuts else text

    def original(self, start: int, end: int, kind: str) -> Finding:
        """Return where a non-empty stretch of `folded` stands in the original."""
        return Finding(self._place(start)[0], self._place(end - 1)[1], kind)

    def _place(self, position: int) -> tuple[int, int]:
        """Return where one folded character begins and ends in the original."""
        index = bisect_right(self._starts, position) - 1
        start, width = self._sources[index]
        if width:  # the one character that stands for an escape
            return start, start + width
        offset = start + position - self._starts[index]
        return offset, offset + 1

    def _fold(self, text: str, cuts: list[tuple[int, int, str]]) -> str:
        """Leave the cuts out, or put their one character in; note for each piece where it comes from."""
        pieces: list[str] = []
        self._starts, self._sources = [], []
        length, done = 0, 0
        for start, end, char in cuts:
            if start > done:
                self._note(length, done, 0)
                pieces.append(text[done:start])
                length += start - done
            if char:
                self._note(length, start, end - start)
                pieces.append(char)
                length += 1
            done = end
        self._note(length, done, 0)
        pieces.append(text[done:])
        return "".join(pieces)

    def _note(self, at: int, source: int, width: int) -> None:
        self._starts.append(at)
        self._sources.append((source, width))


def _plain(text: str) -> str:
    """Return the text with each character in its plain form, one for one."""
    table = {ord(char): plain for char in set(text) if char > "\x7f" and (plain := _plain_char(char)) != char}
    return text.translate(table) if table else text


def _plain_char(char: str) -> str:
    category = unicodedata.category(char)
    if category == "Nd":
        return str(unicodedata.decimal(char))
    if category == "Pd" or char == "\u2212":
        return "-"
    if category == "Zs":
        return " "
    if category == "Cs":
        return "\ufffd"  # RE2 reads UTF-8, which has no halves of surrogate pairs
    if char in _FULL_STOPS:
        return "."
    folded = unicodedata.normalize("NFKC", char)
    return folded if len(folded) == 1 else char


def _cuts(text: str) -> list[tuple[int, int, str]]:
    """Return what is left out (invisible characters) or read as one character (escapes of JSON, masks), in order."""
    cuts: list[tuple[int, int, str]] = []
    if not text.isascii():
        cuts += [(*match.span(), "") for match in _INVISIBLE.finditer(text)]
    if "\\" in text:
        cuts += [(*match.span(), _escaped(match)) for match in _ESCAPE.finditer(text)]
    if "[" in text:
        cuts += [(*match.span(), _MASK_READS) for match in _MASK.finditer(text)]
    return sorted(cuts)


def _escaped(match: re.Match[str]) -> str:
    shown = match.group().lstrip("\\")
    if shown[0] != "u" or len(shown) == 1:
        return _ESCAPED.get(shown, shown)
    char = chr(int(shown[1:], 16))
    if _INVISIBLE.fullmatch(char):
        return ""
    return " " if char == "\\" or unicodedata.category(char)[0] == "C" else _plain_char(char)
