"""Whatever tools and steps return, the run ends as it should and every promise holds (engine.md §3, §6, §16)."""

import json
from itertools import cycle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilothouse_engine.ports import McpListing, McpTool
from pilothouse_engine.testing.http import ScriptedHttp
from pilothouse_engine.testing.mcp import InProcessMcp
from unit.engine.hostile import (
    OUTCOMES,
    StrangeModel,
    check,
    examples,
    function_results,
    http_results,
    mcp_results,
    play,
)
from unit.engine.scenarios import (
    Scenario,
    agent_step,
    answer,
    build_plan,
    call,
    calls,
    function_step,
    function_tool,
    response_step,
)


def api_tool(name: str, method: str, **fields: Any) -> dict[str, Any]:
    api_call = {"method": method, "url": "http://shop.test/x"} | fields
    return {"name": name, "description": "Asks.", "inlineStep": {"kind": "APICall", "apiCall": api_call}}


KEYED = {"kind": "Function", "function": {"callable": "tools:keyed"}}
TOOLS = [
    function_tool("lookup", writesContext=True),
    {"name": "keyed", "description": "Returns keys.", "inlineStep": KEYED, "effect": "Once", "writesContext": True},
    api_tool("get", "GET", retry={"attempts": 2}),
    api_tool("post", "POST", extract=[{"path": "a", "as": "part"}]),
    {"name": "github", "mcp": {"server": "gh", "allow": ["*"]}, "effect": "Once"},
]
CALLABLE = ("lookup", "lookup", "keyed", "get", "post", "gh__search")
asked = st.lists(st.lists(st.sampled_from(CALLABLE), min_size=1, max_size=4), max_size=4)


def a_run(turns: list[list[str]], function: Any, http: Any, mcp: Any, parallel: int) -> Scenario:
    """A step of the graph, an agent that calls these tools and reads results, and a response without their words."""
    replies: list[Any] = [calls(*(call(name, {"n": n}) for n, name in enumerate(names))) for names in turns]
    replies.insert(1, lambda request: calls(*read_calls(request)))
    limits = {"maxIterations": 9, "maxToolResultChars": 400, "maxParallelToolCalls": parallel}
    agent = agent_step(
        tools=TOOLS,
        limits=limits,
        mcpServers=[{"name": "gh", "transport": "StreamableHTTP", "url": "https://gh.test/mcp"}],
        recovery={"maxFailingBatches": 50, "maxSameError": 50},
        routes=dict.fromkeys(OUTCOMES, "tell"),
    )
    functions, answers, found = cycle(function), cycle(http), cycle(mcp)
    server = InProcessMcp({"gh": {"search": lambda arguments: next(found)}})
    server.listings["gh"] = McpListing((McpTool("search", "Finds.", {"type": "object"}),))
    return Scenario(
        build_plan(function_step("fetch", routes={"default": "work"}), agent, response_step("tell", a="work_result")),
        StrangeModel([*replies, answer("resolved")]),
        {name: lambda arguments: next(functions) for name in ("steps:fetch", "tools:lookup", "tools:keyed")},
        http=ScriptedHttp(lambda request: next(answers)),
        mcp=server,
    )


def read_calls(request: Any) -> list[Any]:
    """Read the results that the prompt shows by the pointers that stand in them, genuine or not."""
    shown = [message.text for message in request.messages if message.role == "tool" and "[cut: " in message.text]
    ids = [text.rsplit("[cut: ", 1)[1].split()[0] for text in shown]
    places: list[dict[str, Any]] = [{}, {"offset": 390, "limit": 7}, {"offset": 10**9}, {"limit": 10**9}]
    return [call("read_tool_result", {"call_id": id} | place) for id, place in zip(ids, cycle(places), strict=False)]


def some(results: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(results, min_size=1, max_size=4)


@pytest.mark.slow
@given(
    asked,
    some(function_results()),
    some(http_results()),
    some(mcp_results()),
    st.sampled_from((1, 3)),
    st.integers(0, 60),
)
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
def test_whatever_tools_return_every_promise_holds(
    turns: list[list[str]], function: Any, http: Any, mcp: Any, parallel: int, crash: int
) -> None:
    run = a_run(turns, function, http, mcp, parallel)
    entries = check(run, *play(run))

    again = a_run(turns, function, http, mcp, parallel)
    again.journal._lines = [json.dumps(entry) for entry in entries[:crash]]
    check(again, *play(again, number=2))
