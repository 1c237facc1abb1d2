"""PiiMask: what is found, what is left alone, and how it may be disguised."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pilothouse_api.structs import PiiMask
from pilothouse_engine.guardrails.checks import pii_mask
from pilothouse_engine.guardrails.detectors.cards import is_luhn
from pilothouse_engine.guardrails.detectors.ibans import is_iban
from pilothouse_engine.guardrails.masks import ENTITIES, Entity, mask_pii
from pilothouse_engine.guardrails.verdicts import Allow, Rewrite
from unit.engine.guardrails import samples
from unit.engine.hostile import examples

PII = samples.load("pii.yaml")
CARDS = [samples.card(**spec) for spec in PII["CreditCard"]["hits"]]
CARDS += [samples.card(**spec, separator="-") for spec in PII["CreditCard"]["hits"] if spec["groups"]]
IBANS = [samples.iban(**spec) for spec in PII["Iban"]["hits"]]
IBANS += [" ".join(whole[i : i + 4] for i in range(0, len(whole), 4)) for whole in IBANS]
HITS: list[tuple[Entity, str]] = [
    *(("Email", text) for text in PII["Email"]["hits"]),
    *(("CreditCard", text) for text in CARDS),
    *(("Iban", text) for text in IBANS),
    *(("Phone", text) for text in PII["Phone"]["hits"]),
]
MISSES: list[tuple[Entity, str]] = [(entity, text) for entity in ENTITIES for text in PII[entity]["misses"]]


@pytest.mark.parametrize(("entity", "value"), HITS)
@pytest.mark.parametrize("around", ["{}", "a {} b", "({}),", '{{"x": "{}"}}', "x:\n{}\n", "<b>{}</b>", "'{}'"])
def test_a_hit_is_masked_wherever_it_stands(entity: Entity, value: str, around: str) -> None:
    assert mask_pii(around.format(value), [entity]) == around.format(f"[{entity}]")


@pytest.mark.parametrize(("entity", "text"), MISSES)
def test_a_near_miss_is_left_alone(entity: Entity, text: str) -> None:
    assert mask_pii(text, [entity]) == text


@pytest.mark.parametrize(("before", "number"), PII["Phone"]["announced"])
def test_a_number_that_a_word_announces_is_masked(before: str, number: str) -> None:
    assert number not in mask_pii(f"{before}{number}", ["Phone"])
    assert mask_pii(f"order {number}", ["Phone"]) == f"order {number}"


@pytest.mark.parametrize(("entity", "value"), HITS)
def test_only_the_entities_that_were_asked_for_are_masked(entity: Entity, value: str) -> None:
    others: list[Entity] = [other for other in ENTITIES if other != entity]
    assert f"[{entity}]" not in mask_pii(value, others)


DISGUISES = {
    "full-width": lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
    "zero-width space": lambda text: "\u200b".join(text),
    "soft hyphen": lambda text: "\u00ad".join(text),
    "right-to-left marks": lambda text: "\u202e" + "\u200f".join(text) + "\u202c",
    "no-break space": lambda text: text.replace(" ", "\u00a0"),
    "other dashes": lambda text: text.replace("-", "\u2011"),
    "Arabic-Indic digits": lambda text: "".join(
        chr(0x660 + int(c)) if c.isdecimal() and c < "\x7f" else c for c in text
    ),
    "JSON escapes": lambda text: "".join(f"\\u{ord(c):04x}" if c < "\uffff" else c for c in text),
}


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize(
    ("entity", "value"),
    [("Email", "jane.doe@example.com"), ("CreditCard", CARDS[1]), ("Iban", IBANS[0]), ("Phone", "+49 30 901820")],
)
def test_a_disguise_changes_nothing(disguise: str, entity: Entity, value: str) -> None:
    masked = mask_pii(f"a {DISGUISES[disguise](value)} b", [entity])
    assert masked.startswith("a ") and masked.endswith(" b")
    assert f"[{entity}]" in masked
    assert not set(masked) & set("0123456789@٠١٢٣")


def test_a_line_that_was_escaped_does_not_glue_itself_to_what_follows() -> None:
    document = json.dumps({"note": f"first\n{CARDS[0]}\tjane@example.com"})
    assert json.loads(mask_pii(document)) == {"note": "first\n[CreditCard]\t[Email]"}


def test_a_number_of_a_json_document_leaves_a_json_document() -> None:
    document = json.dumps({"card": int(CARDS[0]), "list": [int(CARDS[0]), 1], "text": f"1: {CARDS[0]}, 2"})
    want = {"card": "[CreditCard]", "list": ["[CreditCard]", 1], "text": "1: [CreditCard], 2"}
    assert json.loads(mask_pii(document)) == want


def test_findings_that_overlap_become_one_mask() -> None:
    masked = mask_pii(f"phone: {CARDS[1]} x")
    assert masked == "phone: [CreditCard] x"


def test_several_values_behind_each_other_are_all_masked() -> None:
    text = f"{CARDS[0]} {CARDS[1]}, +49 30 901820, 415-555-2671; {IBANS[0]} jane@example.com,joe@example.com"
    assert not set(mask_pii(text)) & set("0123456789@")


def test_the_check_says_how_many_it_masked_and_nothing_of_them() -> None:
    verdict = pii_mask.evaluate("jane@example.com joe@example.com +49 30 901820", PiiMask(entities=["Email", "Phone"]))
    assert verdict == Rewrite("[Email] [Email] [Phone]", "masked 2 Email, 1 Phone")
    assert pii_mask.evaluate("nothing", PiiMask(entities=["Email"])) == Allow()


@given(st.text(alphabet="0123456789", min_size=11, max_size=18))
def test_the_check_digit_of_cards_is_the_one_that_fits(digits: str) -> None:
    whole = samples.with_check_digit(digits)
    assert [last for last in "0123456789" if is_luhn(digits + last)] == [whole[-1]]


@pytest.mark.parametrize("spec", PII["Iban"]["hits"])
def test_any_other_check_digits_of_an_iban_are_refused(spec: dict[str, str]) -> None:
    right = samples.iban(**spec)
    accepted = [n for n in range(2, 99) if is_iban(f"{right[:2]}{n:02d}{right[4:]}")]
    assert accepted == [int(right[2:4])]


PIECES = st.sampled_from(
    [
        *(value for _, value in HITS),
        *(text for _, text in MISSES),
        "\u200b",
        "\\n",
        "\\u0040",
        '"',
        "{",
        "[",
        ",",
        ":",
        " ",
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=8), st.text(alphabet="0123456789 +-.()@", max_size=30))).map(
    "".join
)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(TEXTS)
@example("+49 30 901820 0049 30 901820")
@example("(030) 90 18 20 15jane.doe@example.com")
def test_masking_what_is_masked_changes_nothing(text: str) -> None:
    once = mask_pii(text)
    assert mask_pii(once) == once


@settings(max_examples=examples(150), deadline=None)
@given(st.text(), st.sampled_from(["jane.doe@example.com", CARDS[1], IBANS[0]]), st.text())
def test_a_value_between_any_texts_is_masked(before: str, value: str, after: str) -> None:
    assert value not in mask_pii(f"{before} ; {value} ; {after}")
