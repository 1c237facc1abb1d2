"""The program: commands and their options. What a command does lies in `commands`, imported when it is called."""

import logging
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilothouse_cli.exits import EXIT_FAILED, EXIT_USAGE, CliError

if TYPE_CHECKING:
    from pilothouse_cli.commands.places import Place
    from pilothouse_cli.runs.pending import Choice

PLUGIN = "kubectl-pilothouse"
DEFAULT_TIMEOUT = 60.0

app = typer.Typer(
    name="pilothouse",
    help="Bounded, supervised, steerable LLM agents: run them here, steer them here and in a cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Output(StrEnum):
    """Forms of output."""

    table = "table"
    json = "json"
    yaml = "yaml"
    name = "name"


class GraphForm(StrEnum):
    """Forms of a graph."""

    text = "text"
    mermaid = "mermaid"
    svg = "svg"


def _run_names(incomplete: str) -> list[str]:
    from pilothouse_cli.local.state import STATE_FOLDER, all_folders

    return [folder.name for folder in all_folders(Path(STATE_FOLDER)) if folder.name.startswith(incomplete)]


RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.", autocompletion=_run_names)]
OneRun = Annotated[str | None, typer.Argument(metavar="RUN", help="Name of the run.", autocompletion=_run_names)]
Selector = Annotated[
    str | None, typer.Option("-l", "--selector", metavar="LABELS", help="Of runs with these labels: a label selector.")
]
OfWorkflow = Annotated[
    str | None, typer.Option("--workflow", metavar="NAME", help="Of runs of this workflow or agent.")
]
EveryRun = Annotated[bool, typer.Option("--all", help="Every run that has not ended there.")]
Wide = Annotated[bool, typer.Option("-A", "--all-namespaces", help="All namespaces of the cluster.")]
OfTool = Annotated[str | None, typer.Option("--tool", metavar="NAME", help="Calls of this tool.")]
EveryCall = Annotated[bool, typer.Option("--all", help="Every call that waits there.")]
Agreed = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Paths = Annotated[list[Path], typer.Argument(metavar="PATH", help="Files or folders with manifests; - reads stdin.")]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="Form of what is printed.")]
Namespace = Annotated[str | None, typer.Option("-n", "--namespace", help="Namespace of a cluster.")]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster of the kubeconfig, not this folder.")]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="Another kubeconfig.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the landing.")]
Timeout = Annotated[float, typer.Option(help="Longest wait, in seconds.", min=0)]
CallId = Annotated[
    str | None, typer.Argument(metavar="CALL", help="Id of the call, where more than one waits for a person.")
]
Reason = Annotated[str | None, typer.Option(help="Why; kept with the run.")]
Live = Annotated[bool, typer.Option("--live/--no-live", help="Show a live view on a terminal.")]
Session = Annotated[str | None, typer.Option("--session", help="The conversation that this run continues.")]
Inputs = Annotated[
    list[str] | None, typer.Option("--input", metavar="K=V|@FILE", help="Input of the run; may be repeated.")
]


def _place(
    namespace: str | None, cluster: bool, context: str | None, kubeconfig: Path | None, is_wide: bool = False
) -> "Place":
    from pilothouse_cli.commands.places import Place

    if is_wide and namespace is not None:
        raise CliError(f"either all namespaces are meant or {namespace}", "one of -A and -n", EXIT_USAGE)
    return Place(namespace, cluster or _program() == PLUGIN, context, kubeconfig, is_wide)


def _check_choice(run: str | None, choice: "Choice", place: "Place", options: str) -> None:
    """Refuse a command that names neither one run nor many, or both."""
    if (run is None) != choice.is_made:
        what = "name one run, or choose many" if run is None else f"either run {run} or many are meant"
        raise CliError(what, options, EXIT_USAGE)
    if run is not None and place.is_wide:
        raise CliError(f"run {run} is in one namespace", "-n NAMESPACE in place of -A", EXIT_USAGE)


def _program() -> str:
    return Path(sys.argv[0]).name


def _hint() -> str:
    return "kubectl pilothouse" if _program() == PLUGIN else "pilothouse"


@app.command("run")
def _run(
    paths: Paths,
    workflow: Annotated[str | None, typer.Option(help="Workflow or Agent, where there are several.")] = None,
    inputs: Inputs = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="workflow.…, agents.NAME.…, limits.… or overrides.…"),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    output: OutputOption = Output.table,
    live: Live = True,
    session: Session = None,
    judge_models: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Models that Supervisors' judges may name: models: […] as for the chart."),
    ] = None,
) -> None:
    """Run a workflow here, without a cluster; a second terminal steers it."""
    from pilothouse_cli.commands.running import run_manifests

    raise typer.Exit(
        run_manifests(
            paths,
            workflow=workflow,
            inputs=inputs or (),
            settings=settings or (),
            name=name,
            output=output,
            live=live,
            session=session,
            judge_models=judge_models,
        )
    )


@app.command("validate")
def _validate(
    paths: Paths,
    strict: Annotated[bool, typer.Option("--strict", help="What is unwise is wrong.")] = False,
    output: OutputOption = Output.table,
) -> None:
    """Say what is wrong with manifests: file, line, field, what, what to do."""
    from pilothouse_cli.commands.authoring import validate_paths

    raise typer.Exit(validate_paths(paths, strict=strict, output=output))


@app.command("submit")
def _submit(
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="Name of the Workflow.")],
    inputs: Inputs = None,
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Watch it.")] = False,
    output: OutputOption = Output.table,
    session: Session = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Run a Workflow of the cluster there."""
    from pilothouse_cli.commands.authoring import submit

    place = _place(namespace, True, context, kubeconfig)
    raise typer.Exit(
        submit(
            place,
            workflow,
            inputs=inputs or (),
            name=name,
            wait=wait,
            follow=follow,
            output=output,
            session=session,
        )
    )


@app.command("list")
def _list(
    output: OutputOption = Output.table,
    namespace: Namespace = None,
    cluster: Cluster = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List runs: of this folder, or of a namespace."""
    from pilothouse_cli.commands.inspecting import list_runs

    raise typer.Exit(list_runs(_place(namespace, cluster, context, kubeconfig), output))


@app.command("show")
def _show(
    run: RunName,
    output: OutputOption = Output.table,
    namespace: Namespace = None,
    cluster: Cluster = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show one run: where it is, what it has spent, what it waits for, how it ended."""
    from pilothouse_cli.commands.inspecting import show_run

    raise typer.Exit(show_run(_place(namespace, cluster, context, kubeconfig), run, output))


@app.command("result")
def _result(
    run: RunName,
    output: OutputOption = Output.json,
    namespace: Namespace = None,
    cluster: Cluster = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the result of a run, also one that is too large for its status."""
    from pilothouse_cli.commands.inspecting import print_result

    raise typer.Exit(print_result(_place(namespace, cluster, context, kubeconfig), run, output))


@app.command("trace")
def _trace(
    run: RunName,
    output: OutputOption = Output.table,
    namespace: Namespace = None,
    cluster: Cluster = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the turns of a run: calls, tokens, cost, and how each ended."""
    from pilothouse_cli.commands.inspecting import trace_run

    raise typer.Exit(trace_run(_place(namespace, cluster, context, kubeconfig), run, output))


@app.command("watch")
def _watch(
    run: RunName,
    namespace: Namespace = None,
    cluster: Cluster = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Watch a run until it ends; leaving changes nothing."""
    from pilothouse_cli.commands.inspecting import watch_run

    raise typer.Exit(watch_run(_place(namespace, cluster, context, kubeconfig), run, _hint()))


MANY_RUNS = "RUN, or one of -l, --workflow, --all"


def _mode_command(name: str, mode: str, text: str) -> None:
    def command(
        run: OneRun = None,
        selector: Selector = None,
        workflow: OfWorkflow = None,
        is_all: EveryRun = False,
        is_agreed: Agreed = False,
        reason: Reason = None,
        wait: Wait = True,
        timeout: Timeout = DEFAULT_TIMEOUT,
        output: OutputOption = Output.table,
        namespace: Namespace = None,
        wide: Wide = False,
        cluster: Cluster = False,
        context: Context = None,
        kubeconfig: Kubeconfig = None,
    ) -> None:
        from pilothouse_cli.runs.pending import Choice

        place, choice = (
            _place(namespace, cluster, context, kubeconfig, wide),
            Choice(selector, workflow, is_all=is_all),
        )
        _check_choice(run, choice, place, MANY_RUNS)
        if run is not None:
            from pilothouse_cli.commands.steering import set_mode

            raise typer.Exit(set_mode(place, run, mode, reason=reason, wait=wait, timeout=timeout, output=output))
        from pilothouse_cli.commands.directing import direct_all, mode_verb

        verb = mode_verb(mode, reason)
        raise typer.Exit(
            direct_all(place, choice, verb, is_agreed=is_agreed, wait=wait, timeout=timeout, output=output)
        )

    app.command(name, help=text)(command)


_mode_command("pause", "Pause", "Pause a run at its next turn boundary; or all that -l, --workflow or --all mean.")


@app.command("resume")
def _resume(
    run: OneRun = None,
    selector: Selector = None,
    workflow: OfWorkflow = None,
    is_all: EveryRun = False,
    is_agreed: Agreed = False,
    wait: Wait = True,
    timeout: Timeout = DEFAULT_TIMEOUT,
    output: OutputOption = Output.table,
    live: Live = True,
    namespace: Namespace = None,
    wide: Wide = False,
    cluster: Cluster = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Go on with a paused run, or all that -l … mean; a local one that was let go goes on in this process."""
    from pilothouse_cli.runs.pending import Choice

    place, choice = _place(namespace, cluster, context, kubeconfig, wide), Choice(selector, workflow, is_all=is_all)
    _check_choice(run, choice, place, MANY_RUNS)
    if run is not None:
        from pilothouse_cli.commands.steering import resume

        raise typer.Exit(resume(place, run, wait=wait, timeout=timeout, output=output, live=live))
    from pilothouse_cli.commands.directing import direct_all, mode_verb

    verb = mode_verb("Run")
    raise typer.Exit(direct_all(place, choice, verb, is_agreed=is_agreed, wait=wait, timeout=timeout, output=output))


_mode_command("finish", "Finish", "Let the current step of a run answer once more, then end it; or all that -l … mean.")
_mode_command(
    "abort", "Abort", "Abort a run at its next turn boundary or between two tool calls; or all that -l … mean."
)


@app.command("steer")
def _steer(
    run: OneRun = None,
    message: Annotated[str | None, typer.Argument(metavar="MESSAGE", help="Guidance for the model.")] = None,
    steer_id: Annotated[str | None, typer.Option("--id", help="Id of the message.")] = None,
    selector: Selector = None,
    workflow: OfWorkflow = None,
    is_all: EveryRun = False,
    is_agreed: Agreed = False,
    wait: Wait = True,
    timeout: Timeout = DEFAULT_TIMEOUT,
    output: OutputOption = Output.table,
    namespace: Namespace = None,
    wide: Wide = False,
    cluster: Cluster = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Hand the model of a run guidance at the next turn boundary; or of all that -l … mean."""
    from pilothouse_cli.runs.pending import Choice

    place, choice = _place(namespace, cluster, context, kubeconfig, wide), Choice(selector, workflow, is_all=is_all)
    if choice.is_made and message is None:
        run, message = None, run  # the one word is the message
    _check_choice(run, choice, place, 'RUN "MESSAGE", or "MESSAGE" with one of -l, --workflow, --all')
    if message is None:
        raise CliError("a message is missing", 'steer RUN "what to look at"', EXIT_USAGE)
    how: dict[str, Any] = {"wait": wait, "timeout": timeout, "output": output}
    if run is not None:
        from pilothouse_cli.commands.steering import steer

        raise typer.Exit(steer(place, run, message, steer_id=steer_id, **how))
    from pilothouse_cli.commands.directing import direct_all, steer_verb

    raise typer.Exit(direct_all(place, choice, steer_verb(message, steer_id), is_agreed=is_agreed, **how))


@app.command("approvals")
def _approvals(
    selector: Selector = None,
    workflow: OfWorkflow = None,
    tool: OfTool = None,
    output: OutputOption = Output.table,
    namespace: Namespace = None,
    wide: Wide = False,
    cluster: Cluster = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List the calls that wait for a person."""
    from pilothouse_cli.commands.approving import list_approvals
    from pilothouse_cli.runs.pending import Choice

    place = _place(namespace, cluster, context, kubeconfig, wide)
    raise typer.Exit(list_approvals(place, Choice(selector, workflow, tool), output))


@app.command("approve")
def _approve(
    run: OneRun = None,
    call: CallId = None,
    arguments: Annotated[
        str | None, typer.Option("--arguments", metavar="JSON", help="Changes to the arguments: a JSON merge-patch.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="NAME", help="Argument to take away; may be repeated.")
    ] = None,
    selector: Selector = None,
    workflow: OfWorkflow = None,
    tool: OfTool = None,
    is_all: EveryCall = False,
    is_agreed: Agreed = False,
    reason: Reason = None,
    wait: Wait = True,
    timeout: Timeout = DEFAULT_TIMEOUT,
    output: OutputOption = Output.table,
    namespace: Namespace = None,
    wide: Wide = False,
    cluster: Cluster = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Let a call run that waits for a person, as it is or with other arguments; or all that -l, --tool … mean."""
    from pilothouse_cli.commands.steering import parse_edit
    from pilothouse_cli.runs.pending import Choice

    edit = parse_edit(arguments, remove or ())
    choice = Choice(selector, workflow, tool, is_all)
    if edit and run is None:
        raise CliError("arguments are changed for one call at a time", "approve RUN CALL --arguments …", EXIT_USAGE)
    place = _place(namespace, cluster, context, kubeconfig, wide)
    decision = {"decision": "Approve", **edit} | ({"reason": reason} if reason else {})
    how = {"wait": wait, "timeout": timeout, "output": output}
    raise typer.Exit(_decide(place, run, call, choice, decision, is_agreed=is_agreed, **how))


@app.command("deny")
def _deny(
    run: OneRun = None,
    call: CallId = None,
    selector: Selector = None,
    workflow: OfWorkflow = None,
    tool: OfTool = None,
    is_all: EveryCall = False,
    is_agreed: Agreed = False,
    reason: Reason = None,
    wait: Wait = True,
    timeout: Timeout = DEFAULT_TIMEOUT,
    output: OutputOption = Output.table,
    namespace: Namespace = None,
    wide: Wide = False,
    cluster: Cluster = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Refuse a call that waits for a person, or all that -l, --tool … mean; the model is told, with the reason."""
    from pilothouse_cli.runs.pending import Choice

    choice = Choice(selector, workflow, tool, is_all)
    place = _place(namespace, cluster, context, kubeconfig, wide)
    decision = {"decision": "Deny"} | ({"reason": reason} if reason else {})
    how = {"wait": wait, "timeout": timeout, "output": output}
    raise typer.Exit(_decide(place, run, call, choice, decision, is_agreed=is_agreed, **how))


def _decide(
    place: "Place",
    run: str | None,
    call: str | None,
    choice: "Choice",
    decision: dict[str, Any],
    *,
    is_agreed: bool,
    **how: Any,
) -> int:
    """Decide on one call, or on all that are meant; `how` is whether and how long to wait, and what to print."""
    _check_choice(run, choice, place, "RUN [CALL], or one of -l, --workflow, --tool, --all")
    if run is not None:
        from pilothouse_cli.commands.steering import decide

        return decide(place, run, call, decision, **how)
    from pilothouse_cli.commands.approving import decide_all

    return decide_all(place, choice, decision, is_agreed=is_agreed, **how)


@app.command("limit")
def _limit(
    run: OneRun = None,
    limits: Annotated[
        list[str] | None, typer.Argument(metavar="K=V", help="tokenBudget=5000 maxIterations=4 …")
    ] = None,
    selector: Selector = None,
    workflow: OfWorkflow = None,
    is_all: EveryRun = False,
    is_agreed: Agreed = False,
    wait: Wait = True,
    timeout: Timeout = DEFAULT_TIMEOUT,
    output: OutputOption = Output.table,
    namespace: Namespace = None,
    wide: Wide = False,
    cluster: Cluster = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Change limits of a live run, or of all that -l … mean; they hold from the next turn boundary."""
    from pilothouse_cli.runs.pending import Choice

    place, choice = _place(namespace, cluster, context, kubeconfig, wide), Choice(selector, workflow, is_all=is_all)
    pairs = limits or []
    if choice.is_made and run is not None and "=" in run:
        pairs, run = [run, *pairs], None
    _check_choice(run, choice, place, "RUN K=V …, or K=V … with one of -l, --workflow, --all")
    if not pairs:
        raise CliError("no limit is named", "limit RUN tokenBudget=5000", EXIT_USAGE)
    how: dict[str, Any] = {"wait": wait, "timeout": timeout, "output": output}
    if run is not None:
        from pilothouse_cli.commands.steering import set_limits

        raise typer.Exit(set_limits(place, run, pairs, **how))
    from pilothouse_cli.commands.directing import direct_all, limit_verb

    raise typer.Exit(direct_all(place, choice, limit_verb(pairs), is_agreed=is_agreed, **how))


@app.command("init")
def _init(folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder.")] = Path("hello")) -> None:
    """Write a workflow that runs as it is, with its scripted model and a test."""
    from pilothouse_cli.commands.authoring import init

    raise typer.Exit(init(folder))


class ReplayOutput(StrEnum):
    """Forms of what a replay prints; `observations` is what it goes through, to be kept."""

    table = "table"
    json = "json"
    yaml = "yaml"
    observations = "observations"


@app.command("replay")
def _replay(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="Names of runs.", autocompletion=_run_names)
    ] = None,
    supervisor: Annotated[
        Path | None, typer.Option("--supervisor", metavar="FILE", help="The changed Supervisor.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The one to compare with; default: the copy that watched each run."),
    ] = None,
    observations: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Observations that were kept, in place of runs.")
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Also looks at which nothing is done.")] = False,
    output: Annotated[ReplayOutput, typer.Option("-o", "--output", help="Form of what is printed.")] = (
        ReplayOutput.table
    ),
    api: Annotated[
        str | None, typer.Option("--api", metavar="URL", help="Address of the operator API, for runs of a cluster.")
    ] = None,
    namespace: Namespace = None,
    cluster: Cluster = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Replay a changed supervisor over runs of before, and say which turns it changes; uses no tokens."""
    from pilothouse_cli.commands.replaying import Sources, print_observations, replay_supervisor

    place, sources = _place(namespace, cluster, context, kubeconfig), Sources(runs or (), observations, api)
    if output == ReplayOutput.observations:
        raise typer.Exit(print_observations(place, sources))
    if supervisor is None:
        raise CliError("name the changed supervisor", "--supervisor FILE, or -o observations", EXIT_USAGE)
    raise typer.Exit(replay_supervisor(place, sources, supervisor, against, is_all=is_all, output=output))


@app.command("graph")
def _graph(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="File or folder with the Workflow.")],
    workflow: Annotated[str | None, typer.Option(help="Workflow, where there are several.")] = None,
    output: Annotated[GraphForm, typer.Option("-o", "--output", help="Form of the graph.")] = GraphForm.text,
) -> None:
    """Print the steps and routes of a workflow, and who watches its runs."""
    from pilothouse_cli.commands.authoring import print_graph

    raise typer.Exit(print_graph(path, workflow, output))


@app.command("stub-model")
def _stub_model(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="YAML script of the model's turns.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 4000,
) -> None:
    """Serve a script as an OpenAI-compatible model."""
    from pilothouse_cli.commands.authoring import stub_model

    raise typer.Exit(stub_model(script, host, port))


def main() -> None:
    """Run one command and end the process; whatever goes wrong is said in a sentence."""
    from pilothouse_cli.terminal import prepare_streams

    prepare_streams()
    if not os.environ.get("PILOTHOUSE_DEBUG"):
        logging.getLogger().addHandler(logging.NullHandler())  # libraries do not speak to the person
    try:
        app(prog_name=_hint())
    except CliError as error:
        sys.exit(_fail(error.message, error.next_step, error.code))
    except OSError as error:  # a stream that takes nothing more, a file that cannot be read
        if os.environ.get("PILOTHOUSE_DEBUG"):
            raise
        sys.exit(_fail(f"the system refuses: {error}", "PILOTHOUSE_DEBUG=1 shows where", EXIT_FAILED))
    except Exception as error:  # a fault of ours: one sentence, and the traceback for who asks for it
        if os.environ.get("PILOTHOUSE_DEBUG"):
            raise
        said = f"internal fault: {type(error).__name__}: {error}"
        sys.exit(_fail(said, "PILOTHOUSE_DEBUG=1 shows where", EXIT_FAILED))


def _fail(message: str, next_step: str, code: int) -> int:
    from pilothouse_cli.terminal import clean, say

    say(f"error: {clean(message)}")
    if next_step:
        say(f"next:  {clean(next_step)}")
    return code
