"""Makes what a provider said safe to show: no key, no prompt, no control characters, no novel."""

import re
import unicodedata

from pilothouse_engine.ports import ModelRequest
from pilothouse_engine.values import Value

MAX_MESSAGE_CHARS = 500
MAX_EXCERPT_CHARS = 300
_PROMPT_WINDOW = 16
_KEY_WINDOW = 8
_SHORTEST_SECRET = 4
_KEY_LIKE = re.compile(r"\b(?:Bearer\s+|(?:sk|pk|rk|gsk|xai)[-_])[\w*.~+/=-]{4,}|\bAIza[\w-]{20,}")


class Redaction(Value):
    """What must not be shown of one request: its key and the texts of its prompt."""

    key: str
    request: ModelRequest

    def excerpt(self, text: str) -> str:
        """Return the beginning of a text from outside, on one line, with key and prompt masked."""
        # Cut before masking: what is masked is compared in windows, so a long text would cost much for nothing.
        shown = plain(text[: 4 * MAX_EXCERPT_CHARS])[:MAX_EXCERPT_CHARS]
        if len(self.key) >= _SHORTEST_SECRET:
            shown = _masked(shown, self.key, _KEY_WINDOW, "[key]")
        shown = _KEY_LIKE.sub("[key]", shown)  # somebody else's, or one that the provider has shortened
        for prompt in _prompt_texts(self.request):
            shown = _masked(shown, prompt, _PROMPT_WINDOW, "[prompt]")
        return shown


def plain(text: str) -> str:
    """Return the text on one line: control and format characters and lone surrogates become spaces."""
    return " ".join("".join(c if unicodedata.category(c)[0] != "C" else " " for c in text).split())


def shortened(message: str) -> str:
    """Return a message that keeps the limit of the port."""
    return message if len(message) <= MAX_MESSAGE_CHARS else f"{message[: MAX_MESSAGE_CHARS - 1]}…"


def _prompt_texts(request: ModelRequest) -> list[str]:
    texts = [text for m in request.messages for text in (m.text, *(call.arguments for call in m.calls))]
    plains = [" ".join(text.split()) for text in texts]
    short = [text for text in plains if _KEY_WINDOW <= len(text) < _PROMPT_WINDOW]
    return ["\n".join(text for text in plains if len(text) >= _PROMPT_WINDOW), *short]


def _masked(shown: str, secret: str, window: int, mask: str) -> str:
    """Replace every stretch of `shown` that also stands in `secret` and is at least `window` long (or all of it)."""
    size = min(window, len(secret))
    if not size or len(shown) < size:
        return shown
    hidden = [False] * len(shown)
    for start in range(len(shown) - size + 1):
        if shown[start : start + size] in secret:
            hidden[start : start + size] = [True] * size
    parts: list[str] = []
    for index, char in enumerate(shown):
        if not hidden[index]:
            parts.append(char)
        elif index == 0 or not hidden[index - 1]:
            parts.append(mask)
    return "".join(parts)
