"""Every call of a reply gets exactly one result, whatever happens (engine.md §3)."""

import asyncio
import json
from typing import Any

import pytest

from pilothouse_engine.facts import CallFinished, CallStarted
from pilothouse_engine.ports import FunctionFailure, HttpFailure
from unit.engine.scenarios import (
    ListModel,
    Scenario,
    agent_step,
    answer,
    call,
    calls,
    codes,
    function_step,
    function_tool,
    scenario,
    text,
    tool_texts,
)

pytestmark = pytest.mark.anyio


def requests_of(run: Scenario) -> list[Any]:
    assert isinstance(run.model, ListModel)
    return run.model.requests


async def results_per_call(run: Scenario) -> dict[str, int]:
    counts: dict[str, int] = {}
    for fact in await run.facts():
        if isinstance(fact, CallFinished):
            counts[fact.id] = counts.get(fact.id, 0) + 1
    return counts


async def test_calls_have_ids_of_the_engine_and_keep_the_providers_for_the_provider() -> None:
    step = agent_step(tools=[function_tool("lookup", effect="Idempotent")])
    run = scenario([calls(call("lookup", {"a": 1}, "x"), call("lookup", {"a": 2}, "y")), answer("resolved")], step)
    await run.finish()
    started = await run.facts_of(CallStarted)
    assert [fact.id.rsplit("-", 1)[0] for fact in started] == ["t1-0", "t1-1"]
    assert len({fact.key for fact in started}) == 2
    assert [m.provider_id for m in requests_of(run)[1].messages if m.role == "tool"] == ["x-0", "y-1"]


async def test_more_calls_than_allowed_close_the_batch_and_exit_unrecoverable() -> None:
    asked = calls(*(call("lookup", {"n": n}) for n in range(4)))
    run = scenario([asked], agent_step(limits={"maxToolCalls": 2}))
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason) == ("unrecoverable", "Unrecoverable")
    assert end.exit.error is not None and end.exit.error.type == "ToolCallLimit"
    assert run.functions_run() == ["lookup", "lookup"]
    finished = await run.facts_of(CallFinished)
    assert [fact.code for fact in finished] == [None, None, "tool_call_unresolved", "tool_call_unresolved"]
    assert set((await results_per_call(run)).values()) == {1}


async def test_the_totals_of_the_run_bind_over_its_visits() -> None:
    run = scenario(
        [calls(call("lookup", {"n": 1})), answer("resolved"), calls(call("lookup", {"n": 2}))],
        agent_step("one", routes={"resolved": "two"}),
        agent_step("two"),
        plan={"limits": {"maxToolCalls": 1}},
    )
    end = await run.finish()
    assert end.exit.error is not None and end.exit.error.type == "ToolCallLimit"
    assert run.functions_run() == ["lookup"]


async def test_guarded_and_cut_calls_count_against_the_limit() -> None:
    same = calls(call("lookup"))
    run = scenario([same] * 4, agent_step(limits={"maxToolCalls": 3, "maxIterations": 9}))
    end = await run.finish()
    assert end.exit.error is not None and end.exit.error.type == "ToolCallLimit"
    assert run.functions_run() == ["lookup", "lookup"]


async def test_a_tool_past_its_own_limit_is_an_error_result() -> None:
    step = agent_step(tools=[function_tool("lookup", maxCalls=1)])
    run = scenario([calls(call("lookup", {"n": 1}), call("lookup", {"n": 2})), answer("resolved")], step)
    await run.finish()
    assert codes(requests_of(run)[1]) == [None, "tool_max_calls"]


async def test_no_call_of_a_reply_that_was_cut_runs() -> None:
    run = scenario([calls(call("lookup", {"n": 1}), finish="Length"), answer("resolved")])
    await run.finish()
    assert codes(requests_of(run)[1]) == ["tool_arguments_truncated"]
    assert run.functions_run() == []


async def test_the_third_identical_call_of_a_visit_is_answered_and_not_run() -> None:
    spellings = ['{"a": 1, "b": 2}', '{"b":2,"a":1}', '{ "a":1,"b":2 }']
    run = scenario([*(calls(call("lookup", spelling)) for spelling in spellings), answer("resolved")])
    await run.finish()
    assert codes(requests_of(run)[3]) == [None, None, "tool_call_loop_guard"]
    assert run.functions_run() == ["lookup", "lookup"]
    assert (run.snapshot.identical_calls, run.snapshot.tool_calls) == (3, {"lookup": 3})


async def test_identical_calls_of_one_parallel_run_are_guarded_too() -> None:
    step = agent_step(limits={"maxParallelToolCalls": 4})
    run = scenario([calls(*[call("lookup")] * 4), answer("resolved")], step)
    await run.finish()
    assert codes(requests_of(run)[1]) == [None, None, "tool_call_loop_guard", "tool_call_loop_guard"]


async def test_an_unknown_tool_is_answered_with_the_tools_there_are() -> None:
    run = scenario([calls(call("rm_rf")), answer("resolved")])
    await run.finish()
    shown = tool_texts(requests_of(run)[1])[0]
    assert json.loads(shown)["error"]["code"] == "tool_unknown"
    assert "lookup, read_tool_result" in shown
    assert (run.snapshot.undeclared_tool_calls, run.snapshot.tool_calls) == (1, {})
    assert "rm_rf" not in repr(run.snapshot)
    assert "rm_rf" not in json.dumps([dict(frame) for frame in run.sink.frames])


async def test_arguments_that_do_not_fit_are_answered_with_what_is_wrong() -> None:
    parameters = {"type": "object", "properties": {"customer": {"type": "string"}}, "required": ["customer"]}
    step = agent_step(tools=[function_tool("lookup", parameters=parameters)])
    turns = [calls(call("lookup", {"customer": 5}), call("lookup", "{bro")), answer("resolved")]
    run = scenario(turns, step)
    await run.finish()
    assert codes(requests_of(run)[1]) == ["tool_invalid_arguments"] * 2
    assert "customer" in tool_texts(requests_of(run)[1])[0]


async def test_an_error_of_the_tool_itself_goes_to_the_model() -> None:
    run = scenario(
        [calls(call("lookup")), answer("resolved")],
        functions={"tools:lookup": lambda arguments: FunctionFailure("Raised", "KeyError: 'x'")},
    )
    await run.finish()
    shown = json.loads(tool_texts(requests_of(run)[1])[0])
    assert (shown["signal"], shown["error"]["code"]) == ("error", "tool_error")
    assert run.snapshot.tool_errors == 1


async def test_a_tool_that_does_not_return_is_fatal_and_its_effect_is_listed() -> None:
    step = agent_step(tools=[function_tool("lookup", effect="Once", timeoutSeconds=7)])

    async def hang(arguments: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    turns = [calls(call("lookup", {"n": 1}), call("lookup", {"n": 2}))]
    run = scenario(turns, step, functions={"tools:lookup": hang})
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason) == ("error", "Error")
    assert end.exit.error is not None and end.exit.error.type == "ToolTimeout"
    assert [fact.code for fact in await run.facts_of(CallFinished)] == ["tool_error", "tool_call_unresolved"]
    assert [(effect.tool, effect.call_id[:4]) for effect in run.snapshot.effects.unknown] == [("lookup", "t1-0")]
    assert run.clock.monotonic() == 7


async def test_the_smaller_of_both_tool_timeouts_holds() -> None:
    async def hang(arguments: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    step = agent_step(tools=[function_tool("lookup", timeoutSeconds=50)], limits={"toolTimeoutSeconds": 3})
    run = scenario([calls(call("lookup"))], step, functions={"tools:lookup": hang})
    await run.finish()
    assert run.clock.monotonic() == 3


# ---------------------------------------------------------------- context


async def test_a_tool_gets_a_deep_copy_of_the_context_with_its_arguments() -> None:
    seen: list[dict[str, Any]] = []

    def meddle(arguments: dict[str, Any]) -> dict[str, Any]:
        seen.append(json.loads(json.dumps(arguments)))
        arguments["ticket"]["text"] = "changed"
        return {"ok": True}

    run = scenario(
        [calls(call("lookup", {"n": 1}), call("lookup", {"n": 2})), answer("resolved")],
        functions={"tools:lookup": meddle},
        plan={"input": {"ticket": {"text": "as it was"}}},
    )
    await run.finish()
    assert seen == [{"ticket": {"text": "as it was"}, "n": n} for n in (1, 2)]
    assert (await run.state()).context["ticket"] == {"text": "as it was"}


@pytest.mark.parametrize(("writes", "want"), [(True, {"found": True}), (False, None)])
async def test_only_a_tool_that_writes_the_context_changes_it(writes: bool, want: Any) -> None:
    step = agent_step(tools=[function_tool("lookup", writesContext=writes)])
    run = scenario([calls(call("lookup")), answer("resolved")], step)
    await run.finish()
    assert (await run.state()).context.get("lookup") == want


async def test_arguments_are_not_a_part_of_what_a_tool_changed() -> None:
    tool = function_tool("echo", writesContext=True)
    tool["inlineStep"] = {"kind": "Function", "function": {"callable": "tools:echo"}}
    run = scenario(
        [calls(call("echo", {"n": 1, "_secret": 2})), answer("resolved")],
        agent_step(tools=[tool]),
        functions={"tools:echo": lambda arguments: {"n": arguments["n"], "more": arguments["n"] + 1}},
    )
    await run.finish()
    assert json.loads(tool_texts(requests_of(run)[1])[0])["output"] == {"more": 2}
    assert (await run.state()).context["more"] == 2
    assert "n" not in (await run.state()).context


async def test_a_step_of_the_graph_serves_as_a_tool() -> None:
    step = function_step("account-lookup", toolOnly=True, description="Looks.", effect="ReadOnly")
    tool = {"name": "account_lookup", "step": "account-lookup"}
    run = scenario(
        [calls(call("account_lookup")), answer("resolved")],
        step,
        agent_step(tools=[tool]),
        functions={"steps:account_lookup": lambda arguments: {"balance": 3}},
    )
    await run.finish()
    assert json.loads(tool_texts(requests_of(run)[1])[0]) == {"signal": "default", "output": {"balance": 3}}
    assert [fact.effect for fact in await run.facts_of(CallStarted)] == ["ReadOnly"]


async def test_a_transport_that_fails_after_sending_leaves_a_once_call_unknown() -> None:
    from pilothouse_engine.testing.http import ScriptedHttp

    tool = {
        "name": "refund",
        "description": "Refunds.",
        "inlineStep": {"kind": "APICall", "apiCall": {"method": "POST", "url": "http://x.test/r"}},
    }
    run = scenario(
        [calls(call("refund", {"amount": 5})), answer("needs_human")],
        agent_step(tools=[tool], routes={"needs_human": "end"}),
        http=ScriptedHttp(HttpFailure("Connection", "reset", sent=True)),
    )
    await run.finish()
    assert codes(requests_of(run)[1]) == ["tool_effect_unknown"]
    assert [effect.tool for effect in run.snapshot.effects.unknown] == ["refund"]
    headers = dict(run.http.requests[0].headers)
    assert headers["Idempotency-Key"] == (await run.facts_of(CallStarted))[0].key


# ---------------------------------------------------------------- results


async def test_a_long_result_is_cut_with_a_pointer_and_read_in_slices() -> None:
    long = "".join(f"{n:05d} " for n in range(200))

    def read(request: Any) -> Any:
        pointer = tool_texts(request)[0]
        assert len(pointer) <= 400
        call_id = pointer.rsplit("[cut: ", 1)[1].split()[0]
        return calls(
            call("read_tool_result", {"call_id": call_id, "offset": 600, "limit": 12}),
            call("read_tool_result", {"call_id": call_id, "offset": 999_999}),
            call("read_tool_result", {"call_id": "t9-9-nope"}),
        )

    run = scenario(
        [calls(call("lookup")), read, answer("resolved")],
        agent_step(limits={"maxToolResultChars": 400}),
        functions={"tools:lookup": lambda arguments: {"text": long}},
    )
    await run.finish()
    slices = tool_texts(requests_of(run)[2])[1:]
    full = (await run.facts_of(CallFinished))[0].content
    assert slices[0].endswith("\n" + full[600:612])
    assert f"of {len(full)}" in slices[0]
    assert [json.loads(s)["error"]["code"] for s in slices[1:]] == ["tool_error"] * 2
    assert run.snapshot.tool_calls == {"lookup": 1, "read_tool_result": 3}


SLICED = {"text": "".join(f"{n:05d} " for n in range(200))}


async def read_slice(arguments: dict[str, Any]) -> str:
    """What the model is shown of a slice of the result t1-0-44136fa3, which has 1,252 characters."""
    run = scenario(
        [calls(call("lookup")), calls(call("read_tool_result", arguments)), answer("resolved")],
        agent_step(limits={"maxToolResultChars": 400}),
        functions={"tools:lookup": lambda arguments: SLICED},
    )
    await run.finish()
    return tool_texts(requests_of(run)[2])[1]


@pytest.mark.parametrize(
    ("arguments", "begin", "end"),
    [
        ({"offset": 0, "limit": 10}, 0, 10),
        ({}, 0, 351),  # with its headline 400
        ({"offset": 100}, 100, 451),
        ({"offset": 100, "limit": 350}, 100, 450),
        ({"offset": 0, "limit": 100_000}, 0, 351),  # more than there may be is as much as there may be
        ({"offset": 1240, "limit": 100}, 1240, 1252),
        ({"offset": 1251, "limit": 1}, 1251, 1252),
        ({"offset": 3.0, "limit": 2.0}, 3, 5),
    ],
)
async def test_a_slice_is_what_was_asked_for_and_never_longer_than_a_result_may_be(
    arguments: dict[str, Any], begin: int, end: int
) -> None:
    shown = await read_slice({"call_id": "t1-0-44136fa3"} | arguments)
    whole = json.dumps({"signal": "default", "output": {"lookup": SLICED}}, separators=(",", ":"))
    assert shown == f"[t1-0-44136fa3: characters {begin} to {end} of {len(whole)}]\n{whole[begin:end]}"
    assert len(shown) <= 400


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ({"call_id": "t1-0-00000000"}, "tool_error", "no result t1-0-00000000; the newest are t1-0-44136fa3"),
        ({"call_id": ""}, "tool_error", "no result ; the newest are t1-0-44136fa3"),
        ({"call_id": "p-lookup-0"}, "tool_error", "no result p-lookup-0"),  # the provider's id is not the engine's
        ({"call_id": "x" * 99_999}, "tool_error", "x" * 39 + "…"),
        ({"call_id": "t1-0-44136fa3", "offset": 1252}, "tool_error", "offset 1252 is past the end"),
        ({"call_id": "t1-0-44136fa3", "offset": 10**30}, "tool_error", "is past the end"),
        ({"call_id": "t1-0-44136fa3", "offset": -1}, "tool_invalid_arguments", "-1"),
        ({"call_id": "t1-0-44136fa3", "limit": 0}, "tool_invalid_arguments", "0"),
        ({"call_id": "t1-0-44136fa3", "limit": "all"}, "tool_invalid_arguments", "limit"),
        ({"call_id": 7}, "tool_invalid_arguments", "call_id"),
        ({}, "tool_invalid_arguments", "call_id"),
    ],
)
async def test_what_cannot_be_read_is_an_error_result(arguments: dict[str, Any], code: str, said: str) -> None:
    error = json.loads(await read_slice(arguments))["error"]
    assert error["code"] == code
    assert said in error["message"]
    assert len(error["message"]) < 500


async def test_a_slice_is_a_result_too_and_can_be_read_again() -> None:
    turns = [calls(call("lookup")), calls(call("read_tool_result", {"call_id": "t1-0-44136fa3"}))]
    run = scenario(
        [*turns, lambda request: calls(call("read_tool_result", {"call_id": newest_id(run)})), answer("resolved")],
        agent_step(limits={"maxToolResultChars": 400}),
        functions={"tools:lookup": lambda arguments: SLICED},
    )
    await run.finish()
    first, second = tool_texts(requests_of(run)[3])[1:]
    assert first.startswith(second.split("\n", 1)[1])
    assert 390 < len(second) <= 400


def newest_id(run: Scenario) -> str:
    return [line for line in run.journal._lines if '"CallStarted"' in line][-1].split('"id":"')[1].split('"')[0]


async def test_results_of_an_earlier_visit_are_not_read() -> None:
    step = agent_step(routes={"needs_human": "work", "resolved": "end"}, limits={"maxToolResultChars": 400})
    read = calls(call("read_tool_result", {"call_id": "t1-0-44136fa3"}))
    run = scenario(
        [calls(call("lookup")), answer("needs_human"), read, answer("resolved")],
        step,
        functions={"tools:lookup": lambda arguments: SLICED},
    )
    await run.finish()
    assert codes(requests_of(run)[3]) == ["tool_error"]
    assert "the newest are none" in tool_texts(requests_of(run)[3])[0]


# ---------------------------------------------------------------- parallel runs


class Gate:
    """Functions that report when they overlap."""

    def __init__(self) -> None:
        self.active = 0
        self.most = 0
        self.log: list[int] = []

    async def __call__(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.active += 1
        self.most = max(self.most, self.active)
        for _ in range(5 - int(arguments["n"])):
            await asyncio.sleep(0)
        self.active -= 1
        self.log.append(arguments["n"])
        return {"n": arguments["n"]}


async def test_read_only_calls_share_tasks_and_keep_their_order() -> None:
    gate = Gate()
    run = scenario(
        [calls(*(call("lookup", {"n": n}) for n in range(5))), answer("resolved")],
        agent_step(limits={"maxParallelToolCalls": 3}),
        functions={"tools:lookup": gate},
    )
    await run.finish()
    assert gate.most == 3
    assert gate.log != sorted(gate.log)
    shown = [json.loads(t)["output"]["lookup"]["n"] for t in tool_texts(requests_of(run)[1])]
    assert shown == [0, 1, 2, 3, 4]


async def test_a_call_with_an_effect_splits_a_parallel_run() -> None:
    gate = Gate()
    tools = [function_tool("lookup"), function_tool("write", effect="Once")]
    asked = [call("lookup", {"n": 0}), call("write", {"n": 1}), call("lookup", {"n": 2}), call("lookup", {"n": 3})]
    run = scenario(
        [calls(*asked), answer("resolved")],
        agent_step(tools=tools, limits={"maxParallelToolCalls": 4}),
        functions={"tools:lookup": gate, "tools:write": gate},
    )
    await run.finish()
    assert gate.log[:2] == [0, 1]
    assert gate.most == 2


async def test_a_fatal_call_of_a_parallel_run_lets_its_siblings_finish() -> None:
    async def work(arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments["n"] == 0:
            await asyncio.Event().wait()
        await run.clock.sleep(2)
        return {"n": arguments["n"]}

    step = agent_step(limits={"maxParallelToolCalls": 3, "toolTimeoutSeconds": 5})
    run = scenario([calls(*(call("lookup", {"n": n}) for n in range(4)))], step, functions={"tools:lookup": work})
    end = await run.finish()
    assert end.exit.error is not None and end.exit.error.type == "ToolTimeout"
    finished = {fact.id[:4]: fact.code for fact in await run.facts_of(CallFinished)}
    assert finished == {"t1-0": "tool_error", "t1-1": None, "t1-2": None, "t1-3": "tool_call_unresolved"}


# ---------------------------------------------------------------- recovery


async def test_the_same_error_in_two_batches_ends_the_step() -> None:
    failing = {"tools:lookup": lambda arguments: FunctionFailure("Raised", "boom")}
    run = scenario([calls(call("lookup", {"n": n})) for n in range(2)], functions=failing)
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason) == ("unrecoverable", "Unrecoverable")
    assert end.exit.error is not None and "lookup failed with tool_error in 2 batches" in end.exit.error.message


async def test_three_failing_batches_end_the_step_even_where_the_errors_differ() -> None:
    failing = {"tools:lookup": lambda arguments: FunctionFailure("Raised", f"boom {arguments['n']}")}
    run = scenario([calls(call("lookup", {"n": n})) for n in range(3)], functions=failing)
    assert (await run.finish()).exit.signal == "unrecoverable"


async def test_engine_answers_like_the_loop_guard_are_not_counted_as_failures() -> None:
    run = scenario([*[calls(call("lookup"))] * 5, text('{"outcome": "resolved"}')])
    assert (await run.finish()).exit.signal == "resolved"
