"""Scripts as they are written: what is read, and what is refused with its line and field."""

from typing import Any

import pytest

from pilothouse_engine.script import (
    Entry,
    Match,
    Raw,
    Script,
    ScriptedCall,
    ScriptedError,
    ScriptedUsage,
    ScriptInvalid,
    parse_script,
    read_script,
)


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        (
            "{match: {step: work, turn: 3, contains: refund}, text: a, delaySeconds: 2, finish: Length}",
            Entry(match=Match("work", 3, "refund"), text="a", delay_seconds=2.0, finish="Length"),
        ),
        (
            "{toolCalls: [{name: a}, {name: b, arguments: {n: {1: 2}}}, {name: c, arguments: '{'}]}",
            Entry(tool_calls=(ScriptedCall("a"), ScriptedCall("b", {"n": {1: 2}}), ScriptedCall("c", "{"))),
        ),
        ("{text: '', usage: {input: 1, output: null}}", Entry(text="", usage=ScriptedUsage(1))),
        ("{text: a, usage: null, error: null, raw: null}", Entry(text="a")),
        ("{error: {kind: Timeout}, toolCalls: []}", Entry(error=ScriptedError("Timeout"))),
        (
            "{error: {kind: RateLimited, retryAfterSeconds: 0.5}}",
            Entry(error=ScriptedError("RateLimited", 0.5)),
        ),
        (
            "{raw: {status: 500, headers: {a: b}, body: !!binary /w==}}",
            Entry(raw=Raw(500, {"a": "b"}, b"\xff")),
        ),
        # As a template may write it.
        (
            "{text: !!binary aGk=, match: {turn: '3'}, delaySeconds: '1.5'}",
            Entry(match=Match(turn=3), text="hi", delay_seconds=1.5),
        ),
        ("{text: a, match: {turn: 3.0}, delay_seconds: 1}", Entry(match=Match(turn=3), text="a", delay_seconds=1.0)),
    ],
)
def test_an_entry_is_read_as_it_is_written(text: str, entry: Entry) -> None:
    assert parse_script(f"turns: [{text}]\nrepeat: Last") == Script((entry,), "Last")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", "the script is empty; it needs turns"),
        ("turns: []", "line 1: turns: must have 1 to 10000 items, not 0"),
        ("turns:\n- text: yes\n", "line 2: turns[0].text: must be a text, not true; quote it"),
        (
            "turns:\n- text: a\n- error:\n    kind: Timeot\n",
            "line 4: turns[1].error.kind: must be RateLimited, Timeout, ServerError, ContextWindowExceeded, Refused, "
            'Disconnect, Garbage or Authentication, not "Timeot"',
        ),
        ("turns:\n- texts: a\n", "line 2: turns[0].texts: there is no such field here"),
        ("turns:\n- {}\n", "line 2: turns[0]: set text or toolCalls, or error, or raw: exactly one of the three"),
        (
            "turns:\n- error: {kind: Timeout}\n  usage: {input: 1}\n",
            "line 2: turns[0]: usage and finish belong to text and toolCalls",
        ),
        (
            "turns:\n- toolCalls: [{name: a, arguments: [1]}]\n",
            "line 2: turns[0].toolCalls[0].arguments: must be a mapping or a text, not a list",
        ),
        ("turns: [{text: a}]\nrepeat: last\n", 'line 2: repeat: must be Last or None, not "last"'),
        ("turns:\n- text: a\n  text: b\n", 'line 3: "text" is written twice in one mapping'),
        ("turns:\n- &x {text: a}\n- *x\n", "line 2: a list or mapping is used again by an alias; write it out"),
        ("turns:\n- [", "line 2: did not find expected node content"),
        ("turns: [{text: !!python/name:os.system x}]", "line 1: could not determine a constructor"),
        ("turns: [{text: a, match: {turn: 2026-13-45}}]", "the script cannot be read: month must be in 1..12"),
        ("turns: " + "[" * 400 + "]" * 400, "line 1: turns[0]: must be a mapping, not a list"),
        ("- a", "line 1: script: must be a mapping, not a list"),
        ("repeat: Last", "line 1: turns: is required"),
        ("turns: !!set {a, b}", "line 1: turns: must be a list, not a set"),
        ("turns:\n- toolCalls:\n  - arguments: {}\n", "line 3: turns[0].toolCalls[0].name: is required"),
        ("turns:\n- {text: a, 1: b}\n", "line 2: turns[0].1: there is no such field here"),
        ("turns:\n- {text: a, ~: b}\n", "line 2: turns[0].null: there is no such field here"),
        ("turns:\n- {text: a, 2026-01-01: b}\n", 'line 2: turns[0]."2026-01-01": there is no such field here'),
        ("turns: [{text: a, match: null}]", "line 1: turns[0].match: must be a mapping, not null"),
        ("turns: [{text: 2026-01-01}]", 'line 1: turns[0].text: must be a text, not "2026-01-01"'),
        ("turns: [{text: !!binary /w==}]", "line 1: turns[0].text: must be a text, not bytes that are no UTF-8"),
        ("turns: [{text: a, match: {contains: ''}}]", "line 1: turns[0].match.contains: must be a text that is not"),
        (
            "turns: [{text: a, match: {turn: 0}}]",
            "line 1: turns[0].match.turn: must be a whole number from 1 on, not 0",
        ),
        (
            "turns: [{text: a, match: {turn: 2.5}}]",
            "line 1: turns[0].match.turn: must be a whole number from 1 on, not 2",
        ),
        (
            "turns: [{text: a, match: {turn: 1e3}}]",
            'line 1: turns[0].match.turn: must be a whole number from 1 on, not "1',
        ),
        (
            "turns: [{text: a, delaySeconds: 3601}]",
            "line 1: turns[0].delaySeconds: must be a number from 0 to 3600, not",
        ),
        (
            "turns: [{text: a, delaySeconds: .nan}]",
            "line 1: turns[0].delaySeconds: must be a number from 0 to 3600, not",
        ),
        (
            "turns: [{text: a, delaySeconds: [1]}]",
            "line 1: turns[0].delaySeconds: must be a number from 0 to 3600, not a",
        ),
        (
            "turns: [{text: a, delaySeconds: soon}]",
            "line 1: turns[0].delaySeconds: must be a number from 0 to 3600, not",
        ),
        (
            "turns: [{error: {kind: Timeout, retryAfterSeconds: 86401}}]",
            "line 1: turns[0].error.retryAfterSeconds: must be a number from 0 to 86400, not 86401",
        ),
        (
            f"turns: [{{text: a, delaySeconds: 0x{'f' * 5000}}}]",
            "line 1: turns[0].delaySeconds: must be a number from 0 to 3600, not a number that is too long to be shown",
        ),
        (
            "turns: [{raw: {status: 600}}]",
            "line 1: turns[0].raw.status: must be a whole number from 200 to 599, not 600",
        ),
        ("turns: [{raw: {headers: []}}]", "line 1: turns[0].raw.headers: must be a mapping, not a list"),
        ("turns: [{raw: {headers: {1: a}}}]", "line 1: turns[0].raw.headers: its names must be texts, not 1; quote it"),
        ("turns: [{raw: {headers: {a: 1}}}]", "line 1: turns[0].raw.headers.a: must be a text, not 1; quote it"),
        (
            "turns: [{toolCalls: [{name: a, arguments: {yes: 2}}]}]",
            "line 1: turns[0].toolCalls[0].arguments: its names must be texts, not true; quote it",
        ),
        ("turns: [" + "{text: a}," * 10_001 + "]", "line 1: turns: must have 1 to 10000 items, not 10001"),
        (
            "turns: [{toolCalls: [" + "{name: a}," * 1001 + "]}]",
            "line 1: turns[0].toolCalls: must have 0 to 1000 items, not 1001",
        ),
        ("turns: [{text: null, usage: {}}]", "line 1: turns[0]: set text or toolCalls, or error, or raw"),
        ("turns: [{raw: {}, finish: Stop}]", "line 1: turns[0]: usage and finish belong to text and toolCalls"),
        ("x" * 2_000_000, "the script has 2000000 characters; at most 1048576 are read"),
    ],
)
def test_a_wrong_script_is_refused_with_line_and_field(text: str, want: str) -> None:
    with pytest.raises(ScriptInvalid) as refused:
        parse_script(text)
    assert str(refused.value).startswith(want)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (None, "script: must be a mapping, not null"),
        ({"turns": [{"text": "a"}, {"text": 3}]}, "turns[1].text: must be a text, not 3; quote it"),
    ],
)
def test_a_value_without_a_text_is_refused_by_its_field(value: Any, want: str) -> None:
    with pytest.raises(ScriptInvalid) as refused:
        read_script(value)
    assert str(refused.value) == want


def test_a_text_is_parsed_once() -> None:
    assert parse_script("turns: [{text: once}]") is parse_script("turns: [{text: once}]")
