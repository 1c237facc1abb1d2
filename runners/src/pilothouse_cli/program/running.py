"""`run` and `submit`: how a run begins, here or in a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from pilothouse_cli.program.options import (
    Context,
    Inputs,
    Kubeconfig,
    Live,
    Namespace,
    Output,
    OutputOption,
    Paths,
    Session,
    place_of,
)

commands = typer.Typer()


@commands.command("run")
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


@commands.command("submit")
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

    place = place_of(namespace, True, context, kubeconfig)
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
