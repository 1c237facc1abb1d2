"""A workflow's steps and routes as text, Mermaid and SVG."""

from xml.etree import ElementTree

import pytest

from pilothouse_api.v1alpha1.agent import AgentSpec
from pilothouse_api.v1alpha1.supervisor import SupervisorSpec
from pilothouse_api.v1alpha1.workflow import WorkflowSpec
from pilothouse_cli.views.drawing import BOX_HEIGHT, BOX_WIDTH, as_svg, layout_of, point_on
from pilothouse_cli.views.graph import Edge, Graph, Watcher, as_mermaid, as_text, graph_of, watchers_of

AGENT = {"mode": "Completion", "model": {"name": "scripted"}, "prompt": {"inline": "x"}}
CLASSIFIER = AgentSpec.model_validate({**AGENT, "outcome": {"enum": ["yes_please", "other"]}})
SPEC = WorkflowSpec.model_validate(
    {
        "steps": [
            {
                "id": "sort",
                "kind": "Agent",
                "agentRef": {"name": "sorter"},
                "routes": {"yes_please": "reply", "other": "again", "error": "again"},
            },
            {"id": "tool", "kind": "Function", "toolOnly": True, "function": {"callable": "a:b"}},
            {"id": "again", "kind": "Agent", "agent": AGENT, "routes": {"error": "sort"}},
            {"id": "reply", "kind": "Response", "response": {"mapping": {"a": "b"}}},
        ]
    }
)
GRAPH = graph_of(SPEC, {"sorter": CLASSIFIER})


def test_routes_that_are_not_written_lead_to_the_next_step_that_is_no_tool() -> None:
    assert GRAPH.edges == (
        Edge("sort", "yes_please", "reply"),
        Edge("sort", "other", "again"),
        Edge("sort", "error", "again"),
        Edge("again", "error", "sort"),
        Edge("again", "default", "reply", is_implied=True),
        Edge("reply", "default", "end", is_implied=True),
    )
    assert [step.id for step in GRAPH.tools] == ["tool"]


def test_text_lists_each_step_with_its_routes() -> None:
    assert as_text(GRAPH) == (
        "sort  (Agent sorter)\n"
        "  yes_please → reply\n"
        "  other      → again\n"
        "  error      → again\n"
        "again  (Agent)\n"
        "  error   → sort\n"
        "  default ⇢ reply\n"
        "reply  (Response)\n"
        "  default ⇢ end\n"
        "tools: tool (Function)\n"
    )


def test_mermaid_has_a_node_for_each_step_and_an_arrow_for_each_route() -> None:
    lines = as_mermaid(GRAPH).splitlines()
    assert lines[0] == "flowchart LR"
    assert '  s0["sort<br/><small>Agent sorter</small>"]' in lines
    assert '  s0 -->|"yes_please"| s2' in lines
    assert '  s2 -.->|"default"| finish' in lines


def test_svg_is_well_formed_draws_routes_to_one_target_once_and_keeps_boxes_apart() -> None:
    root = ElementTree.fromstring(as_svg(GRAPH))
    space = "{http://www.w3.org/2000/svg}"
    titles = [title.text for title in root.iter(f"{space}title")]
    assert titles == ["yes_please", "other, error", "error", "default", "default"]
    corners = [(rect.get("x"), rect.get("y")) for rect in root.iter(f"{space}rect")]
    assert len(corners) == len(set(corners)) == 4


@pytest.mark.parametrize("steps", [1, 100])
def test_graphs_of_any_size_are_drawn(steps: int) -> None:
    response = {"kind": "Response", "response": {"mapping": {"a": "b"}}}
    spec = WorkflowSpec.model_validate(
        {"steps": [{"id": f"s{n}", **response, "routes": {"default": "s0"}} for n in range(steps)]}
    )
    assert as_svg(graph_of(spec, {})).count("<rect") == steps + 1


RESPONSE = {"kind": "Response", "response": {"mapping": {"a": "b"}}}


def a_graph(*steps: tuple[str, str]) -> Graph:
    """Return a graph of steps, each with the signals and targets of its routes: `ok:b bad:a`."""
    routes = [(step, dict(route.split(":") for route in said.split())) for step, said in steps]
    spec = WorkflowSpec.model_validate({"steps": [{"id": step, **RESPONSE, "routes": to} for step, to in routes]})
    return graph_of(spec, {})


LONG = [(f"s{n}", f"default:s{n + 1}") for n in range(11)]
GRAPHS = {
    "one step": a_graph(("a", "")),
    "a step that leads to itself": a_graph(("a", "error:a default:end")),
    "a route that skips a column": a_graph(("a", "default:b error:c"), ("b", "default:c"), ("c", "")),
    "routes that skip to the end": a_graph(("a", "default:b error:end"), ("b", "default:c error:end"), ("c", "")),
    "rows of different columns": a_graph(
        ("a", "x:b y:c z:d w:e"),
        ("b", "default:e"),
        ("c", "default:e"),
        ("d", "default:f x:a"),
        ("e", "x:f y:c"),
        ("f", "x:d y:a z:f"),
    ),
    "back to a step on the right": a_graph(("a", "default:b"), ("b", "default:end"), ("c", "default:b x:a")),
    "long with routes back": a_graph(
        *LONG,
        ("s11", "x:s0 y:s3 z:s7 default:end"),
        ("s12", "x:s4 default:s12"),
        ("s13", "x:s5 default:s11"),
    ),
    "all of one to each": a_graph(*((f"s{n}", " ".join(f"r{m}:s{m}" for m in range(7))) for n in range(7))),
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_no_line_of_the_picture_runs_behind_a_box_or_out_of_it(graph: Graph) -> None:
    layout = layout_of(graph)
    for line in layout.lines:
        for x, y in (point_on(curve, step / 50) for curve in line.curves for step in range(51)):
            assert 0 < x < layout.width
            assert 0 < y < layout.height
            behind = [
                step
                for step, (left, top) in layout.places.items()
                if left < x < left + BOX_WIDTH and top < y < top + BOX_HEIGHT
            ]
            assert not behind, (line.text, x, y)


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_lines_lead_from_the_right_of_a_step_to_the_left_of_another_without_a_gap(graph: Graph) -> None:
    layout = layout_of(graph)
    assert {edge for line in layout.lines for edge in line.edges} == set(graph.edges)
    for line in layout.lines:
        (x, y), (to_x, to_y) = layout.places[line.edges[0].source], layout.places[line.edges[0].target]
        assert line.curves[0][0] == (x + BOX_WIDTH, y + BOX_HEIGHT // 2)
        assert line.curves[-1][3] == (to_x, to_y + BOX_HEIGHT // 2)
        assert all(one[3] == following[0] for one, following in zip(line.curves, line.curves[1:], strict=False))


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_no_two_lines_lie_on_each_other_in_a_lane(graph: Graph) -> None:
    levels = [
        (curve[0][1], *sorted((curve[0][0], curve[3][0])))
        for line in layout_of(graph).lines
        if len(line.curves) == 3
        for curve in line.curves[1:2]
    ]
    for number, (y, left, right) in enumerate(levels):
        for other_y, other_left, other_right in levels[:number]:
            assert abs(y - other_y) >= 15 or right < other_left or other_right < left


STRICT = Watcher("strict", "Sync", ("too often → Abort", "judge small → Pause"))
MILD = Watcher("mild", "Async, by selector", ('says "<go>" → Steer',))
WATCHED = graph_of(SPEC, {"sorter": CLASSIFIER}, (STRICT, MILD))


def a_supervisor(**spec: object) -> SupervisorSpec:
    return SupervisorSpec.model_validate({"rules": [{"name": "loop", "when": "ToolRepeated"}], **spec})


def test_runs_are_watched_by_whom_the_workflow_names_and_by_whose_selector_fits() -> None:
    rules = [{"name": "too often", "when": "ToolRepeated", "then": "Abort"}]
    supervisors = {
        "strict": a_supervisor(enforcement="Sync", rules=rules, judge={"model": "small", "criteria": {"inline": "x"}}),
        "all": a_supervisor(selector={}, onViolation="Steer"),
        "of-team": a_supervisor(selector={"matchLabels": {"team": "a"}}),
        "of-others": a_supervisor(selector={"matchLabels": {"team": "b"}}),
        "of-nobody": a_supervisor(),
    }
    refs = [{"name": "strict"}, {"name": "gone"}]
    spec = WorkflowSpec.model_validate({**SPEC.model_dump(by_alias=True, exclude_unset=True), "supervisorRefs": refs})
    assert watchers_of(spec, supervisors, [{"team": "c"}, {"team": "a"}]) == (
        STRICT,
        Watcher("gone", "not among these manifests"),
        Watcher("all", "Async, by selector", ("loop → Steer",)),
        Watcher("of-team", "Async, by selector", ("loop → Pause",)),
    )
    assert watchers_of(SPEC, supervisors, []) == ()


def test_text_says_who_watches_and_what_they_do() -> None:
    assert as_text(WATCHED).endswith(
        "tools: tool (Function)\n"
        "watched by strict (Sync): too often → Abort, judge small → Pause\n"
        'watched by mild (Async, by selector): says "<go>" → Steer\n'
    )


def test_mermaid_ties_each_supervisor_to_the_agent_steps() -> None:
    lines = as_mermaid(WATCHED).splitlines()
    assert '  w0{{"strict<br/><small>Sync<br/>too often → Abort<br/>judge small → Pause</small>"}}' in lines
    assert '  w1{{"mild<br/><small>Async, by selector<br/>says #quot;&lt;go&gt;#quot; → Steer</small>"}}' in lines
    assert [line for line in lines if "-.-o" in line] == [f"  w{w} -.-o s{s}" for w in (0, 1) for s in (0, 1)]


def test_svg_says_who_watches_below_the_steps() -> None:
    root = ElementTree.fromstring(as_svg(WATCHED))
    texts = {"".join(text.itertext()): text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    [strict] = [text for said, text in texts.items() if said.startswith("watched by strict (Sync)")]
    lowest = max(int(rect.get("y", 0)) for rect in root.iter("{http://www.w3.org/2000/svg}rect"))
    assert lowest + 46 < int(strict.get("y", 0)) < int(root.get("height", 0))
