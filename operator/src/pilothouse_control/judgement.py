"""What a Workflow or an Agent is told about itself: its references, its validity, in the terms of kstatus."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from pilothouse_api.v1alpha1 import Agent, Workflow
from pilothouse_api.v1alpha1.common import Condition
from pilothouse_control.findings import Finding
from pilothouse_control.texts import MissingText, resolve_text, text_sites
from pilothouse_control.validation import Sources, as_document, validate
from pilothouse_control.world import Reference, References, needed_references, references_of

GRACE = timedelta(seconds=60)
"""How long a reference may be missing before a person must look: manifests are applied in any order."""

MAX_WARNINGS = 32
_ELSEWHERE = frozenset({"TextElsewhere", "AgentElsewhere", "DelegateTargetElsewhere", "SupervisorElsewhere"})
"""Warnings about objects that were not given; here they do not exist, and the conditions say so."""
_WAITED_FOR = frozenset({"TextNotFound", "SupervisorNotFound"})
"""Errors that are missing references: they are waited for, see `missing_references`."""

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class ConditionDraft:
    """One condition as it should be now; the operator adds generation and times."""

    type: str
    status: Truth
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """Conditions (Ready, Reconciling, Stalled, ReferencesResolved), warnings, and when to judge again."""

    conditions: tuple[ConditionDraft, ...]
    warnings: tuple[str, ...] = ()
    judge_again_at: datetime | None = None

    @property
    def is_ready(self) -> bool:
        """Whether runs of it can start."""
        return self.conditions[0].status == "True"


@dataclass(frozen=True, slots=True)
class MissingReference:
    """Something that an object names and that is not there."""

    reason: str
    message: str


def evaluate_object(
    raw: Mapping[str, Any], obj: Workflow | Agent, known: References, missing_since: datetime | None, now: datetime
) -> Judgement:
    """Return the judgement of an object as the API server has it; `known` holds what it needs, as far as it exists."""
    platform = known.platform
    agents = _agents(sorted(needed_references(obj, known)), known) if isinstance(obj, Workflow) else []
    documents = [as_document(raw), *(as_document(agent.to_raw()) for agent in agents)]
    findings = validate(
        Sources(documents, known), durable_journal=platform.durable_journal, known_price=platform.known_price
    )
    own = [finding for finding in findings if finding.kind == raw.get("kind")]
    return judge_references(obj, known, [*own, *_of_agents(obj, findings)], missing_since, now)


def _of_agents(obj: Workflow | Agent, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the errors of a workflow's Agents as errors of the workflow: its runs would be refused for them."""
    for finding in findings if isinstance(obj, Workflow) else ():
        if finding.kind == "Agent" and finding.is_error and finding.check != "TextNotFound":
            what = f"Agent {finding.name}: {finding.sentence}"
            yield Finding("Error", "AgentInvalid", "Workflow", obj.metadata.name, (), what)


def judge_references(
    obj: Workflow | Agent,
    known: References,
    findings: Sequence[Finding],
    missing_since: datetime | None,
    now: datetime,
) -> Judgement:
    """Return the judgement of an object by its references and findings.

    `missing_since`: since when ReferencesResolved is False (see `missing_since`), None where it is not. A missing
    reference is Reconciling for the grace and Stalled after it; an error is Stalled at once. Both heal by themselves.
    """
    missing = missing_references(obj, known)
    errors = [finding for finding in findings if finding.is_error and finding.check not in _WAITED_FOR]
    warnings = tuple(
        finding.sentence for finding in findings if not finding.is_error and finding.check not in _ELSEWHERE
    )[:MAX_WARNINGS]
    resolved = _resolved(obj, missing)
    if errors:
        return Judgement((*_failed(errors[0].check, _all(errors), is_stalled=True), resolved), warnings)
    if missing:
        deadline = (missing_since or now) + GRACE
        is_stalled = deadline <= now
        message = "; ".join(item.message for item in missing)
        conditions = (*_failed(missing[0].reason, message, is_stalled), resolved)
        return Judgement(conditions, warnings, None if is_stalled else deadline)
    return Judgement((*_ready(obj), resolved), warnings)


def missing_references(obj: Workflow | Agent, known: References) -> tuple[MissingReference, ...]:
    """Return what an object, and the Agents that it uses, need and what is not there."""
    found: dict[str, MissingReference] = {}
    needed = sorted(needed_references(obj, known))
    for reference in needed:
        if reference.kind != "ConfigMap" and not _is_known(reference, known):
            message = f"there is no {reference.kind} {reference.name}"
            found[message] = MissingReference(f"{reference.kind}NotFound", message)
    names = known.supervisors
    for ref in obj.spec.supervisor_refs if isinstance(obj, Workflow) and names is not None else ():
        if names is not None and ref.name not in names:
            message = f"there is no Supervisor {ref.name}"
            found[message] = MissingReference("SupervisorNotFound", message)
    for spec in (obj.spec, *(agent.spec for agent in _agents(needed, known))):
        for site in text_sites(spec):
            missing = resolve_text(site, known.config_maps)
            if isinstance(missing, MissingText) and missing.is_waiting:
                found[missing.message] = MissingReference(missing.reason, missing.message)
    return tuple(found.values())


def _agents(needed: Iterable[Reference], known: References) -> list[Agent]:
    names = [reference.name for reference in needed if reference.kind == "Agent"]
    return [known.agents[name] for name in names if name in known.agents]


def _is_known(reference: Reference, known: References) -> bool:
    return reference.name in (known.agents if reference.kind == "Agent" else known.workflows)


def missing_since(conditions: Iterable[Condition]) -> datetime | None:
    """Return since when the references of an object are not resolved, from the conditions that it has."""
    for condition in conditions:
        if condition.type == "ReferencesResolved" and condition.status == "False":
            return datetime.fromisoformat(condition.last_transition_time)
    return None


def _failed(reason: str, message: str, is_stalled: bool) -> tuple[ConditionDraft, ...]:
    return (
        ConditionDraft("Ready", "False", reason, message),
        ConditionDraft("Reconciling", "False" if is_stalled else "True", reason, message),
        ConditionDraft("Stalled", "True" if is_stalled else "False", reason, message),
    )


def _ready(obj: Workflow | Agent) -> tuple[ConditionDraft, ...]:
    is_suspended = isinstance(obj, Workflow) and obj.spec.suspend
    reason = "Suspended" if is_suspended else "Valid"
    message = "valid; suspended: no new runs are made by the trigger" if is_suspended else "valid; runs can start"
    return (
        ConditionDraft("Ready", "True", reason, message),
        ConditionDraft("Reconciling", "False", reason, message),
        ConditionDraft("Stalled", "False", reason, message),
    )


def _resolved(obj: Workflow | Agent, missing: Sequence[MissingReference]) -> ConditionDraft:
    if missing:
        message = "; ".join(item.message for item in missing)
        return ConditionDraft("ReferencesResolved", "False", missing[0].reason, message)
    count = len(references_of(obj))
    return ConditionDraft("ReferencesResolved", "True", "Resolved", f"{count} references, all of them there")


def _all(errors: Sequence[Finding]) -> str:
    return "\n".join(finding.sentence for finding in errors[:10])


def used_by(agent: str, workflows: Iterable[Workflow]) -> int:
    """Return how many workflows refer to an Agent."""
    wanted = Reference("Agent", agent)
    return sum(1 for workflow in workflows if wanted in references_of(workflow))
