"""Checks that refuse, the registry, and how long any check takes on a large hostile text."""

import time
from typing import get_args

import pytest

from pilothouse_api.crossing import Written
from pilothouse_api.guardrails import PARAMETERS
from pilothouse_api.structs import GuardrailCheck, JsonSchemaCheck, MaxChars, PiiMask, RegexDeny
from pilothouse_engine.guardrails.checks import json_schema, max_chars, regex_deny
from pilothouse_engine.guardrails.masks import ENTITIES
from pilothouse_engine.guardrails.registry import CHECKS, RESOLVED_BY_GATE
from pilothouse_engine.guardrails.verdicts import Allow, Refuse

ENUM = set(get_args(GuardrailCheck.__annotations__["check"]))


def test_every_check_of_the_model_has_a_function_or_is_resolved_by_the_gate() -> None:
    assert set(CHECKS) | RESOLVED_BY_GATE == ENUM
    assert not set(CHECKS) & RESOLVED_BY_GATE
    assert set(PARAMETERS) == ENUM
    assert all(PARAMETERS[check] in GuardrailCheck.__struct_fields__ for check in ENUM)


@pytest.mark.parametrize(
    ("text", "limit", "want"),
    [
        ("", 1, Allow()),
        ("abc", 3, Allow()),
        ("abcd", 3, Refuse("the text has 4 characters; maxChars.limit is 3")),
        ("äöü", 3, Allow()),
    ],
)
def test_max_chars_counts_characters(text: str, limit: int, want: Allow | Refuse) -> None:
    assert max_chars.evaluate(text, MaxChars(limit=limit)) == want


@pytest.mark.parametrize(
    ("text", "patterns", "want"),
    [
        ("nothing", ["(?i)guarantee"], None),
        ("We GUARANTEE it", ["x", "(?i)guarantee"], "the text matches regexDeny.patterns[1], (?i)guarantee"),
        ("a\nb", ["^b$"], None),
        ("a\nb", ["(?m)^b$"], "the text matches regexDeny.patterns[0], (?m)^b$"),
        ("größe", ["ö"], "the text matches regexDeny.patterns[0], ö"),
        ("half \ud800", ["half"], "the text matches regexDeny.patterns[0], half"),
    ],
)
def test_regex_deny_refuses_what_matches_and_says_which(text: str, patterns: list[str], want: str | None) -> None:
    assert regex_deny.evaluate(text, RegexDeny(patterns=patterns)) == (Allow() if want is None else Refuse(want))


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "\ud800", "((a{0,1000}){0,1000}){0,1000}"])
def test_a_pattern_that_is_none_refuses(pattern: str) -> None:
    verdict = regex_deny.evaluate("b", RegexDeny(patterns=[pattern]))
    assert isinstance(verdict, Refuse)
    assert verdict.reason.startswith("regexDeny.patterns[0] is no regular expression of RE2")


SCHEMA = {"type": "object", "required": ["answer"], "properties": {"answer": {"type": "string"}}}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ('{"answer": "x"}', None),
        ('```json\n{"answer": "x"}\n```', None),
        ('{"answer": 1}', "the text does not fit jsonSchema.schema: properties/answer/type"),
        ("answer", "the text is not valid JSON"),
        ('{"answer": "x", "answer": "y"}', "the text is not valid JSON"),
        ('{"answer": NaN}', "the text is not valid JSON"),
        ("[" * 100_000, "the text is not valid JSON"),
    ],
)
def test_json_schema_refuses_what_is_not_of_the_shape(text: str, want: str | None) -> None:
    verdict = json_schema.evaluate(text, JsonSchemaCheck(schema_=SCHEMA))
    if want is None:
        assert verdict == Allow()
    else:
        assert isinstance(verdict, Refuse) and verdict.reason.startswith(want)


def test_a_schema_that_is_none_refuses() -> None:
    verdict = json_schema.evaluate("{}", JsonSchemaCheck(schema_={"type": "nonsense"}))
    assert isinstance(verdict, Refuse) and verdict.reason.startswith("jsonSchema.schema is no JSON Schema")


SIZE = 1_000_000
HOSTILE = {
    "letters": "x",
    "digits": "1 ",
    "plus": "+1 ",
    "zeros": "00 1 ",
    "addresses": "a@",
    "quotes": '"a',
    "begins": "-----BEGIN PRIVATE KEY-----",
    "tokens": "eyJ",
    "words": "password:",
    "quoted words": "password='",
    "escapes": "\\n",
    "backslashes": "\\",
    "zero-width": "ü\u200b",
    "masks": "[Email]",
    "accounts": "DE89 ",
    "cards": "4111 1111 1111 1111 ",
    "phones": "+49 30 901820, ",
    "announced": "tel 030/901820 ",
    "orders": "ignore all ",
    "base64": "aWdub3JlIGFsbA",
    "URLs": "http://a:b",
    "tags": "\U000e0041",
    "objects": '{"a": 4111111111111111,',
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", [pytest.param(piece * (SIZE // len(piece)), id=name) for name, piece in HOSTILE.items()]
)
def test_a_megabyte_of_anything_is_judged_in_linear_time(text: str) -> None:
    params: dict[str, Written] = {
        "PiiMask": PiiMask(entities=list(ENTITIES)),
        "RegexDeny": RegexDeny(patterns=["(a+)+$", "(x+x+)+y", "(a|aa|aaa)*b", "([0-9]+ ?)*z", r"^(\w+\s?)*$"]),
        "MaxChars": MaxChars(limit=1),
        "JsonSchema": JsonSchemaCheck(schema_={"type": "object"}),
    }
    for check, evaluate in CHECKS.items():
        given = params.get(check) or GuardrailCheck.__annotations__[PARAMETERS[check]].__args__[0]()  # type: ignore[union-attr]
        began = time.process_time()
        evaluate(text, given)
        seconds = time.process_time() - began
        assert seconds < 20, f"{check} took {seconds:.1f} s of the processor; a quadratic one would take minutes"
