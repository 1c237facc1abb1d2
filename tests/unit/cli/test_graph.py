"""A workflow's steps and routes as text, Mermaid and SVG."""

from xml.etree import ElementTree

import pytest

from pilothouse_api.v1alpha1.agent import AgentSpec
from pilothouse_api.v1alpha1.workflow import WorkflowSpec
from pilothouse_cli.graph import Edge, as_mermaid, as_svg, as_text, graph_of

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
