"""docs/judge.md says of the judge what is true."""

import inspect
import re
from pathlib import Path
from typing import get_args

from pilothouse_api.judging import MAX_CRITERIA_CHARS, MAX_REASON_CHARS, JudgeFailureType
from pilothouse_operator.supervision import judge_client
from pilothouse_runner.judge import __main__, files, local, service
from pilothouse_runner.judge.metrics import Metrics
from pilothouse_runner.judge.table import JudgeModel

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "judge.md").read_text()


def first_cells(section: str) -> set[str]:
    """Return the words in code of the first cells of the table of a section."""
    rows = PAGE.split(f"## {section}\n")[1].split("\n## ")[0].splitlines()
    cells = [row.split("|")[1] for row in rows if row.startswith("|")]
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def test_the_fields_of_the_table_are_named() -> None:
    assert first_cells("Install") == {field.alias for field in JudgeModel.model_fields.values()}


def test_the_defaults_are_those_of_the_table() -> None:
    model = JudgeModel(name="a", model="openai/x")

    assert f"longest answer, {model.max_output_tokens};" in PAGE
    assert f"most that one verdict may take, {model.timeout_seconds}," in PAGE
    assert f"`{model.answer_format}` (default)" in PAGE


def test_the_failures_are_named() -> None:
    assert first_cells("What comes of a question") == set(get_args(JudgeFailureType))
    assert f"at most {MAX_REASON_CHARS} characters" in PAGE
    assert f"more than {MAX_CRITERIA_CHARS:,} characters" in PAGE
    assert local.RETRY_PAUSES == judge_client.RETRY_PAUSES
    assert "after {:g} and {:g} seconds".format(*local.RETRY_PAUSES) in PAGE


def test_the_metrics_are_named() -> None:
    families = list(Metrics().registry.collect())
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}

    assert first_cells("Metrics and log") == names


def test_the_events_of_the_log_are_named() -> None:
    said = {
        event
        for module in (__main__, files, service)
        for event in re.findall(r'\.say\(\s*"(judge\.\w+)"', inspect.getsource(module))
    }

    assert set(re.findall(r"`(judge\.\w+)`", PAGE.split("It logs JSON lines")[1])) == said
