"""The judge's service on loopback, with a model that is played: what the operator's client and its tests talk to."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilothouse_engine.ports import Model
from pilothouse_engine.testing.secrets import DictSecrets
from pilothouse_runner.judge.files import Callers, TableFile
from pilothouse_runner.judge.local import LocalJudge
from pilothouse_runner.judge.metrics import Metrics
from pilothouse_runner.judge.service import Desk, build_app
from pilothouse_runner.log_lines import LogLines
from support.stub_models import serving

TOKEN = "the-token-of-the-operator"
TABLE = """
models:
  - name: careful
    model: scripted
    script: |
      turns: [{text: '{"passed": false, "reason": "Too many calls."}', usage: {input: 400, output: 20}}]
      repeat: Last
"""


@dataclass
class JudgeService:
    """A service that is being served."""

    url: str
    models_path: Path
    token_path: Path
    desk: Desk
    log: io.StringIO

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines that it has logged, once it is closed."""
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def metric(self, name: str, **labels: str) -> float | None:
        """Return a sample."""
        return self.desk.metrics.registry.get_sample_value(f"pilothouse_judge_{name}", labels)


@contextmanager
def judge_service(
    folder: Path, table: str = TABLE, model: Model | None = None, max_under_way: int = 64
) -> Iterator[JudgeService]:
    """Serve a table; its files lie in `folder`. With `model`, every entry is asked of it."""
    models_path, token_path, log = folder / "models.yaml", folder / "token", io.StringIO()
    models_path.write_text(table)
    token_path.write_text(f"{TOKEN}\n")
    lines, metrics, judge = LogLines(log, {}), Metrics(), LocalJudge({}, DictSecrets({}), model=model)
    table_file = TableFile(models_path, judge, metrics, lines)
    desk = Desk(judge, table_file, Callers(token_path), metrics, lines, max_under_way)
    try:
        with serving(build_app(desk)) as port:
            yield JudgeService(f"http://127.0.0.1:{port}", models_path, token_path, desk, log)
    finally:
        lines.close()
