"""`pause`, `resume`, `finish`, `abort`, `steer`, `limit`: of one run, or of many."""

from typing import Annotated, Any

import typer

from pilothouse_cli.exits import EXIT_USAGE, CliError
from pilothouse_cli.program.options import (
    DEFAULT_TIMEOUT,
    MANY_RUNS,
    Agreed,
    Cluster,
    Context,
    EveryRun,
    Kubeconfig,
    Live,
    Namespace,
    OfWorkflow,
    OneRun,
    Output,
    OutputOption,
    Reason,
    Selector,
    Timeout,
    Wait,
    Wide,
    check_choice,
    place_of,
)

commands = typer.Typer()


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
            place_of(namespace, cluster, context, kubeconfig, wide),
            Choice(selector, workflow, is_all=is_all),
        )
        check_choice(run, choice, place, MANY_RUNS)
        if run is not None:
            from pilothouse_cli.commands.steering import set_mode

            raise typer.Exit(set_mode(place, run, mode, reason=reason, wait=wait, timeout=timeout, output=output))
        from pilothouse_cli.commands.directing import direct_all, mode_verb

        verb = mode_verb(mode, reason)
        raise typer.Exit(
            direct_all(place, choice, verb, is_agreed=is_agreed, wait=wait, timeout=timeout, output=output)
        )

    commands.command(name, help=text)(command)


_mode_command("pause", "Pause", "Pause a run at its next turn boundary; or all that -l, --workflow or --all mean.")


@commands.command("resume")
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

    place, choice = place_of(namespace, cluster, context, kubeconfig, wide), Choice(selector, workflow, is_all=is_all)
    check_choice(run, choice, place, MANY_RUNS)
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


@commands.command("steer")
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

    place, choice = place_of(namespace, cluster, context, kubeconfig, wide), Choice(selector, workflow, is_all=is_all)
    if choice.is_made and message is None:
        run, message = None, run  # the one word is the message
    check_choice(run, choice, place, 'RUN "MESSAGE", or "MESSAGE" with one of -l, --workflow, --all')
    if message is None:
        raise CliError("a message is missing", 'steer RUN "what to look at"', EXIT_USAGE)
    how: dict[str, Any] = {"wait": wait, "timeout": timeout, "output": output}
    if run is not None:
        from pilothouse_cli.commands.steering import steer

        raise typer.Exit(steer(place, run, message, steer_id=steer_id, **how))
    from pilothouse_cli.commands.directing import direct_all, steer_verb

    raise typer.Exit(direct_all(place, choice, steer_verb(message, steer_id), is_agreed=is_agreed, **how))


@commands.command("limit")
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

    place, choice = place_of(namespace, cluster, context, kubeconfig, wide), Choice(selector, workflow, is_all=is_all)
    pairs = limits or []
    if choice.is_made and run is not None and "=" in run:
        pairs, run = [run, *pairs], None
    check_choice(run, choice, place, "RUN K=V …, or K=V … with one of -l, --workflow, --all")
    if not pairs:
        raise CliError("no limit is named", "limit RUN tokenBudget=5000", EXIT_USAGE)
    how: dict[str, Any] = {"wait": wait, "timeout": timeout, "output": output}
    if run is not None:
        from pilothouse_cli.commands.steering import set_limits

        raise typer.Exit(set_limits(place, run, pairs, **how))
    from pilothouse_cli.commands.directing import direct_all, limit_verb

    raise typer.Exit(direct_all(place, choice, limit_verb(pairs), is_agreed=is_agreed, **how))
