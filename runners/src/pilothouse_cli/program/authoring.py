"""`init`, `validate`, `graph`, `stub-model`, `replay`: what an author of workflows and supervisors needs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pilothouse_cli.exits import EXIT_USAGE, CliError
from pilothouse_cli.program.options import (
    Cluster,
    Context,
    Kubeconfig,
    Namespace,
    Output,
    OutputOption,
    Paths,
    place_of,
    run_names,
)

commands = typer.Typer()


class GraphForm(StrEnum):
    """Forms of a graph."""

    text = "text"
    mermaid = "mermaid"
    svg = "svg"


@commands.command("init")
def _init(folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder.")] = Path("hello")) -> None:
    """Write a workflow that runs as it is, with its scripted model and a test."""
    from pilothouse_cli.commands.authoring import init

    raise typer.Exit(init(folder))


@commands.command("validate")
def _validate(
    paths: Paths,
    strict: Annotated[bool, typer.Option("--strict", help="What is unwise is wrong.")] = False,
    output: OutputOption = Output.table,
) -> None:
    """Say what is wrong with manifests: file, line, field, what, what to do."""
    from pilothouse_cli.commands.authoring import validate_paths

    raise typer.Exit(validate_paths(paths, strict=strict, output=output))


@commands.command("graph")
def _graph(
    paths: Paths,
    workflow: Annotated[str | None, typer.Option(help="Workflow, where there are several.")] = None,
    output: Annotated[GraphForm, typer.Option("-o", "--output", help="Form of the graph.")] = GraphForm.text,
) -> None:
    """Print the steps and routes of a workflow, and who watches its runs."""
    from pilothouse_cli.commands.authoring import print_graph

    raise typer.Exit(print_graph(paths, workflow, output))


@commands.command("stub-model")
def _stub_model(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="YAML script of the model's turns.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 4000,
) -> None:
    """Serve a script as an OpenAI-compatible model."""
    from pilothouse_cli.commands.authoring import stub_model

    raise typer.Exit(stub_model(script, host, port))


class ReplayOutput(StrEnum):
    """Forms of what a replay prints; `observations` is what it goes through, to be kept."""

    table = "table"
    json = "json"
    yaml = "yaml"
    observations = "observations"


@commands.command("replay")
def _replay(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="Names of runs.", autocompletion=run_names)
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

    place, sources = place_of(namespace, cluster, context, kubeconfig), Sources(runs or (), observations, api)
    if output == ReplayOutput.observations:
        raise typer.Exit(print_observations(place, sources))
    if supervisor is None:
        raise CliError("name the changed supervisor", "--supervisor FILE, or -o observations", EXIT_USAGE)
    raise typer.Exit(replay_supervisor(place, sources, supervisor, against, is_all=is_all, output=output))
