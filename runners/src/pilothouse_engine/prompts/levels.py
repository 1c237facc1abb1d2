"""What of a transcript a request holds: the four levels of engine.md §6. Pure.

Nothing is cut from the journal or from the visit: a level is a way to read them. What a level leaves out is left out of
one request only.
"""

from collections.abc import Iterator, Mapping, Sequence

from pilothouse_engine.facts import Level
from pilothouse_engine.ports import Message
from pilothouse_engine.results import READ_TOOL_RESULT, cut_result, cut_text
from pilothouse_engine.state import Visit
from pilothouse_engine.values import Value


class Cut(Value):
    """What a level keeps: the newest messages of earlier turns, and the longest results and texts, in characters."""

    messages: int
    result_chars: int
    text_chars: int
    cuts_slices: bool = False


CUTS: Mapping[Level, Cut] = {
    "default": Cut(28, 2200, 5000),
    "aggressive": Cut(12, 900, 1800),
    "minimal": Cut(4, 400, 900, cuts_slices=True),
}
"""The levels below `full`, where nothing is cut beyond maxToolResultChars."""

LEVELS: tuple[Level, ...] = ("full", *CUTS)
"""From the loosest to the tightest; a tighter one never sends more of any message."""


class Sent(Value):
    """One message of a request, and which of the visit it is; `is_cut` says that it is not sent whole."""

    index: int
    message: Message
    is_cut: bool = False


def sent_at(visit: Visit, messages: Sequence[Message], level: Level) -> list[Sent]:
    """Return the messages of a request at a level, in their order.

    `messages` are the visit's own, one for one: the caller may have left a provider's form out of them.
    """
    if level == "full":
        return [Sent(index, message) for index, message in enumerate(messages)]
    cut = CUTS[level]
    newest = newest_turn(visit)
    past = visit.past[1:]
    kept = set(_kept_earlier(messages, (*past, *range(visit.opening, newest)), cut.messages))
    sent: list[Sent] = []
    for index, message in enumerate(messages):
        if (index < visit.opening and index not in past) or message.role == "system":
            sent.append(Sent(index, message))
        elif index >= newest or index in kept:
            sent.append(_shorten(visit, index, message, cut, is_newest=index >= newest))
    return sent


def newest_turn(visit: Visit) -> int:
    """Return where the newest turn begins: at the last reply, or behind the opening where there is none yet."""
    for index in range(len(visit.messages) - 1, visit.opening - 1, -1):
        if visit.messages[index].role == "assistant":
            return index
    return visit.opening


def _kept_earlier(messages: Sequence[Message], earlier: Sequence[int], most: int) -> Iterator[int]:
    """Yield which messages of earlier turns are kept: the newest ones, a reply and the results of its calls together.

    Earlier runs of the session are earlier turns. Steers are kept wherever they stand and are not counted.
    """
    unit: list[int] = []
    for index in reversed(earlier):
        message = messages[index]
        if message.role == "system":
            continue
        unit.append(index)
        if message.role == "tool":
            continue
        most -= len(unit)
        if most < 0:
            return
        yield from unit
        unit = []


def _shorten(visit: Visit, index: int, message: Message, cut: Cut, *, is_newest: bool) -> Sent:
    if index in visit.past:  # nothing more of a result is kept than what stands here
        text = cut_text(message.text, cut.result_chars if message.role == "tool" else cut.text_chars)
    elif message.role == "tool":
        if message.name == READ_TOOL_RESULT and not cut.cuts_slices:
            return Sent(index, message)
        call_id = visit.result_ids[index]
        text = cut_result(call_id, len(visit.results[call_id]), message.text, cut.result_chars)
    elif is_newest:
        return Sent(index, message)
    else:
        text = cut_text(message.text, cut.text_chars)
    if text == message.text:
        return Sent(index, message)
    changed = Message(message.role, text, message.calls, message.provider_id, message.name, message.raw)
    return Sent(index, changed, is_cut=True)
