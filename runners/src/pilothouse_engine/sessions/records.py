"""What is stored of a conversation, and the history that a run begins with. Pure.

A record holds runs, oldest first, each with what it has said, and the tasks of theirs whose ends nobody was told. A run
is added once, by its uid: who adds it again, after a crash or beside another attempt, changes nothing. Of runs whose
messages are too old to be shown only the uid stays, so that one which comes back late is known too.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import ValidationError, convert, to_builtins
from msgspec.structs import replace

from pilothouse_engine.facts import PastTask
from pilothouse_engine.ports import Message, RequestedCall, SessionCorrupt
from pilothouse_engine.results import compact, cut_text, error_content
from pilothouse_engine.state import bytes_of
from pilothouse_engine.values import Value

VERSION = 1
"""Version of the record; a reader refuses a newer one."""

MAX_HISTORY_BYTES = 1_048_576
"""Of the messages that a run begins with: they stand in its journal, by value."""

MAX_MESSAGE_CHARS = 16_384
"""Of one text, or of the arguments of one call, as it is kept."""

MAX_RUNS = 512
MAX_TASKS = 64
"""Tasks that are under way; of more the oldest are told to nobody."""

UNRESOLVED = "nobody knows: the run that asked for this call has ended without its result"

OPENING_NOTE = (
    "This conversation goes on from earlier runs. What was said in them comes first; the message behind it is the task"
    " now. Results of earlier runs that were cut cannot be read any more."
)


class PastRun(Value):
    """What one ended run has said; no messages where they are too old to be shown."""

    uid: str
    messages: tuple[Message, ...] = ()


class Said(Value):
    """What a run leaves to the next: its messages, its tasks that go on, and the older ones whose ends it has told."""

    messages: tuple[Message, ...] = ()
    opened: tuple[PastTask, ...] = ()
    told: frozenset[tuple[str, str]] = frozenset()
    """Run and call of each."""


class Conversation(Value):
    """A record: ended runs and open tasks, oldest first."""

    runs: tuple[PastRun, ...] = ()
    tasks: tuple[PastTask, ...] = ()


# ---------------------------------------------------------------- the form that is stored


def encode_conversation(conversation: Conversation) -> bytes:
    """Return the content of a record."""
    runs = [
        {"uid": run.uid, "messages": [encode_message(message) for message in run.messages]} for run in conversation.runs
    ]
    record: dict[str, Any] = {"v": VERSION, "runs": runs}
    if conversation.tasks:
        record["tasks"] = to_builtins(conversation.tasks)
    # An escape carries half of a surrogate pair, which is no UTF-8.
    return json.dumps(record, separators=(",", ":")).encode("ascii")


def decode_conversation(content: bytes) -> Conversation:
    """Return what a record holds; raises SessionCorrupt."""
    if not content:
        return Conversation()
    try:
        record = json.loads(content)
        version, parts = record["v"], {"runs": record["runs"], "tasks": record.get("tasks", ())}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SessionCorrupt("what is stored is no record of a conversation") from None
    if version != VERSION:
        said = f"what is stored has version {version!r:.20}; this engine reads {VERSION}"
        raise SessionCorrupt(f"{said}: use a newer runner")
    try:
        return convert(parts, Conversation)
    except ValidationError as error:
        raise SessionCorrupt(f"what is stored cannot be read: {error!s:.200}") from None


def encode_message(message: Message) -> dict[str, Any]:
    """Return a message as JSON, without what only its provider reads; fields that have their default are left out."""
    calls = [
        {"provider_id": call.provider_id, "name": call.name, "arguments": call.arguments} for call in message.calls
    ]
    fields = {"text": message.text, "calls": calls, "provider_id": message.provider_id, "name": message.name}
    return {"role": message.role, **{name: value for name, value in fields.items() if value}}


def decode_messages(raw_messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Return messages of `encode_message`; raises msgspec's ValidationError."""
    return tuple(convert(raw, Message) for raw in raw_messages)


# ---------------------------------------------------------------- what is kept


def add_run(conversation: Conversation, uid: str, said: Said, most: int) -> Conversation | None:
    """Return a record with one run more, bounded; None where it is there already."""
    if any(known.uid == uid for known in conversation.runs):
        return None
    messages, size, kept = 0, 0, []
    for past in (PastRun(uid, newest(said.messages, most)), *reversed(conversation.runs)):
        is_needed = messages < most and size < MAX_HISTORY_BYTES
        kept.append(past if is_needed else PastRun(past.uid))
        messages += len(past.messages)
        size += sum(map(bytes_of, past.messages))
    tasks = [task for task in (*conversation.tasks, *said.opened) if (task.run, task.call) not in said.told]
    return Conversation(tuple(reversed(kept[:MAX_RUNS])), tuple(tasks[-MAX_TASKS:]))


def shortened(message: Message) -> Message:
    """Return a message as it is kept: long ones without their middle, which they say."""
    calls = tuple(_shortened_call(call) for call in message.calls)
    text = cut_text(message.text, MAX_MESSAGE_CHARS)
    return Message(message.role, text, calls, message.provider_id, message.name)


def _shortened_call(call: RequestedCall) -> RequestedCall:
    length = len(call.arguments)
    if length <= MAX_MESSAGE_CHARS:
        return call
    # Providers read arguments as JSON: their head would be none.
    return RequestedCall(call.provider_id, call.name, compact({"cut": f"these arguments had {length} characters"}))


# ---------------------------------------------------------------- what a run begins with


def build_history(runs: Sequence[PastRun], most: int) -> tuple[Message, ...]:
    """Return the newest messages of ended runs, `most` of them and a note before them; nothing where there are none.

    Every call has its result behind it, and no two calls share a provider's id.
    """
    said = [message for run in runs for message in completed(run.messages)]
    kept = newest(said, most)
    # The note is a user's message, with which some providers want every conversation to begin.
    return (Message("user", OPENING_NOTE), *_with_own_ids(kept)) if kept else ()


def completed(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages with a result behind every call; a result without its call is left out."""
    for unit in units(messages):
        head, results = unit[0], {message.provider_id: message for message in unit[1:]}
        if head.role == "tool":
            continue
        yield head
        for call in head.calls:
            yield results.get(call.provider_id) or _unresolved(call)


def _unresolved(call: RequestedCall) -> Message:
    content = error_content("tool_call_unresolved", UNRESOLVED)
    return Message("tool", content, provider_id=call.provider_id, name=call.name)


def units(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Yield what is never split: a reply with the results of its calls, any other message alone."""
    unit: list[Message] = []
    for message in messages:
        if message.role == "tool" and unit and unit[0].calls:
            unit.append(message)
            continue
        if unit:
            yield unit
        unit = [message]
    if unit:
        yield unit


def newest(messages: Sequence[Message], most: int, most_bytes: int = MAX_HISTORY_BYTES) -> tuple[Message, ...]:
    """Return the newest messages that fit, a reply and the results of its calls together or not at all."""
    kept: list[list[Message]] = []
    for unit in reversed(list(units(messages))):
        most -= len(unit)
        most_bytes -= sum(map(bytes_of, unit))
        if most < 0 or most_bytes < 0:
            break
        kept.append(unit)
    return tuple(message for unit in reversed(kept) for message in unit)


def _with_own_ids(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages in which every call has a provider's id that no other has: runs number theirs alike.

    Results stand behind their reply in the order of its calls, as `completed` leaves them.
    """
    used: set[str] = set()
    for head, *results in units(messages):
        calls = tuple(replace(call, provider_id=_own_id(call.provider_id, used)) for call in head.calls)
        yield replace(head, calls=calls)
        yield from (replace(one, provider_id=call.provider_id) for one, call in zip(results, calls, strict=True))


def _own_id(given: str, used: set[str]) -> str:
    own, number = given, len(used)
    while not own or own in used:
        number += 1
        own = f"h{number:08d}"  # nine letters and digits: the one form that every provider takes
    used.add(own)
    return own
