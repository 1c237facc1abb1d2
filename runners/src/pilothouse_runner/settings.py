"""What a runner is told by its pod: environment variables, each named in `pilothouse_api.names`.

Read by hand: pydantic-settings would add 32 modules to the start that a run's author waits for.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from pilothouse_api import names
from pilothouse_engine.attempt import SettleCause
from pilothouse_engine.values import Value

JournalKind = Literal["File", "DurableFile", "Redis", "Memory"]
"""Where the facts are kept: a file on an emptyDir, one on a volume that outlives the pod, Redis, or nowhere (tests)."""

_JOURNALS: Mapping[str, JournalKind] = {kind: kind for kind in get_args(JournalKind)}

DAY = 86400


class SettingsError(Exception):
    """A variable is missing or wrong; the message names it."""


class RedisSettings(Value):
    """The Redis that keeps a run's journal.

    `keep_seconds`: how long a run's keys stay to which nothing is added, as while it waits for a person;
    `keep_finished_seconds`: how long they stay after its end.
    """

    url: str
    login_path: Path = Path(names.REDIS_LOGIN_PATH)
    keep_seconds: int = 365 * DAY
    keep_finished_seconds: int = 7 * DAY


class RunnerSettings(Value):
    """One attempt of one run."""

    namespace: str
    name: str
    uid: str
    attempt: int
    plan_path: Path
    plan_digest: str
    secrets_path: Path
    journal: JournalKind = "File"
    journal_path: Path = Path(names.JOURNAL_PATH)
    redis: RedisSettings | None = None
    settle: SettleCause | None = None
    abort_grace_seconds: float = 30.0

    @property
    def journal_file(self) -> Path:
        """The journal's file; named by the run's uid, since a volume may serve many runs."""
        return self.journal_path / f"{self.uid}.jsonl"


def read_settings(environment: Mapping[str, str]) -> RunnerSettings:
    """Return the settings of an environment; raises SettingsError."""
    journal = _journal(environment.get(names.ENV_JOURNAL) or "File")
    return RunnerSettings(
        namespace=_required(environment, names.ENV_RUN_NAMESPACE),
        name=_required(environment, names.ENV_RUN_NAME),
        uid=_required(environment, names.ENV_RUN_UID),
        attempt=_attempt(_required(environment, names.ENV_ATTEMPT)),
        plan_path=Path(environment.get(names.ENV_PLAN_PATH) or names.PLAN_PATH),
        plan_digest=_required(environment, names.ENV_PLAN_DIGEST),
        secrets_path=Path(environment.get(names.ENV_SECRETS_PATH) or names.SECRETS_PATH),
        journal=journal,
        redis=_redis(environment) if journal == "Redis" else None,
        settle=_settle(environment.get(names.ENV_SETTLE) or None),
        abort_grace_seconds=_seconds(names.ENV_ABORT_GRACE, environment.get(names.ENV_ABORT_GRACE) or "30"),
    )


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise SettingsError(f"the environment variable {name} is not set: a runner is started by the operator")
    return value


def _attempt(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise SettingsError(f"{names.ENV_ATTEMPT} is {text[:40]!r}: attempts count from 1")
    return int(text)


def _seconds(name: str, text: str) -> float:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 3600:
        raise SettingsError(f"{name} is {text[:40]!r}: it is between 1 and 3600 seconds")
    return float(text)


def _redis(environment: Mapping[str, str]) -> RedisSettings:
    return RedisSettings(
        _required(environment, names.ENV_REDIS_URL),
        keep_seconds=_keep(environment, names.ENV_REDIS_KEEP, 365 * DAY),
        keep_finished_seconds=_keep(environment, names.ENV_REDIS_KEEP_FINISHED, 7 * DAY),
    )


def _keep(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or not 60 <= int(text[:12]) <= 10_000 * DAY:
        raise SettingsError(f"{name} is {text[:40]!r}: it is between 60 and {10_000 * DAY} seconds")
    return int(text)


def _journal(text: str) -> JournalKind:
    if text not in _JOURNALS:
        raise SettingsError(f"{names.ENV_JOURNAL} is {text[:40]!r}: this runner knows {', '.join(_JOURNALS)}")
    return _JOURNALS[text]


def _settle(text: str | None) -> SettleCause | None:
    if text is None:
        return None
    known = next((cause for cause in get_args(SettleCause) if cause == text), None)
    if known is None:
        wanted = ", ".join(get_args(SettleCause))
        raise SettingsError(f"{names.ENV_SETTLE} is {text[:40]!r}: this runner settles a run as {wanted}")
    settle: SettleCause = known
    return settle
