"""`run` and `resume` of local runs: the host with what a person sees of it."""

from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console, RenderableType
from rich.live import Live

from pilothouse_api.patches import merge_patch
from pilothouse_api.plan import Plan
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_cli.authoring.manifests import Manifests, apply_settings, parse_input, read_documents, run_settings
from pilothouse_cli.commands.authoring import check_manifests
from pilothouse_cli.commands.inspecting import print_run
from pilothouse_cli.exits import EXIT_USAGE, CliError, exit_code, first_problem
from pilothouse_cli.local.creation import LOCAL_PLATFORM, check_name, create_run, new_name, new_run
from pilothouse_cli.local.host import SilentSink, advance, lost_error
from pilothouse_cli.local.runs import LocalRuns
from pilothouse_cli.local.state import STATE_FOLDER, SUPERVISORS, RunFolder, RunIsGone
from pilothouse_cli.runs.port import snapshot_of, target_of
from pilothouse_cli.terminal import say, stderr, stdout
from pilothouse_cli.views.live import frame_line, live_view
from pilothouse_control.lineage import delegates_of
from pilothouse_control.resolution import NotResolved, resolve_plan
from pilothouse_control.world import References
from pilothouse_engine.observers import HookEvent, Observer
from pilothouse_engine.ports import Frame, FrameSink
from pilothouse_engine.run import Lost
from pilothouse_runner.log_lines import BoundedLines

REFRESH_PER_SECOND = 8
RELEASING = "letting go of the run; Ctrl-C once more kills it"


class LineSink:
    """Tells each frame on a line, for terminals without a live view and for logs; a slow reader loses lines."""

    def __init__(self, console: Console) -> None:
        self._lines = BoundedLines(console.print, "progress-lines")

    def emit(self, frame: Frame) -> None:
        """Take one frame; never waits."""
        line = frame_line(frame)
        if line is not None:
            lost = f" ({self._lines.lost} lines were lost before this one)" if self._lines.lost else ""
            self._lines.put(f"{line}{lost}")

    def close(self) -> None:
        """Tell what was not told yet, for a moment."""
        self._lines.close()


class HookLines(Observer):
    """Tells of hooks that log, and of those that fail, among the frames of a sink."""

    def __init__(self, sink: FrameSink) -> None:
        self._sink = sink

    def hook_fired(self, event: HookEvent) -> None:
        """Tell of one hook."""
        if event.action == "Log" or event.result != "Done":
            what = {"hook": event.hook, "event": event.event, "step": event.step, "tool": event.tool}
            self._sink.emit({"kind": "Hook", **what, "signal": event.signal, "result": event.result, "why": event.why})


class LiveSink:
    """Keeps the newest frames for the live view."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._frames: deque[Frame] = deque(maxlen=50)
        self._run = folder.read()
        self._message = ""

    def say_releasing(self) -> None:
        """Show that the run is being let go."""
        self._message = RELEASING

    def emit(self, frame: Frame) -> None:
        """Keep one frame."""
        self._frames.append(frame)

    def view(self) -> RenderableType:
        """Return the view of now; called by the terminal's own thread."""
        try:
            self._run = self._folder.read()
        except (RunIsGone, CliError):
            pass  # the host finds out by itself; the view shows what was last there
        return live_view(self._run, list(self._frames), datetime.now(UTC), "pilothouse", self._message)


def run_manifests(
    paths: Sequence[Path],
    *,
    workflow: str | None,
    inputs: Sequence[str],
    settings: Sequence[str],
    name: str | None,
    output: str,
    live: bool,
    session: str | None = None,
    judge_models: Path | None = None,
) -> int:
    """Run a workflow of some manifests here, from its beginning; return the exit code."""
    documents = apply_settings(read_documents(paths), settings)
    check_manifests(documents)
    manifests = Manifests.of(documents)
    template = manifests.template(workflow)
    spec = merge_patch(template.spec.to_raw(), run_settings(settings))
    spec["input"] = parse_input(inputs, spec.get("input") or {})
    if session is not None:
        spec["session"] = session
    target = target_of(template)
    try:
        draft = AgentRun.model_validate({"kind": "AgentRun", "metadata": template.metadata.to_raw(), "spec": spec})
    except ValidationError as error:
        raise CliError(f"the run is not valid: {first_problem(error)}") from None
    run = new_run(draft, check_name(name) if name else new_name(target), target)
    known = manifests.references(LOCAL_PLATFORM)
    plan = resolve_plan(run, known)
    if isinstance(plan, NotResolved):
        raise CliError(plan.message, _next_step(plan), EXIT_USAGE)
    others = _for_children(plan, known) | _for_supervisors(run, plan, manifests, judge_models)
    folder = create_run(run, plan, Path(STATE_FOLDER), others)
    return drive(folder, output, live=live)


def _for_children(plan: Plan, known: References) -> dict[str, str]:
    """Return the file that children of a run are made from, where it may have some."""
    if not delegates_of(plan):
        return {}
    from pilothouse_cli.local.children import MANIFESTS, manifests_text

    return {MANIFESTS: manifests_text(known)}


def _for_supervisors(run: AgentRun, plan: Plan, manifests: Manifests, judge_models: Path | None) -> dict[str, str]:
    """Return the file that a run, or a child of it, is supervised from; raises CliError where it may not start."""
    if not manifests.supervisors:
        return {}
    from pilothouse_cli.local.supervision import keep_supervisors, supervisors_text

    kept = keep_supervisors(manifests, judge_models, Path(STATE_FOLDER))
    bindings = kept.bind(run, plan)
    if bindings.problem is not None:
        raise CliError(bindings.problem[1], "", EXIT_USAGE)
    return {SUPERVISORS: supervisors_text(kept)} if bindings.bound or delegates_of(plan) else {}


def _next_step(plan: NotResolved) -> str:
    if plan.reason == "InputInvalid":
        return "set it with --input key=value or --input @file"
    return "name the folder that holds it too" if plan.is_waiting else ""


def drive(folder: RunFolder, output: str, *, live: bool) -> int:
    """Advance a run here until it ends or is let go; print what came of it and return the exit code."""
    console = stdout()
    if output == "table" and live and console.is_terminal:
        view = LiveSink(folder)
        with Live(get_renderable=view.view, console=console, refresh_per_second=REFRESH_PER_SECOND):
            end = advance(folder, view, view.say_releasing, [HookLines(view)])
    elif output == "table":
        sink = LineSink(stderr())
        try:
            end = advance(folder, sink, _say_releasing, [HookLines(sink)])
        finally:
            sink.close()
    else:
        end = advance(folder, SilentSink(), _say_releasing)
    if isinstance(end, Lost):
        raise lost_error(folder.name, end)
    runs = LocalRuns.here()
    run = runs.get(folder.name)
    print_run(run, output, runs.turns(run) if output == "table" else ())
    parked = snapshot_of(run).parked
    if parked is not None and parked.released:
        is_asking = bool(snapshot_of(run).pending_approvals)
        first = f"decide with: pilothouse approve {folder.name} (or deny), then " if is_asking else ""
        say(f"let go of run {folder.name} at turn {parked.turn}; {first}go on with: pilothouse resume {folder.name}")
    return exit_code(run)


def _say_releasing() -> None:
    say(RELEASING)
