"""Which children of a run are made, told, ended and reported on (engine.md §12). Pure.

The runner asks in `status.run.children`; whoever hosts runs (the operator, a laptop) makes the children, copies
directives down to them and says in `status.children` what became of them. Everything follows from objects, so that it
may be repeated after a crash at any point: names are deterministic, and an end that was reported stays.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from pilothouse_api import names
from pilothouse_api.plan import Plan
from pilothouse_api.signals import ABORTED, ERROR
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import (
    ChildApproval,
    ChildReport,
    ChildRequest,
    ExitReport,
    Snapshot,
)
from pilothouse_control.lineage import MAX_DEPTH, delegates_of

MAX_CHILDREN = 64
MAX_INPUT_BYTES = 8192
MAX_PENDING = 16
GRACE = timedelta(seconds=60)
"""How long what a child needs may be missing (apply order, a name that is being cleaned up) before it is refused."""

REFUSED = "ChildRefused"
DELETED = "ChildDeleted"
NAME_TAKEN = "ChildNameTaken"
WANTED = frozenset({"Awaited", "Background"})
HANDED_ON = "HandedOn"
"""State of a task that outlives the run that asked for it; the next run of the session tells its end."""
_NOTHING: Mapping[str, Any] = {"input_tokens": 0, "output_tokens": 0, "cost_usd": "0"}


@dataclass(frozen=True, slots=True)
class Family:
    """A run and what is known of its children.

    `plan` None: it is not at hand, nothing is made. `is_ending`: the run goes on no more, whatever its snapshot asks
    for. `found` are the objects under the children's names, by call id, whoever made them; None: looked for, and not
    there (of one that is wanted and was never reported, the picture of a watch is enough). `targets` are kind and
    name of what exists to be run. `since`: when something began to be missing, by call id; `refusals`: what the API
    server said when a child was to be made.
    """

    parent: AgentRun
    snapshot: Snapshot
    plan: Plan | None
    is_ending: bool
    now: datetime
    found: Mapping[str, AgentRun | None] = field(default_factory=dict)
    targets: Collection[tuple[str, str]] = ()
    since: Mapping[str, datetime] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    owners: Mapping[str, AgentRun | None] = field(default_factory=dict)
    """Earlier runs of the session, by name, whose tasks this one tells the ends of; None: there is none."""


@dataclass(frozen=True, slots=True)
class NewChild:
    """A child to make; one of that name that exists is looked at and not replaced."""

    call_id: str
    raw: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChildPatch:
    """A merge-patch of a child, good only for the object with that uid."""

    name: str
    raw: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChildrenPlan:
    """What is to be done. `reports`: `status.children` as it should be, once the new ones are made.

    `open`: children that have not ended; the parent ends after them. `handed_on`: the same of those that it does not
    end after, its own and those of earlier runs of the session. `waiting`: why a child is not made yet, by call id;
    look again soon.
    """

    creates: tuple[NewChild, ...] = ()
    patches: tuple[ChildPatch, ...] = ()
    reports: tuple[ChildReport, ...] = ()
    open: tuple[str, ...] = ()
    handed_on: tuple[str, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Step:
    """What is to be done about one child."""

    report: ChildReport | None = None
    create: NewChild | None = None
    patch: ChildPatch | None = None
    open: str | None = None
    handed_on: str | None = None
    waiting: str | None = None


def calls_of(parent: AgentRun, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the call ids of all children that the run or its status speaks of, in their order."""
    asked = [request.call_id for request in snapshot.children if request.state != "Delivered"]
    return tuple(dict.fromkeys([*(report.call_id for report in parent.status.children), *asked]))


def child_name(parent: AgentRun, call_id: str) -> str:
    """Return the name of the child that does a call."""
    return names.child_run_name(parent.metadata.name, call_id)


def past_tasks(snapshot: Snapshot) -> dict[str, str]:
    """Return the tasks of earlier runs of the session that a run tells the ends of: their names, and those runs'."""
    return {request.call_id: request.owner for request in snapshot.children if request.owner is not None}


def plan_children(family: Family) -> ChildrenPlan:
    """Return what is to be done about the children of a run."""
    requests = {request.call_id: request for request in family.snapshot.children}
    reports = {report.call_id: report for report in family.parent.status.children}
    steps: dict[str, _Step] = {}
    for call_id in calls_of(family.parent, family.snapshot):
        steps[call_id] = _plan_child(family, call_id, requests.get(call_id), reports.get(call_id), len(steps))
    done = list(steps.values())
    return ChildrenPlan(
        creates=tuple(step.create for step in done if step.create is not None),
        patches=tuple(step.patch for step in done if step.patch is not None),
        reports=tuple(step.report for step in done if step.report is not None)[-MAX_CHILDREN:],
        open=tuple(step.open for step in done if step.open is not None),
        handed_on=tuple(step.handed_on for step in done if step.handed_on is not None),
        waiting={call: step.waiting for call, step in steps.items() if step.waiting is not None},
    )


def _plan_child(
    family: Family, call_id: str, request: ChildRequest | None, report: ChildReport | None, number: int
) -> _Step:
    if request is not None and request.owner is not None:
        return _plan_past(family, request, report)
    is_handed_on = request is not None and request.state == HANDED_ON
    is_wanted = is_handed_on or (request is not None and request.state in WANTED and not family.is_ending)
    child = family.found.get(call_id)
    if child is not None and not (is_child_of(child, family.parent) and _does(child, call_id)):
        return _plan_taken(family, call_id, report, is_wanted)
    if child is not None:
        return _plan_found(family, child, request, report, is_wanted)
    if report is not None and report.exit is not None:
        return _Step(report=_kept(report, is_wanted))
    if report is not None and report.name is not None:
        gone = _end(
            call_id, DELETED, f"the run {report.name} was deleted before it had ended", report.name, has_run=True
        )
        return _Step(report=gone)
    if request is None:
        return _Step()
    if not is_wanted:  # said, so that nobody looks for it again
        return _Step(report=_end(call_id, REFUSED, "it was wanted no more before it was made"))
    return _plan_new(family, request, number)


def _kept(report: ChildReport, is_wanted: bool) -> ChildReport:
    """Return a report of an end: the result is needed until the run has read it."""
    if is_wanted or report.result is None:
        return report
    return ChildReport.model_validate({name: v for name, v in report.to_raw().items() if name != "result"})


# ---------------------------------------------------------------- one that is to be made


def _plan_new(family: Family, request: ChildRequest, number: int) -> _Step:
    # A run that has ended makes its last tasks before its end is told: nobody looks after it any more then.
    held = child_name(family.parent, request.call_id) if request.state == HANDED_ON else None
    if family.plan is None:
        return _Step(waiting="the plan of this run is not at hand", open=held)
    refusal = _refusal(family, family.plan, request, number)
    if refusal is not None:
        return _Step(report=_end(request.call_id, REFUSED, refusal))
    reason, missing = _missing(family, request)
    if missing is not None and _is_patient(family, request.call_id) and request.call_id not in family.refusals:
        return _Step(waiting=missing, open=held)
    if missing is not None and not _is_patient(family, request.call_id):
        return _Step(report=_end(request.call_id, reason, missing))
    raw = build_child(family.parent, request)
    report = ChildReport(call_id=request.call_id, name=raw["metadata"]["name"])
    waiting = family.refusals.get(request.call_id)
    return _Step(report=report, create=NewChild(request.call_id, raw), open=report.name, waiting=waiting)


def _refusal(family: Family, plan: Plan, request: ChildRequest, number: int) -> str | None:
    """Return why a request is refused for good: the runner asks, and is not believed."""
    ref = request.ref
    if (ref.kind, ref.name) not in delegates_of(plan):
        return f"{ref.kind} {ref.name} is no delegate of this run's plan"
    depth = len(plan.ancestors) + 1
    if depth > MAX_DEPTH:
        return f"it would be {depth} runs deep; the limit is {MAX_DEPTH}: delegate less deep"
    text = json.dumps(request.input, ensure_ascii=False, separators=(",", ":"))
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_INPUT_BYTES:
        return f"its input has {size:,} bytes; the limit is {MAX_INPUT_BYTES:,}"
    if number >= MAX_CHILDREN:
        return f"this run has asked for {MAX_CHILDREN} children, which is all it may"
    return _hold_problem(plan, request)


def _hold_problem(plan: Plan, request: ChildRequest) -> str | None:
    limits, hold = plan.spec.limits, request.hold
    budget, lent = limits.token_budget, hold.tokens
    if budget is not None and (lent is None or lent > budget):
        return f"it asks for {'all' if lent is None else lent} tokens of a tokenBudget of {budget}"
    money, asked = limits.cost_budget_usd, hold.cost_usd
    if money is not None and (asked is None or Decimal(asked) > Decimal(money)):
        return f"it asks for {'all' if asked is None else asked} USD of a costBudgetUSD of {money}"
    return None


def _missing(family: Family, request: ChildRequest) -> tuple[str, str | None]:
    """Return reason and sentence of what keeps a child from being made and may come right by itself."""
    ref, said = request.ref, family.refusals.get(request.call_id)
    if (ref.kind, ref.name) not in family.targets:
        return f"{ref.kind}NotFound", f"there is no {ref.kind} {ref.name}"
    return REFUSED, f"the API server refuses the child: {said}"[:1000] if said is not None else None


def _is_patient(family: Family, call_id: str) -> bool:
    return family.now - family.since.get(call_id, family.now) < GRACE


def build_child(parent: AgentRun, request: ChildRequest) -> dict[str, Any]:
    """Return the AgentRun of a request: owned by its parent, so that it is deleted with it, with its labels."""
    metadata, field_name = parent.metadata, "agentRef" if request.ref.kind == "Agent" else "workflowRef"
    labels = {name: value for name, value in metadata.labels.items() if not _is_ours(name)}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "AgentRun",
        "metadata": {
            "name": child_name(parent, request.call_id),
            "namespace": metadata.namespace or "default",
            "labels": {
                **labels,
                names.LABEL_MANAGED_BY: names.MANAGED_BY,
                names.LABEL_PARENT: metadata.name,
                names.LABEL_PARENT_CALL: request.call_id,
            },
            "ownerReferences": [names.owner_reference("AgentRun", metadata.name, metadata.uid or "")],
        },
        "spec": {field_name: {"name": request.ref.name}, "input": dict(request.input)},
    }


def _is_ours(label: str) -> bool:
    return label.startswith(f"{names.GROUP}/") or label == names.LABEL_MANAGED_BY


def parent_of(run: AgentRun) -> tuple[str, str] | None:
    """Return name and uid of the run that this one is a child of, None for one that a person or a trigger made."""
    for owner in run.metadata.owner_references:
        if owner.controller and owner.kind == "AgentRun" and owner.api_version.startswith(f"{names.GROUP}/"):
            return owner.name, owner.uid
    return None


def is_child_of(run: AgentRun, parent: AgentRun) -> bool:
    """Tell whether a run is a child of this very parent: another may have had its name."""
    return parent_of(run) == (parent.metadata.name, parent.metadata.uid)


def _does(child: AgentRun, call_id: str) -> bool:
    """Tell whether a child does this call: the names of two could be cut to the same."""
    return child.metadata.labels.get(names.LABEL_PARENT_CALL) == call_id


def _plan_taken(family: Family, call_id: str, report: ChildReport | None, is_wanted: bool) -> _Step:
    """The name belongs to somebody else: perhaps to one that is being cleaned up."""
    if report is not None and report.exit is not None:
        return _Step(report=_kept(report, is_wanted))
    if not is_wanted:
        return _Step(report=report)
    name = child_name(family.parent, call_id)
    what = f"a run {name} exists and is no child of this one: delete it"
    if _is_patient(family, call_id):
        return _Step(waiting=what)
    return _Step(report=_end(call_id, NAME_TAKEN, what))


# ---------------------------------------------------------------- one of an earlier run of the session


def _plan_past(family: Family, request: ChildRequest, report: ChildReport | None) -> _Step:
    """A task that has outlived its run is reported on and nothing else: whoever asked for it has ended."""
    is_wanted = request.state in WANTED
    if report is not None and report.exit is not None:
        return _Step(report=_kept(report, is_wanted))
    if not is_wanted:
        return _Step(report=report)
    owner, child = family.owners.get(request.owner or ""), family.found.get(request.call_id)
    if child is None or owner is None:
        what = f"the run {request.call_id}, a task of {request.owner}, was deleted before it had ended"
        return _Step(report=_end(request.call_id, DELETED, what, has_run=True))
    if owner.spec.session != family.parent.spec.session or not is_child_of(child, owner):
        what = f"the run {child.metadata.name} is no task of a run of session {family.parent.spec.session}"
        return _Step(report=_end(request.call_id, REFUSED, what))
    if is_finished(child):
        return _Step(report=_report_end(request.call_id, child))
    return _Step(report=_report_live(request.call_id, child), handed_on=child.metadata.name)


# ---------------------------------------------------------------- one that is there


def _plan_found(
    family: Family, child: AgentRun, request: ChildRequest | None, report: ChildReport | None, is_wanted: bool
) -> _Step:
    call_id = request.call_id if request is not None else report.call_id if report is not None else ""
    is_over = is_finished(child)
    open_ = None if is_over else child.metadata.name
    if report is not None and report.exit is not None:
        return _Step(_kept(report, is_wanted), patch=None if is_over else _abort(child, "its end is known"), open=open_)
    if is_over:
        return _Step(report=_kept(_report_end(call_id, child), is_wanted))
    stuck = _stuck(child)
    if stuck is not None:
        return _Step(report=_end(call_id, *stuck, child.metadata.name), patch=_abort(child, stuck[1]), open=open_)
    if request is not None and request.state == HANDED_ON:
        return _Step(report=ChildReport(call_id=call_id, name=child.metadata.name), handed_on=open_)
    if not is_wanted and (request is not None or family.is_ending):
        patch = _abort(child, f"{family.parent.metadata.name} waits for it no more")
    else:
        patch = copy_directive(family.parent, child)
    return _Step(report=_report_live(call_id, child), patch=patch, open=open_)


def is_finished(run: AgentRun) -> bool:
    """Tell whether a run has ended."""
    return any(entry.type == "Finished" and entry.status == "True" for entry in run.status.conditions)


def _stuck(child: AgentRun) -> tuple[str, str] | None:
    """Return reason and message of a child of which no plan can be made until a person changes something."""
    if child.status.plan is not None:
        return None
    for entry in child.status.conditions:
        if entry.type == "Stalled" and entry.status == "True":
            return entry.reason, entry.message
    return None


def copy_directive(parent: AgentRun, child: AgentRun) -> ChildPatch | None:
    """Return how the parent's mode is copied down to a child that is wanted, None where there is nothing to copy.

    A Pause is copied once (a label keeps that it was), and taken back when the parent goes on: whoever resumes or
    pauses the child alone is not fought with.
    """
    asked = (parent.spec.control.mode if parent.spec.control else None) or "Run"
    has = (child.spec.control.mode if child.spec.control else None) or "Run"
    was = child.metadata.labels.get(names.LABEL_COPIED_MODE)
    if asked == "Abort":
        return _patch(parent, child, "Abort") if has != "Abort" else None
    if asked == "Finish":
        return _patch(parent, child, "Finish") if has not in ("Finish", "Abort") else None
    if asked == "Pause":
        return (
            _patch(parent, child, "Pause", {names.LABEL_COPIED_MODE: "Pause"}) if was is None and has == "Run" else None
        )
    if was is None:
        return None
    return _patch(parent, child, "Run" if has == "Pause" else None, {names.LABEL_COPIED_MODE: None})


def _patch(
    parent: AgentRun, child: AgentRun, mode: str | None, labels: Mapping[str, str | None] | None = None
) -> ChildPatch:
    metadata: dict[str, Any] = {"uid": child.metadata.uid}
    if labels:
        metadata["labels"] = dict(labels)
    raw: dict[str, Any] = {"metadata": metadata}
    if mode is not None:
        control = parent.spec.control
        why = f": {control.reason}" if control is not None and control.reason else ""
        by = control.by if control is not None else None
        reason = f"copied from {parent.metadata.name}{why}"[:1024]
        raw["spec"] = {"control": {"mode": mode, "reason": reason, "by": by}}
    return ChildPatch(child.metadata.name, raw)


def _abort(child: AgentRun, why: str) -> ChildPatch | None:
    if child.spec.control is not None and child.spec.control.mode == "Abort":
        return None
    control = {"mode": "Abort", "reason": why[:1024], "by": None}
    return ChildPatch(child.metadata.name, {"metadata": {"uid": child.metadata.uid}, "spec": {"control": control}})


# ---------------------------------------------------------------- what the parent is told


def _end(call_id: str, reason: str, message: str, name: str | None = None, *, has_run: bool = False) -> ChildReport:
    """Return the end of a child that has none of its own; one that never ran took nothing."""
    fields: dict[str, Any] = {"call_id": call_id}
    if name is not None:
        fields["name"] = name
    fields["exit"] = ExitReport(signal=ERROR, reason=reason, message=message[:4096])
    return ChildReport(**fields) if has_run else ChildReport(**fields, **_NOTHING)


def refusal_report(call_id: str, reason: str, message: str) -> ChildReport:
    """Return the end of a child that cannot be made."""
    return _end(call_id, reason, message)


def _report_end(call_id: str, child: AgentRun) -> ChildReport:
    status = child.status
    end = status.exit or ExitReport(signal=ABORTED, reason="Unknown", message="the run has ended")
    fields: dict[str, Any] = {"call_id": call_id, "name": child.metadata.name, "exit": end, **_usage(child)}
    if status.result is not None:
        fields["result"] = status.result
    return ChildReport(**fields)


def _usage(child: AgentRun) -> Mapping[str, Any]:
    """Return what a child took, as far as it can say so itself."""
    snapshot = read_snapshot(child)
    if snapshot is None:
        has_run = bool(child.status.attempt)
        return {} if has_run else _NOTHING
    if snapshot.exit is None:
        return {}  # closed by somebody else: a call may have been under way
    tokens = {"input_tokens": snapshot.tokens.input, "output_tokens": snapshot.tokens.output}
    return tokens if snapshot.cost.unknown else {**tokens, "cost_usd": snapshot.cost.used_usd}


def read_snapshot(run: AgentRun) -> Snapshot | None:
    """Return what a run says about itself, None where it has not or where it cannot be read."""
    try:
        return Snapshot.model_validate(run.status.run) if run.status.run is not None else None
    except ValidationError:
        return None


def _report_live(call_id: str, child: AgentRun) -> ChildReport:
    pending = list(pending_approvals(child))[:MAX_PENDING]
    if not pending:
        return ChildReport(call_id=call_id, name=child.metadata.name)
    return ChildReport(call_id=call_id, name=child.metadata.name, pending_approvals=pending)


def pending_approvals(child: AgentRun) -> Iterator[ChildApproval]:
    """Yield what waits for a person in a run and in its own children."""
    snapshot = read_snapshot(child)
    for pending in snapshot.pending_approvals if snapshot is not None else ():
        fields: dict[str, Any] = {"run": child.metadata.name, "call_id": pending.call_id, "tool": pending.tool[:253]}
        if pending.expires_at is not None:
            fields["expires_at"] = pending.expires_at
        yield ChildApproval(**fields)
    yield from asked_of_people(child.status.children)


def asked_of_people(reports: Iterable[ChildReport]) -> Iterator[ChildApproval]:
    """Yield what waits for a person in the children of some reports."""
    for report in reports:
        if report.exit is None:
            yield from report.pending_approvals


def ended_calls(reports: Iterable[ChildReport]) -> frozenset[str]:
    """Return the call ids of children that have ended: what `wake_due` asks for."""
    return frozenset(report.call_id for report in reports if report.exit is not None)
