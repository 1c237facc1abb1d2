"""`list`, `show`, `result`, `trace`, `watch`."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.commands.places import Place
from pilothouse_cli.exits import EXIT_FAILED, EXIT_SUCCEEDED, CliError, exit_code
from pilothouse_cli.runs.interventions import frames_of, with_actions
from pilothouse_cli.runs.port import Runs
from pilothouse_cli.runs.results import Reference, result_of_journal, stored_result
from pilothouse_cli.runs.turns import TurnRow
from pilothouse_cli.terminal import clean, clean_line, print_data, print_names, say, show, stdout
from pilothouse_cli.views.live import frame_line, live_view
from pilothouse_cli.views.tables import run_view, runs_table, turns_view
from pilothouse_control.directives import is_finished
from pilothouse_engine.ports import Frame

WATCH_SECONDS = 1.0


def list_runs(place: Place, output: str) -> int:
    """Print all runs."""
    runs = place.all_runs()
    found, unreadable = runs.all(), runs.unreadable()
    if output == "name":
        print_names(run.metadata.name for run in found)
    elif output != "table":
        print_data({"apiVersion": "v1", "kind": "List", "items": [raw_run(run) for run in found]}, output)
    elif found:
        show(runs_table(found, datetime.now(UTC)))
    elif not unreadable:
        say(f"there are no runs in {runs.where}; start one with: pilothouse run PATH")
    for name, why in unreadable.items():
        say(f"run {clean_line(name)} is left out: {clean(why)}")
    return EXIT_SUCCEEDED


def show_run(place: Place, name: str, output: str) -> int:
    """Print one run."""
    run = place.runs_of(name).get(name)
    print_run(run, output)
    return EXIT_SUCCEEDED


def print_result(place: Place, name: str, output: str) -> int:
    """Print the result of a run, whole, however large it is."""
    runs = place.runs_of(name)
    run = runs.get(name)
    result = stored_result(run)
    if isinstance(result, Reference):
        result = result_of_journal(runs.entries(run), result, f"the journal of {name} in {runs.where}")
    if result is None:
        phase = run.status.phase or "Pending"
        next_step = "" if is_finished(run) else f"wait for its end: pilothouse watch {name}"
        raise CliError(f"run {name} has no result; it is {phase}", next_step, EXIT_FAILED)
    print_data(dict(result), "yaml" if output == "yaml" else "json")
    return EXIT_SUCCEEDED


def trace_run(place: Place, name: str, output: str) -> int:
    """Print the turns of a run."""
    runs = place.runs_of(name)
    run = runs.get(name)
    rows = with_actions(runs.turns(run), run.status.supervision)
    if output in ("json", "yaml"):
        print_data([turn_data(row) for row in rows], output)
    elif output == "name":
        print_names([name])
    elif rows:
        show(turns_view(rows))
    else:
        say(f"run {name} has made no turn yet")
    return EXIT_SUCCEEDED


def watch_run(place: Place, name: str, hint: str) -> int:
    """Show a run until it has ended; leaving changes nothing."""
    runs = place.runs_of(name)
    run = runs.get(name)
    console = stdout()
    try:
        if console.is_terminal:
            with Live(_view(run, hint), console=console, refresh_per_second=4) as live:
                while not is_finished(run):
                    run = runs.wait_for_change(run, WATCH_SECONDS)
                    live.update(_view(run, hint))
        else:
            run = _follow_lines(runs, run)
    except KeyboardInterrupt:
        return EXIT_SUCCEEDED
    return exit_code(run)


def _view(run: AgentRun, hint: str) -> RenderableType:
    return live_view(run, frames_of(run), datetime.now(UTC), hint)


def _follow_lines(runs: Runs, run: AgentRun) -> AgentRun:
    seen: list[Frame] = []
    while True:
        trace = frames_of(run)
        for frame in trace:
            line = frame_line(frame)
            if frame not in seen and line is not None:
                sys.stdout.write(line + "\n")
        sys.stdout.flush()
        seen = list(trace)
        if is_finished(run):
            return run
        run = runs.wait_for_change(run, WATCH_SECONDS)


def print_run(run: AgentRun, output: str, turns: Sequence[TurnRow] = ()) -> None:
    """Print a run, with its turns where they are given."""
    if output == "name":
        print_names([run.metadata.name])
    elif output != "table":
        print_data(raw_run(run), output)
    else:
        if turns:
            show(turns_view(with_actions(turns, run.status.supervision)))
            show(Text())
        show(run_view(run, datetime.now(UTC)))


def raw_run(run: AgentRun) -> dict[str, object]:
    """Return a run as an object for programs."""
    return {"apiVersion": run.api_version, "kind": "AgentRun", **run.to_raw()}


def turn_data(row: TurnRow) -> dict[str, object]:
    """Return a turn for a program."""
    return {
        "turn": row.turn,
        "step": row.step,
        "kind": row.kind,
        "iteration": row.iteration,
        "calls": [
            {"tool": call.tool, "code": call.code, "seconds": call.seconds, "cutFrom": call.cut} for call in row.calls
        ],
        "tokens": {"input": row.input_tokens, "output": row.output_tokens},
        "costNanoUSD": row.cost,
        "finish": row.finish,
        "ends": row.ends,
        "why": row.why,
        "notes": list(row.notes),
        "gates": list(row.gates),
    }
