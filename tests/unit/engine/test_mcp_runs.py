"""Tools of MCP servers through the whole engine: what is offered, what a call gives, what a crash and a person change
(engine.md §3 "MCP.").
"""

import asyncio
import json
import logging
from collections import Counter
from typing import Any

import pytest

from pilothouse_engine.facts import CallFinished, CallStarted, StepFinished, ToolSurface
from pilothouse_engine.ports import McpFailure, McpListing, McpResult, McpTool, ModelRequest
from pilothouse_engine.run import Released
from pilothouse_engine.testing.journal import MemoryJournal
from pilothouse_engine.testing.mcp import InProcessMcp, McpCalled
from unit.engine.scenarios import (
    ListModel,
    Scenario,
    agent_step,
    answer,
    call,
    calls,
    codes,
    function_tool,
    response_step,
    scenario,
    tool_texts,
)

pytestmark = pytest.mark.anyio

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


def server(name: str = "gh", **more: Any) -> dict[str, Any]:
    return {"name": name, "transport": "StreamableHTTP", "url": f"https://{name}.test/mcp", **more}


def entry(*allow: str, name: str = "github", of: str = "gh", **more: Any) -> dict[str, Any]:
    return {"name": name, "mcp": {"server": of, "allow": list(allow) or ["*"]}, "effect": "ReadOnly", **more}


def mcp_step(*tools: dict[str, Any], servers: Any = None, id: str = "work", **fields: Any) -> dict[str, Any]:
    return agent_step(id, tools=list(tools) or [entry()], mcpServers=servers or [server()], **fields)


def serving(**tools: Any) -> InProcessMcp:
    """One server, gh: its tools give these results."""
    named = {name: (lambda arguments, given=given: given) for name, given in tools.items()}
    mcp = InProcessMcp({"gh": named})
    mcp.listings["gh"] = McpListing(tuple(McpTool(name, f"Does {name}.", QUERY) for name in named))
    return mcp


def requests_of(run: Scenario) -> list[ModelRequest]:
    assert isinstance(run.model, ListModel)
    return run.model.requests


def offered(request: ModelRequest) -> list[str]:
    return [tool.name for tool in request.tools]


SEARCH = call("gh__search", {"query": "refunds"})


async def test_listed_tools_stand_beside_declared_ones_and_a_call_goes_to_the_server() -> None:
    mcp = serving(search="three hits", get="one")
    step = mcp_step(function_tool("lookup"), entry("search"))
    run = scenario([calls(SEARCH), answer("resolved")], step, mcp=mcp)
    end = await run.finish()
    assert end.exit.signal == "resolved"
    first, second = requests_of(run)
    assert offered(first) == ["lookup", "gh__search", "read_tool_result"]
    assert first.tools[1].parameters["required"] == ["query"]
    assert mcp.calls == [McpCalled("gh", "search", {"query": "refunds"}, None)]
    assert json.loads(tool_texts(second)[0]) == {"signal": "default", "output": {"gh__search_result": "three hits"}}
    assert run.snapshot.tool_calls == {"gh__search": 1}
    assert run.snapshot.undeclared_tool_calls == 0


async def test_servers_are_asked_once_a_visit_and_again_in_the_next() -> None:
    mcp = serving(search="hit")
    visit = [calls(SEARCH), calls(call("gh__search", {"query": "more"})), answer("resolved")]
    run = scenario(
        [*visit, *visit],
        mcp_step(id="one", routes={"resolved": "two"}),
        mcp_step(id="two"),
        mcp=mcp,
    )
    await run.finish()
    assert mcp.listed == ["gh", "gh"]
    assert mcp.visits_ended == 2
    assert len(await run.facts_of(ToolSurface)) == 2


async def test_two_servers_are_asked_at_the_same_time() -> None:
    mcp = serving(search="hit")
    together = asyncio.Barrier(2)
    ask = mcp.list_tools

    async def list_tools(asked: Any, deadline: float) -> Any:
        assert deadline == 10.0
        await together.wait()
        return await ask(asked, deadline)

    mcp.list_tools = list_tools  # type: ignore[method-assign]
    mcp.servers["ops"] = {"restart": lambda arguments: "ok"}
    step = mcp_step(entry(), entry(name="ops", of="ops"), servers=[server(), server("ops")])
    run = scenario([answer("resolved")], step, mcp=mcp)
    await run.finish()
    assert offered(requests_of(run)[0]) == ["gh__search", "ops__restart", "read_tool_result"]


@pytest.mark.parametrize(
    ("effect", "key_chars"),
    [({}, 64), ({"effect": "Idempotent"}, 64), ({"effect": "ReadOnly"}, 0)],
)
async def test_the_effect_is_the_entrys_and_decides_about_the_key(effect: dict[str, str], key_chars: int) -> None:
    mcp = serving(search="hit")
    tool = {key: value for key, value in entry().items() if key != "effect"} | effect
    run = scenario([calls(SEARCH), answer("resolved")], mcp_step(tool), mcp=mcp)
    await run.finish()
    started = (await run.facts_of(CallStarted))[0]
    assert started.effect == effect.get("effect", "Once")
    assert len(started.key) == key_chars
    assert mcp.calls[0].idempotency_key == (started.key or None)


# ---------------------------------------------------------------- servers that cannot tell their tools

DOWN = McpFailure("Connection", "it cannot be reached")


async def test_a_required_server_that_is_down_ends_the_step_before_any_model_call() -> None:
    step = mcp_step(routes={"resolved": "end", "error": "tell"})
    run = scenario([], step, response_step("tell", why="_last_error"), mcp=InProcessMcp({"gh": DOWN}))
    end = await run.finish()
    assert requests_of(run) == []
    finished = (await run.facts_of(StepFinished))[0]
    assert (finished.signal, finished.error_type) == ("error", "McpUnavailable")
    assert end.result is not None and "MCP server gh cannot tell its tools" in end.result["why"]


async def test_an_optional_server_that_is_down_is_left_out_and_people_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mcp = serving(search="hit")
    mcp.servers["ops"] = DOWN
    step = mcp_step(entry(), entry(name="ops", of="ops"), servers=[server(), server("ops", required=False)])
    run = scenario([answer("resolved")], step, mcp=mcp)
    with caplog.at_level(logging.WARNING, "pilothouse.engine"):
        await run.finish()
    assert offered(requests_of(run)[0]) == ["gh__search", "read_tool_result"]
    assert "MCP server ops is left out: it cannot be reached" in caplog.text
    frame = next(frame for frame in run.sink.frames if frame["kind"] == "Tools")
    assert (frame["step"], frame["offered"], frame["leftOut"], frame["warnings"]) == ("work", 1, ["ops"], 1)


async def test_an_agent_whose_only_server_is_left_out_works_without_tools() -> None:
    mcp = InProcessMcp({"gh": DOWN})
    run = scenario([answer("needs_human")], mcp_step(servers=[server(required=False)], routes={"needs_human": "end"}))
    run.mcp = mcp
    await run.finish()
    assert requests_of(run)[0].tools == ()
    assert mcp.listed == ["gh"]


async def test_a_server_that_never_lists_costs_its_time_and_no_more() -> None:
    mcp = serving(search="hit")

    async def hang(asked: Any, deadline: float) -> Any:
        await asyncio.Event().wait()

    mcp.list_tools = hang  # type: ignore[method-assign]
    run = scenario([], mcp_step(), mcp=mcp)
    end = await run.finish()
    assert end.exit.error is not None and end.exit.error.type == "McpUnavailable"
    assert run.clock.monotonic() <= 31


async def test_a_release_does_not_wait_for_a_server_that_hangs_and_the_next_attempt_asks_again() -> None:
    mcp = serving(search="hit")
    ask, asked_twice = mcp.list_tools, []

    async def hang_once(asked: Any, deadline: float) -> Any:
        asked_twice.append(asked.name)
        if len(asked_twice) == 1:
            run.stop.release()
            await asyncio.Event().wait()
        return await ask(asked, deadline)

    mcp.list_tools = hang_once  # type: ignore[method-assign]
    run = scenario([answer("resolved")], mcp_step(), mcp=mcp)
    await run.release()
    assert mcp.visits_ended == 1
    end = await run.finish()
    assert (end.exit.signal, asked_twice) == ("resolved", ["gh", "gh"])


async def test_an_abort_that_came_while_servers_were_asked_lands_before_the_model_is() -> None:
    mcp = serving(search="hit")
    ask = mcp.list_tools

    async def list_tools(asked: Any, deadline: float) -> Any:
        run.store.set_control(mode="Abort")
        return await ask(asked, deadline)

    mcp.list_tools = list_tools  # type: ignore[method-assign]
    run = scenario([], mcp_step(), mcp=mcp)
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason) == ("aborted", "Aborted")
    assert requests_of(run) == []


async def test_a_last_turn_without_tools_asks_no_server() -> None:
    mcp = serving(search="hit")
    run = scenario([answer("resolved")], mcp_step(), mcp=mcp)
    run.store.set_control(mode="Finish")
    await run.finish()
    assert mcp.listed == []


# ---------------------------------------------------------------- gates


async def test_arguments_are_judged_by_the_listed_schema_and_an_unknown_tool_is_told_the_offered_ones() -> None:
    mcp = serving(search="hit")
    asked = calls(call("gh__search", {"query": 7}), call("search", {"query": "x"}))
    run = scenario([asked, answer("resolved")], mcp_step(recovery={"maxSameError": 3}), mcp=mcp)
    await run.finish()
    shown = requests_of(run)[1]
    assert codes(shown) == ["tool_invalid_arguments", "tool_unknown"]
    assert "gh__search" in tool_texts(shown)[1]
    assert mcp.calls == []
    assert run.snapshot.undeclared_tool_calls == 1


async def test_max_calls_of_an_entry_counts_all_of_its_tools_together_and_no_others() -> None:
    mcp = serving(search="hit", get="one")
    tools = [entry(maxCalls=2), function_tool("lookup")]
    asked = calls(SEARCH, call("gh__get", {"query": "1"}), call("lookup"), call("gh__get", {"query": "2"}))
    run = scenario([asked, answer("resolved")], mcp_step(*tools, limits={"maxParallelToolCalls": 4}), mcp=mcp)
    await run.finish()
    assert codes(requests_of(run)[1]) == [None, None, None, "tool_max_calls"]
    assert "a tool of github was called 2 times" in tool_texts(requests_of(run)[1])[3]
    assert [made.tool for made in mcp.calls] == ["search", "get"]


async def test_read_only_calls_to_one_server_run_beside_each_other_and_are_shown_in_order() -> None:
    together = asyncio.Barrier(2)

    async def search(arguments: dict[str, Any]) -> str:
        await together.wait()
        return f"found {arguments['query']}"

    mcp = InProcessMcp({"gh": {"search": search}})
    asked = calls(call("gh__search", {"query": "a"}), call("gh__search", {"query": "b"}))
    run = scenario([asked, answer("resolved")], mcp_step(limits={"maxParallelToolCalls": 2}), mcp=mcp)
    await run.finish()
    assert ["found a" in shown for shown in tool_texts(requests_of(run)[1])] == [True, False]


async def test_what_is_offered_counts_in_the_bound_of_a_prompt() -> None:
    mcp = serving(search="hit")
    long = {"type": "object", "properties": {f"p{n}": {"type": "string", "description": "x" * 400} for n in range(60)}}
    mcp.listings["gh"] = McpListing((McpTool("search", "", long),))
    run = scenario([answer("resolved")], mcp_step(limits={"tokenBudget": 10_000}), mcp=mcp)
    await run.finish()
    assert requests_of(run)[0].tools == ()  # with them it would not have fitted: a turn that wraps up


# ---------------------------------------------------------------- how calls end


async def a_hanging_call(arguments: dict[str, Any]) -> str:
    await asyncio.Event().wait()
    return "never"


@pytest.mark.parametrize(
    ("given", "effect", "code", "is_unknown"),
    [
        (McpResult("no such customer", is_error=True), "Once", "tool_error", False),
        (McpFailure("JsonRpc", "it answered with JSON-RPC error -32050", detail="closed"), "Once", "tool_error", False),
        (McpFailure("Connection", "it went away", sent=True), "Once", "tool_effect_unknown", True),
        (McpFailure("Connection", "it went away", sent=True), "Idempotent", "tool_error", False),
        (McpFailure("Connection", "it is not there"), "Once", "tool_error", False),
        (McpFailure("TooLarge", "its answer is larger than 1 MiB"), "ReadOnly", "tool_error", False),
        (McpFailure("Credentials", "they cannot be read"), "Once", "tool_error", False),
    ],
)
async def test_whatever_a_server_does_a_call_gets_one_result_and_the_run_goes_on(
    given: McpResult | McpFailure, effect: str, code: str, is_unknown: bool
) -> None:
    run = scenario([calls(SEARCH), answer("resolved")], mcp_step(entry(effect=effect)), mcp=serving(search=given))
    end = await run.finish()
    assert end.exit.signal == "resolved"
    assert codes(requests_of(run)[1]) == [code]
    assert len(await run.facts_of(CallFinished)) == 1
    assert bool(run.snapshot.effects.unknown) == is_unknown


async def test_a_call_past_its_time_is_cancelled_and_ends_the_step_with_its_effect_listed() -> None:
    mcp = InProcessMcp({"gh": {"search": a_hanging_call}})
    run = scenario([calls(SEARCH)], mcp_step(entry(effect="Once", timeoutSeconds=7)), mcp=mcp)
    end = await run.finish()
    assert end.exit.error is not None and end.exit.error.type == "ToolTimeout"
    assert [effect.tool for effect in run.snapshot.effects.unknown] == ["gh__search"]
    assert run.clock.monotonic() == pytest.approx(7, abs=0.1)
    assert mcp.visits_ended == 1


async def test_a_long_call_is_not_cut_at_the_time_of_a_step() -> None:
    async def slow(arguments: dict[str, Any]) -> str:
        await run.clock.sleep(120)
        return "at last"

    run = scenario([calls(SEARCH), answer("resolved")], mcp_step(), mcp=InProcessMcp({"gh": {"search": slow}}))
    await run.finish()
    assert "at last" in tool_texts(requests_of(run)[1])[0]


# ---------------------------------------------------------------- resume


async def lines_of(run: Scenario) -> list[str]:
    assert isinstance(run.journal, MemoryJournal)
    return list(run.journal._lines)


async def test_a_resumed_visit_keeps_its_tools_whatever_the_server_lists_by_then() -> None:
    first = serving(search="hit", get="one")
    run = scenario([calls(SEARCH), answer("resolved")], mcp_step(), mcp=first)
    await run.finish()
    lines = await lines_of(run)
    cut = next(number for number, line in enumerate(lines) if '"ReplyReceived"' in line) + 1

    later = serving(other="what?")
    resumed = scenario([answer("resolved")], mcp_step(), mcp=later)
    resumed.journal = MemoryJournal(durable=True)
    resumed.journal._lines = lines[:cut]
    resumed.attempts = 1
    end = await resumed.finish()
    assert end.exit.signal == "resolved"
    assert later.listed == []
    request = requests_of(resumed)[0]
    assert offered(request) == ["gh__search", "gh__get", "read_tool_result"]
    assert codes(request) == ["tool_error"]  # the tool has vanished: its server says so
    assert later.visits_ended == 1


async def test_a_run_with_mcp_resumes_at_every_fact_with_at_most_one_effect() -> None:
    steps = (
        mcp_step(entry("search"), entry("pay", name="payments", effect="Once"), routes={"resolved": "archive"}),
        {
            "id": "archive",
            "kind": "MCP",
            "effect": "Once",
            "mcp": {"server": server(), "tool": "archive", "arguments": {"what": "{{ ticket }}"}},
            "routes": {"default": "end", "error": "end"},
        },
    )

    def build() -> tuple[Scenario, Counter[str]]:
        made: Counter[str] = Counter()

        def tool(name: str) -> Any:
            def work(arguments: dict[str, Any]) -> str:
                made[name] += 1
                return name

            return work

        mcp = InProcessMcp({"gh": {name: tool(name) for name in ("search", "pay", "archive")}})
        turns = {0: calls(SEARCH, call("gh__pay", {"eur": 5})), 1: answer("resolved")}

        def play(request: ModelRequest) -> Any:
            return turns[min(1, len(tool_texts(request)))]

        return scenario([play] * 4, *steps, mcp=mcp), made

    whole, _ = build()
    await whole.finish()
    lines = await lines_of(whole)
    assert len(lines) > 12
    for cut in range(len(lines)):
        run, made = build()
        run.journal = MemoryJournal(durable=True)
        run.journal._lines = lines[:cut]
        run.attempts = 1
        await run.finish()
        finished = Counter(fact.id for fact in await run.facts_of(CallFinished))
        assert set(finished.values()) == {1}, cut
        started = sum('"CallStarted"' in line and '"Once"' in line for line in lines[:cut])
        assert made["pay"] + made["archive"] <= 2 - started, cut
        assert len(await run.facts_of(ToolSurface)) == 1, cut


async def test_sessions_end_with_an_attempt_that_is_released_in_the_middle_of_a_visit() -> None:
    async def wait(arguments: dict[str, Any]) -> str:
        run.stop.release()
        await asyncio.Event().wait()
        return "never"

    mcp = InProcessMcp({"gh": {"search": wait}})
    run = scenario([calls(SEARCH)], mcp_step(), mcp=mcp)
    end = await run.attempt()
    assert isinstance(end, Released)
    assert mcp.visits_ended == 1


# ---------------------------------------------------------------- a step of kind MCP


def archive(**more: Any) -> dict[str, Any]:
    return {"server": server(), "tool": "archive", "arguments": {"what": "{{ ticket }}", "n": 1}, **more}


async def test_a_step_of_the_graph_calls_a_tool_and_writes_what_it_gave() -> None:
    mcp = InProcessMcp({"gh": {"archive": lambda arguments: McpResult("ok", {"id": 7})}})
    step = {"id": "file-it", "kind": "MCP", "mcp": archive(output="filed")}
    run = scenario([], step, response_step("tell", number="filed.id"), mcp=mcp)
    end = await run.finish()
    assert end.result == {"number": 7}
    assert mcp.listed == []
    assert mcp.calls[0].arguments == {"what": "I was charged twice", "n": 1}
    assert len(mcp.calls[0].idempotency_key or "") == 64
    assert mcp.visits_ended == 1


@pytest.mark.parametrize("form", ["step", "inlineStep"])
async def test_a_step_of_kind_mcp_is_a_tool_whose_placeholders_are_its_parameters(form: str) -> None:
    mcp = InProcessMcp({"gh": {"archive": lambda arguments: f"filed {arguments['what']}"}})
    params = archive(arguments={"what": "{{ note.text }}", "n": 1})
    if form == "step":
        tool: dict[str, Any] = {"name": "file_it", "description": "Files it.", "step": "file-it"}
        steps = [{"id": "file-it", "kind": "MCP", "toolOnly": True, "mcp": params}]
    else:
        tool = {"name": "file_it", "description": "Files it.", "inlineStep": {"kind": "MCP", "mcp": params}}
        steps = []
    asked = calls(call("file_it", {"note": {"text": "all is well"}}))
    run = scenario([asked, answer("resolved")], agent_step(tools=[tool]), *steps, mcp=mcp)
    await run.finish()
    spec = requests_of(run)[0].tools[0]
    assert spec.parameters["properties"] == {"note": {"type": "object", "properties": {"text": {}}}}
    assert spec.parameters["required"] == ["note"]
    assert "filed all is well" in tool_texts(requests_of(run)[1])[0]
    assert mcp.listed == []


async def test_a_graph_step_whose_server_goes_away_in_mid_call_is_unknown_and_not_repeated() -> None:
    mcp = InProcessMcp({"gh": {"archive": lambda arguments: McpFailure("Connection", "it went away", sent=True)}})
    step = {"id": "file-it", "kind": "MCP", "mcp": archive(), "routes": {"error": "end"}}
    run = scenario([], step, mcp=mcp)
    await run.finish()
    assert (await run.facts_of(StepFinished))[0].error_type == "EffectUnknown"
    assert len(mcp.calls) == 1
