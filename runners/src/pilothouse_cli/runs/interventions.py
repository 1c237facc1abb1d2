"""Supervision as people see it: who watches a run, what was done, and when, among the runner's own frames."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import Supervision, SupervisionAction, SupervisorRecord
from pilothouse_cli.runs.port import snapshot_of
from pilothouse_cli.runs.turns import TurnRow
from pilothouse_engine.ports import Frame

_LATE = datetime.max.replace(tzinfo=UTC)
_WORDS: Mapping[str, str] = {"Intended": "is about to be done", "Done": "", "Superseded": "superseded"}


def action_frame(action: SupervisionAction, *, with_landing: bool = True) -> dict[str, Any]:
    """Return an intervention in the form of the runner's frames."""
    frame = {
        "kind": "Supervisor",
        "turn": action.turn,
        "time": action.time,
        "supervisor": action.supervisor,
        "action": action.action,
        "source": action.source,
        "reason": action.reason,
        "state": action.state,
        "landedTurn": action.landed_turn if with_landing else None,
    }
    return {name: value for name, value in frame.items() if value is not None}


def frames_of(run: AgentRun) -> list[Frame]:
    """Return the newest frames of a run, and what was done to it meanwhile, by time."""
    frames: list[Frame] = list(snapshot_of(run).trace)
    actions = run.status.supervision.actions if run.status.supervision is not None else []
    if not actions:
        return frames
    since = min((_time(frame) for frame in frames), default=_LATE)
    # Each is shown once, when it is settled; where it landed is a frame of the runner's.
    settled = [action_frame(action, with_landing=False) for action in actions if action.state != "Intended"]
    newer = [frame for frame in settled if _time(frame) >= since or not frames]
    return sorted([*frames, *newer], key=_time)


def _time(frame: Frame) -> datetime:
    try:
        at = datetime.fromisoformat(str(frame.get("time")))
    except ValueError:
        return _LATE
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def action_line(frame: Mapping[str, Any]) -> str:
    """Return an intervention, or something else that is said of a supervisor, as one line."""
    who = f"supervisor {frame.get('supervisor')}"
    if "action" not in frame:
        return f"{who}: {frame.get('message')}"
    word = _WORDS.get(str(frame.get("state")), str(frame.get("state")).lower())
    landed = f", landed at turn {frame['landedTurn']}" if frame.get("landedTurn") is not None else ""
    mark = f" ({word})" if word else ""
    return f"{who}: {frame.get('action')}{mark} by {frame.get('source')}{landed}: {frame.get('reason')}"


def watcher_names(supervision: Supervision | None) -> str:
    """Return the names of those who watch a run, and how often they have done something to it; empty for nobody."""
    records = supervision.supervisors.values() if supervision is not None else ()
    return ", ".join(sorted(f"{record.name}{_done(record)}" for record in records))


def _done(record: SupervisorRecord) -> str:
    count = record.actions.pause + record.actions.steer + record.actions.abort
    return f" ({count})" if count else ""


def watcher_lines(supervision: Supervision | None) -> list[str]:
    """Return who watches a run, a line each."""
    records = supervision.supervisors.values() if supervision is not None else ()
    return [_watcher_line(record) for record in sorted(records, key=lambda record: record.name)]


def _watcher_line(record: SupervisorRecord) -> str:
    marks = [f"generation {record.generation}", "Sync" if record.spec.get("enforcement") == "Sync" else "Async"]
    marks += ["deleted, its last copy is in force"] if record.is_deleted else []
    line = f"{record.name} ({', '.join(marks)})"
    judge = record.judge
    if judge is None or not (judge.calls or judge.failures):
        return line
    said = f"{line}; judge: {judge.calls} asked, {judge.failures} failed, {judge.tokens_used:,} tokens"
    return f"{said}, the last failure: {judge.last_error}" if judge.last_error else said


def action_lines(supervision: Supervision | None) -> list[str]:
    """Return what was done, oldest first."""
    actions = supervision.actions if supervision is not None else []
    return [f"turn {action.turn}: {action_line(action_frame(action))}" for action in actions]


def clock_line(supervision: Supervision | None) -> str | None:
    """Return how far the Sync supervisors have seen the run; None where no turn waits for any."""
    if supervision is None or supervision.barrier is None:
        return None
    barrier, clock = supervision.barrier, supervision.clock
    seen = "nothing yet" if clock is None else f"turn {clock.turn}, {clock.journal_length} facts"
    return f"{seen}; a turn waits {barrier.timeout_seconds} s at most, then: {barrier.on_timeout}"


def with_actions(rows: Sequence[TurnRow], supervision: Supervision | None) -> list[TurnRow]:
    """Return the turns with what was done about each of them; of turns that are not kept, with the next one."""
    changed = list(rows)
    for action in supervision.actions if supervision is not None else ():
        place = _place(changed, action.turn)
        if place is not None:
            said = action_line(action_frame(action))
            changed[place] = replace(changed[place], gates=(*changed[place].gates, said))
    return changed


def _place(rows: Iterable[TurnRow], turn: int) -> int | None:
    places = [number for number, row in enumerate(rows) if row.turn >= turn]
    last = sum(1 for _ in rows) - 1
    return places[0] if places else (last if last >= 0 else None)
