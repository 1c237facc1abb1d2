"""`list`, `show`, `result`, `trace`, `watch`."""

import typer

from pilothouse_cli.program.options import (
    Cluster,
    Context,
    Kubeconfig,
    Namespace,
    Output,
    OutputOption,
    RunName,
    place_of,
    spoken_name,
)

commands = typer.Typer()


@commands.command("list")
def _list(
    output: OutputOption = Output.table,
    namespace: Namespace = None,
    cluster: Cluster = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List runs: of this folder, or of a namespace."""
    from pilothouse_cli.commands.inspecting import list_runs

    raise typer.Exit(list_runs(place_of(namespace, cluster, context, kubeconfig), output))


@commands.command("show")
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

    raise typer.Exit(show_run(place_of(namespace, cluster, context, kubeconfig), run, output))


@commands.command("result")
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

    raise typer.Exit(print_result(place_of(namespace, cluster, context, kubeconfig), run, output))


@commands.command("trace")
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

    raise typer.Exit(trace_run(place_of(namespace, cluster, context, kubeconfig), run, output))


@commands.command("watch")
def _watch(
    run: RunName,
    namespace: Namespace = None,
    cluster: Cluster = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Watch a run until it ends; leaving changes nothing."""
    from pilothouse_cli.commands.inspecting import watch_run

    raise typer.Exit(watch_run(place_of(namespace, cluster, context, kubeconfig), run, spoken_name()))
