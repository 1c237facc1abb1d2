"""The live view: where a run is, what it has spent, what it called last, and how to steer it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.runs.interventions import action_line
from pilothouse_cli.runs.port import snapshot_of
from pilothouse_cli.terminal import clean_line
from pilothouse_cli.views.tables import age, control_lines, cost_line, parked_lines, phase_text, spend, step_line
from pilothouse_control.directives import is_finished
from pilothouse_engine.ports import Frame

NEWEST_FRAMES = 6


def live_view(
    run: AgentRun, frames: Sequence[Frame], now: datetime, steer_hint: str, message: str = ""
) -> RenderableType:
    """Return the view; `frames` are the newest, `steer_hint` is the program's name, `message` stands last."""
    snapshot = snapshot_of(run)
    head = Text()
    head.append(run.metadata.name, style="bold")
    head.append("  ")
    head.append_text(phase_text(run))
    head.append(f"  {step_line(snapshot)}  ")
    head.append(age(run.metadata.creation_timestamp, now), style="dim")

    gauges = Table.grid(padding=(0, 1))
    gauges.add_row("tokens", _bar(snapshot.tokens.used + snapshot.tokens.held, snapshot.tokens.budget), _tokens(run))
    gauges.add_row("iterations", _bar(snapshot.iteration, snapshot.max_iterations), str(snapshot.iteration))
    gauges.add_row("cost", "", cost_line(snapshot))

    lines = [line for frame in frames if (line := frame_line(frame)) is not None][-NEWEST_FRAMES:]
    newest = [Text(f"  {line}") for line in lines]
    controls = [Text(f"  {line}", style="magenta") for line in control_lines(snapshot.control)]
    waits = [Text(f"  {line}", style="magenta") for line in parked_lines(run, snapshot)]
    last = [Text(message, style="bold")] if message else _how_to_steer(run, steer_hint)
    # A small window cuts from below: what waits for a person stands above what merely happened.
    return Group(head, gauges, *waits, *controls, *newest, *last)


def _tokens(run: AgentRun) -> str:
    tokens = snapshot_of(run).tokens
    return spend(tokens.used, tokens.budget, tokens.held)


def _bar(value: int, limit: int | None) -> RenderableType:
    return ProgressBar(total=limit, completed=value, width=24) if limit else ""


def _how_to_steer(run: AgentRun, hint: str) -> list[Text]:
    if is_finished(run):
        return []
    verbs = f"{hint} pause │ steer │ limit │ finish │ abort {run.metadata.name}"
    return [Text(f"from another terminal: {verbs}", style="dim")]


def frame_line(frame: Frame) -> str | None:
    """Return a frame as one line of a log, None for one that says nothing to a person."""
    kind = str(frame.get("kind", ""))
    if kind not in _FRAME_LINES or (kind == "Outcome" and not frame.get("reason")):
        return None  # an Outcome without a reason is told by its Step frame
    line = _FRAME_LINES[kind](frame)
    turn = frame.get("turn")
    return clean_line(f"turn {turn}: {line}" if turn is not None else line)


def _step(frame: Mapping[str, Any]) -> str:
    signal = f" with {frame['signal']}" if frame.get("signal") else ""
    return f"step {frame.get('step')} {str(frame.get('event', '')).lower()}{signal}"


def _iteration(frame: Mapping[str, Any]) -> str:
    calls = frame.get("toolCalls") or 0
    cut = f", prompt cut: level {frame['level']}" if frame.get("level") else ""
    return f"iteration {frame.get('iteration')}, {frame.get('tokens')} tokens, {calls} tool calls{cut}"


def _tool_call(frame: Mapping[str, Any]) -> str:
    seconds = frame.get("seconds")
    took = f" in {seconds:.2f} s" if isinstance(seconds, int | float) else ""
    cut = f", cut from {frame['cutFrom']:,} characters" if isinstance(frame.get("cutFrom"), int) else ""
    return f"{frame.get('tool')} {frame.get('code') or 'ok'}{took}{cut}"


def _guardrail(frame: Mapping[str, Any]) -> str:
    return f"guardrail {frame.get('gate')}, {frame.get('check')}: {frame.get('verdict')}"


def _tools(frame: Mapping[str, Any]) -> str:
    line = f"step {frame.get('step')} offers {frame.get('offered')} tools of MCP servers"
    if left_out := frame.get("leftOut"):
        line += f", without {', '.join(map(str, left_out))}"
    return line if not frame.get("warnings") else f"{line} (warnings in the runner's log: {frame['warnings']})"


def _control(frame: Mapping[str, Any]) -> str:
    name = f" {frame['id']}" if frame.get("id") else ""
    at = f" at turn {frame['landedTurn']}" if frame.get("landedTurn") is not None else ""
    return f"{frame.get('directive')}{name} {str(frame.get('landing', '')).lower()}{at}"


def _policy(frame: Mapping[str, Any]) -> str:
    return f"policy {frame.get('rule') or '(inputs)'}: {frame.get('verdict')} at {frame.get('at')}"


_PARK_EVENTS = {
    "Began": "parked",
    "Ended": "goes on after",
    "Released": "let go while",
    "TimedOut": "waited too long",
}


def _park(frame: Mapping[str, Any]) -> str:
    event = _PARK_EVENTS.get(str(frame.get("event")), "park")
    why = f": {frame['message']}" if frame.get("message") else ""
    verdict = f" ({frame['verdict']})" if frame.get("verdict") else ""
    seconds = f" ({frame['seconds']:g} s)" if isinstance(frame.get("seconds"), int | float) else ""
    return f"{event}: {frame.get('reason')}{verdict}{seconds}{why}"


def _outcome(frame: Mapping[str, Any]) -> str:
    what = f"step {frame['step']}" if frame.get("step") else "run"  # a step's may be routed: the run goes on
    return f"{what} ended with {frame.get('signal')} ({frame.get('reason')})"


def _hook(frame: Mapping[str, Any]) -> str:
    what = " ".join(str(frame[key]) for key in ("event", "step", "tool", "signal") if frame.get(key))
    result = str(frame.get("result", "")).lower()
    failed = "" if result == "done" else f" {result}: {frame.get('why')}"
    return " ".join(filter(None, ("hook", str(frame.get("hook")), what))) + failed


_FRAME_LINES = {
    "Step": _step,
    "Tools": _tools,
    "Iteration": _iteration,
    "ToolCall": _tool_call,
    "Guardrail": _guardrail,
    "Control": _control,
    "Policy": _policy,
    "Park": _park,
    "Outcome": _outcome,
    "Hook": _hook,
    "Supervisor": action_line,
}
