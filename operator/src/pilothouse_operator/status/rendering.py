"""What people see of a run: status from its situation. Pure and total.

Status is computed whole, once a reconcile, and written only when it differs: nothing here may depend on what changes
with every turn (that stands in `status.run`), else each turn would cost a write.
"""

import json
from collections.abc import Mapping
from typing import Any, assert_never

from pilothouse_api.names import pod_name
from pilothouse_api.v1alpha1.agentrun import AgentRunStatus
from pilothouse_operator.conditions import format_exact_time, format_time, merge_conditions
from pilothouse_operator.runs.attempts import AttemptPlan, BeginAttempt
from pilothouse_operator.runs.children import is_held_by_question
from pilothouse_operator.runs.classification import start_unmade
from pilothouse_operator.runs.directives import DIRECTIVE_PATIENCE, pending_directives
from pilothouse_operator.runs.situation import (
    ABORTED_REASONS,
    SUCCESS_REASONS,
    Blocked,
    Ended,
    Live,
    Lost,
    Parked,
    Settling,
    Situation,
    Starting,
)
from pilothouse_operator.runs.view import RunView
from pilothouse_operator.status.run_conditions import Scene, Shown, draft_conditions
from pilothouse_operator.supervision.record import to_raw as record_to_raw

MAX_RESULT_BYTES = 8192
PHASE_OF_PARK = {"Paused": "Paused", "AwaitingApproval": "AwaitingApproval"}


def show(view: RunView, situation: Situation, plan: AttemptPlan) -> Shown:
    """Return the situation as it is once the attempt that begins has its number: then one write says both."""
    if isinstance(plan, BeginAttempt):
        if plan.settle is not None:
            return Settling("Attempt", plan.settle, is_pod_made=False, not_before=plan.not_before)
        return start_unmade(plan.number, plan.attempts, plan.not_before)
    return start_unmade(view.attempt, view.attempts, None) if isinstance(situation, Lost) else situation


def render_status(view: RunView, situation: Situation, plan: AttemptPlan) -> dict[str, Any]:
    """Return the operator's part of status as it should be now, in wire form, without `run`."""
    old = operator_part(view.run.status)
    if isinstance(situation, Settling) and situation.kind == "Exit":
        return old  # the exit is published: the next and last write waits for the pod's end
    scene = Scene(view, show(view, situation, plan))
    generation = observed_generation(view, situation, plan)
    drafts = list(draft_conditions(scene))
    conditions = merge_conditions(view.run.status.conditions, drafts, generation, view.now)
    status = old | {
        "observedGeneration": generation,
        "phase": "AwaitingApproval" if is_held_by_question(view, scene.situation) else phase_of(scene.situation),
        "conditions": [condition.to_raw() for condition in conditions],
    }
    if view.plan is not None:
        status["plan"] = view.plan.to_raw()
    if view.watch is not None and view.watch.is_news:
        status["supervision"] = record_to_raw(view.watch.record)
    if view.children:
        status["children"] = [report.to_raw() for report in view.children]
    return status | _render_attempt(scene, plan, old) | _render_end(scene, old)


def operator_part(status: AgentRunStatus) -> dict[str, Any]:
    """Return what the operator has reported, in wire form."""
    return {name: value for name, value in status.to_raw().items() if name != "run"}


def observed_generation(view: RunView, situation: Situation, plan: AttemptPlan) -> int:
    """Return the generation to acknowledge: the new one, unless a directive of it may land within moments."""
    newest = view.run.metadata.generation or 0
    if isinstance(situation, Ended):
        return newest  # the last word: `kubectl wait` overlooks an older one
    old = view.run.status.observed_generation or 0
    is_fresh = view.seen.directive is not None and view.now - view.seen.directive < DIRECTIVE_PATIENCE
    # What begins an attempt is acknowledged in its write: whoever asked learns that somebody is at it.
    is_kept = old > 0 and is_fresh and not isinstance(plan, BeginAttempt) and bool(pending_directives(view))
    return old if is_kept else newest


def _render_attempt(scene: Scene, plan: AttemptPlan, old: Mapping[str, Any]) -> dict[str, Any]:
    view = scene.view
    if isinstance(plan, BeginAttempt):
        attempt: dict[str, Any] = {
            "attempt": plan.number,
            "pod": {"name": pod_name(view.run.metadata.name, plan.number)},
            "attempts": plan.attempts.to_raw(),
        }
        if "startTime" not in old:
            attempt["startTime"] = format_time(view.now)
        return attempt
    if isinstance(scene.situation, Live | Parked | Settling) and view.pod is not None and view.pod.node is not None:
        attempts = {name: value for name, value in view.attempts.to_raw().items() if name != "nextRetryTime"}
        return {"pod": {"name": view.pod.name, "node": view.pod.node}, "attempts": attempts}
    return {}


def _render_end(scene: Scene, old: Mapping[str, Any]) -> dict[str, Any]:
    situation = scene.situation
    if not isinstance(situation, Ended) or "completionTime" in old:
        return {}
    exit_report = {"signal": situation.signal, "reason": situation.reason, "message": situation.message[:4096]}
    end: dict[str, Any] = {"exit": exit_report, "completionTime": format_exact_time(scene.view.now)}
    result = scene.view.snapshot.result if scene.view.snapshot else None
    if result is not None:
        end["result"] = bounded_result(result)
    return end


def bounded_result(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result, or its size where it is larger than what status may hold."""
    size = len(json.dumps(result, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    return result if size <= MAX_RESULT_BYTES else {"bytes": size, "limit": MAX_RESULT_BYTES, "truncated": True}


def phase_of(situation: Shown) -> str:
    """Return the phase, a summary for people."""
    match situation:
        case Blocked() | Starting():
            return "Pending"
        case Live():
            return "Running"
        case Settling():
            return "Pending" if situation.kind == "Removal" else "Running"
        case Parked():
            return PHASE_OF_PARK.get(situation.reason, "Running")
        case Ended():
            return phase_of_end(situation.signal, situation.reason)
        case _:
            assert_never(situation)


def phase_of_end(signal: str, reason: str) -> str:
    """Return the phase of a run that ended so."""
    if reason in SUCCESS_REASONS:
        return "Succeeded"
    return "Aborted" if reason in ABORTED_REASONS or signal == "aborted" else "Failed"
