"""Secrets of a test."""

from collections.abc import Mapping

from pilothouse_engine.ports import SecretUnavailable


class DictSecrets:
    """Reads from a mapping of `name/key` to value."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self.values = dict(values or {})

    def read(self, name: str, key: str) -> str:
        """Return the value; raises SecretUnavailable."""
        try:
            return self.values[f"{name}/{key}"]
        except KeyError:
            raise SecretUnavailable(f"secret {name} has no key {key}") from None
