"""Where masks are on, nothing that they mask reaches status, frames, logs or a model, wherever it came from
(engine.md §4, §16).
"""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilothouse_engine.ports import FunctionFailure, FunctionReply, HttpResponse, McpListing, McpResult, McpTool
from pilothouse_engine.testing.http import ScriptedHttp
from pilothouse_engine.testing.mcp import InProcessMcp
from unit.engine.guardrails.samples import build, card
from unit.engine.hostile import OUTCOMES, StrangeModel, check, examples, play
from unit.engine.scenarios import (
    ListModel,
    Scenario,
    agent_step,
    answer,
    build_plan,
    call,
    calls,
    function_tool,
    response_step,
    text,
)

pytestmark = pytest.mark.slow

KEY = build(["s", "k-", {"alnum": 48}])
SECRETS = (card("4111", 16, [4, 4, 4, 4]), card("5555", 16, []), "jane.doe@example.com", KEY)
MASKS = [{"check": "SecretMask"}, {"check": "PiiMask", "piiMask": {"entities": ["Email", "CreditCard"]}}]
GATES = {"input": MASKS, "tools": MASKS, "output": MASKS}
API = {"kind": "APICall", "apiCall": {"method": "GET", "url": "http://shop.test/x"}}
TOOLS = [
    function_tool("lookup", writesContext=True),
    {"name": "get", "description": "Asks.", "inlineStep": API, "writesContext": True},
    {"name": "github", "mcp": {"server": "gh", "allow": ["*"]}, "effect": "Once"},
]


@st.composite
def carriers(draw: st.DrawFn) -> str:
    """A text with one secret in it, at any place: a cut may fall into it."""
    before, after = draw(st.integers(0, 900)), draw(st.sampled_from((0, 5, 3000)))
    around = draw(st.sampled_from((" ", "\n", "\t", ", ", " (", '"', ": ")))
    return f"{'x ' * before}{around}{draw(st.sampled_from(SECRETS))}{around}{' y' * after}"


shapes = st.sampled_from(
    (
        lambda said: {"a": said},
        lambda said: {"a": {"b": [said, 1]}},
        lambda said: {said[:2000]: 1},
        lambda said: {"a": json.dumps({"inner": said})},
    )
)


def a_run(result: Any, replies: list[Any], ticket: str = "I was charged twice", **fields: Any) -> Scenario:
    step = agent_step(
        tools=TOOLS,
        guardrails=GATES,
        limits={"maxToolResultChars": 400, "maxIterations": 6},
        mcpServers=[{"name": "gh", "transport": "StreamableHTTP", "url": "https://gh.test/mcp"}],
        routes=dict.fromkeys(OUTCOMES, "tell"),
        **fields,
    )
    said = result.output if isinstance(result, FunctionReply) else {"error": result.message}
    server = InProcessMcp({"gh": {"search": lambda arguments: McpResult(json.dumps(said), said)}})
    server.listings["gh"] = McpListing((McpTool("search", "Finds.", {"type": "object"}),))
    body = HttpResponse(200, (("Content-Type", "application/json"),), json.dumps(said).encode())
    return Scenario(
        build_plan(step, response_step("tell", a="work_result", b="lookup", c="get_result"), input={"ticket": ticket}),
        StrangeModel(replies),
        {"tools:lookup": lambda arguments: result},
        http=ScriptedHttp(body),
        mcp=server,
    )


def check_masked(run: Scenario, lines: list[str]) -> None:
    places = {
        "status": "\n".join(repr(snapshot) for snapshot in run.store.snapshots),
        "frames": json.dumps([dict(frame) for frame in run.sink.frames]),
        "logs": "\n".join(lines),
    }
    assert [(secret, place) for secret in SECRETS for place, said in places.items() if secret in said] == []


@given(
    carriers(),
    shapes,
    st.booleans(),
    st.lists(st.sampled_from(("lookup", "get", "gh__search")), min_size=1, max_size=3),
)
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
def test_what_tools_return_is_masked_before_anybody_sees_it(
    said: str, shape: Any, fails: bool, asked: list[str]
) -> None:
    result = FunctionFailure("Raised", said[-480:]) if fails else FunctionReply(shape(said))
    run = a_run(result, [calls(*(call(name, {"n": n}) for n, name in enumerate(asked))), answer("resolved")])
    end, state, lines = play(run)
    check(run, end, state, lines)
    check_masked(run, lines)
    check_prompts_masked(run)


@given(carriers(), st.sampled_from(("answer", "text", "arguments", "nothing", "outcome", "input")), st.booleans())
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
def test_what_a_model_says_is_masked_before_people_see_it(said: str, place: str, has_enum: bool) -> None:
    turns: dict[str, list[Any]] = {
        "answer": [answer("resolved", {"k": said})],
        "text": [text(said), text(said), text(said)],
        "arguments": [calls(call("lookup", {"q": said}), call(said[:60], {"q": said}), text=said), answer("resolved")],
        "nothing": [calls(call("lookup"), text=said), text(""), text("")],
        "outcome": [answer(said[-80:], said), answer(said[-80:], said)],
        "input": [answer("resolved")],
    }
    outcome = {"outcome": {"enum": list(OUTCOMES)}} if has_enum else {"outcome": {}}
    run = a_run(FunctionReply({"ok": True}), turns[place], said if place == "input" else "hello", **outcome)
    end, state, lines = play(run)
    check(run, end, state, lines)
    check_masked(run, lines)
    if place == "input":
        check_prompts_masked(run)


def check_prompts_masked(run: Scenario) -> None:
    assert isinstance(run.model, ListModel)
    prompts = "\n".join(message.text for request in run.model.requests for message in request.messages)
    assert [secret for secret in SECRETS if secret in prompts] == []
