"""Calls that wait for a person, over many runs: which there are, and which of them a person means. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import ApprovalDecision, Landing
from pilothouse_api.wake import is_answered
from pilothouse_cli.exits import CliError
from pilothouse_cli.runs.port import snapshot_of, target_of
from pilothouse_control.directives import is_finished


@dataclass(frozen=True, slots=True)
class Choice:
    """Which runs, or calls, a person means: of these labels, of this workflow (or agent), calls of this tool.

    Where nothing narrows it down, `is_all` must say that all of a place are meant.
    """

    selector: str | None = None
    workflow: str | None = None
    tool: str | None = None
    is_all: bool = False

    @property
    def is_narrow(self) -> bool:
        """Whether something narrows it down."""
        return any(part is not None for part in (self.selector, self.workflow, self.tool))

    @property
    def is_made(self) -> bool:
        """Whether more than one run is meant."""
        return self.is_all or self.is_narrow


@dataclass(frozen=True, slots=True)
class PendingCall:
    """One call that waits. `arguments` are masked; `given` is a decision that stands in the spec, with its answer."""

    run: AgentRun
    call: str
    tool: str
    arguments: Mapping[str, Any]
    requested_at: str
    expires_at: str | None
    given: ApprovalDecision | None = None
    answer: Landing | None = None

    @property
    def is_open(self) -> bool:
        """Whether nobody has decided, or only in a way that was refused."""
        return self.given is None or is_answered(self.given, self.answer)


def pending_calls(runs: Iterable[AgentRun], choice: Choice) -> list[PendingCall]:
    """Return the calls that wait and are meant, in the order in which they have waited; labels were judged before."""
    found = [
        call
        for run in runs
        if not is_finished(run) and choice.workflow in (None, target_of(run))
        for call in _of_run(run)
        if choice.tool in (None, call.tool)
    ]
    return sorted(found, key=lambda call: (call.requested_at, call.run.metadata.name, call.call))


def _of_run(run: AgentRun) -> Iterable[PendingCall]:
    snapshot = snapshot_of(run)
    given = run.spec.control.approvals if run.spec.control is not None else {}
    for pending in snapshot.pending_approvals:
        yield PendingCall(
            run,
            pending.call_id,
            pending.tool,
            pending.arguments,
            pending.requested_at,
            pending.expires_at,
            given.get(pending.call_id),
            snapshot.control.approvals.get(pending.call_id),
        )


_TERM = re.compile(r"(?P<no>!?)\s*(?P<key>[A-Za-z0-9._/-]+)\s*(?:(?P<sign>==?|!=)\s*(?P<value>[A-Za-z0-9._-]*))?")


def matches(labels: Mapping[str, str], selector: str) -> bool:
    """Tell whether labels fit a label selector of the forms `k=v`, `k!=v`, `k` and `!k`; raises CliError for others."""
    return all(_fits(labels, term.strip()) for term in selector.split(","))


def _fits(labels: Mapping[str, str], term: str) -> bool:
    parsed = _TERM.fullmatch(term)
    if parsed is None or (parsed["no"] and parsed["sign"]):
        raise CliError(f"{term!r:.80} is no selector that local runs know", "use key=value, key!=value, key or !key")
    if parsed["sign"] is None:
        return (parsed["key"] in labels) != bool(parsed["no"])
    return (labels.get(parsed["key"]) == parsed["value"]) != (parsed["sign"] == "!=")
