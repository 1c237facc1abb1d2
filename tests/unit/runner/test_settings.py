"""What a runner takes from its environment."""

from pathlib import Path

import pytest

from pilothouse_api import names
from pilothouse_runner.settings import SettingsError, read_settings

COMPLETE = {
    names.ENV_RUN_NAMESPACE: "default",
    names.ENV_RUN_NAME: "r1",
    names.ENV_RUN_UID: "u-1",
    names.ENV_ATTEMPT: "2",
    names.ENV_PLAN_DIGEST: "d",
}


def test_what_is_not_said_lies_where_the_operator_mounts_it() -> None:
    settings = read_settings(COMPLETE)

    assert settings.attempt == 2
    assert settings.plan_path == Path(names.PLAN_PATH)
    assert settings.secrets_path == Path(names.SECRETS_PATH)
    assert settings.journal == "File"
    assert settings.journal_file == Path(names.JOURNAL_PATH) / "u-1.jsonl"
    assert settings.settle is None


def test_everything_can_be_said() -> None:
    said = {
        names.ENV_PLAN_PATH: "/p",
        names.ENV_SECRETS_PATH: "/s",
        names.ENV_JOURNAL: "Memory",
        names.ENV_SETTLE: "Aborted",
    }
    settings = read_settings({**COMPLETE, **said})

    assert (settings.plan_path, settings.secrets_path) == (Path("/p"), Path("/s"))
    assert (settings.journal, settings.settle) == ("Memory", "Aborted")


@pytest.mark.parametrize("name", COMPLETE)
@pytest.mark.parametrize("value", [None, ""])
def test_what_is_missing_is_named(name: str, value: str | None) -> None:
    environment = {**COMPLETE, name: value} if value is not None else {k: v for k, v in COMPLETE.items() if k != name}
    with pytest.raises(SettingsError, match=name):
        read_settings({k: v for k, v in environment.items() if v is not None})


@pytest.mark.parametrize("attempt", ["0", "-1", "1.5", "one", "²"])
def test_an_attempt_counts_from_one(attempt: str) -> None:
    with pytest.raises(SettingsError, match="attempts count from 1"):
        read_settings({**COMPLETE, names.ENV_ATTEMPT: attempt})


def test_an_unknown_journal_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(SettingsError, match="'Redis': this runner knows File, DurableFile, Memory"):
        read_settings({**COMPLETE, names.ENV_JOURNAL: "Redis"})


def test_a_run_is_settled_for_a_known_cause_only() -> None:
    with pytest.raises(SettingsError, match="'Bored': this runner settles a run as Aborted, DeadlineExceeded, MaxA"):
        read_settings({**COMPLETE, names.ENV_SETTLE: "Bored"})
