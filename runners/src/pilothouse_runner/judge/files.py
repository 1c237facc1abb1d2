"""What the service reads from files that Kubernetes swaps under it: the table of models, and who may ask."""

import hmac
from pathlib import Path

from pilothouse_runner.judge.local import LocalJudge
from pilothouse_runner.judge.metrics import Metrics
from pilothouse_runner.judge.table import TableInvalid, load_models
from pilothouse_runner.log_lines import LogLines

MAX_TOKEN_BYTES = 16_384


class TableFile:
    """Has the judge use the newest table that can be used; raises TableInvalid where the first one cannot."""

    def __init__(self, path: Path, judge: LocalJudge, metrics: Metrics, lines: LogLines) -> None:
        self._path = path
        self._judge = judge
        self._metrics = metrics
        self._lines = lines
        self._seen = self._signature()
        judge.use(load_models(path))

    def refresh(self) -> None:
        """Look whether the file has changed; where the new one is wrong, the table before it stays in use."""
        signature = self._signature()
        if signature == self._seen:
            return
        self._seen = signature
        try:
            models = load_models(self._path)
        except TableInvalid as error:
            self._metrics.table_refused.set(1)
            self._lines.say("judge.table_refused", "error", problem=str(error))
            return
        self._judge.use(models)
        self._metrics.table_refused.set(0)
        self._lines.say("judge.table_read", models=sorted(models))

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


class Callers:
    """Who may ask: whoever holds the token of the file. An empty or missing file lets nobody in."""

    def __init__(self, token_path: Path) -> None:
        self._token_path = token_path

    def is_known(self, authorization: str) -> bool:
        """Tell whether a request's Authorization header holds the token; the file is read anew."""
        scheme, _, given = authorization.partition(" ")
        token = self.token()
        return bool(token) and scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token)

    def token(self) -> bytes:
        """Return the token, empty where there is none."""
        try:
            with self._token_path.open("rb") as file:
                return file.read(MAX_TOKEN_BYTES).strip()
        except OSError:
            return b""
