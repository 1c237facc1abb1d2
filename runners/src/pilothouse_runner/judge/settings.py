"""What the judge's process is told by its pod."""

from collections.abc import Mapping
from pathlib import Path

from pilothouse_api import names
from pilothouse_engine.values import Value

DEFAULT_PORT = 8080


class SettingsError(Exception):
    """A variable is wrong; the message names it."""


class JudgeSettings(Value):
    """Where the table, its keys and the operator's token lie, and where it is listened."""

    models_path: Path = Path(names.JUDGE_MODELS_PATH)
    secrets_path: Path = Path(names.SECRETS_PATH)
    token_path: Path = Path(names.JUDGE_TOKEN_PATH)
    port: int = DEFAULT_PORT


def read_settings(environment: Mapping[str, str]) -> JudgeSettings:
    """Return the settings of an environment; raises SettingsError."""
    port = environment.get(names.ENV_JUDGE_PORT) or str(DEFAULT_PORT)
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise SettingsError(f"{names.ENV_JUDGE_PORT} is {port!r:.40}; use a port from 0 to 65535")
    return JudgeSettings(
        models_path=Path(environment.get(names.ENV_JUDGE_MODELS_PATH) or names.JUDGE_MODELS_PATH),
        secrets_path=Path(environment.get(names.ENV_SECRETS_PATH) or names.SECRETS_PATH),
        token_path=Path(environment.get(names.ENV_JUDGE_TOKEN_PATH) or names.JUDGE_TOKEN_PATH),
        port=int(port),
    )
