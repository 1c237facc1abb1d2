"""The result of a run: in its status, or where it is large (over 8 KiB) in its journal, to which the status refers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilothouse_api.digests import text_digest
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.exits import EXIT_FAILED, CliError
from pilothouse_cli.runs.port import snapshot_of
from pilothouse_engine.ports import RawEntry
from pilothouse_engine.results import compact


@dataclass(frozen=True, slots=True)
class Reference:
    """What a status says of a result that it does not hold."""

    size: int
    digest: str


def stored_result(run: AgentRun) -> Mapping[str, Any] | Reference | None:
    """Return what the status holds: a result, a reference to one, or None where there is none."""
    result = run.status.result or snapshot_of(run).result
    match result:
        case {"ref": "journal/result", "bytes": int(size), "digest": str(digest)}:
            return Reference(size, digest)
        case _:
            return result


def result_of_journal(entries: Sequence[RawEntry], reference: Reference, where: str) -> Mapping[str, Any]:
    """Return the result that a journal holds; raises CliError where it is not the one that was referred to."""
    results = [entry["result"] for entry in entries if isinstance(entry.get("result"), Mapping)]
    found = next((result for result in reversed(results) if text_digest(compact(result)) == reference.digest), None)
    if found is None:
        what = f"{where} does not hold the result with the digest {reference.digest}"
        raise CliError(what, "somebody has changed or replaced the journal", EXIT_FAILED)
    return dict(found)
