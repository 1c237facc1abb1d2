"""The recorded form of a golden run: a text that a person can read, and that changes where the run changes.

Three parts: what happened, with everything that the model was shown; the journal, a line for each fact; the snapshot
that was published last. A long text stands as its beginning, its length and its digest; what the model was shown stands
in full unless it is very long.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import yaml
from msgspec.structs import fields

from golden.script import Event
from golden.stage import Killed, Stage, Told
from pilothouse_api.digests import text_digest
from pilothouse_api.structs import Snapshot
from pilothouse_engine.facts import AskedCall, Fact, PromptMessage
from pilothouse_engine.ports import (
    FunctionRequest,
    HttpRequest,
    Message,
    ModelFailure,
    ModelReply,
    ModelRequest,
    ResourceRequest,
    ToolSpec,
)
from pilothouse_engine.results import READ_TOOL_RESULT
from pilothouse_engine.run import Finished, Lost, Released
from pilothouse_engine.testing.clock import START

LONGEST_SHOWN = 160
LONGEST_TEXT = 900
EPOCH = START.timestamp()

_DIGEST = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[A-Za-z0-9_.:()/-]+")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z")


def record(stage: Stage, facts: Sequence[Fact]) -> str:
    """Return the recorded form of a run that was played."""
    parts = [
        "# What happened, and what the model was shown",
        *_Transcript().lines(stage.told),
        "",
        "# The journal",
        *(_fact(number, fact) for number, fact in enumerate(facts)),
        "",
        "# The snapshot that was published last",
        *(_snapshot(stage.snapshots[-1]) if stage.snapshots else ["none"]),
    ]
    return "\n".join(line.rstrip() for line in parts) + "\n"


# ---------------------------------------------------------------- the transcript


class _Transcript:
    """Writes what happened; of a prompt only what is new since the one before it in the same visit."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[Message, ...]] = {}
        self._tools: tuple[ToolSpec, ...] | None = None

    def lines(self, told: Sequence[Told]) -> Iterator[str]:
        for one in told:
            yield from getattr(self, f"_{one.what}")(f"+{one.at:g}s", one)

    def _attempt(self, at: str, told: Told) -> Iterator[str]:
        yield f"== {at} attempt {told.value}" + (f", settling as {told.outcome}" if told.outcome else "")

    def _event(self, at: str, told: Told) -> Iterator[str]:
        event: Event = told.value
        yield f"** {at} {event.said}"

    def _end(self, at: str, told: Told) -> Iterator[str]:
        match told.value:
            case Finished(exit, result):
                said = f"finished: {exit.signal}, {exit.reason}; result {_json(result)}"
            case Released(parked):
                said = f"released: {parked.reason}"
            case Lost(reason, message):
                said = f"lost: {reason}, {message}"
            case Killed():
                said = "killed"
            case _:
                raise AssertionError(told.value)
        yield f"== {at} {said}"

    def _function(self, at: str, told: Told) -> Iterator[str]:
        request: FunctionRequest = told.value
        yield f"-- {at} runs {request.callable} {_json(request.arguments)}"

    def _http(self, at: str, told: Told) -> Iterator[str]:
        request: HttpRequest = told.value
        body = f" {request.body.decode()}" if request.body else ""
        headers = "".join(f" [{name}: {value}]" for name, value in request.headers)
        yield f"-- {at} {request.method} {request.url}{headers}{body}"

    def _mcp(self, at: str, told: Told) -> Iterator[str]:
        server, tool, arguments = told.value
        key = f" [key {told.outcome[:12]}…]" if told.outcome else ""
        yield f"-- {at} {'lists' if tool is None else 'calls'} MCP server {server}" + (
            f", tool {tool} {_json(arguments)}{key}" if tool is not None else ""
        )

    def _cluster(self, at: str, told: Told) -> Iterator[str]:
        request: ResourceRequest = told.value
        body = f" {_json(request.body)}" if request.body is not None else ""
        yield f"-- {at} {request.operation} {request.kind} {request.name}{request.label_selector}{body}"

    def _load(self, at: str, told: Told) -> Iterator[str]:
        yield f"-- {at} loads session {told.value.session} of step {told.value.step}"

    def _keep(self, at: str, told: Told) -> Iterator[str]:
        *before, run = told.outcome.runs
        yield f"-- {at} keeps in session {told.value.session} of step {told.value.step}, behind {len(before)} runs"
        for message in run.messages:
            yield from _message(message, None)
        for task in told.outcome.tasks:
            yield f"   task: {task.ref_name} for call {task.call} of {task.run}"

    def _model(self, at: str, told: Told) -> Iterator[str]:
        request: ModelRequest = told.value
        yield f"-- {at} step {request.step}, turn {request.turn}: the model is shown"
        yield from self._offer(request.tools)
        yield from self._messages(request)
        yield "   and says"
        yield from _outcome(told.outcome)

    def _offer(self, tools: tuple[ToolSpec, ...]) -> Iterator[str]:
        if tools == self._tools:
            return
        self._tools = tools
        if not tools:
            yield "   no tools"
        for tool in tools:
            said = f"{tool.description} {_json(tool.parameters)}"
            yield f"   tool {tool.name}: {text_digest(said)[:8] if tool.name == READ_TOOL_RESULT else said}"

    def _messages(self, request: ModelRequest) -> Iterator[str]:
        before = self._shown.get(request.step, ())
        self._shown[request.step] = request.messages
        same = 0
        for number, message in enumerate(request.messages):
            old = before[number] if number < len(before) else None
            if message == old:
                same += 1
                continue
            if same:
                yield _as_before(same)
                same = 0
            yield from _message(message, old)
        if same:
            yield _as_before(same)


def _as_before(count: int) -> str:
    return f"   … {count} message{'s' if count > 1 else ''} as before"


def _message(message: Message, old: Message | None) -> Iterator[str]:
    text = message.text
    if old is not None and message.role == old.role == "system" and text.startswith(old.text):
        yield from _block("system, as before, and", text[len(old.text) :].strip("\n"))
    elif old is not None and message.role == old.role == "system" and old.text.startswith(text):
        yield "   system: as at first"
    else:
        name = f" {message.name} ({message.provider_id})" if message.role == "tool" else ""
        yield from _block(f"{message.role}{name}", text)
    for call in message.calls:
        yield f"     calls {call.name} {call.arguments} ({call.provider_id})"


def _block(head: str, text: str) -> Iterator[str]:
    first, *rest = _middle_left_out(text).split("\n")
    yield f"   {head}: {first}"
    yield from (f"     {line}" for line in rest)


def _middle_left_out(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_SHOWN]} … {text[-2 * LONGEST_SHOWN :]} ({len(text)} characters, {text_digest(text)[:8]})"


def _outcome(outcome: ModelReply | ModelFailure | None) -> Iterator[str]:
    if outcome is None:
        yield "   nothing: the call was cut"
    elif isinstance(outcome, ModelFailure):
        after = "" if outcome.retry_after is None else f"; retry after {outcome.retry_after:g} s"
        yield f"   failure {outcome.kind}: {outcome.message}{after}"
    else:
        cut = " (cut)" if outcome.finish == "Length" else ""
        if outcome.text or not outcome.calls:
            yield from _block(f"text{cut}", outcome.text)
        for call in outcome.calls:
            yield f"   call{cut} {call.name} {call.arguments}"


# ---------------------------------------------------------------- the journal


def _fact(number: int, fact: Fact) -> str:
    shown = " ".join(
        f"{one.name}={_value(getattr(fact, one.name))}"
        for one in fields(fact)
        if one.name != "at" and getattr(fact, one.name) != one.default
    )
    return f"{number:3d} +{round(fact.at - EPOCH, 3):g}s {type(fact).__name__} {shown}"


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, AskedCall):
        undeclared = "" if value.is_declared else " undeclared"
        return f"{value.id} {_short(value.name)} {_short(value.arguments)}{undeclared}"
    if isinstance(value, PromptMessage):
        return f"{value.role} {_short(value.text)}"
    if isinstance(value, str):
        if _DIGEST.fullmatch(value):
            return f"{value[:12]}…"
        return value if _WORD.fullmatch(value) else _short(value)
    if isinstance(value, float):
        return f"+{round(value - EPOCH, 3):g}s" if value >= EPOCH else f"{value:g}"
    return _short(_json(value)) if not isinstance(value, bool | int) else str(value)


def _short(text: str) -> str:
    shown = json.dumps(text, ensure_ascii=False) if not text.startswith(("{", "[")) or "\n" in text else text
    if len(shown) <= LONGEST_SHOWN:
        return shown
    return f"{shown[:LONGEST_SHOWN]}… ({len(text)} characters, {text_digest(text)[:8]})"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else {f.name: getattr(value, f.name) for f in fields(value)}


# ---------------------------------------------------------------- the snapshot


def _snapshot(snapshot: Snapshot) -> Iterator[str]:
    raw = _told(snapshot.to_raw())
    trace, steps = raw.pop("trace", []), raw.pop("steps", [])
    yield from yaml.safe_dump(raw, sort_keys=False, allow_unicode=True, width=10_000).splitlines()
    for name, rows in (("steps", steps), ("trace", trace)):
        yield f"{name}:"
        yield from ("- " + " ".join(f"{key}={value}" for key, value in row.items()) for row in rows)


def _told(value: Any) -> Any:
    """Return a part of a snapshot without what says nothing, its moments as seconds since the run began."""
    if isinstance(value, Mapping):
        told = {key: _told(item) for key, item in value.items()}
        return {key: item for key, item in told.items() if item not in (None, "", [], {})}
    if isinstance(value, list):
        return [_told(item) for item in value]
    if isinstance(value, str) and _MOMENT.fullmatch(value):
        return f"+{round(datetime.fromisoformat(value).timestamp() - EPOCH, 3):g}s"
    return value
