"""`approvals`, `approve`, `deny`: of one call, or of many."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pilothouse_cli.exits import EXIT_USAGE, CliError
from pilothouse_cli.program.options import (
    DEFAULT_TIMEOUT,
    Agreed,
    CallId,
    Cluster,
    Context,
    EveryCall,
    Kubeconfig,
    Namespace,
    OfTool,
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

if TYPE_CHECKING:
    from pilothouse_cli.commands.places import Place
    from pilothouse_cli.runs.pending import Choice

commands = typer.Typer()


@commands.command("approvals")
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

    place = place_of(namespace, cluster, context, kubeconfig, wide)
    raise typer.Exit(list_approvals(place, Choice(selector, workflow, tool), output))


@commands.command("approve")
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
    place = place_of(namespace, cluster, context, kubeconfig, wide)
    decision = {"decision": "Approve", **edit} | ({"reason": reason} if reason else {})
    how = {"wait": wait, "timeout": timeout, "output": output}
    raise typer.Exit(_decide(place, run, call, choice, decision, is_agreed=is_agreed, **how))


@commands.command("deny")
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
    place = place_of(namespace, cluster, context, kubeconfig, wide)
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
    check_choice(run, choice, place, "RUN [CALL], or one of -l, --workflow, --tool, --all")
    if run is not None:
        from pilothouse_cli.commands.steering import decide

        return decide(place, run, call, decision, **how)
    from pilothouse_cli.commands.approving import decide_all

    return decide_all(place, choice, decision, is_agreed=is_agreed, **how)
