"""Secrets as files: a folder for each Secret, a file for each key, as Kubernetes projects them."""

import re
from pathlib import Path

from pilothouse_api.names import secret_file
from pilothouse_engine.ports import SecretUnavailable

MAX_SECRET_BYTES = 1_048_576
_NAME = re.compile(r"[-._a-zA-Z0-9]{1,253}")


class FileSecrets:
    """Reads secret values from `<folder>/<name>/<key>`, anew each time: Kubernetes swaps the files on rotation.

    Line breaks at the end are cut: they come from editors and `echo`, and no header or key ends with one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str, key: str) -> str:
        """Return the value; raises SecretUnavailable."""
        if not _is_plain(name) or not _is_plain(key):
            raise SecretUnavailable(f"Secret {name!r} with key {key!r} is no name that can be read")
        try:
            with (self._folder / secret_file(name, key)).open("rb") as file:
                raw = file.read(MAX_SECRET_BYTES + 1)
        except OSError as error:
            raise SecretUnavailable(f"key {key} of Secret {name} cannot be read: {error.strerror}") from None
        if len(raw) > MAX_SECRET_BYTES:
            raise SecretUnavailable(f"key {key} of Secret {name} is larger than {MAX_SECRET_BYTES:,} bytes")
        try:
            return raw.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise SecretUnavailable(f"key {key} of Secret {name} is no UTF-8 text") from None


def _is_plain(part: str) -> bool:
    return _NAME.fullmatch(part) is not None and part not in (".", "..")
