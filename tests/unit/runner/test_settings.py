"""What a runner takes from its environment."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from pilothouse_api import names
from pilothouse_api.structs import Plan
from pilothouse_runner.adapters.file_sessions import FileSessions
from pilothouse_runner.adapters.redis_sessions import RedisSessions
from pilothouse_runner.process import build_attempt, open_redis, open_sessions
from pilothouse_runner.settings import RedisSettings, SettingsError, read_settings

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
    assert settings.abort_grace_seconds == 30


def test_everything_can_be_said() -> None:
    said = {
        names.ENV_PLAN_PATH: "/p",
        names.ENV_SECRETS_PATH: "/s",
        names.ENV_JOURNAL: "Memory",
        names.ENV_SETTLE: "Aborted",
        names.ENV_ABORT_GRACE: "7",
    }
    settings = read_settings({**COMPLETE, **said})

    assert (settings.plan_path, settings.secrets_path) == (Path("/p"), Path("/s"))
    assert (settings.journal, settings.settle) == ("Memory", "Aborted")
    assert settings.abort_grace_seconds == 7


REDIS = {**COMPLETE, names.ENV_JOURNAL: "Redis", names.ENV_REDIS_URL: "redis://redis"}
IDENTITY = {"namespace": "default", "name": "r1", "uid": "u-1"}
STEP = {"id": "say", "kind": "Response", "response": {"mapping": {"a": "a"}}}
PLAN = Plan.read({"run": IDENTITY, "workflow": {"name": "w", "digest": "d"}, "spec": {"steps": [STEP]}})


def test_a_conversation_is_kept_where_the_journal_outlives_the_pod() -> None:
    talk = replace(PLAN, session="customer-c-17")
    redis, durable = read_settings(REDIS), read_settings({**COMPLETE, names.ENV_JOURNAL: "DurableFile"})

    assert isinstance(open_sessions(redis, talk, open_redis(redis)), RedisSessions)
    assert isinstance(open_sessions(durable, talk, None), FileSessions)
    assert open_sessions(read_settings(COMPLETE), talk, None) is None
    assert open_sessions(redis, PLAN, open_redis(redis)) is None


def test_what_an_installation_grants_an_abort_reaches_the_engine() -> None:
    attempt = build_attempt(read_settings({**COMPLETE, names.ENV_ABORT_GRACE: "7"}))
    assert (attempt.number, attempt.settings.abort_grace_seconds) == (2, 7)


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


@pytest.mark.parametrize("grace", ["0", "3601", "1.5", "soon", "99999999999"])
def test_a_grace_that_is_none_is_refused(grace: str) -> None:
    with pytest.raises(SettingsError, match="between 1 and 3600 seconds"):
        read_settings({**COMPLETE, names.ENV_ABORT_GRACE: grace})


def test_an_unknown_journal_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(SettingsError, match="'Etcd': this runner knows File, DurableFile, Redis, Memory"):
        read_settings({**COMPLETE, names.ENV_JOURNAL: "Etcd"})


def test_a_journal_in_redis_has_an_address_and_terms() -> None:
    assert read_settings(REDIS).redis == RedisSettings("redis://redis", Path(names.REDIS_LOGIN_PATH))
    said = {names.ENV_REDIS_KEEP: "100000", names.ENV_REDIS_KEEP_FINISHED: "3600"}
    redis = read_settings({**REDIS, **said}).redis
    assert redis is not None
    assert (redis.keep_seconds, redis.keep_finished_seconds) == (100_000, 3600)


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        (names.ENV_REDIS_URL, "", "is not set"),
        (names.ENV_REDIS_KEEP, "59", "between 60 and"),
        (names.ENV_REDIS_KEEP, "9999999999999", "between 60 and"),
        (names.ENV_REDIS_KEEP_FINISHED, "a week", "between 60 and"),
    ],
)
def test_terms_of_redis_that_are_none_are_refused(name: str, value: str, want: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is.*{want}|{name} {want}"):
        read_settings({**REDIS, name: value})


def test_an_address_that_is_none_is_wrong_from_the_start() -> None:
    with pytest.raises(SettingsError, match="is no address of a Redis"):
        open_redis(read_settings({**REDIS, names.ENV_REDIS_URL: "http://redis"}))


def test_a_run_is_settled_for_a_known_cause_only() -> None:
    with pytest.raises(SettingsError, match="'Bored': this runner settles a run as Aborted, DeadlineExceeded, MaxA"):
        read_settings({**COMPLETE, names.ENV_SETTLE: "Bored"})
