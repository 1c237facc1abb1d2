"""Sentences of the engine's specification that no other test shows (docs/spec/engine.yaml names the test of each)."""

import json
import logging
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilothouse_api.structs import PiiMask, SecretMask
from pilothouse_engine.decide import PASSABLE_KINDS
from pilothouse_engine.executions import arguments_digest
from pilothouse_engine.facts import CallCode, CallFinished, ModelStarted, ReplyReceived
from pilothouse_engine.guardrails.registry import CHECKS
from pilothouse_engine.guardrails.verdicts import Refuse
from pilothouse_engine.ports import HttpFailure, ModelRequest, ResourceFailure, StoreFailure, Usage
from pilothouse_engine.prompts.texts import WRAP_UP_NOTE
from pilothouse_engine.settings import Settings
from pilothouse_engine.state import COUNTED_ERRORS
from pilothouse_engine.testing.http import ScriptedHttp
from pilothouse_engine.testing.resources import MemoryResources
from unit.engine.policies.rules import deny, deny_turn
from unit.engine.scenarios import (
    ListModel,
    Scenario,
    agent_step,
    answer,
    call,
    calls,
    codes,
    failure,
    function_step,
    function_tool,
    response_step,
    scenario,
    text,
    tool_texts,
)

pytestmark = pytest.mark.anyio


def requests_of(run: Scenario) -> list[ModelRequest]:
    assert isinstance(run.model, ListModel)
    return run.model.requests


def lookups(count: int) -> list[Any]:
    return [calls(call("lookup", {"n": n})) for n in range(count)]


# ---------------------------------------------------------------- one turn


async def test_turns_are_counted_over_all_steps_and_never_go_back() -> None:
    run = scenario(
        [calls(call("lookup")), answer("resolved"), answer("resolved")],
        agent_step("one", routes={"resolved": "note"}),
        function_step("note", routes={"default": "two"}),
        agent_step("two"),
        functions={"steps:note": lambda arguments: {}},
    )
    await run.finish()
    assert [request.turn for request in requests_of(run)] == [1, 2, 4]
    turns = [snapshot.turn for snapshot in run.store.snapshots]
    assert turns == sorted(turns)
    assert turns[-1] == 4


async def test_a_model_call_whose_policy_fails_is_denied() -> None:
    run = scenario([], agent_step(policy=[deny_turn("broken", "context.nothing > 5")]))
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason) == ("policy_denied", "PolicyDenied")
    assert requests_of(run) == []


async def test_a_reply_its_usage_and_its_level_are_one_entry() -> None:
    run = scenario([answer("resolved", usage=Usage(input=77, output=5))])
    await run.finish()
    (entry,) = [entry for entry in await run.entries() if entry["fact"] == "ReplyReceived"]
    assert (entry["input"], entry["output"]) == (77, 5)
    (reply,) = await run.facts_of(ReplyReceived)
    assert (reply.text, reply.level) == ('{"outcome": "resolved", "result": "done"}', "full")


async def test_a_snapshot_never_says_more_than_the_journal_holds() -> None:
    run = scenario([*lookups(2), answer("resolved")])
    ahead: list[int] = []
    run.store.on_publish = lambda snapshot: ahead.append(snapshot.journal_length - len(run.journal._lines))
    await run.finish()
    assert ahead and max(ahead) <= 0


async def test_there_are_eight_iterations_by_default_and_the_last_one_wraps_up() -> None:
    run = scenario([*lookups(7), answer("resolved")])
    end = await run.finish()
    assert [fact.purpose for fact in await run.facts_of(ModelStarted)] == ["Regular"] * 7 + ["WrapUp"]
    assert end.exit.turn_ending == "StepLimit"


def test_the_wrap_up_note_asks_for_what_is_known_missing_and_next() -> None:
    for asked in ("what is established", "what is missing", "what should be fetched next"):
        assert asked in WRAP_UP_NOTE


async def test_a_wrap_up_turn_of_nothing_at_all_is_an_empty_reply() -> None:
    end = await scenario([*lookups(1), text("")], agent_step(limits={"maxIterations": 2})).finish()
    assert end.exit.error is not None and end.exit.error.type == "EmptyReply"


@pytest.mark.parametrize("spent", [text("half", finish="Length"), text("no json")])
async def test_continuations_and_repairs_cost_an_iteration(spent: Any) -> None:
    run = scenario([spent, answer("resolved")], agent_step(limits={"maxIterations": 2}))
    await run.finish()
    assert [fact.iteration for fact in await run.facts_of(ModelStarted)] == [1, 2]
    assert [fact.purpose for fact in await run.facts_of(ModelStarted)] == ["Regular", "WrapUp"]


async def test_a_missing_key_of_injected_context_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pilothouse.engine"):
        await scenario([answer("resolved")], agent_step(contextInjection=["absent"])).finish()
    assert "step=work path=absent" in caplog.text


async def test_the_partial_result_is_published_up_to_two_kibibytes() -> None:
    run = scenario([calls(call("lookup"), text="é" * 3000), text("")])
    end = await run.finish()
    assert end.exit.partial == "é" * 1024
    assert (await run.state()).engine_context["_partial_result"] == "é" * 3000


async def test_a_completion_is_bound_by_the_budget() -> None:
    agent = {
        "mode": "Completion",
        "model": {"name": "m", "maxOutputTokens": 50},
        "prompt": {"inline": "Say it."},
        "limits": {"tokenBudget": 60},
    }
    run = scenario([], {"id": "say", "kind": "Agent", "agent": agent})
    assert (await run.finish()).exit.signal == "budget_exceeded"
    assert requests_of(run) == []


# ---------------------------------------------------------------- calls


async def test_all_calls_of_a_reply_are_journaled_before_any_runs() -> None:
    seen: list[list[str]] = []

    def look(arguments: dict[str, Any]) -> dict[str, Any]:
        entries = [json.loads(line) for line in run.journal._lines]
        seen.append([asked["name"] for entry in entries for asked in entry.get("calls", [])])
        return {"ok": True}

    turns = [calls(call("lookup"), call("nothing"), call("lookup", {"n": 2})), answer("resolved")]
    run = scenario(turns, functions={"tools:lookup": look})
    await run.finish()
    assert seen[0] == ["lookup", "nothing", "lookup"]


async def test_a_call_id_holds_turn_index_and_the_digest_of_the_arguments() -> None:
    asked = {"customer": "c-17"}
    run = scenario([*lookups(1), calls(call("lookup"), call("lookup", asked)), answer("resolved")])
    await run.finish()
    want = f"t2-1-{arguments_digest(json.dumps(asked))[:8]}"
    assert (await run.facts_of(CallFinished))[-1].id == want


async def test_there_are_24_tool_calls_by_default() -> None:
    run = scenario([calls(*(call("lookup", {"n": n}) for n in range(25)))])
    end = await run.finish()
    assert end.exit.error is not None and end.exit.error.type == "ToolCallLimit"
    assert len(run.functions_run()) == 24


async def test_cut_calls_and_the_engines_own_tools_count_against_the_limit() -> None:
    turns = [calls(call("lookup"), finish="Length"), calls(call("read_tool_result", {"call_id": "t1-0-0"}))]
    run = scenario([*turns, calls(call("lookup"))], agent_step(limits={"maxToolCalls": 2}))
    end = await run.finish()
    assert end.exit.error is not None and end.exit.error.type == "ToolCallLimit"
    assert run.functions_run() == []


async def test_the_loop_guard_says_what_to_change() -> None:
    run = scenario([*[calls(call("lookup"))] * 3, answer("resolved")])
    await run.finish()
    shown = tool_texts(requests_of(run)[3])[-1]
    assert "change the tool, change the arguments, or answer" in shown


def hanging(run_of: Callable[[], Scenario], seconds: float) -> Any:
    async def hang(arguments: dict[str, Any]) -> dict[str, Any]:
        await run_of().clock.sleep(seconds)
        return {"late": True}

    return hang


async def test_a_tool_has_300_seconds_by_default() -> None:
    run = scenario([calls(call("lookup"))], functions={"tools:lookup": hanging(lambda: run, 1000)})
    end = await run.finish()
    assert end.exit.error is not None and end.exit.error.type == "ToolTimeout"
    assert run.clock.monotonic() == 300


async def test_the_timeout_of_a_step_itself_is_an_ordinary_error_result() -> None:
    tool = {
        "name": "read",
        "description": "Reads.",
        "inlineStep": {"kind": "APICall", "apiCall": {"url": "http://x.test/", "timeoutSeconds": 5}},
    }
    http = ScriptedHttp(HttpFailure("Timeout", "no complete answer within 5 s", sent=True))
    run = scenario([calls(call("read")), answer("resolved")], agent_step(tools=[tool]), http=http)
    assert (await run.finish()).exit.signal == "resolved"
    assert codes(requests_of(run)[1]) == ["tool_error"]


async def test_a_result_is_shown_in_8000_characters_by_default() -> None:
    long = {"tools:lookup": lambda arguments: {"text": "x" * 20_000}}
    run = scenario([calls(call("lookup")), answer("resolved")], functions=long)
    await run.finish()
    assert len(tool_texts(requests_of(run)[1])[0]) == 8000


def test_recovery_counts_the_codes_of_the_table_and_no_other() -> None:
    uncounted = {
        "tool_approval_denied",
        "tool_approval_expired",
        "tool_call_loop_guard",
        "tool_call_unresolved",
        "tool_effect_unknown",
    }
    assert set(get_args(CallCode)) - COUNTED_ERRORS == uncounted


async def test_a_fault_of_the_engine_ends_the_attempt_and_not_the_run() -> None:
    def fault(request: ModelRequest) -> Any:
        raise RuntimeError("a bug")

    run = scenario([fault, answer("resolved")])
    with pytest.raises(RuntimeError, match="a bug"):
        await run.attempt()
    assert (await run.state()).ended is None
    assert (await run.finish()).exit.signal == "resolved"


async def test_calls_run_one_after_another_by_default() -> None:
    running: list[int] = []

    async def work(arguments: dict[str, Any]) -> dict[str, Any]:
        running.append(1)
        assert len(running) == 1
        await run.clock.sleep(1)
        running.pop()
        return {"ok": True}

    turn = calls(*(call("lookup", {"n": n}) for n in range(3)))
    run = scenario([turn, answer("resolved")], functions={"tools:lookup": work})
    await run.finish()
    assert run.clock.monotonic() == 3


async def test_the_routes_of_a_step_that_serves_as_a_tool_are_ignored() -> None:
    tool = {"name": "look", "description": "Looks.", "step": "look"}
    run = scenario(
        [calls(call("look")), answer("resolved")],
        agent_step(tools=[tool]),
        function_step("look", toolOnly=True, routes={"default": "elsewhere"}),
        response_step("elsewhere", a="ticket"),
        functions={"steps:look": lambda arguments: {"seen": True}},
    )
    await run.finish()
    assert [step.id for step in run.snapshot.steps] == ["work"]


async def test_a_tool_that_fails_writes_nothing() -> None:
    step = agent_step(tools=[function_tool("lookup", writesContext=True)])
    failing = {"tools:lookup": lambda arguments: ({"found": True}, "error")}
    run = scenario([calls(call("lookup")), answer("resolved")], step, functions=failing)
    await run.finish()
    assert codes(requests_of(run)[1]) == ["tool_error"]
    assert "lookup" not in (await run.state()).context


# ---------------------------------------------------------------- errors, budgets, endings


async def test_a_model_call_has_three_attempts_by_default() -> None:
    run = scenario([failure("ServerError")] * 3)
    assert (await run.finish()).exit.signal == "error"
    assert [fact.attempt for fact in await run.facts_of(ModelStarted)] == [1, 2, 3]


async def test_a_slice_is_never_longer_than_a_result_may_be() -> None:
    def read(request: ModelRequest) -> Any:
        call_id = tool_texts(request)[0].rsplit("[cut: ", 1)[1].split()[0]
        return calls(call("read_tool_result", {"call_id": call_id, "limit": 5000}))

    step = agent_step(limits={"maxToolResultChars": 400})
    long = {"tools:lookup": lambda arguments: {"text": "x" * 5000}}
    run = scenario([calls(call("lookup")), read, answer("resolved")], step, functions=long)
    await run.finish()
    sliced = tool_texts(requests_of(run)[2])[1]
    assert sliced.startswith("[t1-0-") and sliced.endswith("xxx")
    assert len(sliced) <= 400


def test_the_bounds_of_the_platform_are_those_of_the_specification() -> None:
    bounds = Settings()
    assert (bounds.max_response_bytes, bounds.max_context_bytes) == (1_048_576, 262_144)
    assert (bounds.control_grace_seconds, bounds.abort_grace_seconds) == (60, 30)


async def test_the_first_ending_that_applies_is_named() -> None:
    def finish(request: ModelRequest) -> Any:
        run.store.set_control(mode="Finish")
        return calls(call("lookup"))

    step = agent_step(outcome={}, routes={"default": "end"})
    run = scenario([finish, text("so far", finish="Length")], step)
    assert (await run.finish()).exit.turn_ending == "Interrupted"
    cut = scenario([*lookups(1), text("cut", finish="Length")], agent_step(outcome={}, limits={"maxIterations": 2}))
    assert (await cut.finish()).exit.turn_ending == "Length"


# ---------------------------------------------------------------- control


async def test_control_is_read_at_every_turn_boundary() -> None:
    reads: list[int] = []

    def turn(reply: Any) -> Any:
        def look(request: ModelRequest) -> Any:
            reads.append(run.store.reads)
            return reply

        return look

    run = scenario([turn(reply) for reply in [*lookups(3), answer("resolved")]])
    await run.finish()
    assert len(set(reads)) == 4


async def test_what_was_applied_is_known_without_the_snapshot() -> None:
    def stop(request: ModelRequest) -> Any:
        run.stop.release()
        return calls(call("lookup"))

    run = scenario([stop, answer("resolved")])
    run.store.set_control(steer={"a": {"message": "be brief"}})
    await run.release()
    run.store.directives = type(run.store.directives)("uid-1", 2, run.store.directives.control)
    await run.finish()
    steers = [m.text for m in requests_of(run)[-1].messages if "be brief" in m.text]
    assert len(steers) == 1


def test_a_finish_or_an_abort_passes_through_four_kinds_of_steps_only() -> None:
    assert {"Router", "Response", "Function", "APICall"} == PASSABLE_KINDS


async def test_an_abort_that_is_read_before_the_exit_is_journaled_wins() -> None:
    def abort(request: ModelRequest) -> Any:
        run.store.set_control(mode="Abort")
        return text("no json")

    run = scenario([abort, answer("resolved")])
    assert (await run.finish()).exit.reason == "Aborted"
    assert len(requests_of(run)) == 1


async def test_a_park_is_journaled_and_published_before_the_attempt_ends() -> None:
    run = scenario([])
    run.store.set_control(mode="Pause")
    published: list[tuple[bool, str]] = []

    def look(snapshot: Any) -> None:
        if snapshot.parked is not None:
            published.append((snapshot.parked.released, json.loads(run.journal._lines[-1])["fact"]))

    run.store.on_publish = look
    await run.release()
    assert published == [(False, "ParkBegan"), (True, "ParkReleased")]
    raw = run.snapshot.to_raw()["parked"]
    assert {"reason", "turn", "since", "wake", "released"} <= set(raw)


async def test_the_time_without_control_is_counted_in_no_deadline() -> None:
    def forbid(request: ModelRequest) -> Any:
        run.store.outage = StoreFailure("Forbidden", "403")
        return calls(call("lookup"))

    def heal(read: int) -> None:
        if run.clock.monotonic() > 500:
            run.store.outage = None

    run = scenario([forbid, answer("resolved")], plan={"active_deadline_seconds": 100})
    run.store.on_read = heal
    assert (await run.finish()).exit.reason == "Complete"
    assert run.clock.monotonic() > 500


# ---------------------------------------------------------------- gates


async def test_gates_judge_in_the_order_of_the_specification() -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tools = [function_tool("lookup", parameters=parameters, approval="Always")]
    asked = calls(call("nothing"), call("lookup", {"n": "x"}), call("lookup", {"n": 1}))
    step = agent_step(tools=tools, policy=[deny("all", "true")], recovery={"maxSameError": 5})
    run = scenario([asked, calls(call("lookup", {"n": 2}), finish="Length"), answer("resolved")], step)
    await run.finish()
    assert codes(requests_of(run)[2]) == [
        "tool_unknown",
        "tool_invalid_arguments",
        "tool_policy_denied",
        "tool_arguments_truncated",
    ]


@settings(max_examples=100)
@given(st.text(), st.sampled_from(["jane@example.com", "4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00", ""]))
def test_masks_never_refuse(around: str, secret: str) -> None:
    pii = PiiMask(entities=["Email", "CreditCard", "Phone", "Iban"])
    for name, params in (("PiiMask", pii), ("SecretMask", SecretMask())):
        assert not isinstance(CHECKS[name](f"{around} {secret}", params), Refuse)


@pytest.mark.parametrize("kind", ["NotFound", "Forbidden"])
async def test_what_a_tool_does_not_find_or_may_not_see_is_its_own_error(kind: Any) -> None:
    params = {"operation": "Get", "apiVersion": "v1", "kind": "ConfigMap", "name": "limits"}
    tool = {"name": "limits", "description": "Reads.", "inlineStep": {"kind": "Resource", "resource": params}}
    resources = MemoryResources()
    resources.failures = [ResourceFailure(kind, "it says no")]
    run = scenario([calls(call("limits")), answer("resolved")], agent_step(tools=[tool]), resources=resources)
    await run.finish()
    assert codes(requests_of(run)[1]) == ["tool_error"]
