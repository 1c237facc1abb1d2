"""What a terminal shows of runs: pure functions from objects to tables."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agentrun import ChildReport, ControlAnswer, Landing, PendingApproval, Snapshot, Supervision
from pilothouse_cli.runs.interventions import action_lines, clock_line, watcher_lines, watcher_names
from pilothouse_cli.runs.pending import PendingCall
from pilothouse_cli.runs.port import snapshot_of, target_of
from pilothouse_cli.runs.results import Reference, stored_result
from pilothouse_cli.runs.turns import NANO_DOLLARS, CallRow, TurnRow
from pilothouse_cli.terminal import clean, clean_json, clean_line
from pilothouse_control.children import parent_of
from pilothouse_control.directives import is_finished
from pilothouse_control.findings import Finding

MAX_ARGUMENT_CHARS = 1000
"""Longest line that shows the arguments of a call that waits for a person."""

MAX_ARGUMENT_CELL = 120
"""Longest cell that shows them in a table of many."""

PHASE_STYLES: Mapping[str, str] = {
    "Pending": "yellow",
    "Running": "cyan",
    "Paused": "magenta",
    "AwaitingApproval": "magenta",
    "Succeeded": "green",
    "Failed": "red",
    "Aborted": "red",
}


UNBROKEN = frozenset({"NAME", "RUN", "CALL", "TURN", "AGE", "EXPIRES"})
"""Columns whose cells stay on one line."""


def name_of(run: AgentRun) -> str:
    """Return the name of a run: what it is called where all are of one place."""
    return run.metadata.name


def runs_table(runs: Sequence[AgentRun], now: datetime, called: Callable[[AgentRun], str] = name_of) -> Table:
    """Return runs as rows."""
    is_watched = any(watcher_names(run.status.supervision) for run in runs)
    table = _table("NAME", "WORKFLOW", "PHASE", "STEP", "TURN", "TOKENS", "COST", "AGE", *["WATCHED BY"][:is_watched])
    for depth, run in in_families(runs):
        snapshot = snapshot_of(run)
        table.add_row(
            f"{'  ' * (depth - 1)}└ {called(run)}" if depth else called(run),
            target_of(run),
            phase_text(run),
            clean_line(snapshot.step or "-"),
            str(snapshot.turn),
            f"{snapshot.tokens.used:,}",
            "?" if is_cost_unknown(snapshot) else money(snapshot.cost.used_usd),
            age(run.metadata.creation_timestamp, now),
            *[clean_line(watcher_names(run.status.supervision) or "-", 63)][:is_watched],
        )
    return table


def in_families(runs: Sequence[AgentRun]) -> list[tuple[int, AgentRun]]:
    """Return runs with their depth, children below their parents; one whose parent is not there stands for itself."""
    known = {run.metadata.uid for run in runs}
    below: dict[str, list[AgentRun]] = {}
    for run in runs:
        owner = parent_of(run)
        below.setdefault(owner[1] if owner is not None and owner[1] in known else "", []).append(run)
    waiting = [(0, run) for run in reversed(below.get("", ()))]
    ordered = []
    while waiting:
        depth, run = waiting.pop()
        ordered.append((depth, run))
        waiting += [(depth + 1, child) for child in reversed(below.get(run.metadata.uid or "-", ()))]
    return ordered


def run_view(run: AgentRun, now: datetime) -> RenderableType:
    """Return one run in full."""
    snapshot = snapshot_of(run)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in _facts(run, snapshot, now):
        facts.add_row(name, value)
    parts: list[RenderableType] = [facts]
    if snapshot.steps:
        parts += [Text(), _steps_table(snapshot)]
    result = stored_result(run)
    if isinstance(result, Reference):
        said = f"{result.size:,} bytes; all of it: pilothouse result {run.metadata.name}"
        parts += [Text(), Text("Result", style="bold"), Text(said)]
    elif result is not None:
        parts += [Text(), Text("Result", style="bold"), Text(clean_json(dict(result)))]
    elif snapshot.exit is not None and snapshot.exit.partial:
        parts += [Text(), Text("Partial answer", style="bold"), Text(clean(snapshot.exit.partial))]
    return Group(*parts)


def _facts(run: AgentRun, snapshot: Snapshot, now: datetime) -> Iterable[tuple[str, str | Text]]:
    yield "Run", run.metadata.name
    yield "Workflow", target_of(run)
    yield "Phase", _phase_line(run)
    if snapshot.step is not None:
        yield "Step", step_line(snapshot)
    yield "Tokens", spend(snapshot.tokens.used, snapshot.tokens.budget, snapshot.tokens.held)
    yield "Cost", cost_line(snapshot)
    if snapshot.tool_calls or snapshot.undeclared_tool_calls:
        yield "Tool calls", tool_counts(snapshot)
    yield "Started", age(run.metadata.creation_timestamp, now) + " ago"
    for line in control_lines(snapshot.control):
        yield "Control", line
    for unknown in snapshot.effects.unknown:
        yield "Effect unknown", Text(f"{clean_line(unknown.tool)} ({clean_line(unknown.call_id)})", style="red")
    for report in run.status.children:
        yield "Child", child_line(report)
        for asked in report.pending_approvals if report.exit is None else ():
            what = f"{clean_line(asked.tool)} of {clean_line(asked.run)} waits for a person"
            yield "Waits", f"{what}: pilothouse approve {clean_line(asked.run)} {clean_line(asked.call_id)}"
    for message in parked_lines(run, snapshot):
        yield "Waits", message
    yield from _supervision_facts(run.status.supervision)


def _supervision_facts(supervision: Supervision | None) -> Iterable[tuple[str, str | Text]]:
    for line in watcher_lines(supervision):
        yield "Watched by", clean_line(line, 500)
    seen = clock_line(supervision)
    if seen is not None:
        yield "Seen", seen
    for line in action_lines(supervision):
        yield "Intervention", Text(clean_line(line, 500), style="magenta")


def child_line(report: ChildReport) -> str:
    """Return what is known of a child: its name, or the call that it was to do, and how it ended."""
    name = clean_line(report.name or report.call_id)
    if report.exit is None:
        return f"{name}: under way"
    return f"{name}: {clean_line(report.exit.signal)} ({clean_line(report.exit.reason)})"


def _phase_line(run: AgentRun) -> Text:
    line = phase_text(run)
    if run.status.exit is not None:
        why = f"{run.status.exit.reason}: {run.status.exit.message}".rstrip(": ")
        line.append(f"  {clean_line(why, 500)}")
    elif run.status.phase == "Pending" and run.status.conditions:
        condition = run.status.conditions[0]
        line.append(f"  {clean_line(f'{condition.reason}: {condition.message}', 500)}")
    return line


def _steps_table(snapshot: Snapshot) -> Table:
    table = _table("STEP", "VISIT", "KIND", "SIGNAL", "ITERATIONS", "TOKENS")
    for step in snapshot.steps:
        signal = clean_line(step.signal) if step.signal else "…"
        table.add_row(
            clean_line(step.id),
            str(step.visit),
            clean_line(step.kind),
            signal,
            str(step.iterations),
            f"{step.tokens:,}",
        )
    return table


def turns_view(rows: Sequence[TurnRow]) -> RenderableType:
    """Return the turns of a run as rows, and below them why steps ended abnormally."""
    ends = [f"turn {row.turn}: {row.step} ended with {row.ends}: {row.why}" for row in rows if _says_more(row)]
    whys = [Text(clean_line(end, 1000), style="red") for end in ends]
    return Group(_turns_table(rows), *([Text(), *whys] if whys else ()))


def _says_more(row: TurnRow) -> bool:
    return row.why.lower() not in ("", row.ends)  # Aborted adds nothing to aborted


def _turns_table(rows: Sequence[TurnRow]) -> Table:
    table = _table("TURN", "STEP", "ITER", "CALLS", "TOKENS", "COST", "ENDS")
    for row in rows:
        for note in row.notes:
            table.add_row("", Text(clean_line(note), style="magenta"))
        table.add_row(
            str(row.turn),
            clean_line(row.step),
            str(row.iteration) if row.iteration else "",
            _calls_and_gates(row),
            f"{row.tokens:,}" if row.tokens else "",
            money(str(Decimal(row.cost) / NANO_DOLLARS)) if row.cost else "",
            clean_line(row.ends) or Text(clean_line(row.finish), style="dim"),
        )
    return table


def _calls_and_gates(row: TurnRow) -> Text:
    text = call_texts(row.calls)
    for gate in row.gates:
        text.append("\n" if text else "")
        text.append(clean_line(gate), style="yellow")
    return text


def call_texts(calls: Sequence[CallRow]) -> Text:
    """Return calls on lines of their own, with code and seconds."""
    text = Text()
    for number, call in enumerate(calls):
        if number:
            text.append("\n")
        text.append(clean_line(call.tool, 63))
        if not call.is_done:
            text.append(" …", style="cyan")
        elif call.code:
            text.append(f" {clean_line(call.code, 63)}", style="red")
        if call.seconds is not None:
            text.append(f" {call.seconds:.2f}s", style="dim")
        if call.cut is not None:
            text.append(f" cut from {call.cut:,} characters", style="dim")
    return text


def findings_view(findings: Sequence[Finding]) -> RenderableType:
    """Return what validation found: file, line, field, what, what to do."""
    return Group(*(_finding_text(finding) for finding in findings))


def _finding_text(finding: Finding) -> Text:
    text = Text()
    place = f"{finding.file}:{finding.line}:{finding.column}" if finding.line else finding.file
    text.append(f"{clean_line(place)}: ", style="bold")
    text.append(finding.severity.lower(), style="red" if finding.is_error else "yellow")
    owner = f"{finding.kind}/{finding.name}" if finding.kind else ""
    if subject := " ".join(filter(None, (owner, finding.field))):
        text.append(f": {clean_line(subject)}")
    text.append(f": {clean_line(finding.what, 1000)}")
    if finding.hint:
        text.append(f"\n    {clean_line(finding.hint, 1000)}", style="dim")
    return text


def finding_data(finding: Finding) -> dict[str, Any]:
    """Return a finding for a program."""
    return {
        "severity": finding.severity,
        "check": finding.check,
        "kind": finding.kind,
        "name": finding.name,
        "field": finding.field,
        "message": finding.what,
        "hint": finding.hint,
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
    }


# ---------------------------------------------------------------- pieces


def phase_text(run: AgentRun) -> Text:
    """Return the phase in its colour."""
    phase = run.status.phase or "Pending"
    return Text(clean_line(phase), style=PHASE_STYLES.get(phase, ""))


def step_line(snapshot: Snapshot) -> str:
    """Return where the run is."""
    line = f"{clean_line(snapshot.step or '-')}, turn {snapshot.turn}"
    if snapshot.iteration:
        most = f" of {snapshot.max_iterations}" if snapshot.max_iterations else ""
        line += f", iteration {snapshot.iteration}{most}"
    return line if snapshot.visit <= 1 else f"{line}, visit {snapshot.visit}"


def spend(used: int, budget: int | None, held: int = 0) -> str:
    """Return what is used of a budget."""
    line = f"{used:,}" if budget is None else f"{used:,} of {budget:,}"
    return f"{line} ({held:,} held)" if held else line


def is_cost_unknown(snapshot: Snapshot) -> bool:
    """Tell whether nothing is known of what the run has cost."""
    return snapshot.cost.unknown and not float(snapshot.cost.used_usd or 0)


def cost_line(snapshot: Snapshot) -> str:
    """Return what the run has cost."""
    if is_cost_unknown(snapshot):
        return "not known: no price"
    line = money(snapshot.cost.used_usd)
    if snapshot.cost.budget_usd is not None:
        line += f" of {money(snapshot.cost.budget_usd)}"
    return f"{line} and calls of unknown price" if snapshot.cost.unknown else line


def tool_counts(snapshot: Snapshot) -> str:
    """Return how often each tool was called."""
    counts = [f"{clean_line(tool, 63)} {count}" for tool, count in sorted(snapshot.tool_calls.items())]
    if snapshot.undeclared_tool_calls:
        counts.append(f"(undeclared) {snapshot.undeclared_tool_calls}")
    errors = f"; {snapshot.tool_errors} with errors" if snapshot.tool_errors else ""
    return ", ".join(counts) + errors


def control_lines(control: ControlAnswer) -> list[str]:
    """Return what became of directives, one line each."""
    lines = []
    if control.mode.value != "Run" or control.mode.turn:
        lines.append(f"{clean_line(control.mode.value)} landed at turn {control.mode.turn}")
    if control.mode.state:
        lines.append(f"a newer mode is {clean_line(control.mode.state)}")
    lines += [f"steer {clean_line(steer_id)} {landing_text(landing)}" for steer_id, landing in control.steer.items()]
    lines += [f"decision on {clean_line(call)} {landing_text(landing)}" for call, landing in control.approvals.items()]
    if control.limits is not None:
        lines.append(f"limits hold from turn {control.limits.turn}")
    return lines


def landing_text(landing: Landing) -> str:
    """Return what became of one directive."""
    at = f" at turn {landing.turn}" if landing.turn is not None else ""
    why = f": {clean_line(landing.message, 300)}" if landing.message else ""
    return f"{'landed' if landing.state == 'Landed' else landing.state}{at}{why}"


def parked_lines(run: AgentRun, snapshot: Snapshot) -> list[str]:
    """Return what a run waits for, and how it goes on."""
    if snapshot.parked is None or is_finished(run):
        return []
    where = ", released" if snapshot.parked.released else ""
    if snapshot.pending_approvals:
        since = f"{clean_line(snapshot.parked.reason)} since turn {snapshot.parked.turn}{where}"
        waiting = [line for pending in snapshot.pending_approvals for line in pending_lines(run, pending)]
        return [since, *waiting]
    if snapshot.parked.reason == "AwaitingChild" and not snapshot.parked.released:
        return [f"{clean_line(snapshot.parked.reason)} since turn {snapshot.parked.turn}"]
    wake = f", until {snapshot.parked.wake}" if snapshot.parked.wake and not snapshot.parked.released else ""
    return [
        f"{clean_line(snapshot.parked.reason)} since turn {snapshot.parked.turn}{where}{clean_line(wake)}; "
        f"goes on with: pilothouse resume {run.metadata.name}"
    ]


def pending_lines(run: AgentRun, pending: PendingApproval) -> list[str]:
    """Return what waits for a person, and how it is decided."""
    shown = clean_line(json.dumps(pending.arguments, ensure_ascii=False), MAX_ARGUMENT_CHARS)
    until = f" until {clean_line(pending.expires_at)}" if pending.expires_at else ""
    verbs = f"pilothouse approve {run.metadata.name} {clean_line(pending.call_id)}"
    return [f"{clean_line(pending.tool)} {shown} waits for a person{until}", f"decide with: {verbs} (or deny)"]


def pending_table(calls: Sequence[PendingCall], now: datetime, called: Callable[[AgentRun], str] = name_of) -> Table:
    """Return calls that wait for a person as rows; arguments as they are published, masked."""
    table = _table("RUN", "CALL", "TOOL", "ARGUMENTS", "AGE", "EXPIRES", "DECISION")
    for call in calls:
        table.add_row(
            called(call.run),
            clean_line(call.call, 63),
            clean_line(call.tool, 63),
            clean_line(json.dumps(call.arguments, ensure_ascii=False), MAX_ARGUMENT_CELL),
            age(call.requested_at, now),
            f"in {until(call.expires_at, now)}" if call.expires_at else "-",
            _decision_text(call),
        )
    return table


def _decision_text(call: PendingCall) -> str:
    if call.given is None:
        return "-"
    by = f" by {clean_line(call.given.by, 63)}" if call.given.by else ""
    state = landing_text(call.answer) if call.answer is not None and call.is_open else "not landed yet"
    return f"{call.given.decision}{by}, {state}"


def pending_data(call: PendingCall) -> dict[str, Any]:
    """Return a call that waits for a program."""
    return {
        "run": call.run.metadata.name,
        "namespace": call.run.metadata.namespace,
        "workflow": target_of(call.run),
        "call": call.call,
        "tool": call.tool,
        "arguments": dict(call.arguments),
        "requestedAt": call.requested_at,
        "expiresAt": call.expires_at,
        "decision": None if call.given is None else call.given.decision,
    }


def money(amount: str) -> str:
    """Return an amount of US dollars with the digits that say something."""
    try:
        value = Decimal(amount)
    except ArithmeticError:
        return clean_line(amount, 30)
    return f"${value:.2f}" if value >= 1 or value == 0 else f"${value:.4f}"


def age(timestamp: str | None, now: datetime) -> str:
    """Return how long ago something was."""
    then = _moment(timestamp)
    return "-" if then is None else duration((now - then).total_seconds())


def until(timestamp: str, now: datetime) -> str:
    """Return how long it is until something."""
    then = _moment(timestamp)
    return "-" if then is None else duration((then - now).total_seconds())


def _moment(timestamp: str | None) -> datetime | None:
    try:
        then = datetime.fromisoformat(timestamp or "")
    except ValueError:
        return None
    return then if then.tzinfo else then.replace(tzinfo=UTC)


def duration(seconds: float) -> str:
    """Return a span of time as kubectl does: `12s`, `3m4s`, `5h`, `2d`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60}s" if whole % 60 else f"{whole // 60}m"
    return f"{whole // 3600}h" if whole < 86_400 else f"{whole // 86_400}d"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in columns:
        is_number = column in ("TURN", "TOKENS", "COST", "ITER", "VISIT", "ITERATIONS")
        table.add_column(column, justify="right" if is_number else "left", no_wrap=column in UNBROKEN)
    return table
