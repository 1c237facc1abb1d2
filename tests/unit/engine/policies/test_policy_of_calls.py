"""Policy in the loop: what becomes of a verdict, and that no policy is asked twice for one call (engine.md §1, §3)."""

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from pilothouse_api.structs import AncestorPolicy, PolicyRule
from pilothouse_engine.facts import CallFinished, CallStarted, ModelStarted, PolicyJudged
from pilothouse_engine.ports import HttpFailure, HttpResponse, Usage
from pilothouse_engine.testing.http import ScriptedHttp
from unit.engine.policies.rules import allow, deny, deny_turn, endpoint
from unit.engine.scenarios import (
    ListModel,
    Scenario,
    agent_step,
    answer,
    call,
    calls,
    codes,
    failure,
    function_tool,
    scenario,
    tool_texts,
)

pytestmark = pytest.mark.anyio

REFUND = function_tool("refund", effect="Once")
TOOLS = [function_tool("lookup"), REFUND]
FUNCTIONS = {"tools:refund": lambda arguments: {"refunded": arguments.get("amount")}}


def says(result: Any) -> HttpResponse:
    return HttpResponse(200, body=json.dumps({"result": result}).encode())


def policed(
    turns: list[Any], *rules: dict[str, Any], workflow: list[dict[str, Any]] | None = None, **fields: Any
) -> Any:
    step = agent_step(tools=TOOLS, policy=list(rules), **fields.pop("agent", {}))
    plan = {"policy": workflow} if workflow else {}
    return scenario(turns, step, functions=FUNCTIONS, plan=plan, **fields)


def requests_of(run: Scenario) -> list[Any]:
    assert isinstance(run.model, ListModel)
    return run.model.requests


def frames_of(run: Scenario, kind: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in frame.items() if k != "time"} for frame in run.sink.frames if frame["kind"] == kind]


# ---------------------------------------------------------------- calls of tools


async def test_a_denied_call_is_answered_and_the_loop_goes_on() -> None:
    rule = deny("big", "tool == 'refund' && args.amount > 50", message="Never refund so much.")
    run = policed([calls(call("refund", {"amount": 80})), answer("needs_human")], rule)
    assert (await run.finish()).exit.signal == "needs_human"
    assert run.functions_run() == []
    assert codes(requests_of(run)[1]) == ["tool_policy_denied"]
    assert "Never refund so much." in tool_texts(requests_of(run)[1])[0]
    (judged,) = await run.facts_of(PolicyJudged)
    assert (judged.at_gate, judged.verdict, judged.rule, judged.owner) == (
        "ToolCall",
        "Deny",
        "big",
        "agent of step work",
    )
    assert frames_of(run, "Policy") == [
        {"kind": "Policy", "turn": 1, "at": "ToolCall", "rule": "big", "verdict": "Deny"}
    ]


async def test_recovery_counts_what_policy_denies() -> None:
    turn = calls(call("refund", {"amount": 80}))
    run = policed([turn, calls(call("refund", {"amount": 90}))], deny("no-refunds", "tool == 'refund'"))
    end = await run.finish()
    assert (end.exit.signal, end.exit.error.type) == ("unrecoverable", "SameErrorRepeated")


async def test_a_call_that_nothing_matches_leaves_no_fact() -> None:
    run = policed([calls(call("refund", {"amount": 5})), answer("resolved")], deny("big", "args.amount > 50"))
    await run.finish()
    assert run.functions_run() == ["refund"]
    assert await run.facts_of(PolicyJudged) == []
    assert frames_of(run, "Policy") == []


async def test_a_verdict_that_allows_stands_in_the_append_of_the_start() -> None:
    run = policed([calls(call("refund", {"amount": 5})), answer("resolved")], allow("small", "args.amount < 50"))
    appends = recorded_appends(run)
    await run.finish()
    kinds = next(kinds for kinds in appends if "CallStarted" in kinds)
    assert kinds == ["PolicyJudged", "CallStarted"]


def recorded_appends(run: Scenario) -> list[list[str]]:
    appends: list[list[str]] = []
    append = run.journal.append

    async def record(attempt: int, expected_seq: int, entries: Any) -> None:
        await append(attempt, expected_seq, entries)
        appends.append([entry["fact"] for entry in entries])

    run.journal.append = record  # type: ignore[method-assign]
    return appends


async def test_a_rule_that_fails_denies_and_says_so() -> None:
    run = policed([calls(call("refund", {})), answer("needs_human")], allow("small", "args.amount < 50"))
    await run.finish()
    assert codes(requests_of(run)[1]) == ["tool_policy_denied"]
    (judged,) = await run.facts_of(PolicyJudged)
    assert (judged.verdict, judged.is_failure) == ("Deny", True)


@pytest.mark.parametrize(
    ("agent", "workflow", "ancestor", "want"),
    [
        (allow("a", "true"), None, None, "Allow"),
        (allow("a", "true"), deny("w", "true"), None, "Deny"),
        (deny("a", "true"), allow("w", "true"), None, "Deny"),
        (allow("a", "true"), allow("w", "true"), deny("p", "true"), "Deny"),
        (allow("a", "true"), deny("w", "false"), deny("p", "false"), "Allow"),
    ],
)
async def test_the_strictest_list_wins(agent: Any, workflow: Any, ancestor: Any, want: str) -> None:
    run = policed(
        [calls(call("refund", {"amount": 5})), answer("resolved")], agent, workflow=[workflow] if workflow else None
    )
    if ancestor:
        rules = [PolicyRule.read(ancestor)]
        run.plan = replace(run.plan, ancestor_policies=[AncestorPolicy(owner="run p", rules=rules)])
    await run.finish()
    (judged,) = await run.facts_of(PolicyJudged)
    assert judged.verdict == want
    assert run.functions_run() == (["refund"] if want == "Allow" else [])


async def test_the_variables_say_where_the_run_stands() -> None:
    cel = (
        "tool == 'refund' && effect == 'Once' && step == 'work' && agent == '' && workflow == 'flow' && turn == 2"
        " && iteration == 2 && __namespace__ == 'ns' && usage.toolCalls == 1 && usage.tokens == 120"
        " && usage.costUSD == 0.0 && now.getFullYear() == 2030 && labels == {}"
    )
    turns = [calls(call("lookup")), calls(call("refund", {"amount": 1})), answer("needs_human")]
    run = policed(turns, deny("all-of-it", cel))
    await run.finish()
    assert [judged.rule for judged in await run.facts_of(PolicyJudged)] == ["all-of-it"]


async def test_a_denied_call_among_parallel_ones_is_answered_after_those_before_it() -> None:
    limits = {"maxParallelToolCalls": 4}
    asked = calls(
        call("lookup", {"n": 1}), call("lookup", {"n": 2}), call("lookup", {"n": 3}), call("lookup", {"n": 4})
    )
    run = policed([asked, answer("resolved")], deny("third", "args.n == 3"), agent={"limits": limits})
    await run.finish()
    assert codes(requests_of(run)[1]) == [None, None, "tool_policy_denied", None]
    kinds = [fact.__class__.__name__ for fact in await run.facts() if isinstance(fact, PolicyJudged | CallStarted)]
    assert kinds == ["PolicyJudged", "CallStarted", "CallStarted", "CallStarted"]


# ---------------------------------------------------------------- endpoints


async def test_an_endpoint_is_asked_once_and_its_verdict_is_journaled_before_the_call_starts() -> None:
    http = ScriptedHttp(says(True))
    run = policed([calls(call("refund", {"amount": 5})), answer("resolved")], endpoint(), http=http)
    appends = recorded_appends(run)
    await run.finish()
    assert len(http.requests) == 1
    assert json.loads(http.requests[0].body or b"")["input"]["args"] == {"amount": 5}
    (judged,) = await run.facts_of(PolicyJudged)
    assert (judged.verdict, judged.rule, judged.is_asked) == ("Allow", "central", True)
    assert ["PolicyJudged"] in appends, "a verdict from outside waits for nothing"


async def test_control_is_read_again_after_an_endpoint_was_asked() -> None:
    def abort_meanwhile(request: Any) -> HttpResponse:
        run.store.set_control(mode="Abort")
        return says(True)

    run = policed([calls(call("refund", {"amount": 5}))], endpoint(), http=ScriptedHttp(abort_meanwhile))
    assert (await run.finish()).exit.reason == "Aborted"
    assert run.functions_run() == []


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (says(False), "tool_policy_denied"),
        (says({"verdict": "Deny", "message": "closed"}), "tool_policy_denied"),
        (says({"verdict": "Maybe"}), "tool_policy_denied"),
        (HttpFailure("Timeout", "no complete answer within 2 s", sent=True), "tool_policy_denied"),
        (HttpResponse(500, body=b'{"result": true}'), "tool_policy_denied"),
        (HttpResponse(200, body=b"garbage"), "tool_policy_denied"),
        (says({"verdict": "Allow", "message": "fine"}), None),
    ],
)
async def test_only_a_clear_answer_allows(got: Any, want: str | None) -> None:
    run = policed([calls(call("refund", {"amount": 5})), answer("resolved")], endpoint(), http=ScriptedHttp(got))
    await run.finish()
    assert codes(requests_of(run)[1]) == [want]


async def test_an_endpoint_splits_a_parallel_run() -> None:
    http = ScriptedHttp(says(True))
    asked = calls(call("lookup", {"n": 1}), call("lookup", {"n": 2}), call("lookup", {"n": 3}))
    fields = {"limits": {"maxParallelToolCalls": 3}}
    rules = [allow("first", "args.n == 1"), endpoint()]
    run = policed([asked, answer("resolved")], *rules, agent=fields, http=http)
    await run.finish()
    assert len(http.requests) == 2
    assert codes(requests_of(run)[1]) == [None, None, None]


async def test_a_denial_by_expression_asks_no_endpoint() -> None:
    http = ScriptedHttp(says(True))
    run = policed([calls(call("refund")), answer("needs_human")], endpoint(), workflow=[deny("no", "true")], http=http)
    await run.finish()
    assert http.requests == []


# ---------------------------------------------------------------- model calls


@pytest.mark.parametrize("mode", ["Autonomous", "Completion"])
async def test_a_denied_turn_exits_policy_denied_without_a_model_call(mode: str) -> None:
    rule = deny_turn("closed", "turn == 1", message="Come back tomorrow.")
    step = agent_step(policy=[rule])
    if mode == "Completion":
        agent = {"mode": "Completion", "model": {"name": "m"}, "prompt": {"inline": "p"}, "policy": [rule]}
        step = {"id": "work", "kind": "Agent", "agent": agent}
    run = scenario([], step)
    end = await run.finish()
    assert (end.exit.signal, end.exit.reason, end.exit.error.type) == ("policy_denied", "PolicyDenied", "PolicyDenied")
    assert "Come back tomorrow." in end.exit.error.message
    assert await run.facts_of(ModelStarted) == []
    assert run.snapshot.turn == 1
    want = {"kind": "Policy", "turn": 1, "at": "ModelCall", "rule": "closed", "verdict": "Deny"}
    assert frames_of(run, "Policy") == [want]


async def test_a_turn_is_judged_once_however_often_its_call_is_made() -> None:
    http = ScriptedHttp(says(True))
    turns = [failure("ServerError", sent=False), calls(call("lookup")), answer("resolved")]
    run = policed(turns, endpoint("central", "ModelCall"), http=http, agent={"retry": {"attempts": 2}})
    await run.finish()
    assert len(http.requests) == 2
    assert [judged.turn for judged in await run.facts_of(PolicyJudged)] == [1, 2]
    assert len(await run.facts_of(ModelStarted)) == 3


async def test_a_turn_that_a_rule_allows_stands_in_the_append_of_its_start() -> None:
    run = policed([answer("resolved")], allow("day", "now.getHours('UTC') < 23", at="ModelCall"))
    appends = recorded_appends(run)
    await run.finish()
    assert ["PolicyJudged", "ModelStarted"] in [kinds[-2:] for kinds in appends]


async def test_the_turn_policy_is_asked_after_the_limits() -> None:
    fields = {"limits": {"tokenBudget": 5_000}}
    turn = calls(call("lookup"), usage=Usage(4_990, 20))
    run = policed([turn, answer("resolved")], deny_turn("second", "turn > 1"), agent=fields)
    end = await run.finish()
    assert requests_of(run), "the first turn fits"
    assert end.exit.signal == "budget_exceeded"
    assert await run.facts_of(PolicyJudged) == []


# ---------------------------------------------------------------- resuming


async def test_a_verdict_that_is_journaled_is_not_asked_for_again_by_the_next_attempt() -> None:
    http = ScriptedHttp(says(True))
    run = policed([calls(call("refund", {"amount": 5})), answer("resolved")], endpoint(), http=http)
    await run.finish()
    lines = run.journal._lines
    for cut in range(len(lines) + 1):
        facts = [json.loads(line)["fact"] for line in lines[:cut]]
        if "ReplyReceived" not in facts or facts.count("ReplyReceived") > 1:
            continue
        again = policed([answer("needs_human")], endpoint(), http=ScriptedHttp(says(True)))
        again.journal._lines, again.attempts = list(lines[:cut]), 1
        await again.finish()
        assert len(again.http.requests) == (0 if "PolicyJudged" in facts else 1), facts
        finished = await again.facts_of(CallFinished)
        is_lost = facts[-1] == "CallStarted"
        assert [fact.code for fact in finished] == ["tool_effect_unknown" if is_lost else None], facts


async def test_a_turn_that_was_allowed_is_not_judged_again_after_a_crash() -> None:
    run = policed([answer("resolved")], endpoint("central", "ModelCall"), http=ScriptedHttp(says(True)))
    await run.finish()
    lines = run.journal._lines
    for last in ("PolicyJudged", "ModelStarted"):
        cut = next(i for i, line in enumerate(lines) if json.loads(line)["fact"] == last) + 1
        again = policed([answer("resolved")], endpoint("central", "ModelCall"), http=ScriptedHttp())
        again.journal._lines, again.attempts = list(lines[:cut]), 1
        assert (await again.finish()).exit.signal == "resolved"
        assert again.http.requests == []


# ---------------------------------------------------------------- while an endpoint is asked


async def test_a_run_that_is_let_go_of_while_an_endpoint_is_asked_asks_it_again() -> None:
    async def hang(request: Any) -> HttpResponse:
        run.stop.release()
        await asyncio.Event().wait()
        raise AssertionError

    run = policed([calls(call("refund", {"amount": 5})), answer("resolved")], endpoint(), http=ScriptedHttp(hang))
    assert (await run.release()).parked.reason == "Stopped"
    assert await run.facts_of(PolicyJudged) == []
    run.http = ScriptedHttp(says(True))
    await run.finish()
    assert run.functions_run() == ["refund"]


async def test_an_endpoint_that_is_asked_holds_no_deadline_of_the_run() -> None:
    async def hang(request: Any) -> HttpResponse:
        await asyncio.Event().wait()
        raise AssertionError

    plan = {"active_deadline_seconds": 100}
    step = agent_step(tools=TOOLS, policy=[endpoint()])
    run = scenario([calls(call("refund", {"amount": 5}))], step, plan=plan, http=ScriptedHttp(hang))
    end = await run.finish()
    assert (end.exit.reason, run.functions_run()) == ("DeadlineExceeded", [])


@pytest.mark.parametrize("got", [says(False), says({"verdict": "RequireApproval"}), HttpResponse(500)])
async def test_a_turn_whose_endpoint_gives_no_clear_allowance_is_denied(got: Any) -> None:
    run = policed([], endpoint("central", "ModelCall"), http=ScriptedHttp(got))
    assert (await run.finish()).exit.signal == "policy_denied"


async def test_what_a_rule_failed_on_is_not_shown() -> None:
    rule = allow("due", "timestamp(args.note) < now")
    run = policed([calls(call("refund", {"note": "card 4111 1111 1111 1111"})), answer("needs_human")], rule)
    await run.finish()
    (judged,) = await run.facts_of(PolicyJudged)
    assert judged.is_failure
    assert "4111" not in judged.message


async def test_policy_judges_no_call_that_cannot_run_anyway() -> None:
    run = policed([calls(call("nothing"), call("refund", "{")), answer("needs_human")], deny("all", "true"))
    await run.finish()
    assert codes(requests_of(run)[1]) == ["tool_unknown", "tool_invalid_arguments"]
    assert await run.facts_of(PolicyJudged) == []


def test_a_run_without_policies_loads_nothing_of_them() -> None:
    code = (
        "import asyncio, sys\n"
        "from unit.engine.scenarios import answer, call, calls, scenario\n"
        "asyncio.run(scenario([calls(call('lookup')), answer('resolved')]).finish())\n"
        "words = ('engine.policies', 'engine.approvals', 'engine.step_gates', 'guardrails.masks')\n"
        "print(*sorted(name for name in sys.modules if any(word in name for word in words)))\n"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []
