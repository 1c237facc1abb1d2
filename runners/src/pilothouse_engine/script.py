"""The script of the scripted model: its form, and how it is read (engine.md §18).

`ScriptedModel`, `pilothouse stub-model` and the judge play it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any, Literal, TypeVar, get_args

import yaml

from pilothouse_engine.values import Value

MAX_SCRIPT_BYTES = 1_048_576
MAX_TURNS = 10_000
MAX_CALLS = 1000
"""Calls of one reply."""
MAX_DELAY_SECONDS = 3600
MAX_RETRY_AFTER_SECONDS = 86_400

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ScriptInvalid(ValueError):
    """A script that cannot be played; the message names line and field."""


class _Node(Value, frozen=True, rename="camel"):
    """A part of a script; in YAML its fields are in camelCase."""


class Match(_Node, frozen=True):
    """When an entry may be played; every condition that is set must hold."""

    step: str | None = None
    """Id of the step that asks. Not judged where the caller does not say its step (stub-model)."""
    turn: int | None = None
    """Turn of the run, from 1 on."""
    contains: str | None = None
    """Text, not empty, in what the model has not answered yet: messages since its newest reply, steers included."""


class ScriptedCall(_Node, frozen=True):
    """A tool call that the model asks for."""

    name: str
    """Name of the tool."""
    arguments: Mapping[str, Any] | str = {}
    """Arguments; a string is played as it is, valid JSON or not."""


class ScriptedUsage(_Node, frozen=True):
    """Tokens that the reply reports; a count that is left out is one that the provider did not give."""

    input: int | None = None
    """Input tokens."""
    output: int | None = None
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


class ScriptedError(_Node, frozen=True):
    """A failure that is played."""

    kind: ErrorKind
    """Which one."""
    retry_after_seconds: float | None = None
    """What the endpoint asks to wait (RateLimited, ServerError), MAX_RETRY_AFTER_SECONDS at most."""


class Raw(_Node, frozen=True):
    """An HTTP response given byte for byte; only stub-model can play it."""

    status: int = 200
    """HTTP status, 200 to 599."""
    headers: Mapping[str, str] = {}
    """HTTP headers."""
    body: str | bytes = ""
    """Body; `!!binary` for bytes that are no text."""


class Entry(_Node, frozen=True):
    """One reply of the model, or what comes instead: exactly one of text and calls, error, raw."""

    match: Match = Match()
    """When it may be played; always, where it is left out."""
    text: str | None = None
    """Text of the reply."""
    tool_calls: Sequence[ScriptedCall] = ()
    """Calls of the reply."""
    usage: ScriptedUsage | None = None
    """Usage; estimated from the bytes of prompt and reply where it is left out, unknown where it is `{}`."""
    delay_seconds: float = 0.0
    """Time until the reply, MAX_DELAY_SECONDS at most."""
    finish: Literal["Stop", "Length"] = "Stop"
    """Length: the reply was cut at the output limit."""
    error: ScriptedError | None = None
    """A failure instead of a reply."""
    raw: Raw | None = None
    """A response of any form instead of a reply; stub-model only."""


class Script(_Node, frozen=True):
    """What the scripted model plays."""

    turns: Sequence[Entry]
    """The entries; the first unused one that matches is played."""
    repeat: Literal["Last", "None"] = "None"
    """Last: when no unused entry matches, the last entry that matches is played again. None: an error says so."""


# ---------------------------------------------------------------- out of a text


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
    return read_script(value, root)


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


def _short(value: object) -> str:
    try:
        shown = json.dumps(value, ensure_ascii=False, default=str)  # YAML has dates, JSON has none
    except ValueError:  # hexadecimal digits make a number that Python writes in no decimal ones
        return "a number that is too long to be shown"
    return shown if len(shown) <= 80 else f"{shown[:79]}…"


# ---------------------------------------------------------------- out of a value

_Path = tuple[str | int, ...]
_Reader = Callable[[Any, _Path], Any]
_N = TypeVar("_N", bound=_Node)


class _Fault(Exception):
    """What is wrong, and where."""

    def __init__(self, path: _Path, message: str) -> None:
        super().__init__(message)
        self.path = path


def read_script(value: object, root: yaml.Node | None = None) -> Script:
    """Return the script that a value of YAML or JSON holds; raises ScriptInvalid, with a line where `root` is given."""
    try:
        return _script(value, ())
    except _Fault as fault:
        raise ScriptInvalid(_say(fault, root)) from None


def _say(fault: _Fault, root: yaml.Node | None) -> str:
    node, path = root, ""
    for part in fault.path:
        child = None if node is None else _child(node, part)
        node = child or node
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    where = "" if node is None else f"line {_line(node)}: "
    return f"{where}{path.lstrip('.') or 'script'}: {fault}"


def _child(node: yaml.Node, part: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return node.value[part]  # type: ignore[no-any-return]
    if isinstance(node, yaml.MappingNode):
        return next((child for key, child in node.value if key.value == part), None)
    return None


def _wrong(path: _Path, wanted: str, value: object, hint: str = "") -> _Fault:
    return _Fault(path, f"must be {wanted}, not {_given(value)}{hint if isinstance(value, int | float) else ''}")


def _given(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, set):
        return "a set"
    return "a list" if isinstance(value, list | tuple) else _short(value)


def _text(value: Any, path: _Path) -> str:
    if isinstance(value, bytes):  # !!binary
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise _Fault(path, "must be a text, not bytes that are no UTF-8") from None
    if not isinstance(value, str):
        raise _wrong(path, "a text", value, "; quote it")
    return value


def _some_text(value: Any, path: _Path) -> str:
    if not (text := _text(value, path)):
        raise _wrong(path, "a text that is not empty", value)
    return text


def _text_or_bytes(value: Any, path: _Path) -> str | bytes:
    return value if isinstance(value, bytes) else _text(value, path)


def _whole(least: int, most: float = inf) -> _Reader:
    wanted = f"a whole number {_range(least, most)}"

    def read(value: Any, path: _Path) -> int:
        if not isinstance(value, int | float | str) or (isinstance(value, float) and not value.is_integer()):
            raise _wrong(path, wanted, value)
        try:
            number = int(value)
        except ValueError:
            raise _wrong(path, wanted, value) from None
        if not least <= number <= most:
            raise _wrong(path, wanted, value)
        return number

    return read


def _seconds(most: int) -> _Reader:
    wanted = f"a number {_range(0, most)}"

    def read(value: Any, path: _Path) -> float:
        if not isinstance(value, int | float | str):
            raise _wrong(path, wanted, value)
        try:
            number = float(value)
        except (ValueError, OverflowError):
            raise _wrong(path, wanted, value) from None
        if not 0 <= number <= most:  # NaN neither
            raise _wrong(path, wanted, value)
        return number

    return read


def _range(least: int, most: float) -> str:
    return f"from {least} to {most}" if most < inf else f"from {least} on"


def _one_of(words: Sequence[str]) -> _Reader:
    wanted = f"{', '.join(words[:-1])} or {words[-1]}"

    def read(value: Any, path: _Path) -> str:
        if value not in words:
            raise _wrong(path, wanted, value)
        return str(value)

    return read


def _or_null(reader: _Reader) -> _Reader:
    return lambda value, path: None if value is None else reader(value, path)


def _list(reader: _Reader, least: int, most: int) -> _Reader:
    def read(value: Any, path: _Path) -> Sequence[Any]:
        if not isinstance(value, list):
            raise _wrong(path, "a list", value)
        if not least <= len(value) <= most:
            raise _Fault(path, f"must have {least} to {most} items, not {len(value)}")
        return tuple(reader(item, (*path, index)) for index, item in enumerate(value))

    return read


def _headers(value: Any, path: _Path) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise _wrong(path, "a mapping", value)
    _check_names(value, path)
    return {name: _text(item, (*path, name)) for name, item in value.items()}


def _arguments(value: Any, path: _Path) -> Mapping[str, Any] | str:
    if not isinstance(value, dict):
        if isinstance(value, str | bytes):
            return _text(value, path)
        raise _wrong(path, "a mapping or a text", value)
    _check_names(value, path)
    return value


def _check_names(value: dict[Any, Any], path: _Path) -> None:
    for name in value:
        if not isinstance(name, str):
            raise _Fault(path, f"its names must be texts, not {_short(name)}; quote it")


def _node(kind: type[_N], /, **readers: _Reader) -> Callable[[Any, _Path], _N]:
    """Return what reads a mapping as a node; there is a reader for each of its fields."""
    names = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    required = list(names)[: len(names) - len(kind.__struct_defaults__)]

    def read(value: Any, path: _Path) -> _N:
        if not isinstance(value, dict):
            raise _wrong(path, "a mapping", value)
        found: dict[str, Any] = {}
        for key, item in value.items():
            name = names.get(key, key)
            if name not in readers:
                shown = key if isinstance(key, str) else _short(key)
                raise _Fault((*path, shown), "there is no such field here")
            found[name] = readers[name](item, (*path, key))
        for key in required:
            if names[key] not in found:
                raise _Fault((*path, key), "is required")
        return kind(**found)

    return read


def _entry(value: Any, path: _Path) -> Entry:
    entry = _fields_of_entry(value, path)
    forms = [entry.text is not None or bool(entry.tool_calls), entry.error is not None, entry.raw is not None]
    if sum(forms) != 1:
        raise _Fault(path, "set text or toolCalls, or error, or raw: exactly one of the three")
    if not forms[0] and not value.keys().isdisjoint(("usage", "finish")):
        raise _Fault(path, "usage and finish belong to text and toolCalls")
    return entry


_usage = _node(ScriptedUsage, input=_or_null(_whole(0)), output=_or_null(_whole(0)))
_call = _node(ScriptedCall, name=_text, arguments=_arguments)
_fields_of_entry = _node(
    Entry,
    match=_node(Match, step=_or_null(_text), turn=_or_null(_whole(1)), contains=_or_null(_some_text)),
    text=_or_null(_text),
    tool_calls=_list(_call, 0, MAX_CALLS),
    usage=_or_null(_usage),
    delay_seconds=_seconds(MAX_DELAY_SECONDS),
    finish=_one_of(("Stop", "Length")),
    error=_or_null(
        _node(
            ScriptedError,
            kind=_one_of(get_args(ErrorKind)),
            retry_after_seconds=_or_null(_seconds(MAX_RETRY_AFTER_SECONDS)),
        )
    ),
    raw=_or_null(_node(Raw, status=_whole(200, 599), headers=_headers, body=_text_or_bytes)),
)
_script = _node(Script, turns=_list(_entry, 1, MAX_TURNS), repeat=_one_of(("Last", "None")))
