"""The table of the engine's normative sentences: whole as it is committed, and what its check says of a broken one."""

from pathlib import Path
from typing import Any

import pytest
from check_spec import check, coverage, main
from codegen.sentences import Section, TableError, page, read_table

ROOT = Path(__file__).resolve().parents[3]
HERE = f"{Path(__file__).relative_to(ROOT)}::"


def section(*sentences: dict[str, Any]) -> list[Section]:
    rows = [{"id": f"E3.{number}", "says": "It holds.", **row} for number, row in enumerate(sentences, 1)]
    return [Section.model_validate({"section": 3, "title": "Tool batch", "sentences": rows})]


GOOD = {"tests": [f"{HERE}test_a_row_that_shows_its_sentence_is_fine"]}
LATER = {"later": "Sessions", "why": "The store comes with sessions."}


def test_every_sentence_has_its_test() -> None:
    assert check(read_table(ROOT), ROOT) == []
    assert main() == 0


def test_a_row_that_shows_its_sentence_is_fine() -> None:
    assert check(section(GOOD, {"golden": ["exits/outcome"]}, LATER), ROOT) == []


@pytest.mark.parametrize(
    ("row", "want"),
    [
        ({}, "E3.1: no test shows it: name one, or write it"),
        ({"tests": [f"{HERE}test_nothing"]}, f"E3.1: there is no test {HERE}test_nothing"),
        ({"tests": [f"{HERE}section"]}, f"E3.1: there is no test {HERE}section"),
        ({"tests": ["tests/nowhere.py::test_a"]}, "E3.1: there is no test tests/nowhere.py::test_a"),
        ({"golden": ["exits/nowhere"]}, "E3.1: there is no golden run exits/nowhere"),
        ({"tests": GOOD["tests"] * 2}, f"E3.1: {GOOD['tests'][0]} stands twice"),
        ({**GOOD, "id": "E4.1"}, "E4.1: its id is not of the form E3.<number>"),
        ({"later": "Sessions", "why": "later"}, "E3.1: it belongs to later work: say why"),
        ({**GOOD, **LATER}, "E3.1: it has tests: leave `later` out"),
    ],
)
def test_a_row_that_shows_nothing_is_found(row: dict[str, Any], want: str) -> None:
    assert check(section(row), ROOT) == [want]


def test_an_id_stands_once() -> None:
    assert check(section({**GOOD, "id": "E3.7"}, {**GOOD, "id": "E3.7"}), ROOT) == ["E3.7 stands 2 times"]


def test_what_comes_later_is_counted_apart() -> None:
    said = coverage(section(GOOD, LATER))
    assert said.startswith("1 of 2 normative sentences are shown, by 1 tests and 0 golden runs")
    assert said.endswith("1 come later (1 with Sessions)")


def test_the_page_shows_every_sentence(tmp_path: Path) -> None:
    shown = page(ROOT)
    assert all(f"| {sentence.id} | " in shown for part in read_table(ROOT) for sentence in part.sentences)
    with pytest.raises(TableError, match=r"docs/spec/engine\.yaml"):
        read_table(tmp_path)
