"""`validate`, `graph`, `init`, `stub-model`, `submit`: what an author of workflows needs."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pilothouse_api import names, structs
from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_api.v1alpha1.agent import ModelEndpoint
from pilothouse_cli.authoring.manifests import Manifests, parse_input, read_documents
from pilothouse_cli.authoring.starter import write_starter
from pilothouse_cli.commands.inspecting import print_run, watch_run
from pilothouse_cli.commands.places import Place
from pilothouse_cli.exits import EXIT_FAILED, EXIT_SUCCEEDED, EXIT_USAGE, CliError, exit_code
from pilothouse_cli.terminal import print_data, say, show
from pilothouse_cli.views.drawing import as_svg
from pilothouse_cli.views.graph import as_mermaid, as_text, graph_of, watchers_of
from pilothouse_cli.views.tables import finding_data, findings_view
from pilothouse_control.directives import is_finished
from pilothouse_control.documents import Document
from pilothouse_control.validation import Sources, validate
from pilothouse_control.world import References, has_stated_price
from pilothouse_runner.adapters.models.price_table import price

GRAPH_FORMS = {"text": as_text, "mermaid": as_mermaid, "svg": as_svg}


def check_manifests(documents: Sequence[Document]) -> None:
    """Tell warnings, and refuse manifests with errors."""
    sources = Sources(documents, References(supervisors=()), is_complete=True)
    findings = validate(sources, durable_journal=True, known_price=is_price_known)
    if findings:
        say(findings_view(findings))
    errors = [finding for finding in findings if finding.is_error]
    if errors:
        raise CliError(f"{count(len(errors), 'error')} in the manifests", "", EXIT_USAGE)


def validate_paths(paths: Sequence[Path], *, strict: bool, output: str) -> int:
    """Print what validation finds; exit 1 where there is an error.

    What the documents refer to may be in the cluster: that it is not among them is a warning.
    """
    sources = Sources(read_documents(paths))
    findings = validate(sources, durable_journal=True, strict=strict, known_price=is_price_known)
    errors = sum(finding.is_error for finding in findings)
    if output in ("json", "yaml"):
        print_data([finding_data(finding) for finding in findings], output)
    elif findings:
        show(findings_view(findings))
    say(f"{count(errors, 'error')}, {count(len(findings) - errors, 'warning')}")
    return EXIT_FAILED if errors else EXIT_SUCCEEDED


def is_price_known(endpoint: ModelEndpoint) -> bool:
    """Tell whether a model's price is in its manifest or in LiteLLM's table."""
    return has_stated_price(endpoint) or price(structs.ModelEndpoint(name=endpoint.name)) is not None


def count(number: int, noun: str) -> str:
    """Return `no errors`, `1 error`, `2 errors`."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def print_graph(paths: Sequence[Path], workflow: str | None, form: str) -> int:
    """Print the graph of a workflow of some manifests."""
    manifests = Manifests.of(read_documents(paths))
    choice = [workflow] if workflow else list(manifests.workflows)
    if len(choice) != 1 or choice[0] not in manifests.workflows:
        known = ", ".join(manifests.workflows) or "none"
        raise CliError("name the Workflow whose graph you want", f"--workflow NAME, with one of: {known}")
    agents = {name: agent.spec for name, agent in manifests.agents.items()}
    spec = manifests.workflows[choice[0]].spec
    supervisors = {name: supervisor.spec for name, supervisor in manifests.supervisors.items()}
    watchers = watchers_of(spec, supervisors, _labels_of_runs(manifests, choice[0]))
    sys.stdout.write(GRAPH_FORMS[form](graph_of(spec, agents, watchers)))
    return EXIT_SUCCEEDED


def _labels_of_runs(manifests: Manifests, workflow: str) -> list[dict[str, str]]:
    """Return the labels of runs of a workflow: of those that it starts itself, and of those among the manifests."""
    of_workflow = {names.LABEL_WORKFLOW: workflow}
    written = [
        run.metadata.labels | of_workflow
        for run in manifests.runs
        if run.spec.workflow_ref is not None and run.spec.workflow_ref.name == workflow
    ]
    return [dict(manifests.workflows[workflow].spec.run_template.labels) | of_workflow, *written]


def init(folder: Path) -> int:
    """Write the starter."""
    for path in write_starter(folder):
        print(path)
    say(f"run it with: pilothouse run {folder}")
    return EXIT_SUCCEEDED


def stub_model(script: Path, host: str, port: int) -> int:
    """Serve a script until it is interrupted."""
    from pilothouse_cli.authoring.stub_model import serve
    from pilothouse_engine.script import ScriptInvalid

    try:
        serve(script, host, port, ready=lambda address: say(f"serving {script} at {address}"))
    except ScriptInvalid as error:
        raise CliError(f"{script} is no script: {error}", "", EXIT_USAGE) from None
    except OSError as error:
        raise CliError(f"cannot serve {script}: {error.strerror or error}", "", EXIT_USAGE) from None
    except KeyboardInterrupt:
        pass  # the way to stop it
    return EXIT_SUCCEEDED


def submit(
    place: Place,
    workflow: str,
    *,
    inputs: Sequence[str],
    name: str | None,
    wait: bool,
    follow: bool,
    output: str,
    session: str | None = None,
) -> int:
    """Make an AgentRun in the cluster."""
    from pilothouse_cli.cluster.runs import ClusterRuns

    runs = ClusterRuns.connect(place.namespace, place.context, place.kubeconfig)
    metadata = {"name": name} if name else {"generateName": f"{names.fit(workflow, 52)}-"}
    spec: dict[str, Any] = {"workflowRef": {"name": workflow}, "input": parse_input(inputs, {})}
    if session is not None:
        spec["session"] = session
    run = runs.submit(AgentRun.model_validate({"kind": "AgentRun", "metadata": metadata, "spec": spec}))
    if follow:
        return watch_run(place, run.metadata.name, "pilothouse")
    while wait and not is_finished(run):
        run = runs.wait_for_change(run, 30)
    print_run(run, "name" if output == "table" and not wait else output)
    return exit_code(run) if wait else EXIT_SUCCEEDED
