"""What options of several commands are, how they name runs, and what a person calls the program."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pilothouse_cli.exits import EXIT_USAGE, CliError

if TYPE_CHECKING:
    from pilothouse_cli.commands.places import Place
    from pilothouse_cli.runs.pending import Choice

PLUGIN = "kubectl-pilothouse"
DEFAULT_TIMEOUT = 60.0
MANY_RUNS = "RUN, or one of -l, --workflow, --all"


class Output(StrEnum):
    """Forms of output."""

    table = "table"
    json = "json"
    yaml = "yaml"
    name = "name"


def run_names(incomplete: str) -> list[str]:
    """Complete the name of a local run."""
    from pilothouse_cli.local.state import STATE_FOLDER, all_folders

    return [folder.name for folder in all_folders(Path(STATE_FOLDER)) if folder.name.startswith(incomplete)]


RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.", autocompletion=run_names)]
OneRun = Annotated[str | None, typer.Argument(metavar="RUN", help="Name of the run.", autocompletion=run_names)]
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


def place_of(
    namespace: str | None, cluster: bool, context: str | None, kubeconfig: Path | None, is_wide: bool = False
) -> "Place":
    """Return which runs are meant; raises CliError where two answers are given."""
    from pilothouse_cli.commands.places import Place

    if is_wide and namespace is not None:
        raise CliError(f"either all namespaces are meant or {namespace}", "one of -A and -n", EXIT_USAGE)
    return Place(namespace, cluster or called_as() == PLUGIN, context, kubeconfig, is_wide)


def check_choice(run: str | None, choice: "Choice", place: "Place", options: str) -> None:
    """Refuse a command that names neither one run nor many, or both."""
    if (run is None) != choice.is_made:
        what = "name one run, or choose many" if run is None else f"either run {run} or many are meant"
        raise CliError(what, options, EXIT_USAGE)
    if run is not None and place.is_wide:
        raise CliError(f"run {run} is in one namespace", "-n NAMESPACE in place of -A", EXIT_USAGE)


def called_as() -> str:
    """Return the name that the program was called by."""
    return Path(sys.argv[0]).name


def spoken_name() -> str:
    """Return what a person types to call it."""
    return "kubectl pilothouse" if called_as() == PLUGIN else "pilothouse"
