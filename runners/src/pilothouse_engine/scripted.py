"""The scripted model: plays a YAML script instead of calling a provider (engine.md §18).

The choice of the next entry is pure and serves `pilothouse stub-model` too; `ScriptedModel` is the port on top. It has
no memory: which entries were played is in the request's `marks`, which come from the journal, so a crash repeats
nothing.
"""

import json
from collections.abc import Collection, Iterator, Sequence

from pilothouse_api.structs import ModelEndpoint
from pilothouse_engine.account import stated_price
from pilothouse_engine.ports import (
    Clock,
    FailureKind,
    Message,
    ModelFailure,
    ModelReply,
    ModelRequest,
    RequestedCall,
    Usage,
)
from pilothouse_engine.replies import ends_early, with_unique_ids
from pilothouse_engine.script import Entry, ErrorKind, Match, Script, ScriptedCall, ScriptInvalid, parse_script
from pilothouse_engine.values import Value

BYTES_PER_TOKEN = 4
"""What a token is taken to hold where a script states no usage."""


class Played(Value):
    """The entry that is played, and its place in the script."""

    index: int
    entry: Entry


class Spent(Value):
    """No entry can be played; `message` says why."""

    message: str


def next_entry(script: Script, request: ModelRequest, marks: Collection[int]) -> Played | Spent:
    """Choose the entry that answers the request; `marks` are the entries that were played before."""
    used = frozenset(marks)
    newest = unanswered_text(request.messages)
    for index, entry in enumerate(script.turns):
        if index not in used and _matches(entry.match, request, newest):
            return Played(index, entry)
    if script.repeat == "Last":
        for index in range(len(script.turns) - 1, -1, -1):
            if _matches(script.turns[index].match, request, newest):
                return Played(index, script.turns[index])
    return Spent(_spent_message(script, request, used))


def unanswered_text(messages: Sequence[Message]) -> str:
    """Return the text since the newest reply, one message a line; the standing system text in front is left out."""
    newer: list[str] = []
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "assistant":
            break
        if index > 0 or messages[index].role != "system":
            newer.append(messages[index].text)
    return "\n".join(reversed(newer))


def _matches(match: Match, request: ModelRequest, newest: str) -> bool:
    if match.step is not None and request.step and match.step != request.step:
        return False
    if match.turn is not None and match.turn != request.turn:
        return False
    return match.contains is None or match.contains in newest


def _spent_message(script: Script, request: ModelRequest, used: frozenset[int]) -> str:
    unused = [index for index in range(len(script.turns)) if index not in used]
    where = f"step {request.step or '(unknown)'}, turn {request.turn}"
    if not unused:
        return f"the script is spent at {where}: all {len(script.turns)} turns were played; add one, or repeat: Last"
    shown = ", ".join(f"turns[{index}]" for index in unused[:8])
    return f"no turn of the script matches {where}; unused: {shown}; see their match"


def input_tokens(request: ModelRequest) -> int:
    """Estimate the tokens of a prompt from its bytes."""
    return _tokens(part for part in _prompt_parts(request))


def output_tokens(entry: Entry) -> int:
    """Estimate the tokens of a reply from its bytes."""
    return _tokens(iter([entry.text or "", *(call.name + arguments_text(call) for call in entry.tool_calls)]))


def _prompt_parts(request: ModelRequest) -> Iterator[str]:
    for message in request.messages:
        yield message.text
        for call in message.calls:
            yield call.name
            yield call.arguments
    for tool in request.tools:
        yield tool.name
        yield tool.description
        yield json.dumps(tool.parameters, ensure_ascii=False, default=str)


def _tokens(parts: Iterator[str]) -> int:
    size = sum(len(part) if part.isascii() else len(part.encode("utf-8", "replace")) for part in parts)
    return max(1, -(-size // BYTES_PER_TOKEN))


def arguments_text(call: ScriptedCall) -> str:
    """Return the arguments as the model's raw text."""
    if isinstance(call.arguments, str):
        return call.arguments
    # default=str: YAML has dates, JSON has none.
    return json.dumps(call.arguments, ensure_ascii=False, default=str)


def usage_of(entry: Entry, request: ModelRequest) -> Usage:
    """Return what the entry reports as used: what it states, else an estimate."""
    if entry.usage is None:
        return Usage(input=input_tokens(request), output=output_tokens(entry))
    return Usage(input=entry.usage.input, output=entry.usage.output)


_FAILURES: dict[ErrorKind, tuple[FailureKind, int | None, str]] = {
    "RateLimited": ("RateLimited", 429, "too many requests"),
    "Timeout": ("Timeout", None, "no reply before the deadline"),
    "ServerError": ("ServerError", 500, "the server failed"),
    "ContextWindowExceeded": ("ContextWindowExceeded", 400, "the prompt is longer than the context window"),
    "Refused": ("Refused", 400, "refused by the provider's policy"),
    "Disconnect": ("Connection", None, "the connection was cut"),
    "Garbage": ("Garbage", 200, "the reply is not of the protocol"),
    "Authentication": ("Authentication", 401, "the key was refused"),
}


class ScriptedModel:
    """Plays the script of each request (port `Model`); its only input besides is time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def call(self, request: ModelRequest) -> ModelReply | ModelFailure:
        """Return the next entry of the script, after its delay and within the endpoint's deadline."""
        if request.script is None:
            return ModelFailure("InvalidRequest", "the scripted model was given no script; set model.script")
        try:
            script = parse_script(request.script)
        except ScriptInvalid as error:
            return ModelFailure("InvalidRequest", f"model.script: {error}"[:500])
        match next_entry(script, request, request.marks):
            case Spent(message):
                return ModelFailure("ScriptSpent", message[:500])
            case Played(index, entry):
                return await self._play(index, entry, request)

    async def _play(self, index: int, entry: Entry, request: ModelRequest) -> ModelReply | ModelFailure:
        deadline = float(request.endpoint.timeout_seconds)
        if entry.delay_seconds:
            await self._clock.sleep(min(entry.delay_seconds, deadline))
        if entry.delay_seconds >= deadline:
            message = f"turns[{index}] takes {entry.delay_seconds:g} s; model.timeoutSeconds is {deadline:g}"
            return ModelFailure("Timeout", message, mark=index, sent=True)
        if entry.raw is not None:
            message = f"turns[{index}].raw is played by stub-model only; use text, toolCalls or error"
            return ModelFailure("InvalidRequest", message, mark=index)
        if entry.error is not None:
            kind, status, words = _FAILURES[entry.error.kind]
            message = f"{words} (turns[{index}] of the script)"
            sent = kind in ("Timeout", "Connection", "Garbage")  # the endpoint had the request and did not refuse it
            return ModelFailure(kind, message, status, entry.error.retry_after_seconds, mark=index, sent=sent)
        return _reply(index, entry, request)

    def price(self, endpoint: ModelEndpoint) -> tuple[float, float] | None:
        """Return the endpoint's own price; a script has none."""
        return stated_price(endpoint)

    def context_window(self, endpoint: ModelEndpoint) -> int | None:
        """Return the endpoint's own window; a script has none."""
        return endpoint.context_window


def _reply(index: int, entry: Entry, request: ModelRequest) -> ModelReply:
    calls = [RequestedCall("", call.name, arguments_text(call)) for call in entry.tool_calls]
    is_cut = entry.finish == "Length" or any(ends_early(call.arguments) for call in calls)
    return ModelReply(
        text=entry.text or "",
        calls=with_unique_ids(calls, request),
        finish="Length" if is_cut else "Stop",
        usage=usage_of(entry, request),
        mark=index,
    )
