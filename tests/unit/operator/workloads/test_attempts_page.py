"""The page about attempts names what the code knows, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from pilothouse_operator.status.run_conditions import LOST_SERVICES
from pilothouse_operator.workloads.failures import COUNTED_FAILURES, FailureKind
from pilothouse_operator.workloads.start_problems import HINTS, REFUSALS

PAGE = (Path(__file__).parents[4] / "docs" / "attempts.md").read_text()
OTHERS = {"Queued", "PodNameTaken", "PodRefused"}


def rows(header: str) -> dict[str, list[str]]:
    """The rows of the table that has this header, by the word in their first cell."""
    table = PAGE.split(f"| {header} |", 1)[1].split("\n\n", 1)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {re.sub("`", "", first): rest for first, *rest in cells}


def test_every_end_of_an_attempt_is_on_the_page_with_whether_it_counts() -> None:
    table = rows("lastFailure | counted | what happened | what to do")

    assert set(table) == set(get_args(FailureKind))
    assert {kind for kind, cells in table.items() if cells[0] == "yes"} == COUNTED_FAILURES


def test_every_reason_for_not_starting_is_on_the_page() -> None:
    want = set(HINTS) | {reason for _, reason, _, _ in REFUSALS} | OTHERS

    assert set(rows("reason | where it comes from | what to do")) == want


def test_every_service_that_may_be_away_is_on_the_page() -> None:
    table = rows("condition | what is away | what the run does meanwhile | what ends it")

    assert set(table) == set(LOST_SERVICES)
