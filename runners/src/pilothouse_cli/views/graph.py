"""A workflow's steps and routes, and who watches its runs, as text, Mermaid or SVG: pure functions over manifests."""

from collections.abc import Iterable, Mapping, Sequence
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


# ---------------------------------------------------------------- svg

BOX_WIDTH, BOX_HEIGHT, COLUMN, ROW, MARGIN, LINE = 190, 46, 300, 92, 24, 20


def as_svg(graph: Graph) -> str:
    """Return the graph as an SVG picture: in columns from left to right."""
    places = _places(graph)
    width = max(x for x, _ in places.values()) + BOX_WIDTH + MARGIN
    bottom = max(y for _, y in places.values()) + BOX_HEIGHT + MARGIN
    watchers = [_svg_watcher(watcher, bottom + LINE * (number + 2)) for number, watcher in enumerate(graph.watchers)]
    height = bottom + (LINE * (len(watchers) + 2) if watchers else 0)
    boxes = [_box(step.id, label_of(step), places[step.id]) for step in graph.steps]
    boxes.append(_box(END, "", places[END]))
    edges = [
        _svg_bundle(bundle, number, places)
        for number, bundle in enumerate(_bundles(graph))
        if bundle[0].target in places
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="system-ui, sans-serif" role="img" aria-label="steps and routes">\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>\n'
        + "\n".join([*edges, *boxes, *watchers])
        + "\n</svg>\n"
    )


def _places(graph: Graph) -> dict[str, tuple[int, int]]:
    ranks = _ranks(graph)
    last = max(ranks.values(), default=0)
    ranks[END] = last + 1
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for step_id, rank in ranks.items():
        row = rows.get(rank, 0)
        rows[rank] = row + 1
        places[step_id] = (MARGIN + rank * COLUMN, MARGIN + row * ROW)
    return places


def _ranks(graph: Graph) -> dict[str, int]:
    """Return each step's column: right of every earlier step that leads to it; routes back do not count."""
    order = {step.id: position for position, step in enumerate(graph.steps)}
    ranks = dict.fromkeys(order, 0)
    for step in graph.steps:
        for edge in graph.edges:
            if edge.source == step.id and order.get(edge.target, -1) > order[step.id]:
                ranks[edge.target] = max(ranks[edge.target], ranks[step.id] + 1)
    return ranks


def _bundles(graph: Graph) -> list[tuple[Edge, ...]]:
    """Return the routes of a step to the same target together: they are drawn as one line."""
    bundles: dict[tuple[str, str], list[Edge]] = {}
    for edge in graph.edges:
        bundles.setdefault((edge.source, edge.target), []).append(edge)
    return [tuple(edges) for edges in bundles.values()]


def _box(title: str, subtitle: str, place: tuple[int, int]) -> str:
    x, y = place
    middle = x + BOX_WIDTH // 2
    return (
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8" fill="#eef3fa" stroke="#446"/>'
        f'<text x="{middle}" y="{y + (20 if subtitle else 28)}" text-anchor="middle" font-size="14" fill="#112">'
        f"{escape(_short(title, 24))}</text>"
        f'<text x="{middle}" y="{y + 36}" text-anchor="middle" font-size="11" fill="#445">'
        f"{escape(_short(subtitle, 30))}</text>"
    )


def _svg_watcher(watcher: Watcher, y: int) -> str:
    return (
        f'<text x="{MARGIN}" y="{y}" font-size="12" fill="#112">watched by {escape(_short(watcher.line, 60))}'
        f"<title>{escape(watcher.line)}</title></text>"
    )


def _svg_bundle(edges: Sequence[Edge], number: int, places: Mapping[str, tuple[int, int]]) -> str:
    (x1, y1), (x2, y2) = places[edges[0].source], places[edges[0].target]
    start, end = (x1 + BOX_WIDTH, y1 + BOX_HEIGHT // 2), (x2, y2 + BOX_HEIGHT // 2)
    bend = 60 + 10 * (number % 4)
    dip = ROW if x2 <= x1 else 0  # a route back swings below the boxes
    points = (start[0] + bend, start[1] + dip, end[0] - bend, end[1] + dip)
    # Labels slide along the curve by number, so that routes between the same columns do not cover each other.
    label = _on_curve(start, points, end, 0.3 + 0.1 * (number % 4))
    dash = ' stroke-dasharray="5 4"' if all(edge.is_implied for edge in edges) else ""
    signals = [edge.signal for edge in edges]
    text = signals[0] if len(signals) == 1 else f"{signals[0]} +{len(signals) - 1}"
    return (
        f'<path d="M{start[0]} {start[1]} C{points[0]} {points[1]} {points[2]} {points[3]} {end[0]} {end[1]}"'
        f' fill="none" stroke="#667"{dash} marker-end="url(#tip)"><title>{escape(", ".join(signals))}</title></path>'
        f'<text x="{label[0]:.0f}" y="{label[1] - 4:.0f}" font-size="11" text-anchor="middle" fill="#334"'
        f' stroke="#fff" stroke-width="3" paint-order="stroke">{escape(_short(text, 28))}</text>'
    )


def _on_curve(
    start: tuple[int, int], points: tuple[int, int, int, int], end: tuple[int, int], t: float
) -> tuple[float, float]:
    weights: Sequence[float] = ((1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3)
    xs, ys = (start[0], points[0], points[2], end[0]), (start[1], points[1], points[3], end[1])
    return sum(w * x for w, x in zip(weights, xs, strict=True)), sum(w * y for w, y in zip(weights, ys, strict=True))


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
