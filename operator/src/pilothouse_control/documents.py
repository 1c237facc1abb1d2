"""Manifests as text: YAML documents with the place of every field, read without trust.

Text in, values out: who reads the file decides which. A document is refused, never half read: over 1 MiB, nested
deeper than 100 levels, or grown past 100,000 values by aliases.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from pilothouse_control.findings import FieldPath, Finding, Position, Severity, spell

MAX_DOCUMENT_BYTES = 1_048_576
MAX_FILE_BYTES = 16 * MAX_DOCUMENT_BYTES
MAX_VALUES = 100_000
MAX_DEPTH = 100

_EXPONENT = re.compile(r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?[eE][-+]?[0-9]+$")
_SURROGATES = re.compile(r"(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})")
_QUOTED = '"{}"'
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True)
class Document:
    """One object as it was written, with the places of its fields; `problems` says why it could not be read."""

    raw: dict[str, Any]
    file: str = ""
    positions: Mapping[FieldPath, Position] = field(default_factory=dict)
    written: Mapping[FieldPath, str] = field(default_factory=dict)
    problems: tuple[Finding, ...] = ()

    @property
    def kind(self) -> str:
        """Kind of the object, empty where there is none."""
        kind = self.raw.get("kind")
        return kind if isinstance(kind, str) else ""

    @property
    def name(self) -> str:
        """Name of the object, or its generateName, or empty."""
        metadata = self.raw.get("metadata")
        names = metadata if isinstance(metadata, dict) else {}
        name = names.get("name") or names.get("generateName") or ""
        return name if isinstance(name, str) else ""

    def position(self, path: FieldPath) -> Position:
        """Return where a field stands; for one that is not written, where the nearest parent of it stands."""
        for length in range(len(path), -1, -1):
            if (found := self.positions.get(path[:length])) is not None:
                return found
        return Position(0, 0)

    def find(self, severity: Severity, check: str, path: FieldPath, what: str, hint: str = "") -> Finding:
        """Return a finding about a field of this object."""
        at = self.position(path)
        return Finding(severity, check, self.kind, self.name, path, what, hint, self.file, at.line, at.column)


class _Unreadable(Exception):
    def __init__(self, what: str, hint: str, mark: yaml.Mark | None) -> None:
        super().__init__(what)
        self.what, self.hint, self.mark = what, hint, mark


def parse_documents(text: str, file: str = "") -> list[Document]:
    """Return the documents of a YAML (or JSON) text; never raises: what cannot be read has `problems`."""
    documents: list[Document] = []
    try:
        if (size := len(text.encode("utf-8", "surrogatepass"))) > MAX_FILE_BYTES:
            hint = "split the file"
            raise _Unreadable(f"the file has {size} bytes; the limit is {MAX_FILE_BYTES}", hint, None)
        for node in _compose(_join_surrogates(text) if text.lstrip().startswith("{") else text):
            document = _Reading(file).read(node)
            if document.raw or document.problems:
                documents.append(document)
    except _Unreadable as problem:
        documents.append(_unreadable(file, problem))
    return documents


def _join_surrogates(json_text: str) -> str:
    """Return JSON with characters beyond 16 bits as they are: JSON escapes them as two halves, YAML knows no halves."""
    return _SURROGATES.sub(lambda found: f"{found[1]}{json.loads(_QUOTED.format(found[2]))}", json_text)


def _compose(text: str) -> Iterator[yaml.Node]:
    try:
        yield from yaml.compose_all(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        reasons = ", ".join(part for part in (error.context, error.problem) if part)
        raise _Unreadable(f"no YAML: {reasons}", "", error.problem_mark or error.context_mark) from None
    except yaml.YAMLError as error:
        raise _Unreadable(f"no YAML: {str(error).splitlines()[0]}", "", None) from None
    except UnicodeEncodeError:
        raise _Unreadable("no YAML: it holds a character that is no Unicode text", "save it as UTF-8", None) from None


def _unreadable(file: str, problem: _Unreadable) -> Document:
    at = Position(problem.mark.line + 1, problem.mark.column + 1) if problem.mark else Position(0, 0)
    finding = Finding("Error", "Unreadable", "", "", (), problem.what, problem.hint, file, at.line, at.column)
    return Document({}, file, problems=(finding,))


class _Reading:
    """Builds one document out of composed nodes, counting every value so that aliases cannot explode."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.positions: dict[FieldPath, Position] = {}
        self.written: dict[FieldPath, str] = {}
        self.problems: list[tuple[Severity, FieldPath, str, str]] = []
        self.count = 0

    def read(self, node: yaml.Node) -> Document:
        size = node.end_mark.index - node.start_mark.index
        if size > MAX_DOCUMENT_BYTES:
            what = f"the document has {size} characters; the limit is {MAX_DOCUMENT_BYTES}"
            raise _Unreadable(what, "what is large belongs into a ConfigMap", node.start_mark)
        value = self._value(node, ())
        if value is None:
            return Document({}, self.file)
        if not isinstance(value, dict):
            what = f"the document is a {_word(value)} and no object"
            raise _Unreadable(what, "begin with apiVersion:", node.start_mark)
        document = Document(value, self.file, self.positions, self.written)
        found = tuple(document.find(sev, "Yaml", path, what, hint) for sev, path, what, hint in self.problems)
        return Document(value, self.file, self.positions, self.written, found)

    def _value(self, node: yaml.Node, path: FieldPath) -> Any:
        self.count += 1
        self.positions.setdefault(path, Position(node.start_mark.line + 1, node.start_mark.column + 1))
        if self.count > MAX_VALUES:
            what = f"the document has more than {MAX_VALUES} values, aliases counted"
            raise _Unreadable(what, "write fewer aliases", node.start_mark)
        if len(path) > MAX_DEPTH:
            what = f"the document is nested deeper than {MAX_DEPTH} levels"
            raise _Unreadable(what, "no field needs that", node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                for part in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    value = self._value(part, (*path, "<<"))  # deeper, so that a loop of merges ends
                    merged = {**(value if isinstance(value, dict) else {}), **merged}
                continue
            key = self._key(key_node, path)
            place = (*path, key)
            if key in result:
                self.problems.append(("Error", place, "the key stands here twice", "remove one of them"))
            self.positions[place] = Position(key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            result[key] = self._value(value_node, place)
        return {**merged, **result}

    def _key(self, node: yaml.Node, path: FieldPath) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise _Unreadable(f"a key of {spell(path) or 'the document'} is no text", "write a word", node.start_mark)
        value = _scalar_value(node)
        if not isinstance(value, bool):
            return str(node.value)
        key = "true" if value else "false"
        if node.value != key:
            what = f"YAML reads the key {node.value} as {key}"
            self.problems.append(("Error", (*path, key), what, "quote it and choose another word"))
            self.positions[(*path, key)] = Position(node.start_mark.line + 1, node.start_mark.column + 1)
        return key

    def _scalar(self, node: yaml.Node, path: FieldPath) -> Any:
        value = _scalar_value(node)
        if isinstance(value, float) and not math.isfinite(value):
            self.problems.append(("Error", path, f"{node.value} is no number that JSON has", "write a finite number"))
            return 0
        if not isinstance(value, str):
            self.written[path] = str(node.value)
        return value


def _scalar_value(node: yaml.Node) -> Any:
    """Return the JSON value of a scalar as the API's own YAML reader has it: no dates, no base 60."""
    text = str(node.value)
    kind = node.tag.removeprefix(_TAG)
    is_plain = not getattr(node, "style", None)
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("true", "yes", "on", "y")
    if kind in ("int", "float") and ":" not in text:
        return _number(text, kind)
    if kind == "str" and is_plain and _EXPONENT.match(text):  # PyYAML wants a dot and a sign in it
        return _number(text, "float")
    return text


def _number(text: str, kind: str) -> Any:
    plain = text.replace("_", "")
    try:
        if kind == "float":
            return float(plain.lower().replace(".inf", "inf").replace(".nan", "nan"))
        unsigned = plain.lstrip("+-")
        if len(unsigned) > 1 and unsigned.startswith("0") and unsigned.isdigit():
            return int(plain, 8)
        return int(plain, 0)
    except ValueError:  # an explicit tag on something else, or more digits than a number may have
        return text


def _word(value: Any) -> str:
    return {list: "list", str: "text", bool: "boolean"}.get(type(value), "number")
