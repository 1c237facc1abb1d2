"""Calls and steps that wait for a person: what lands, when, and that nothing runs twice (engine.md §9)."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pilothouse_api.structs import LiveCeilings
from pilothouse_engine.approvals import MAX_SHOWN_BYTES, shown_arguments
from pilothouse_engine.executions import EDITED_NOTE
from pilothouse_engine.facts import (
    ApprovalAnswered,
    ApprovalRequested,
    CallFinished,
    CallStarted,
    ParkBegan,
    ParkEnded,
    PolicyJudged,
)
from pilothouse_engine.ports import HttpResponse, McpListing, McpTool, StoreFailure
from pilothouse_engine.results import compact
from pilothouse_engine.testing.http import ScriptedHttp
from pilothouse_engine.testing.mcp import InProcessMcp
from unit.engine.policies.rules import allow, deny, endpoint, require
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
    response_step,
    scenario,
    tool_texts,
)

pytestmark = pytest.mark.anyio

PARAMETERS = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["amount"],
}
REFUND = function_tool("refund", effect="Once", parameters=PARAMETERS, approval="Always")
BIG = require("big", "tool == 'refund' && args.amount > 50")
ASKED = calls(call("lookup", {"n": 1}), call("refund", {"amount": 80}), call("lookup", {"n": 2}))


def gated(turns: list[Any], *, tool: dict[str, Any] = REFUND, rules: Any = (), **fields: Any) -> Scenario:
    step = agent_step(tools=[function_tool("lookup"), tool], policy=list(rules), **fields.pop("agent", {}))
    return scenario(turns, step, functions={"tools:refund": lambda arguments: {"done": arguments["amount"]}}, **fields)


def decide(run: Scenario, **decision: Any) -> None:
    """Decide on the call that is pending, as a person would."""
    (pending,) = run.snapshot.pending_approvals
    run.store.set_control(approvals={pending.call_id: decision})


def decides(run_of: Callable[[], Scenario], **decision: Any) -> Callable[[Any], None]:
    """Decide as soon as a call is pending."""

    def act(snapshot: Any) -> None:
        if snapshot.pending_approvals and not snapshot.control.approvals:
            decide(run_of(), **decision)

    return act


def last_request(run: Scenario) -> Any:
    assert isinstance(run.model, ListModel)
    return run.model.requests[-1]


# ---------------------------------------------------------------- the request


async def test_a_call_that_needs_approval_is_published_with_masked_arguments_and_the_run_parks() -> None:
    asked = calls(call("refund", {"amount": 80, "note": "ask jo@example.com, api_key=sk-live-0123456789abcdef0123"}))
    run = gated([asked])
    released = await run.release()
    assert (released.parked.reason, released.parked.released) == ("AwaitingApproval", True)
    (pending,) = run.snapshot.pending_approvals
    assert pending.call_id.startswith("t1-0-")
    assert (pending.tool, pending.arguments["amount"]) == ("refund", 80)
    assert "jo@example.com" not in pending.arguments["note"] and "sk-live" not in pending.arguments["note"]
    assert (pending.requested_at, pending.expires_at) == ("2030-01-01T00:00:00.000Z", "2030-01-02T00:00:00.000Z")
    assert run.functions_run() == []
    assert [frame["reason"] for frame in run.sink.frames if frame["kind"] == "Park"] == ["AwaitingApproval"] * 2


async def test_the_pod_is_held_for_thirty_seconds_and_then_released() -> None:
    run = gated([ASKED])
    await run.release()
    parks = [s.parked for s in run.store.snapshots if s.parked is not None]
    assert [park.released for park in parks] == [False, True]
    assert (run.store.published_at[-2], run.store.published_at[-1]) == (0, 30)


async def test_where_the_journal_does_not_survive_the_pod_it_is_held_until_the_decision_or_expiry() -> None:
    run = gated([ASKED, answer("needs_human")], is_durable=False)
    assert (await run.finish()).exit.signal == "needs_human"
    assert run.clock.monotonic() == 86_400
    assert codes(last_request(run)) == [None, "tool_approval_expired", None]


async def test_the_platform_caps_how_long_a_call_waits() -> None:
    run = gated([ASKED])
    run.plan = replace(run.plan, ceilings=LiveCeilings(approval_expires_seconds=600))
    await run.release()
    assert run.snapshot.pending_approvals[0].expires_at == "2030-01-01T00:10:00.000Z"


@pytest.mark.parametrize(
    ("rules", "tool", "want"),
    [
        ([BIG], {**REFUND, "approval": "Never"}, True),
        ([], REFUND, True),
        ([], {**REFUND, "approval": "Never"}, False),
        ([allow("fine", "true")], {**REFUND, "approval": "Never"}, False),
        ([allow("fine", "true")], REFUND, True),
        ([require("small", "args.amount < 50")], {**REFUND, "approval": "Never"}, False),
    ],
)
async def test_policy_or_the_tool_asks_for_approval(rules: Any, tool: Any, want: bool) -> None:
    run = gated([calls(call("refund", {"amount": 80})), answer("resolved")], tool=tool, rules=rules)
    await run.attempt()
    assert bool(await run.facts_of(ApprovalRequested)) is want


async def test_what_policy_denies_is_shown_to_nobody() -> None:
    run = gated([calls(call("refund", {"amount": 80})), answer("needs_human")], rules=[deny("no", "true")])
    await run.finish()
    assert codes(last_request(run)) == ["tool_policy_denied"]
    assert await run.facts_of(ApprovalRequested) == []


async def test_an_endpoint_may_ask_for_approval() -> None:
    body = json.dumps({"result": {"verdict": "RequireApproval", "message": "large"}}).encode()
    http = ScriptedHttp(HttpResponse(200, body=body))
    tool = {**REFUND, "approval": "Never"}
    run = gated([calls(call("refund", {"amount": 80})), answer("resolved")], tool=tool, rules=[endpoint()], http=http)
    run.store.on_publish = decides(lambda: run, decision="Approve")
    await run.finish()
    assert (run.functions_run(), len(http.requests)) == (["refund"], 1)


# ---------------------------------------------------------------- the decision


async def test_on_approve_the_run_enters_exactly_at_the_gated_call() -> None:
    run = gated([ASKED, answer("resolved")])
    await run.release()
    assert run.functions_run() == ["lookup"], "the calls before it have run, the later ones wait"
    decide(run, decision="Approve")
    assert (await run.finish()).exit.signal == "resolved"
    assert run.functions_run() == ["lookup", "refund", "lookup"]
    assert codes(last_request(run)) == [None, None, None]
    assert (run.snapshot.pending_approvals, run.snapshot.parked) == ([], None)
    (landing,) = run.snapshot.control.approvals.values()
    assert (landing.state, landing.turn) == ("Landed", 1)
    (started,) = [fact for fact in await run.facts_of(CallStarted) if fact.tool == "refund"]
    assert started.is_approved


async def test_a_decision_while_the_pod_is_held_goes_on_in_the_same_attempt() -> None:
    run = gated([ASKED, answer("resolved")])
    run.store.on_publish = decides(lambda: run, decision="Approve", by="jo")
    await run.finish()
    assert (run.attempts, run.clock.monotonic()) == (1, 0)
    (frame,) = [frame for frame in run.sink.frames if frame["kind"] == "Control"]
    assert (frame["directive"], frame["landing"], frame["by"]) == ("Approve", "Landed", "jo")


async def test_deny_gives_the_model_an_ordinary_result_with_the_reason() -> None:
    run = gated([ASKED, answer("needs_human")])
    run.store.on_publish = decides(lambda: run, decision="Deny", reason="wrong customer")
    await run.finish()
    assert codes(last_request(run)) == [None, "tool_approval_denied", None]
    assert "wrong customer" in tool_texts(last_request(run))[1]
    assert run.functions_run() == ["lookup", "lookup"]


async def test_nobody_decides_in_time_and_the_model_is_told() -> None:
    run = gated([ASKED, answer("needs_human")])
    await run.release()
    run.clock.advance(86_400)
    await run.finish()
    assert codes(last_request(run)) == [None, "tool_approval_expired", None]
    (landing,) = run.snapshot.control.approvals.values()
    assert landing.state == "Expired"


async def test_a_decision_after_expiry_is_late() -> None:
    run = gated([ASKED, answer("needs_human")])
    await run.release()
    decide(run, decision="Approve")
    run.clock.advance(86_400)
    await run.finish()
    assert codes(last_request(run)) == [None, "tool_approval_expired", None]
    assert "refund" not in run.functions_run()


async def test_recovery_does_not_count_what_a_person_denies() -> None:
    turns = [calls(call("refund", {"amount": n})) for n in range(4)] + [answer("needs_human")]
    run = gated(turns)

    def deny_each(snapshot: Any) -> None:
        for pending in snapshot.pending_approvals:
            if pending.call_id not in snapshot.control.approvals:
                run.store.set_control(approvals={pending.call_id: {"decision": "Deny"}})

    run.store.on_publish = deny_each
    assert (await run.finish()).exit.signal == "needs_human"


async def test_a_decision_on_another_call_is_answered_and_the_call_stays_pending() -> None:
    run = gated([ASKED, answer("resolved")])
    run.store.on_publish = lambda snapshot: (
        run.store.set_control(approvals={"t9-0-00000000": {"decision": "Approve"}})
        if snapshot.pending_approvals and not snapshot.control.approvals
        else None
    )
    await run.release()
    assert {key: a.state for key, a in run.snapshot.control.approvals.items()} == {"t9-0-00000000": "NotPending"}
    assert len(run.snapshot.pending_approvals) == 1
    assert "refund" not in run.functions_run()


async def test_a_decision_that_came_before_the_call_was_pending_is_never_kept_for_it() -> None:
    probe = gated([ASKED])
    await probe.release()
    call_id = probe.snapshot.pending_approvals[0].call_id
    run = gated([ASKED, answer("resolved")])
    run.store.set_control(approvals={call_id: {"decision": "Approve"}})
    await run.release()
    assert run.snapshot.control.approvals[call_id].state == "NotPending"
    assert len(run.snapshot.pending_approvals) == 1

    def without(approvals: Any) -> None:
        control = replace(run.store.directives.control, approvals=approvals)
        run.store._set(control=control)

    without({})
    await run.release()
    assert run.snapshot.control.approvals == {}
    decide(run, decision="Approve")
    await run.finish()
    assert "refund" in run.functions_run()


@pytest.mark.parametrize(("mode", "reason"), [("Finish", "FinishedEarly"), ("Abort", "Aborted")])
async def test_finish_and_abort_end_the_wait(mode: str, reason: str) -> None:
    run = gated([ASKED, answer("resolved")])
    await run.release()
    run.store.set_control(mode=mode)
    end = await run.finish()
    assert end.exit.reason == reason
    assert run.functions_run() == ["lookup"]
    finished = await run.facts_of(CallFinished)
    assert [fact.code for fact in finished] == [None, "tool_call_unresolved", "tool_call_unresolved"]
    assert run.snapshot.effects.unknown == []
    assert run.snapshot.pending_approvals == []


async def test_a_decision_beside_an_abort_is_answered_as_one_that_did_not_land() -> None:
    run = gated([ASKED])
    await run.release()
    decide(run, decision="Approve")
    run.store.set_control(mode="Abort")
    await run.finish()
    (landing,) = run.snapshot.control.approvals.values()
    assert landing.state == "NotLanded"
    assert "refund" not in run.functions_run()


async def test_a_pause_neither_ends_the_wait_nor_is_lost() -> None:
    run = gated([ASKED])
    await run.release()
    run.store.set_control(mode="Pause")
    assert (await run.release()).parked.reason == "AwaitingApproval"
    decide(run, decision="Approve")
    assert (await run.release()).parked.reason == "Paused"
    assert run.functions_run() == ["lookup", "refund", "lookup"]


async def test_an_approval_waits_out_an_api_that_cannot_be_reached() -> None:
    run = gated([ASKED, answer("resolved")])
    await run.release()
    decide(run, decision="Approve")
    run.store.failures = [StoreFailure("Unavailable", "away")] * 3
    await run.finish()
    assert run.functions_run() == ["lookup", "refund", "lookup"]


async def test_the_time_of_an_approval_counts_in_no_deadline() -> None:
    run = gated([ASKED, answer("resolved")], plan={"active_deadline_seconds": 100})
    await run.release()
    run.clock.advance(3_600)
    decide(run, decision="Approve")
    assert (await run.finish()).exit.reason == "Complete"


async def test_an_outage_of_the_journal_does_not_end_the_wait() -> None:
    run = gated([ASKED, answer("resolved")])
    append, failures = run.journal.append, [1, 1]

    async def flaky(attempt: int, expected_seq: int, entries: Any) -> None:
        from pilothouse_engine.ports import JournalUnavailable

        if any(entry["fact"] == "ParkReleased" for entry in entries) and failures:
            failures.pop()
            raise JournalUnavailable("away")
        await append(attempt, expected_seq, entries)

    run.journal.append = flaky  # type: ignore[method-assign]
    released = await run.release()
    assert (released.parked.reason, failures) == ("AwaitingApproval", [])
    assert "refund" not in run.functions_run()


# ---------------------------------------------------------------- edits


async def test_edited_arguments_are_merged_run_and_journaled_with_their_own_key() -> None:
    asked = calls(call("refund", {"amount": 80, "note": "all of it"}))
    plain = gated([asked, answer("resolved")])
    plain.store.on_publish = decides(lambda: plain, decision="Approve")
    await plain.finish()
    run = gated([asked, answer("resolved")])
    run.store.on_publish = decides(lambda: run, decision="Approve", arguments={"amount": 40, "note": None})
    await run.finish()
    assert run.ran.requests[0].arguments["amount"] == 40
    assert "note" not in run.ran.requests[0].arguments
    (old,), (new,) = await plain.facts_of(CallStarted), await run.facts_of(CallStarted)
    assert old.id == new.id
    assert old.digest != new.digest and old.key != new.key


@pytest.mark.parametrize(
    ("decision", "want"),
    [
        ({"remove": ["note"]}, {"amount": 80, "to": {"name": "Jo", "iban": "DE1"}}),
        ({"arguments": {"to": {"name": "Al"}}}, {"amount": 80, "note": "all", "to": {"name": "Al", "iban": "DE1"}}),
        ({"remove": ["to"], "arguments": {"to": {"name": "Al"}}}, {"amount": 80, "note": "all", "to": {"name": "Al"}}),
        ({"arguments": {"note": None, "amount": 9}}, {"amount": 9, "to": {"name": "Jo", "iban": "DE1"}}),
        ({"remove": [], "arguments": {}}, {"amount": 80, "note": "all", "to": {"name": "Jo", "iban": "DE1"}}),
    ],
)
async def test_an_edit_changes_adds_and_takes_away_arguments(decision: Any, want: Any) -> None:
    parameters = {**PARAMETERS, "properties": {**PARAMETERS["properties"], "to": {"type": "object"}}}  # type: ignore[dict-item]
    asked = calls(call("refund", {"amount": 80, "note": "all", "to": {"name": "Jo", "iban": "DE1"}}))
    run = gated([asked, answer("resolved")], tool={**REFUND, "parameters": parameters})
    run.store.on_publish = decides(lambda: run, decision="Approve", **decision)
    await run.finish()
    assert {**run.ran.requests[0].arguments, **want} == run.ran.requests[0].arguments
    assert {"note", "to"} - want.keys() == {"note", "to"} - run.ran.requests[0].arguments.keys()


async def test_an_edit_that_takes_away_what_is_not_there_or_is_required_is_answered() -> None:
    for remove, want in ((["notes"], "remove: the call has no argument notes"), (["amount"], "do not fit")):
        run = gated([ASKED])
        run.store.on_publish = decides(lambda: run, decision="Approve", remove=remove)  # noqa: B023
        await run.release()
        (landing,) = run.snapshot.control.approvals.values()
        assert landing.state == "NotLanded"
        assert landing.message and want in landing.message


async def test_the_model_is_told_which_of_its_arguments_a_person_changed() -> None:
    asked = calls(call("refund", {"amount": 80.0, "note": "all of it"}))
    run = gated([asked, answer("resolved")])
    run.store.on_publish = decides(lambda: run, decision="Approve", remove=["note"], arguments={"amount": 40})
    await run.finish()
    result = json.loads(tool_texts(last_request(run))[0])
    assert result == {
        "approval": {"note": EDITED_NOTE, "arguments": {"amount": 40, "note": None}},
        "signal": "default",
        "output": {"refund": {"done": 40}},
    }


async def test_the_model_is_told_nothing_of_an_approval_that_changed_nothing() -> None:
    run = gated([calls(call("refund", {"amount": 80})), answer("resolved")])
    run.store.on_publish = decides(lambda: run, decision="Approve")
    await run.finish()
    assert "approval" not in json.loads(tool_texts(last_request(run))[0])


async def test_a_model_whose_edited_call_was_denied_or_lost_is_told_what_it_was() -> None:
    denied = gated(
        [calls(call("refund", {"amount": 80})), answer("resolved")], rules=[deny("tiny", "args.amount < 10")]
    )
    denied.store.on_publish = decides(lambda: denied, decision="Approve", arguments={"amount": 5})
    await denied.finish()
    lost = gated([calls(call("refund", {"amount": 80})), answer("resolved")])
    lost.store.on_publish = decides(lambda: lost, decision="Approve", arguments={"amount": 5})
    await lost.finish()
    lines = lost.journal._lines
    started = [json.loads(line)["fact"] for line in lines].index("CallStarted")
    again = gated([answer("resolved")])
    again.journal._lines, again.attempts = list(lines[: started + 1]), 1
    await again.finish()
    for run, code in ((denied, "tool_policy_denied"), (again, "tool_effect_unknown")):
        assert codes(last_request(run)) == [code]
        told = json.loads(tool_texts(last_request(run))[0])
        assert told["approval"]["arguments"] == {"amount": 5}


@pytest.mark.parametrize(
    "patch", [{"amount": "forty"}, {"amount": None}, {"surprise": 1}, {"amount": 1.5}, {"amount": {"a": 1}}]
)
async def test_an_invalid_edit_is_answered_and_the_call_stays_pending(patch: Any) -> None:
    run = gated([ASKED, answer("resolved")])
    run.store.on_publish = decides(lambda: run, decision="Approve", arguments=patch)
    await run.release()
    (landing,) = run.snapshot.control.approvals.values()
    assert landing.state == "NotLanded"
    assert landing.message and "do not fit" in landing.message
    assert len(run.snapshot.pending_approvals) == 1
    assert run.functions_run() == ["lookup"]
    decide(run, decision="Approve", arguments={"amount": 40})
    await run.finish()
    assert [request.arguments.get("amount") for request in run.ran.requests] == [None, 40, None]
    (landing,) = run.snapshot.control.approvals.values()
    assert landing.state == "Landed"


async def test_what_is_wrong_with_an_edit_is_published_masked() -> None:
    run = gated([ASKED])
    run.store.on_publish = decides(lambda: run, decision="Approve", arguments={"amount": "jo@example.com"})
    await run.release()
    (landing,) = run.snapshot.control.approvals.values()
    assert landing.message and "jo@example.com" not in landing.message


@pytest.mark.parametrize(
    ("amount", "rules", "want"),
    [
        (40, [BIG, deny("tiny", "args.amount < 10")], None),
        (60, [BIG, deny("tiny", "args.amount < 10")], None),
        (5, [BIG, deny("tiny", "args.amount < 10")], "tool_policy_denied"),
        (5, [deny("tiny", "args.amount < 10")], "tool_policy_denied"),
        (40, [], None),
    ],
)
async def test_edited_arguments_are_judged_by_policy_again(amount: int, rules: Any, want: str | None) -> None:
    run = gated([calls(call("refund", {"amount": 80})), answer("resolved")], rules=rules)
    run.store.on_publish = decides(lambda: run, decision="Approve", arguments={"amount": amount})
    await run.finish()
    assert codes(last_request(run)) == [want]
    assert run.functions_run() == ([] if want else ["refund"])
    (landing,) = run.snapshot.control.approvals.values()
    assert landing.state == "Landed"


async def test_an_endpoint_judges_edited_arguments_once_more_and_unedited_ones_never_again() -> None:
    for patch, want in (({"amount": 40}, 2), (None, 1)):
        http = ScriptedHttp(HttpResponse(200, body=b'{"result": {"verdict": "RequireApproval"}}'))
        run = gated([calls(call("refund", {"amount": 80})), answer("resolved")], rules=[endpoint()], http=http)
        run.store.on_publish = decides(lambda: run, decision="Approve", arguments=patch)  # noqa: B023
        await run.finish()
        assert (len(http.requests), run.functions_run()) == (want, ["refund"])


async def test_a_tool_of_an_mcp_server_waits_and_gets_the_edited_arguments_after_a_new_start() -> None:
    query = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    mcp = InProcessMcp({"gh": {"search": lambda arguments: "three hits"}})
    mcp.listings["gh"] = McpListing((McpTool("search", "Searches.", query),))
    entry = {"name": "github", "mcp": {"server": "gh", "allow": ["*"]}, "effect": "Idempotent"}
    server = {"name": "gh", "transport": "StreamableHTTP", "url": "https://gh.test/mcp"}
    rule = require("searches", "tool == 'gh__search' && args.query == 'refunds'")
    step = agent_step(tools=[entry], mcpServers=[server], policy=[rule])
    run = scenario([calls(call("gh__search", {"query": "refunds"})), answer("resolved")], step, mcp=mcp)
    await run.release()
    assert run.snapshot.pending_approvals[0].tool == "gh__search"
    assert mcp.calls == []
    decide(run, decision="Approve", arguments={"query": "refunds of c-17"})
    await run.finish()
    assert [called.arguments for called in mcp.calls] == [{"query": "refunds of c-17"}]
    (started,) = await run.facts_of(CallStarted)
    assert mcp.calls[0].idempotency_key == started.key
    assert mcp.listed == ["gh"], "the surface is journaled"


# ---------------------------------------------------------------- siblings


async def test_a_gated_call_splits_a_parallel_run_and_siblings_keep_their_results() -> None:
    tool = {**REFUND, "effect": "ReadOnly"}
    asked = calls(call("lookup", {"n": 1}), call("refund", {"amount": 1}), call("refund", {"amount": 2}))
    run = gated([asked, answer("resolved")], tool=tool, agent={"limits": {"maxParallelToolCalls": 3}})
    for number in (1, 2):
        await run.release()
        assert run.functions_run().count("lookup") == 1
        assert run.snapshot.pending_approvals[0].arguments == {"amount": number}
        decide(run, decision="Approve")
    await run.finish()
    assert run.functions_run() == ["lookup", "refund", "refund"]
    assert [fact.call.split("-")[1] for fact in await run.facts_of(ApprovalRequested)] == ["1", "2"]


# ---------------------------------------------------------------- resuming


async def test_a_crash_after_any_fact_runs_the_approved_call_once_and_asks_nobody_twice() -> None:
    tool = {**REFUND, "approval": "Never"}
    patch = {"amount": 60}

    def fresh(turns: list[Any]) -> Scenario:
        return gated(turns, tool=tool, rules=[BIG])

    run = fresh([ASKED, answer("resolved")])
    run.store.on_publish = decides(lambda: run, decision="Approve", arguments=patch)
    await run.finish()
    lines, control = run.journal._lines, run.store.directives.control
    kinds = [json.loads(line)["fact"] for line in lines]
    for cut in range(kinds.index("ReplyReceived") + 1, len(lines) + 1):
        done = kinds[:cut]
        again = fresh([answer("resolved")])
        again.journal._lines, again.attempts = list(lines[:cut]), 1
        if "ApprovalAnswered" in done:
            again.store._set(control=control)
        else:
            again.store.on_publish = decides(lambda: again, decision="Approve", arguments=patch)  # noqa: B023
        await again.finish()
        results = {fact.id: fact.code for fact in await again.facts_of(CallFinished)}
        is_lost = done[-1] == "CallStarted" and done.count("CallStarted") == 2
        want = [None, "tool_effect_unknown" if is_lost else None, None]
        assert list(results.values()) == want, done
        ran = again.functions_run().count("refund")
        assert ran == (0 if done.count("CallStarted") >= 2 else 1), done
        assert len(await again.facts_of(ApprovalRequested)) == 1, done
        judged = [fact.verdict for fact in await again.facts_of(PolicyJudged)]
        assert judged == ["RequireApproval", "RequireApproval"], done
        (started,) = [fact for fact in await again.facts_of(CallStarted) if fact.tool == "refund"]
        assert started.is_approved
        assert all(request.arguments["amount"] == 60 for request in again.ran.requests if "amount" in request.arguments)


async def test_a_lost_repeatable_call_is_repeated_with_its_edited_arguments_under_the_same_approval() -> None:
    tool = {**REFUND, "effect": "Idempotent"}
    run = gated([ASKED, answer("resolved")], tool=tool)
    run.store.on_publish = decides(lambda: run, decision="Approve", arguments={"amount": 7})
    await run.finish()
    lines = run.journal._lines
    cut = [i for i, line in enumerate(lines) if json.loads(line)["fact"] == "CallStarted"][1] + 1
    again = gated([answer("resolved")], tool=tool)
    again.journal._lines, again.attempts = list(lines[:cut]), 1
    await again.finish()
    assert [request.arguments.get("amount") for request in again.ran.requests] == [7, None]
    assert len({fact.key for fact in await again.facts_of(CallStarted) if fact.tool == "refund"}) == 1
    assert len(await again.facts_of(ApprovalRequested)) == 1


async def test_a_request_and_its_park_are_one_append() -> None:
    run = gated([ASKED])
    await run.release()
    facts = [type(fact) for fact in await run.facts()]
    assert facts[facts.index(ApprovalRequested) + 1] is ParkBegan


# ---------------------------------------------------------------- steps of the graph


def paying(rules: Any, *, turns: Any = (), **fields: Any) -> Scenario:
    pay = function_step("pay", effect="Once", routes={"default": "end", "error": "tell"})
    pay["function"]["arguments"] = {"amount": "{{ amount }}", "to": "{{ who }}"}
    plan = {"policy": rules, "input": fields.pop("input", {"amount": 80, "who": "jo@example.com"})}
    steps = (pay, response_step("tell", why="_last_error"))
    return scenario(list(turns), *steps, functions={"steps:pay": lambda arguments: {"paid": True}}, plan=plan, **fields)


async def test_policy_judges_the_rendered_inputs_of_a_step_with_an_effect() -> None:
    run = paying([deny("big", "tool == 'pay' && step == 'pay' && effect == 'Once' && args.amount > 50", message="No.")])
    end = await run.finish()
    assert run.functions_run() == []
    assert "No." in (end.result or {})["why"]
    (report, _) = run.snapshot.steps
    assert report.signal == "error"
    (judged,) = await run.facts_of(PolicyJudged)
    assert (judged.verdict, judged.owner) == ("Deny", "workflow flow")


async def test_a_step_that_only_reads_is_not_judged() -> None:
    step = function_step("look", effect="ReadOnly", routes={"default": "end"})
    run = scenario([], step, functions={"steps:look": lambda arguments: {}}, plan={"policy": [deny("no", "true")]})
    assert (await run.finish()).exit.reason == "Complete"


async def test_inputs_that_cannot_be_filled_in_deny() -> None:
    run = paying([allow("any", "true")], input={"amount": 1})
    end = await run.finish()
    assert run.functions_run() == []
    assert "who is not in the context" in (end.result or {})["why"]


async def test_a_step_that_needs_approval_parks_and_runs_on_approve() -> None:
    run = paying([require("all", "true")])
    await run.release()
    (pending,) = run.snapshot.pending_approvals
    assert (pending.tool, pending.arguments) == ("pay", {"amount": 80, "to": "[Email]"})
    decide(run, decision="Approve")
    assert (await run.finish()).exit.reason == "Complete"
    assert run.functions_run() == ["pay"]
    (started,) = await run.facts_of(CallStarted)
    assert started.is_approved
    assert len(await run.facts_of(PolicyJudged)) == 1


@pytest.mark.parametrize(
    ("decision", "error"), [({"decision": "Deny", "reason": "no"}, "denied this call: no"), (None, "nobody decided")]
)
async def test_a_step_that_nobody_approves_ends_with_error(decision: Any, error: str) -> None:
    run = paying([require("all", "true")])
    await run.release()
    if decision:
        decide(run, **decision)
    run.clock.advance(0 if decision else 86_400)
    end = await run.finish()
    assert run.functions_run() == []
    assert error in (end.result or {})["why"]


async def test_the_inputs_of_a_step_cannot_be_edited() -> None:
    run = paying([require("all", "true")])
    run.store.on_publish = decides(lambda: run, decision="Approve", arguments={"amount": 1})
    await run.release()
    (landing,) = run.snapshot.control.approvals.values()
    assert landing.state == "NotLanded"
    assert landing.message and "cannot be edited" in landing.message


@pytest.mark.parametrize(("mode", "reason"), [("Finish", "FinishedEarly"), ("Abort", "Aborted")])
async def test_finish_and_abort_end_a_step_that_waits(mode: str, reason: str) -> None:
    run = paying([require("all", "true")])
    await run.release()
    run.store.set_control(mode=mode)
    end = await run.finish()
    assert (end.exit.reason, run.functions_run()) == (reason, [])
    assert run.snapshot.effects.unknown == []


async def test_a_step_on_the_way_of_a_finish_never_waits_for_a_person() -> None:
    pay = function_step("pay", effect="Once", routes={"default": "end"})

    def finish(request: Any) -> Any:
        run.store.set_control(mode="Finish")
        return calls(call("lookup"))

    run = scenario(
        [finish, answer("resolved")],
        agent_step(routes={"resolved": "pay"}),
        pay,
        functions={"steps:pay": lambda arguments: {}},
        plan={"policy": [require("pay", "tool == 'pay'")]},
    )
    assert (await run.finish()).exit.reason == "FinishedEarly"
    assert run.functions_run() == ["lookup"]


async def test_a_crash_after_any_fact_runs_an_approved_step_once() -> None:
    run = paying([require("all", "true")])
    run.store.on_publish = decides(lambda: run, decision="Approve")
    await run.finish()
    lines, control = run.journal._lines, run.store.directives.control
    kinds = [json.loads(line)["fact"] for line in lines]
    for cut in range(1, len(lines) + 1):
        again = paying([require("all", "true")])
        again.journal._lines, again.attempts = list(lines[:cut]), 1
        if "ApprovalAnswered" in kinds[:cut]:
            again.store._set(control=control)
        else:
            again.store.on_publish = decides(lambda: again, decision="Approve")  # noqa: B023
        await again.finish()
        has_started = "CallStarted" in kinds[:cut]
        assert again.functions_run() == ([] if has_started else ["pay"]), kinds[:cut]
        assert len(await again.facts_of(ApprovalRequested)) == 1
        assert len(await again.facts_of(PolicyJudged)) == 1


# ---------------------------------------------------------------- the Approval step


def asking(**approval: Any) -> Scenario:
    step = {
        "id": "ask",
        "kind": "Approval",
        "approval": {"title": "Refund {{ ticket.customer }}?", "show": ["ticket.text", "mail"], **approval},
        "routes": {"approved": "yes", "denied": "no", "expired": "late"},
    }
    ends = [response_step(name, routes={"default": "end"}, it="ticket.customer") for name in ("yes", "no", "late")]
    given = {"ticket": {"customer": "c-17", "text": "charged twice"}, "mail": "jo@example.com"}
    return scenario([], step, *ends, plan={"input": given})


async def test_an_approval_step_shows_its_question_and_parks() -> None:
    run = asking(expiresSeconds=60)
    released = await run.release()
    assert released.parked.reason == "AwaitingApproval"
    (pending,) = run.snapshot.pending_approvals
    assert pending.tool == "Refund c-17?"
    assert pending.arguments == {"ticket.text": "charged twice", "mail": "[Email]"}
    assert pending.expires_at == "2030-01-01T00:01:00.000Z"
    assert pending.call_id.startswith("t1-0-")


@pytest.mark.parametrize(
    ("decision", "signal", "then"),
    [({"decision": "Approve"}, "approved", "yes"), ({"decision": "Deny"}, "denied", "no"), (None, "expired", "late")],
)
async def test_an_approval_step_ends_with_the_decision(decision: Any, signal: str, then: str) -> None:
    run = asking()
    await run.release()
    if decision:
        decide(run, **decision)
    run.clock.advance(0 if decision else 86_400)
    assert (await run.finish()).exit.reason == "Complete"
    assert [(step.id, step.signal) for step in run.snapshot.steps] == [("ask", signal), (then, "default")]
    assert [fact.tool for fact in await run.facts_of(CallStarted)] == [then]


async def test_an_approval_step_that_shows_what_is_not_there_is_an_error() -> None:
    run = asking(show=["nothing"])
    end = await run.finish()
    assert (end.exit.signal, end.exit.error.type) == ("error", "MissingContext")


@pytest.mark.parametrize(("mode", "reason"), [("Finish", "FinishedEarly"), ("Abort", "Aborted")])
async def test_finish_and_abort_end_an_approval_step(mode: str, reason: str) -> None:
    run = asking()
    await run.release()
    run.store.set_control(mode=mode)
    assert (await run.finish()).exit.reason == reason


async def test_an_approval_step_resumes_at_every_fact_and_asks_once() -> None:
    run = asking()
    run.store.on_publish = decides(lambda: run, decision="Approve")
    await run.finish()
    lines, control = run.journal._lines, run.store.directives.control
    kinds = [json.loads(line)["fact"] for line in lines]
    for cut in range(1, len(lines) + 1):
        again = asking()
        again.journal._lines, again.attempts = list(lines[:cut]), 1
        if "ApprovalAnswered" in kinds[:cut]:
            again.store._set(control=control)
        else:
            again.store.on_publish = decides(lambda: again, decision="Approve")  # noqa: B023
        assert (await again.finish()).exit.reason == "Complete"
        assert len(await again.facts_of(ApprovalRequested)) == 1
        landed = [fact.state for fact in await again.facts_of(ApprovalAnswered)]
        assert landed == ["Landed"], kinds[:cut]
        assert len(await again.facts_of(ParkEnded)) == 1


# ---------------------------------------------------------------- what is shown


def test_arguments_that_are_long_are_cut_and_counted() -> None:
    many = {f"key-{n}": "a long text that says something, again and again; " * 5 for n in range(100)}
    shown = shown_arguments(many)
    assert len(compact(shown)) <= MAX_SHOWN_BYTES
    assert shown["…"] == "68 more"
    one = shown_arguments({"list": [{"n": n} for n in range(5000)], "amount": 3})
    assert one["amount"] == 3
    assert one["list"][-1] == "… 4968 more"
    short = {"list": ["a", {"password": "hunter2"}], "amount": 3, "none": None, "is_big": True}
    assert shown_arguments(short) == {**short, "list": ["a", {"password": "[Secret]"}]}


def test_arguments_without_end_are_shown_in_a_moment() -> None:
    began = time.process_time()
    wide = shown_arguments({"list": ["jo@example.com 0123456789"] * 100_000})
    deep: Any = "x"
    for _ in range(60):
        deep = {"a": deep, "b": ["jo@example.com"] * 50}
    nested = shown_arguments({"deep": deep})
    assert time.process_time() - began < 2
    broad = shown_arguments({"\U0001f4b6" * 90 + str(n): "\U0001f4b6" * 150 for n in range(500)})
    assert "more" in broad["…"]
    for shown in (wide, nested, broad):
        assert "jo@" not in compact(shown)
        assert len(compact(shown).encode()) <= MAX_SHOWN_BYTES
