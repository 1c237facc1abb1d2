"""The form of facts in a journal: what was written is read, and is written the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from pilothouse_api.batches import Batch, decode_batch, encode_batch
from pilothouse_engine.facts import FACTS, CallFinished, Fact, ModeAnswered, ModelStarted, decode, decode_all, encode
from pilothouse_engine.ports import JournalCorrupt

WRITTEN = (Path(__file__).parent / "journaled.jsonl").read_text(encoding="utf-8").splitlines()
"""Entries as journals hold them, one at least of every kind of fact. A line once written is never changed."""


def test_every_kind_of_fact_has_an_entry_that_was_written() -> None:
    assert {json.loads(line)["fact"] for line in WRITTEN} == set(FACTS)


@pytest.mark.parametrize("line", WRITTEN, ids=lambda line: json.loads(line)["fact"])
def test_a_fact_that_was_written_is_read_and_written_the_same(line: str) -> None:
    fact = decode(json.loads(line))

    assert type(fact) is FACTS[json.loads(line)["fact"]]
    assert json.dumps(encode(fact), ensure_ascii=False, separators=(",", ":")) == line
    kept = encode_batch(Batch(1, 0, (encode(fact),)))
    assert line.encode() in kept
    batch = decode_batch(kept)
    assert batch is not None
    assert list(decode_all(batch.entries)) == [fact]


def another(text: str) -> str:
    """Return an equal text that is another object."""
    return "".join(list(text))


@pytest.mark.parametrize(
    ("fact", "left_out"),
    [
        (CallFinished(1.0, "c", "{}", seconds=1.5 - 1.5), "seconds"),
        (CallFinished(1.0, "c", "{}", message=another("")), "message"),
        (ModeAnswered(1.0, 1, "Pause", state=another("Landed")), "state"),
        (ModelStarted(1.0, 1, 1, "Regular", 0, 1, 10, 10, level=another("full")), "level"),  # type: ignore[arg-type]
    ],
)
def test_what_equals_its_default_is_left_out(fact: Fact, left_out: str) -> None:
    assert left_out not in encode(fact)


STARTED = {"v": 1, "fact": "AttemptStarted", "at": 1.0, "attempt": 1}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({}, "entry 0: an entry has version None; this engine reads up to 1: use a newer runner"),
        ({**STARTED, "v": 2}, "entry 0: an entry has version 2; this engine reads up to 1: use a newer runner"),
        ({**STARTED, "fact": "Nope"}, "entry 0: an entry is a fact 'Nope', which this engine does not know"),
        ({**STARTED, "fact": ["a"]}, "entry 0: an entry is a fact ['a'], which this engine does not know"),
        (
            {"v": 1, "fact": "AttemptStarted", "at": 1.0},
            "entry 0: an entry is no AttemptStarted: Object missing required field `attempt`",
        ),
        (
            {**STARTED, "attempt": "1"},
            "entry 0: an entry is no AttemptStarted: Expected `int`, got `str` - at `$.attempt`",
        ),
    ],
)
def test_what_is_no_fact_is_said_with_its_place(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(JournalCorrupt) as raised:
        list(decode_all([entry]))
    assert str(raised.value) == said


def test_a_field_that_this_engine_does_not_know_is_left_aside() -> None:
    assert decode({**STARTED, "later": 1}) == decode(STARTED)
