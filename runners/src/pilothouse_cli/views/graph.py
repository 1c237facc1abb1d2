"""A workflow's steps and routes, and who watches its runs, as text or Mermaid: pure functions over manifests."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape

from pilothouse_api.signals import DEFAULT, END
from pilothouse_api.v1alpha1.agent import AgentSpec
from pilothouse_api.v1alpha1.supervisor import SupervisorSpec
from pilothouse_api.v1alpha1.workflow import Step, WorkflowSpec
from pilothouse_control.supervision.selectors import selects


@dataclass(frozen=True, slots=True)
class Edge:
    """A route; `is_implied` where the manifest does not write it: the next step in order."""

    source: str
    signal: str
    target: str
    is_implied: bool = False


@dataclass(frozen=True, slots=True)
class Watcher:
    """A supervisor of the workflow's runs, and what it does when; `how` it came to be one, or waits."""

    name: str
    how: str
    words: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """Return all of it on one line."""
        return f"{self.name} ({self.how})" + (f": {', '.join(self.words)}" if self.words else "")


@dataclass(frozen=True, slots=True)
class Graph:
    """Steps that are entered, steps that are tools, routes, and supervisors, which watch the Agent steps."""

    steps: tuple[Step, ...]
    tools: tuple[Step, ...]
    edges: tuple[Edge, ...]
    watchers: tuple[Watcher, ...] = ()


def watchers_of(
    spec: WorkflowSpec, supervisors: Mapping[str, SupervisorSpec], labels: Iterable[Mapping[str, str]]
) -> tuple[Watcher, ...]:
    """Return who watches the runs of a workflow: those that it names, and those whose selector fits.

    `labels` are those of each kind of run that is known; what else a run is given may have it watched by others.
    """
    named = [ref.name for ref in spec.supervisor_refs]
    watchers = [_watcher(name, supervisors.get(name)) for name in named]
    for name, supervisor in sorted(supervisors.items()):
        selector = supervisor.selector
        if name not in named and selector is not None and any(selects(selector, one) for one in labels):
            watchers.append(_watcher(name, supervisor, "by selector"))
    return tuple(watchers)


def _watcher(name: str, spec: SupervisorSpec | None, *how: str) -> Watcher:
    if spec is None:
        return Watcher(name, "not among these manifests")
    words = [f"{rule.name} → {rule.then or spec.on_violation}" for rule in spec.rules]
    if spec.judge is not None:
        words.append(f"judge {spec.judge.model} → {spec.on_violation}")
    return Watcher(name, ", ".join([spec.enforcement, *how]), tuple(words))


def graph_of(spec: WorkflowSpec, agents: Mapping[str, AgentSpec], watchers: tuple[Watcher, ...] = ()) -> Graph:
    """Return the graph of a workflow."""
    steps = tuple(step for step in spec.steps if not step.tool_only)
    edges: list[Edge] = []
    for position, step in enumerate(steps):
        edges += [Edge(step.id, signal, target) for signal, target in step.routes.items()]
        if DEFAULT not in step.routes and _may_end_default(step, agents):
            following = steps[position + 1].id if position + 1 < len(steps) else END
            edges.append(Edge(step.id, DEFAULT, following, is_implied=True))
    return Graph(steps, tuple(step for step in spec.steps if step.tool_only), tuple(edges), watchers)


def _may_end_default(step: Step, agents: Mapping[str, AgentSpec]) -> bool:
    if step.kind == "Approval":
        return False
    if step.kind == "Router":
        return not step.routes
    agent = step.agent or (agents.get(step.agent_ref.name) if step.agent_ref else None)
    return agent is None or not agent.outcome.enum if step.kind == "Agent" else True


def label_of(step: Step) -> str:
    """Return kind and agent of a step."""
    return f"{step.kind} {step.agent_ref.name}" if step.agent_ref else step.kind


def as_text(graph: Graph) -> str:
    """Return the graph for a terminal."""
    lines: list[str] = []
    for step in graph.steps:
        lines.append(f"{step.id}  ({label_of(step)})")
        edges = [edge for edge in graph.edges if edge.source == step.id]
        width = max((len(edge.signal) for edge in edges), default=0)
        lines += [f"  {edge.signal:<{width}} {'⇢' if edge.is_implied else '→'} {edge.target}" for edge in edges]
    if graph.tools:
        lines.append("tools: " + ", ".join(f"{step.id} ({step.kind})" for step in graph.tools))
    lines += [f"watched by {watcher.line}" for watcher in graph.watchers]
    return "\n".join(lines) + "\n"


def as_mermaid(graph: Graph) -> str:
    """Return the graph as a Mermaid flowchart."""
    ids = {step.id: f"s{number}" for number, step in enumerate(graph.steps)}
    lines = ["flowchart LR"]
    lines += [f'  {ids[step.id]}["{step.id}<br/><small>{label_of(step)}</small>"]' for step in graph.steps]
    lines.append("  finish((end))")
    for edge in graph.edges:
        arrow = "-.->" if edge.is_implied else "-->"
        lines.append(f'  {ids[edge.source]} {arrow}|"{edge.signal}"| {ids.get(edge.target, "finish")}')
    watched = [ids[step.id] for step in graph.steps if step.kind == "Agent"]
    for number, watcher in enumerate(graph.watchers):
        said = "<br/>".join(_quoted(word) for word in (watcher.how, *watcher.words))
        lines.append(f'  w{number}{{{{"{watcher.name}<br/><small>{said}</small>"}}}}')
        lines += [f"  w{number} -.-o {step}" for step in watched]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a text as it may stand in a label of Mermaid."""
    return escape(text, quote=False).replace('"', "#quot;")
