"""SecretMask: keys and tokens of the usual providers, secrets that are announced, and what is none."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilothouse_api.structs import SecretMask
from pilothouse_engine.guardrails.checks import secret_mask
from pilothouse_engine.guardrails.masks import mask_secrets, mask_value
from pilothouse_engine.guardrails.verdicts import Allow, Rewrite
from unit.engine.guardrails import samples
from unit.engine.hostile import examples

SECRETS = samples.load("secrets.yaml")
HITS = [pytest.param(samples.build(hit["form"]), id=hit["provider"]) for hit in SECRETS["hits"]]
VALUES = [samples.build(hit["form"]) for hit in SECRETS["hits"]]
CONTEXTS = [
    pytest.param(hit["before"], samples.build(hit["form"]), hit["after"], id=hit["name"])
    for hit in SECRETS["in_context"]
]


@pytest.mark.parametrize("value", HITS)
@pytest.mark.parametrize("around", ["{}", "use {} now", 'x="{}"', "({})", "a={};b", "- {}\n"])
def test_a_key_of_a_provider_is_masked_wherever_it_stands(value: str, around: str) -> None:
    assert mask_secrets(around.format(value)) == around.format("[Secret]")


@pytest.mark.parametrize("value", HITS)
def test_a_key_within_json_is_masked_and_leaves_json(value: str) -> None:
    document = json.dumps({"output": f"first\n{value}\nlast", "code": 0})
    masked = json.loads(mask_secrets(document))
    assert masked["code"] == 0
    assert masked["output"].startswith("first\n[Secret]") and value[8:] not in masked["output"]


@pytest.mark.parametrize(("before", "value", "after"), CONTEXTS)
def test_a_secret_that_is_announced_is_masked_and_nothing_else(before: str, value: str, after: str) -> None:
    assert mask_secrets(f"{before}{value}{after}") == f"{before}[Secret]{after}"


@pytest.mark.parametrize("text", SECRETS["misses"])
def test_what_gives_no_access_is_left_alone(text: str) -> None:
    assert mask_secrets(text) == text


@pytest.mark.parametrize("value", HITS)
def test_zero_width_characters_hide_no_key(value: str) -> None:
    hidden = "\u200b".join(value)
    masked = mask_secrets(f"a {hidden} b")
    assert "[Secret]" in masked and len(masked) < len(value)


def test_a_private_key_that_was_cut_is_masked_to_its_end() -> None:
    whole = samples.build(SECRETS["hits"][-2]["form"])
    cut = whole[: len(whole) // 2]
    assert mask_secrets(f"{cut}\n[cut here]") == "[Secret][cut here]"


def test_a_key_between_two_other_blocks_takes_none_of_them() -> None:
    whole = samples.build(SECRETS["hits"][-2]["form"])
    assert mask_secrets(f"a\n{whole}\nb\n{whole}\nc") == "a\n[Secret]\nb\n[Secret]\nc"


def test_the_check_says_how_many_it_masked_and_nothing_of_them() -> None:
    assert secret_mask.evaluate(f"{VALUES[0]} {VALUES[6]}", SecretMask()) == Rewrite(
        "[Secret] [Secret]", "masked 2 Secret"
    )
    assert secret_mask.evaluate("nothing", SecretMask()) == Allow()


def test_a_value_for_people_shows_no_secret_no_person_and_nothing_long() -> None:
    value = {
        "customer": "c-17",
        "apiKey": "short",
        "pin": {"password": 1234},
        "mails": ["jane@example.com", VALUES[0]],
        "amount": 51,
        "isUrgent": True,
        "max_tokens": 100,
        "text": "x" * 300,
        "nothing": None,
    }
    assert mask_value(value) == {
        "customer": "c-17",
        "apiKey": "[Secret]",
        "pin": {"password": "[Secret]"},
        "mails": ["[Email]", "[Secret]"],
        "amount": 51,
        "isUrgent": True,
        "max_tokens": 100,
        "text": "x" * 199 + "…",
        "nothing": None,
    }


PIECES = st.sampled_from(
    [*VALUES, *SECRETS["misses"], "password=", "token: ", '"', "'", "\\n", "-----BEGIN ", "://a:", "@", " "]
)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.one_of(PIECES, st.text(max_size=8))).map("".join))
def test_masking_what_is_masked_changes_nothing(text: str) -> None:
    once = mask_secrets(text)
    assert mask_secrets(once) == once


@settings(max_examples=examples(150), deadline=None)
@given(st.text(), st.sampled_from(VALUES), st.text())
def test_a_key_between_any_texts_is_masked(before: str, value: str, after: str) -> None:
    assert value not in mask_secrets(f"{before} ; {value} ; {after}")
