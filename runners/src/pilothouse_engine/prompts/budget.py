"""How large the next prompt is, and the first level at which it fits (engine.md §6). Pure.

Two figures, not to be confused: the *size* is the best estimate there is and chooses the level; the *bound* is the most
that the prompt can take and is what is held.
"""

from pilothouse_engine.facts import Level
from pilothouse_engine.prompts.levels import LEVELS, Sent, sent_at
from pilothouse_engine.results import pointer
from pilothouse_engine.state import MESSAGE_OVERHEAD, CountedPrompt, Visit, bytes_of
from pilothouse_engine.values import Value

UNKNOWN_WINDOW_BUDGET = 52_000
"""Tokens that a prompt may have where nobody knows the window."""

RESERVE_TOKENS = 16_000
RESERVE_PERCENT = 15
SMALL_WINDOW = 2 * RESERVE_TOKENS
"""Below it the reserve is half of the window."""

BYTES_PER_TOKEN = 4
"""What a token is estimated to take where the provider has not counted."""

CUT_OVERHEAD = MESSAGE_OVERHEAD + len(pointer("t1000-1000-00000000", 10_000_000).encode())
"""Tokens that a cut may add to a message: its mark, and a word that it splits."""


class Prompt(Value):
    """The prompt of the next request; `bound` is the most tokens that it can have."""

    level: Level
    bound: int


class Around(Value):
    """What a request holds besides its messages: bytes of tools and of the pinned note."""

    tools: int
    pinned: int


def prompt_tokens(window: int | None) -> int:
    """Return how many tokens a prompt may have in a context window of so many; `None`: it is not known."""
    if window is None:
        return UNKNOWN_WINDOW_BUDGET
    if window < SMALL_WINDOW:
        return window // 2
    return window - max(-(-window * RESERVE_PERCENT // 100), RESERVE_TOKENS)


def plan_prompt(visit: Visit, endpoint: int, window: int | None, around: Around) -> Prompt | None:
    """Return the level and the bound of the next prompt; None where the endpoint has refused all that is shorter.

    Takes the same time however long the transcript is, as long as it fits whole.
    """
    budget = prompt_tokens(window)
    bound = full_bound(visit, endpoint, around)
    refused = visit.refused.get(endpoint)
    if refused is None and (bound <= budget or full_size(visit, endpoint, around) <= budget):
        return Prompt("full", bound)
    return _tighter(visit, endpoint, around, budget, refused)


def full_size(visit: Visit, endpoint: int, around: Around) -> int:
    """Return the estimated tokens of the prompt with the whole transcript."""
    counted = visit.counted_full
    size = around.tools + around.pinned + visit.prompt_bytes
    if counted is None or counted.endpoint != endpoint:
        return -(-size // BYTES_PER_TOKEN)
    known = counted.prompt_bytes + (around.tools if counted.had_tools else 0)
    return counted.tokens + -(-(size - known) // BYTES_PER_TOKEN)


def full_bound(visit: Visit, endpoint: int, around: Around) -> int:
    """Return the most tokens of the prompt with the whole transcript: what was counted, plus the bytes of the rest."""
    counted = visit.counted
    if counted is None or counted.endpoint != endpoint or counted.level != "full":
        return visit.prompt_bytes + around.tools + around.pinned
    new = visit.prompt_bytes - counted.prompt_bytes
    return counted.tokens + new + around.pinned + (0 if counted.had_tools else around.tools)


def _tighter(visit: Visit, endpoint: int, around: Around, budget: int, refused: Level | None) -> Prompt | None:
    """Return the first level that fits and was not refused; where none fits, the one that sends least."""
    size = full_size(visit, endpoint, around)
    whole = visit.prompt_bytes + around.tools + around.pinned
    smallest = whole if refused is None else _bytes_at(visit, refused) + around.tools + around.pinned
    chosen: Prompt | None = Prompt("full", full_bound(visit, endpoint, around)) if refused is None else None
    for level in LEVELS[1 if refused is None else LEVELS.index(refused) + 1 :]:
        sent = sent_at(visit, visit.messages, level)
        length = _length(sent) + around.tools + around.pinned
        if length >= smallest:  # nothing more is cut: what was too long is too long again
            continue
        smallest, chosen = length, Prompt(level, cut_bound(visit, endpoint, around, level, sent))
        # The provider's own count tells how many tokens it makes of these bytes.
        if -(-size * length // whole) <= budget:
            break
    return chosen


def _bytes_at(visit: Visit, level: Level) -> int:
    return visit.prompt_bytes if level == "full" else _length(sent_at(visit, visit.messages, level))


def _length(sent: list[Sent]) -> int:
    return sum(bytes_of(item.message) for item in sent)


def cut_bound(visit: Visit, endpoint: int, around: Around, level: Level, sent: list[Sent]) -> int:
    """Return the most tokens of a prompt that is cut.

    Its bytes are one bound. Another is what was counted for the prompt before, where that was sent at this level or a
    looser one: what was in it has only become less since, so that only new messages and the marks of cuts come on top.
    """
    length = _length(sent) + around.tools + around.pinned
    counted = visit.counted
    if counted is None or counted.endpoint != endpoint or not _is_no_tighter(counted, level):
        return length
    new = sum(bytes_of(item.message) for item in sent if item.index >= counted.messages)
    marks = CUT_OVERHEAD * sum(item.is_cut for item in sent)
    return min(length, counted.tokens + new + marks + around.pinned + (0 if counted.had_tools else around.tools))


def _is_no_tighter(counted: CountedPrompt, level: Level) -> bool:
    return LEVELS.index(counted.level) <= LEVELS.index(level)
