"""What was observed of runs, for a replay: out of a local journal, or out of a file that keeps it."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pilothouse_api.observation import Observation
from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import Snapshot, Supervision
from pilothouse_cli.exits import EXIT_FAILED, CliError, first_problem
from pilothouse_control.supervision import observe

MAX_LINE_BYTES = 262_144
MAX_OBSERVATIONS = 100_000


@dataclass(frozen=True, slots=True)
class Recording:
    """What was observed of one run, oldest first; `supervision` is what was done about it, where that is known."""

    run: str
    observations: tuple[Observation, ...]
    supervision: Supervision | None = None


def record(run: AgentRun, plan: Plan, raw_looks: Iterable[Mapping[str, Any]]) -> Recording:
    """Return what was observed by looks that were kept of a run; raises CliError for one that is none."""
    try:
        seen = [
            observe(Snapshot.model_validate(look["run"]), plan, datetime.fromisoformat(look["now"]))
            for look in raw_looks
        ]
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        what = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise CliError(
            f"what was kept of run {run.metadata.name} is not of this version: {what}"[:500],
            "upgrade the command line",
            EXIT_FAILED,
        ) from None
    observations = tuple(observation for observation in seen if observation is not None)
    return Recording(run.metadata.name, observations, run.status.supervision)


def read_recordings(path: Path) -> list[Recording]:
    """Return the runs of a file with a JSON object a line, `{"run": NAME, "observation": {…}}`; raises CliError."""
    observations: dict[str, list[Observation]] = {}
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        if number > MAX_OBSERVATIONS:
            raise CliError(f"{path} has more than {MAX_OBSERVATIONS:,} lines", "split the file")
        try:
            raw = json.loads(line)
            observation = Observation.model_validate(raw["observation"], strict=False)
            observations.setdefault(str(raw["run"]), []).append(observation)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = first_problem(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
            raise CliError(
                f"{path}, line {number} is no observation of a run: {what}"[:500],
                "pilothouse replay RUN -o observations writes such lines",
            ) from None
    if not observations:
        raise CliError(f"{path} holds no observation", "pilothouse replay RUN -o observations writes them")
    return [Recording(run, tuple(seen)) for run, seen in observations.items()]


def _lines(path: Path) -> Iterator[str]:
    try:
        if str(path) == "-":
            yield from sys.stdin
            return
        with path.open(encoding="utf-8") as file:
            while line := file.readline(MAX_LINE_BYTES):
                yield line
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CliError(f"{path} is no UTF-8 text", "save it as UTF-8") from None


def line_of(run: str, observation: Observation) -> str:
    """Return one line of such a file."""
    return json.dumps({"run": run, "observation": observation.to_raw()}, separators=(",", ":"))
