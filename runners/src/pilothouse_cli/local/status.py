"""The status of a local run: what the operator would say of it in a cluster, from the snapshot alone."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pilothouse_api.structs import RunExit, Snapshot
from pilothouse_api.v1alpha1.agentrun import FINISHED_PHASES

SUCCESS_REASONS = frozenset({"Complete", "FinishedEarly"})
ABORT_REASONS = frozenset({"Aborted", "PauseDeadline", "BarrierTimeout", "FinishedWithoutAnswer"})


def phase_of(snapshot: Snapshot) -> str:
    """Return the phase that a snapshot stands for."""
    if snapshot.exit is not None:
        return _phase_of_exit(snapshot.exit)
    if snapshot.parked is None:
        return "Running"
    if snapshot.parked.reason == "AwaitingApproval":
        return "AwaitingApproval"
    # No operator starts the next attempt of a local run: one that was let go waits for a person, whatever the reason.
    is_paused = snapshot.parked.reason == "Paused" or snapshot.parked.is_barrier_pause or snapshot.parked.released
    return "Paused" if is_paused else "Running"


def _phase_of_exit(run_exit: RunExit) -> str:
    if run_exit.reason in SUCCESS_REASONS:
        return "Succeeded"
    return "Aborted" if run_exit.reason in ABORT_REASONS else "Failed"


def report(raw_status: Mapping[str, Any], snapshot: Snapshot, generation: int, now: datetime) -> dict[str, Any]:
    """Return the status with a snapshot taken in: phase, conditions, exit and result follow from it."""
    time = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    phase = phase_of(snapshot)
    status = {
        **raw_status,
        "observedGeneration": generation,
        "phase": phase,
        "run": snapshot.to_raw(),
        "conditions": _conditions(raw_status, snapshot, phase, generation, time),
    }
    if snapshot.exit is not None:
        run_exit = snapshot.exit
        status["exit"] = {"signal": run_exit.signal, "reason": run_exit.reason, "message": run_exit.message}
        status.setdefault("completionTime", time)
        if snapshot.result is not None:
            status["result"] = snapshot.result
    return status


def _conditions(
    raw_status: Mapping[str, Any], snapshot: Snapshot, phase: str, generation: int, time: str
) -> list[dict[str, Any]]:
    reason, message = _reason(snapshot, phase)
    states = {"Ready": phase not in ("Failed", "Aborted"), "Stalled": phase in ("Failed", "Aborted")}
    if phase in FINISHED_PHASES:
        states |= {"Finished": True, "Complete" if phase == "Succeeded" else "Failed": True}
        states["EffectsSettled"] = not snapshot.effects.unknown
    elif phase != "Running":
        states[phase] = True
    before = {condition["type"]: condition for condition in raw_status.get("conditions", ())}
    return [
        _condition(before.get(kind), kind, "True" if is_true else "False", reason, message, generation, time)
        for kind, is_true in states.items()
    ]


def _reason(snapshot: Snapshot, phase: str) -> tuple[str, str]:
    if snapshot.exit is not None:
        return snapshot.exit.reason, snapshot.exit.message or f"The run ended with {snapshot.exit.signal}."
    if snapshot.parked is not None:
        where = "; its process has let go of it" if snapshot.parked.released else ""
        why = f": {snapshot.parked.message}" if snapshot.parked.message else "."
        return snapshot.parked.reason, f"Parked since turn {snapshot.parked.turn}{where}{why}"
    return "Running", f"In step {snapshot.step}, turn {snapshot.turn}." if snapshot.step else phase


def _condition(
    before: Mapping[str, Any] | None, kind: str, status: str, reason: str, message: str, generation: int, time: str
) -> dict[str, Any]:
    since = before["lastTransitionTime"] if before is not None and before["status"] == status else time
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": since,
    }
