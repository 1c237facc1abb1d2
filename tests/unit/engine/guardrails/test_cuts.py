"""Halves of what a mask would have found in the whole: at a cut of a result, and between two slices of one."""

from typing import Any

import pytest

from pilothouse_api.structs import GuardrailCheck
from pilothouse_engine.guardrails.detectors.secrets import find_secrets
from pilothouse_engine.guardrails.gates import build_gate, plan_gate, run_pure
from pilothouse_engine.guardrails.masks import DETECTORS, Detector, find_and_mask, mask_ends
from pilothouse_engine.guardrails.verdicts import Passed
from unit.engine.guardrails import samples
from unit.engine.guardrails.test_pii_detection import HITS

SECRETS = samples.load("secrets.yaml")
PAD = "word " * 60
TELLING = 6
"""So many characters of a value in a row are a leak."""

Case = tuple[str, str, str, Detector]


def cases() -> list[Any]:
    """What stands before a value, the value, what stands behind it, and who finds it."""
    found: list[tuple[str, Case]] = [
        (row["provider"], ("lorem\n", samples.build(row["form"]), "\nipsum", find_secrets)) for row in SECRETS["hits"]
    ]
    found += [
        (row["name"], (f"lorem {row['before']}", samples.build(row["form"]), f"{row['after']} ipsum", find_secrets))
        for row in SECRETS["in_context"]
    ]
    found += [(entity, ("lorem ", value, " ipsum", DETECTORS[entity])) for entity, value in HITS]
    return [pytest.param(case, id=name) for name, case in found]


def pieces(value: str) -> list[str]:
    return [value[index : index + TELLING] for index in range(len(value) - TELLING + 1)]


@pytest.mark.parametrize("case", cases())
def test_neither_side_of_a_cut_shows_a_part_of_a_value(case: Case) -> None:
    before, value, after, find = case
    text, at = f"{PAD}{before}{value}{after} {PAD}", len(PAD) + len(before)
    step = 1 if len(value) < 40 else 7
    for cut in range(at - len(before), at + len(value) + 1, step):
        head, tail = mask_ends(text, 0, cut, [find]), mask_ends(text, cut, len(text), [find])
        shown = find_and_mask(head, [find]).text + "\n" + find_and_mask(tail, [find]).text
        assert [piece for piece in pieces(value) if piece in shown] == [], f"cut {cut - at} behind its beginning"


def test_a_stretch_between_two_cuts_shows_neither_value_at_its_ends() -> None:
    text = f"{PAD}jane.doe@example.com {PAD}joe.bloggs@example.com{PAD}"
    start, end = text.index("example.com"), text.rindex("example.com")
    assert mask_ends(text, start, end, [DETECTORS["Email"]]) == f"[Email] {PAD}[Email]"


@pytest.mark.parametrize("near_miss", ["1234567812345670", "jane at example.com", "order 1700000000000000"])
def test_a_cut_through_what_is_no_value_changes_nothing(near_miss: str) -> None:
    text = f"{PAD}{near_miss} {PAD}"
    for cut in range(len(PAD), len(PAD) + len(near_miss)):
        assert mask_ends(text, 0, cut, DETECTORS.values()) + mask_ends(text, cut, len(text), DETECTORS.values()) == text


def test_the_ends_of_the_text_are_no_cuts() -> None:
    text = "jane@example.com"
    assert mask_ends(text, 0, len(text), DETECTORS.values()) == text


def test_a_check_before_a_mask_sees_what_is_not_at_a_cut() -> None:
    """Only what a cut splits is masked early: the order of the checks stays what the author wrote."""
    checks = [
        {"check": "RegexDeny", "regexDeny": {"patterns": ["jane@example.com"]}},
        {"check": "PiiMask", "piiMask": {"entities": ["Email"]}},
    ]
    planned = plan_gate([GuardrailCheck.read(check) for check in checks], lambda source: "")
    assert isinstance(planned, tuple)
    gate = build_gate(planned)
    text = f"jane@example.com {PAD}joe@example.com"
    part = gate.part(text, 0, len(text) - 5)
    assert part == f"jane@example.com {PAD}[Email]"
    assert not isinstance(run_pure(gate.checks, part).verdict, Passed)
