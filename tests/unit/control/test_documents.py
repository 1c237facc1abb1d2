"""Manifests as text: places of fields, YAML as the API server reads it, and hostile input."""

import time
from typing import Any

import pytest

from pilothouse_control.documents import MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_FILE_BYTES, parse_documents
from pilothouse_control.findings import FieldPath, Position

TEXT = """\
# a comment
kind: Workflow
metadata: {name: w}
spec:
  steps:
    - id: a
      routes:
        default: end
    - {id: b, kind: Response}
---
---
kind: Agent
metadata:
  name: x
"""


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ((), Position(2, 1)),
        (("metadata", "name"), Position(3, 12)),
        (("spec", "steps", 0), Position(6, 7)),
        (("spec", "steps", 0, "routes", "default"), Position(8, 9)),
        (("spec", "steps", 1, "kind"), Position(9, 15)),
        (("spec", "steps", 1, "routes", "x"), Position(9, 7)),
        (("spec", "nothing", "there"), Position(4, 1)),
    ],
)
def test_a_field_has_its_place_or_that_of_its_nearest_parent(path: FieldPath, want: Position) -> None:
    assert parse_documents(TEXT, "w.yaml")[0].position(path) == want


def test_empty_documents_are_left_out_and_lines_go_on() -> None:
    documents = parse_documents(TEXT, "w.yaml")
    assert [(document.kind, document.name) for document in documents] == [("Workflow", "w"), ("Agent", "x")]
    assert documents[1].position(("metadata", "name")) == Position(14, 3)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a: 010", 8),
        ("a: 0x1F", 31),
        ("a: 1_000", 1000),
        ("a: 1e3", 1000.0),
        ("a: 1.5", 1.5),
        ("a: 1:30", "1:30"),
        ("a: 2026-01-01", "2026-01-01"),
        ("a: yes", True),
        ("a: Off", False),
        ("a: 'yes'", "yes"),
        ("a: ~", None),
        ("a:", None),
        ("a: '1'", "1"),
        ("a: !!str 1", "1"),
        ("a: |\n  x\n  y", "x\ny"),
        ("a: [1, {b: c}]", [1, {"b": "c"}]),
        ('{"a": "\\u00e9"}', "é"),
        ('{"a": "\\ud83d\\ude00 \\\\ud83d\\\\ude00"}', "😀 \\ud83d\\ude00"),
        ("b: &x {c: 1}\na: {<<: *x, d: 2}", {"c": 1, "d": 2}),
        ("b: &x {c: 1}\na: {c: 2, <<: [*x, {e: 3}]}", {"c": 2, "e": 3}),
        ("a: !!int x", "x"),
        ("a: !custom {b: 1}", {"b": 1}),
    ],
)
def test_values_are_read_as_the_api_server_reads_them(text: str, want: Any) -> None:
    assert parse_documents(text)[0].raw["a"] == want


def test_keys_are_always_text() -> None:
    document = parse_documents("routes: {yes: a, 1: b, null: c}")[0]
    assert document.raw == {"routes": {"true": "a", "1": "b", "null": "c"}}
    assert [(problem.field, problem.what) for problem in document.problems] == [
        ("routes.true", "YAML reads the key yes as true")
    ]


@pytest.mark.parametrize(
    ("text", "want", "line"),
    [
        ("a: [1, 2", "no YAML", 2),
        ("a: 1\n b: 2", "no YAML", 2),
        ("a: *missing", "no YAML: found undefined alias", 1),
        ("- a\n- b", "the document is a list and no object", 1),
        ("just text", "the document is a text and no object", 1),
        ("a: 1\na: 2", "the key stands here twice", 2),
        ("a: .inf", ".inf is no number that JSON has", 1),
        ("a: .NaN", ".NaN is no number that JSON has", 1),
        ("{[a]: b}", "a key of the document is no text", 1),
        ("a: \x01", "no YAML", 0),
        ("a: \ud800", "no Unicode text", 0),
        ("a: {" * 2000, "no YAML", 1),
        ("[" * 5000, "no YAML", 1),
        ("{a: " * (MAX_DEPTH + 5) + "1" + "}" * (MAX_DEPTH + 5), f"nested deeper than {MAX_DEPTH} levels", 1),
        ("a: &a [*a]", "nested deeper", 1),
        ("a: &a {<<: *a}", "nested deeper", 1),
        ("a: " + "x" * (MAX_DOCUMENT_BYTES + 1), f"the limit is {MAX_DOCUMENT_BYTES}", 1),
        ("#" * (MAX_FILE_BYTES + 1), f"the limit is {MAX_FILE_BYTES}", 0),
    ],
    ids=range(18),
)
def test_what_cannot_be_read_is_a_problem_with_its_place(text: str, want: str, line: int) -> None:
    document = parse_documents(text, "x.yaml")[-1]
    assert len(document.problems) == 1
    problem = document.problems[0]
    assert want in problem.what
    assert (problem.file, problem.line, problem.severity) == ("x.yaml", line, "Error")


def test_aliases_cannot_explode() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
    )
    began = time.process_time()
    documents = parse_documents(bomb)
    assert "100000 values, aliases counted" in documents[0].problems[0].what
    assert time.process_time() - began < 20


def test_documents_before_a_broken_one_are_kept() -> None:
    documents = parse_documents("kind: Agent\n---\na: [")
    assert [document.kind for document in documents] == ["Agent", ""]
    assert documents[1].problems[0].line == 4


def test_a_name_that_is_no_text_is_no_name() -> None:
    assert parse_documents("metadata: {name: [1]}")[0].name == ""
    assert parse_documents("metadata: 5")[0].name == ""
    assert parse_documents("kind: 5")[0].kind == ""
