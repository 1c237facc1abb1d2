"""From a real run to the judge's prompt: secrets in context, arguments and results, and in names that a model or a
server chose, are nowhere in it, with no guardrail that masks anything (supervision.md "Judge").
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilothouse_api.judging import JudgeRequest
from pilothouse_api.observation import Observation
from pilothouse_api.v1alpha1.agentrun import Snapshot
from pilothouse_control.supervision.observing import observe
from pilothouse_engine.ports import (
    FunctionFailure,
    FunctionReply,
    HttpResponse,
    McpFailure,
    McpResult,
    ModelFailure,
    ModelRequest,
)
from pilothouse_engine.testing.clock import ManualClock
from pilothouse_engine.testing.http import ScriptedHttp
from pilothouse_engine.testing.mcp import InProcessMcp
from pilothouse_runner.judge.prompt import build_messages, show_observation
from unit.engine.hostile import MODEL_SECRET, TOOL_SECRET, StrangeModel, examples, function_results, play, replies
from unit.engine.scenarios import (
    ListModel,
    Outcome,
    Scenario,
    Turn,
    agent_step,
    answer,
    build_plan,
    call,
    calls,
    function_tool,
    response_step,
    text,
)

SECRET = "lantern-4711"
CRITERIA = "The agent makes progress."
API = {"kind": "APICall", "apiCall": {"method": "GET", "url": "http://shop.test/x"}}
TOOLS = [
    function_tool("lookup", writesContext=True),
    function_tool("pay", effect="Once"),
    {"name": "get", "description": "Asks.", "inlineStep": API, "writesContext": True},
    {"name": "github", "mcp": {"server": "gh", "allow": ["*"]}},
    {"name": "files", "mcp": {"server": "fs", "allow": ["read"]}},
]
SERVERS = [{"name": name, "transport": "StreamableHTTP", "url": f"https://{name}.test/mcp"} for name in ("gh", "fs")]


class SlowModel(StrangeModel):
    """Takes its time, so that the run publishes a snapshot of each turn."""

    clock: ManualClock

    async def call(self, request: ModelRequest) -> Outcome:
        await self.clock.sleep(2)
        return await super().call(request)


def a_run(
    turns: Sequence[Turn],
    returned: FunctionReply | FunctionFailure | None = None,
    response: HttpResponse | None = None,
    server: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Scenario:
    """One agent with every kind of tool: `server` are the tools of an MCP server that allows all of them."""
    mcp = InProcessMcp(
        {"gh": server or {"search": lambda arguments: "found"}, "fs": {"read": lambda arguments: "read"}}
    )
    step = agent_step(
        tools=TOOLS, mcpServers=SERVERS, routes={"resolved": "tell", "needs_human": "tell", "error": "end"}
    )
    plan = build_plan(step, response_step("tell", a="work_result"), input=dict(given or {"ticket": "charged twice"}))
    work = {"tools:lookup": lambda arguments: returned or FunctionReply({"ok": 1}), "tools:pay": lambda arguments: {}}
    http = ScriptedHttp(response or HttpResponse(200, (), b"{}"))
    model = SlowModel(turns)
    run = Scenario(plan, model, work, http=http, mcp=mcp)
    model.clock = run.clock
    return run


def prompts_of(run: Scenario) -> list[tuple[Observation, str]]:
    """Return what the judge would be asked at each snapshot that the run has published."""
    asked = []
    for snapshot in run.store.snapshots:
        seen = observe(snapshot, run.plan, run.clock.now() + timedelta(seconds=1))
        if seen is not None:
            request = JudgeRequest(model="careful", criteria=CRITERIA, observation=seen, timeout_seconds=30)
            asked.append((seen, "\n".join(message.text for message in build_messages(request))))
    return asked


def everything_of(run: Scenario) -> str:
    """Return the journal and all prompts of the agent's own model."""
    assert isinstance(run.model, ListModel)
    prompts = [message.text for request in run.model.requests for message in request.messages]
    return json.dumps([dict(entry) for entry in asyncio.run(run.journal.read())] + prompts, ensure_ascii=False)


def says(text: str) -> HttpResponse:
    return HttpResponse(500, (("X-" + SECRET, SECRET),), json.dumps({SECRET: text}).encode())


DONE = answer("resolved")
LOOKUP = calls(call("lookup"))
GET, SEARCH = calls(call("get")), calls(call("gh__search"))
LISTED = {SECRET: lambda arguments: "found", "search": lambda arguments: McpResult(SECRET, {SECRET: SECRET})}

PLACES: dict[str, Scenario] = {
    "a value of the input": a_run([LOOKUP, DONE], given={"ticket": SECRET}),
    "a name in the input": a_run([LOOKUP, DONE], given={SECRET: "x", "ticket": {SECRET: [SECRET]}}),
    "a value of arguments": a_run([calls(call("lookup", {"q": SECRET})), DONE]),
    "a name in arguments": a_run([calls(call("lookup", {SECRET: 1})), DONE]),
    "arguments that are no JSON": a_run([calls(call("lookup", f'{{"{SECRET}')), DONE]),
    "identical arguments": a_run([calls(*[call("lookup", {"q": SECRET})] * 4), DONE]),
    "an argument that another tool would take": a_run([calls(call("pay", {"to": SECRET})), DONE]),
    "a tool's name": a_run([calls(call(SECRET), call(f"lookup_{SECRET}"), call(f"gh__{SECRET}")), DONE]),
    "a long tool's name": a_run([calls(call(SECRET * 500)), DONE]),
    "the name of a task": a_run([calls(call(f"start_{SECRET}_task")), DONE]),
    "the provider's id of a call": a_run([calls(call("lookup", provider_id=SECRET)), DONE]),
    "the text beside a call": a_run([calls(call("lookup"), text=SECRET), DONE]),
    "the plan that the model keeps": a_run(
        [calls(call("update_plan", {"items": [{"text": SECRET, "status": "pending"}]})), DONE]
    ),
    "an outcome's name": a_run([LOOKUP, answer(SECRET), DONE]),
    "an answer": a_run([LOOKUP, answer("resolved", {SECRET: SECRET})]),
    "an answer of no form": a_run([LOOKUP, text(SECRET), text(SECRET), text(SECRET)]),
    "a provider's failure": a_run([LOOKUP, ModelFailure("InvalidRequest", SECRET)]),
    "a function's result": a_run([LOOKUP, DONE], FunctionReply({SECRET: SECRET})),
    "a function's signal": a_run([LOOKUP, DONE], FunctionReply({"a": 1}, SECRET)),
    "a function's failure": a_run([LOOKUP, DONE], FunctionFailure("Raised", SECRET)),
    "a large result": a_run([LOOKUP, DONE], FunctionReply({"a": SECRET * 5000})),
    "a server's answer": a_run(
        [GET, DONE], response=HttpResponse(200, ((SECRET, SECRET),), f'{{"{SECRET}": 1}}'.encode())
    ),
    "a server's error": a_run([GET, DONE], response=says(SECRET)),
    "the name of a server's tool": a_run([calls(call(f"gh__{SECRET}")), SEARCH, DONE], server=LISTED),
    "an MCP server's error": a_run(
        [SEARCH, DONE], server={"search": lambda a: McpFailure("JsonRpc", "no", detail=SECRET)}
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_stays_out_of_the_judges_prompt(place: str) -> None:
    run = PLACES[place]

    play(run)
    asked = prompts_of(run)

    assert SECRET in everything_of(run), "the secret was never in the run: nothing is shown by its absence"
    assert [seen.iteration for seen, _ in asked][-1] >= 1
    assert sum(sum(seen.tool_calls.values()) + seen.undeclared_tool_calls for seen, _ in asked) > 0
    assert [prompt for _, prompt in asked if SECRET in prompt] == []


def test_what_the_judge_sees_of_calls_are_the_authors_names_and_numbers() -> None:
    run = a_run(
        [calls(call(f"gh__{SECRET}"), call("gh__search"), call(SECRET), call("lookup"), call("fs__read")), DONE],
        server=LISTED,
    )

    play(run)
    seen, _ = prompts_of(run)[-1]

    assert seen.tool_calls == {"github": 2, "lookup": 1, "fs__read": 1}
    assert seen.undeclared_tool_calls == 1


def test_a_runner_that_lies_brings_nothing_to_the_judge_either() -> None:
    """What it has published is forged wherever a text stands; names are the plan's, times and money are parsed."""
    run = a_run([calls(call("lookup"), call("gh__search")), DONE])
    play(run)
    told = [seen for seen in run.store.snapshots if seen.visit_counts is not None and seen.visit_counts.tool_calls]
    raw = told[-1].to_raw()
    raw["visitCounts"]["toolCalls"][SECRET] = 5
    for name in ("usedUSD", "budgetUSD"):
        raw["cost"][name] = raw["cost"].setdefault("visit", {})[name] = SECRET
    raw["lastProgressTime"] = raw["turnStartedTime"] = SECRET
    raw["effects"] = {"unknown": [{"callId": SECRET, "tool": SECRET, "at": SECRET}]}
    forged = Snapshot.model_validate(raw)

    seen = observe(forged, run.plan, run.clock.now())

    assert SECRET in forged.model_dump_json()
    assert seen is not None and seen.undeclared_tool_calls == 5
    assert SECRET not in show_observation(seen)
    assert observe(forged.model_copy(update={"step": SECRET}), run.plan, run.clock.now()) is None


@given(st.lists(replies(), min_size=1, max_size=4), function_results())
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
def test_nothing_that_models_and_tools_make_up_reaches_the_judge(turns: list[Any], returned: Any) -> None:
    run = a_run([LOOKUP, *turns], returned)

    play(run)
    words = {word for _, prompt in prompts_of(run) for word in (MODEL_SECRET, TOOL_SECRET) if word in prompt}

    assert words == set()
