"""The scripted model: plays a YAML script instead of calling a provider (engine.md §18).

The script's model and the choice of the next entry are pure and serve `pilothouse stub-model` too; `ScriptedModel`
is the port on top. It has no memory: which entries were played is in the request's `marks`, which come from the
journal, so a crash repeats nothing.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

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
from pilothouse_engine.values import Value

MAX_SCRIPT_BYTES = 1_048_576
MAX_DELAY_SECONDS = 3600
BYTES_PER_TOKEN = 4
"""What a token is taken to hold where a script states no usage."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ScriptInvalid(ValueError):
    """A script that cannot be played; the message names line and field."""


class _Node(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, defer_build=True
    )


class Match(_Node):
    """When an entry may be played; every condition that is set must hold."""

    step: str | None = None
    """Id of the step that asks. Not judged where the caller does not say its step (stub-model)."""
    turn: Annotated[int, Field(ge=1)] | None = None
    """Turn of the run."""
    contains: Annotated[str, Field(min_length=1)] | None = None
    """Text in what the model has not answered yet: messages since its newest reply, steers included."""


class ScriptedCall(_Node):
    """A tool call that the model asks for."""

    name: str
    """Name of the tool."""
    arguments: dict[str, Any] | str = {}
    """Arguments; a string is played as it is, valid JSON or not."""


class ScriptedUsage(_Node):
    """Tokens that the reply reports; a count that is left out is one that the provider did not give."""

    input: Annotated[int, Field(ge=0)] | None = None
    """Input tokens."""
    output: Annotated[int, Field(ge=0)] | None = None
    """Output tokens."""


ErrorKind = Literal[
    "RateLimited",
    "Timeout",
    "ServerError",
    "ContextWindowExceeded",
    "Refused",
    "Disconnect",
    "Garbage",
    "Authentication",
]


class ScriptedError(_Node):
    """A failure that is played."""

    kind: ErrorKind
    """Which one."""
    retry_after_seconds: Annotated[float, Field(ge=0, le=86400)] | None = None
    """What the endpoint asks to wait (RateLimited, ServerError)."""


class Raw(_Node):
    """An HTTP response given byte for byte; only stub-model can play it."""

    status: Annotated[int, Field(ge=200, le=599)] = 200
    """HTTP status."""
    headers: dict[str, str] = {}
    """HTTP headers."""
    body: str | bytes = ""
    """Body; `!!binary` for bytes that are no text."""


class Entry(_Node):
    """One reply of the model, or what comes instead."""

    match: Match = Match()
    """When it may be played; always, where it is left out."""
    text: str | None = None
    """Text of the reply."""
    tool_calls: Annotated[list[ScriptedCall], Field(max_length=1000)] = []
    """Calls of the reply."""
    usage: ScriptedUsage | None = None
    """Usage; estimated from the bytes of prompt and reply where it is left out, unknown where it is `{}`."""
    delay_seconds: Annotated[float, Field(ge=0, le=MAX_DELAY_SECONDS)] = 0.0
    """Time until the reply."""
    finish: Literal["Stop", "Length"] = "Stop"
    """Length: the reply was cut at the output limit."""
    error: ScriptedError | None = None
    """A failure instead of a reply."""
    raw: Raw | None = None
    """A response of any form instead of a reply; stub-model only."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        forms = [self.text is not None or bool(self.tool_calls), self.error is not None, self.raw is not None]
        if sum(forms) != 1:
            raise ValueError("set text or toolCalls, or error, or raw: exactly one of the three")
        if not forms[0] and not {"usage", "finish"}.isdisjoint(self.model_fields_set):
            raise ValueError("usage and finish belong to text and toolCalls")
        return self


class Script(_Node):
    """What the scripted model plays."""

    turns: Annotated[list[Entry], Field(min_length=1, max_length=10_000)]
    """The entries; the first unused one that matches is played."""
    repeat: Literal["Last", "None"] = "None"
    """Last: when no unused entry matches, the last entry that matches is played again. None: an error says so."""


@lru_cache(maxsize=32)
def parse_script(text: str) -> Script:
    """Return the script of a YAML text, parsed once; raises ScriptInvalid."""
    if len(text) > MAX_SCRIPT_BYTES:
        raise ScriptInvalid(f"the script has {len(text)} characters; at most {MAX_SCRIPT_BYTES} are read")
    try:
        root = yaml.compose(text, Loader=_Loader)
        if root is None:
            raise ScriptInvalid("the script is empty; it needs turns")
        _check_plain(root)
        value = yaml.load(text, Loader=_Loader)  # the safe loader, in C
    except yaml.YAMLError as error:
        raise ScriptInvalid(_yaml_fault(error, text)) from None
    except RecursionError:
        raise ScriptInvalid("the script is nested too deeply to be read") from None
    except ValueError as error:
        if isinstance(error, ScriptInvalid):
            raise
        # A value that YAML's own types refuse, such as a date with a 13th month.
        raise ScriptInvalid(f"the script cannot be read: {error}") from None
    try:
        return Script.model_validate(value)
    except ValidationError as error:
        raise ScriptInvalid(_schema_fault(error, root)) from None


def _check_plain(root: yaml.Node) -> None:
    """Refuse what makes a small text large (an alias of a collection) or hides a line (a repeated key)."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.ScalarNode):
            continue
        if id(node) in seen:
            raise ScriptInvalid(f"line {_line(node)}: a list or mapping is used again by an alias; write it out")
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, child in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in keys:
                        raise ScriptInvalid(f"line {_line(key)}: {_short(key.value)} is written twice in one mapping")
                    keys.add(key.value)
                waiting += [key, child]
        else:
            waiting += node.value


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _yaml_fault(error: yaml.YAMLError, text: str) -> str:
    last_line = text.rstrip().count("\n")  # a text that stops too soon is marked past its end
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "the text is not YAML"
    return (
        f"line {min(mark.line, last_line) + 1}: {problem}"
        if mark is not None
        else f"the script cannot be read: {problem}"
    )


def _schema_fault(error: ValidationError, root: yaml.Node) -> str:
    faults = error.errors(include_url=False, include_context=False)
    first = faults[0]
    node, path = root, ""
    for part in first["loc"]:
        child = _child(node, part)
        if child is not None:
            node = child
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
        elif not _is_branch(part):
            path += f".{part}"
    given = first["input"]
    value = f", not {_short(given)}" if isinstance(given, str | int | float | bool) else ""
    hint = "; quote it" if first["type"] == "string_type" and value else ""
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message, value = "there is no such field here", ""
    return f"line {_line(node)}: {path.lstrip('.') or 'script'}: {message}{value}{hint}{more}"


def _child(node: yaml.Node, part: int | str) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part]  # type: ignore[no-any-return]
    if isinstance(node, yaml.MappingNode):
        return next((child for key, child in node.value if key.value == part), None)
    return None


def _is_branch(part: int | str) -> bool:
    """Whether a part of pydantic's path names a branch of a union, which no author has written."""
    return isinstance(part, str) and (part in ("str", "bytes") or "[" in part)


def _short(value: object) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 80 else f"{shown[:79]}…"


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
