"""What happens next to the calls of a reply, as pure decisions over facts (engine.md §3)."""

import json
from typing import Any

import pytest

from pilothouse_api.structs import Control, PlannedText
from pilothouse_engine.actions import Action, Commit, Execute, Execution, Inputs, ReadControl, ReadSlice
from pilothouse_engine.batch import plan_batch
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.control import RETRY_SECONDS
from pilothouse_engine.facts import (
    ApprovalAnswered,
    ApprovalRequested,
    AskedCall,
    AttemptStarted,
    CallFinished,
    CallStarted,
    ChildRequested,
    Fact,
    LimitsLanded,
    ModeAnswered,
    ModelStarted,
    ParkBegan,
    PolicyJudged,
    PromptMessage,
    PromptOpened,
    ReplyReceived,
    RunStarted,
    StepEntered,
)
from pilothouse_engine.ports import Directives, StoreFailure
from pilothouse_engine.settings import Settings
from pilothouse_engine.state import RunState
from pilothouse_engine.steps.contract import StepCall
from unit.engine.policies.rules import deny, require
from unit.engine.scenarios import agent_step, build_plan, function_tool

NOW = 1000.0
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS = (
    function_tool("lookup"),
    function_tool("note", effect="Idempotent"),
    function_tool("pay", effect="Once"),
    function_tool("strict", parameters=NUMBER),
    function_tool("rare", maxCalls=1),
)


def asked(index: int, name: str = "lookup", arguments: str | None = None, turn: int = 1) -> AskedCall:
    raw = json.dumps({"n": index}) if arguments is None else arguments
    known = name in ("lookup", "note", "pay", "strict", "rare", "read_tool_result")
    return AskedCall(f"t{turn}-{index}-abcd", f"p{index}", name, raw, f"digest of {raw}", known)


def started(call: AskedCall, effect: str) -> CallStarted:
    return CallStarted(NOW, call.id, call.name, effect, "key", "d", 1)


def finished(call: AskedCall, **fields: Any) -> CallFinished:
    return CallFinished(NOW, call.id, "{}", **fields)


def turn(*calls: AskedCall, number: int = 1, **fields: Any) -> tuple[Fact, ...]:
    model = ModelStarted(NOW, number, number, "Regular", 0, 1, 10, 10)
    return (model, ReplyReceived(NOW, "", calls, **{"input": 10, "output": 10, "cost": 0} | fields))


def batch(*facts: Fact, plan: dict[str, Any] | None = None, **agent: Any) -> tuple[Catalog, RunState]:
    """An agent in the batch of its newest reply."""
    agent = {"tools": TOOLS, "limits": {"maxIterations": 5}} | agent
    state = RunState(context={"ticket": "t"})
    opened = PromptOpened(NOW, (PromptMessage("user", "hello"),))
    begun = (RunStarted(NOW, "d"), AttemptStarted(NOW, 1), StepEntered(NOW, "work", 1, "Agent"), opened)
    for fact in (*begun, *facts):
        state.apply(fact)
    built = build_plan(agent_step("work", **agent), **(plan or {}))
    return Catalog(built, lambda endpoint: None, lambda endpoint: None, is_durable=True), state


def decide(catalog: Catalog, state: RunState, **fields: Any) -> Action:
    known = {"published_length": 0, "read_tick": state.tick, "directives": Directives("uid-1", 1)} | fields
    return plan_batch(catalog, state, Inputs(1, None, Settings(), "d", NOW, NOW, **known))


def said(action: Action) -> tuple[Any, ...]:
    assert isinstance(action, Commit), action
    return action.facts


def run_by(action: Action) -> list[Execution]:
    assert isinstance(action, Execute), action
    return list(action.executions)


def ids(action: Action) -> list[str]:
    return [execution.started.id for execution in run_by(action)]


# ---------------------------------------------------------------- closing


FIRST, SECOND = asked(0), asked(1)


def test_a_fatal_call_ends_the_step_and_leaves_the_others_unrun() -> None:
    fatal = finished(FIRST, code="tool_error", fatal="ToolTimeout", message="lookup took too long")
    unrun, end = said(decide(*batch(*turn(FIRST, SECOND), fatal)))
    assert (unrun.id, unrun.code) == (SECOND.id, "tool_call_unresolved")
    assert (end.at, end.signal, end.error_type, end.error_message) == (
        NOW,
        "error",
        "ToolTimeout",
        "lookup took too long",
    )


def test_an_abort_ends_the_step_whatever_was_asked() -> None:
    *unrun, end = said(decide(*batch(*turn(FIRST, SECOND), ModeAnswered(NOW, 1, "Abort", reason="stop"))))
    assert [fact.code for fact in unrun] == ["tool_call_unresolved"] * 2
    assert (end.signal, end.error_type) == ("aborted", "Aborted")
    assert "stop" in end.error_message


def test_a_finish_answers_what_has_not_run_and_the_turn_goes_on() -> None:
    facts = said(decide(*batch(*turn(FIRST, SECOND), finished(FIRST), ModeAnswered(NOW, 1, "Finish"))))
    assert [(fact.id, fact.code) for fact in facts] == [(SECOND.id, "tool_call_unresolved")]
    assert facts[0].message == "not run: the run was asked to finish"


def test_a_reply_that_spent_the_budget_runs_no_call() -> None:
    spent = turn(FIRST, input=90, output=10)
    unrun, end = said(decide(*batch(*spent, limits={"tokenBudget": 100})))
    assert (unrun.code, end.signal, end.error_type) == ("tool_call_unresolved", "budget_exceeded", "BudgetExceeded")
    assert "tokenBudget of 100" in end.error_message
    assert ids(decide(*batch(*turn(FIRST, input=90, output=9), limits={"tokenBudget": 100}))) == [FIRST.id]


def test_the_last_iteration_runs_no_call() -> None:
    unrun, end = said(decide(*batch(*turn(FIRST), limits={"maxIterations": 1})))
    assert (unrun.code, end.signal, end.error_type) == ("tool_call_unresolved", "max_iterations", "MaxIterations")
    assert (end.at, end.error_message) == (NOW, "iteration 1 of 1 asked for tools instead of answering")
    assert ids(decide(*batch(*turn(FIRST), limits={"maxIterations": 2}))) == [FIRST.id]


def test_limits_that_were_changed_on_the_live_run_hold_in_the_batch() -> None:
    landed = LimitsLanded(NOW, 1, 2, {"maxIterations": 1})
    assert said(decide(*batch(landed, *turn(FIRST))))[-1].signal == "max_iterations"


# ---------------------------------------------------------------- calls that an attempt has lost


@pytest.mark.parametrize(
    ("name", "effect", "arguments", "is_repeated"),
    [
        ("lookup", "ReadOnly", '{"n": 1}', True),
        ("note", "Idempotent", '{"n": 1}', True),
        ("pay", "Once", '{"n": 1}', False),
        ("gone", "ReadOnly", '{"n": 1}', False),
        ("strict", "ReadOnly", '{"n": "x"}', False),
    ],
)
def test_a_lost_call_is_repeated_where_that_is_harmless_and_unknown_otherwise(
    name: str, effect: str, arguments: str, is_repeated: bool
) -> None:
    call = asked(0, name, arguments)
    action = decide(*batch(*turn(call, SECOND), started(call, effect), AttemptStarted(NOW, 2)))
    if is_repeated:
        (execution,) = run_by(action)
        assert (execution.started.id, execution.arguments) == (call.id, {"n": 1})
    else:
        (unknown,) = said(action)
        assert (unknown.at, unknown.id, unknown.code, unknown.is_unknown) == (NOW, call.id, "tool_effect_unknown", True)


def test_a_call_that_waits_for_a_child_waits_on_when_the_run_was_woken_otherwise() -> None:
    child = ChildRequested(NOW, FIRST.id, 1, "Agent", "helper", {})
    assert said(decide(*batch(*turn(FIRST), child, started(FIRST, "Once")))) == (ParkBegan(NOW, "AwaitingChild", 1),)


def test_what_is_lost_comes_before_what_was_not_begun() -> None:
    third = asked(2, "note")
    action = decide(*batch(*turn(FIRST, SECOND, third), started(third, "Idempotent"), AttemptStarted(NOW, 2)))
    assert ids(action) == [third.id]


# ---------------------------------------------------------------- control between calls


@pytest.mark.parametrize(
    ("facts", "limits", "reads"),
    [
        (turn(FIRST, SECOND), {}, False),
        ((*turn(FIRST, SECOND), finished(FIRST)), {}, True),
        (turn(asked(0, "note")), {}, False),
        (turn(asked(0, "pay")), {}, True),
        (turn(asked(0, "nobody")), {}, False),
        (turn(FIRST), {"maxParallelToolCalls": 3}, False),
        (turn(FIRST, SECOND), {"maxParallelToolCalls": 3}, True),
    ],
)
def test_control_is_read_between_calls_and_before_each_once(facts: Any, limits: Any, reads: bool) -> None:
    catalog, state = batch(*facts, limits={"maxIterations": 5} | limits)
    action = decide(catalog, state, read_tick=state.tick - 1)
    assert (action == ReadControl()) is reads
    assert not isinstance(decide(catalog, state), ReadControl)


@pytest.mark.parametrize(("name", "goes_on"), [("lookup", True), ("note", True), ("pay", False)])
def test_without_control_what_may_be_repeated_goes_on_and_once_waits(name: str, goes_on: bool) -> None:
    call = asked(1, name)
    away = {"failure": StoreFailure("Unavailable", "503")}
    action = decide(*batch(*turn(FIRST, call), finished(FIRST)), **away)
    assert ids(action) == [call.id] if goes_on else action == ReadControl(RETRY_SECONDS)


def test_a_once_call_parks_where_control_stays_away() -> None:
    catalog, state = batch(*turn(asked(0, "pay")))
    known = Inputs(
        1, None, Settings(), "d", NOW + 61, NOW, read_tick=state.tick, failure=StoreFailure("Forbidden", "no")
    )
    want = ParkBegan(NOW + 61, "ControlLost", 1, message="Forbidden: no")
    assert said(plan_batch(catalog, state, known)) == (want,)


@pytest.mark.parametrize(("mode", "lands"), [("Abort", True), ("Finish", True), ("Pause", False)])
def test_an_abort_and_a_finish_land_between_calls_and_a_pause_waits_for_the_turn(mode: str, lands: bool) -> None:
    directives = Directives("uid-1", 2, control=Control.read({"mode": mode}))
    action = decide(*batch(*turn(FIRST, SECOND), finished(FIRST)), directives=directives)
    if lands:
        (landed,) = said(action)
        assert (landed.mode, landed.turn, landed.state) == (mode, 1, "Landed")
    else:
        assert ids(action) == [SECOND.id]


# ---------------------------------------------------------------- gates


def answered(action: Action, call: AskedCall) -> tuple[str, str]:
    (fact,) = said(action)
    assert (fact.at, fact.id, fact.signal) == (NOW, call.id, "error")
    shown = json.loads(fact.content)["error"]
    assert shown == {"code": fact.code, "message": fact.message}
    return fact.code, fact.message


def test_past_the_most_calls_of_a_visit_the_batch_closes() -> None:
    facts = (*turn(FIRST, SECOND), started(FIRST, "ReadOnly"), finished(FIRST))
    unrun, end = said(decide(*batch(*facts, limits={"maxToolCalls": 1})))
    assert (unrun.id, unrun.code, end.signal, end.error_type) == (
        SECOND.id,
        "tool_call_unresolved",
        "unrecoverable",
        "ToolCallLimit",
    )
    assert end.error_message == "1 tool calls were made: raise limits.maxToolCalls (1)"
    assert ids(decide(*batch(*facts, limits={"maxToolCalls": 2}))) == [SECOND.id]


def test_past_the_most_calls_of_the_run_the_batch_closes() -> None:
    facts = (*turn(FIRST, SECOND), started(FIRST, "ReadOnly"), finished(FIRST))
    _, end = said(decide(*batch(*facts, plan={"limits": {"maxToolCalls": 1}})))
    assert end.error_message == "1 tool calls were made in this run: raise limits.maxToolCalls of the run (1)"
    assert (end.signal, end.error_type) == ("unrecoverable", "ToolCallLimit")
    assert ids(decide(*batch(*facts, plan={"limits": {"maxToolCalls": 2}}))) == [SECOND.id]


@pytest.mark.parametrize(
    ("agent", "plan"),
    [
        ({"limits": {"maxIterations": 5, "maxToolCalls": 2, "maxParallelToolCalls": 4}}, {}),
        ({"limits": {"maxIterations": 5, "maxParallelToolCalls": 4}}, {"limits": {"maxToolCalls": 2}}),
    ],
)
def test_calls_that_run_beside_each_other_count_against_the_limits(agent: Any, plan: Any) -> None:
    action = decide(*batch(*turn(FIRST, SECOND, asked(2)), plan=plan, **agent))
    assert ids(action) == [FIRST.id, SECOND.id]


def test_a_tool_past_its_own_limit_is_answered() -> None:
    calls = [asked(n, "rare") for n in range(2)]
    facts = (*turn(*calls), started(calls[0], "ReadOnly"), finished(calls[0]))
    code, message = answered(decide(*batch(*facts)), calls[1])
    assert (code, message) == ("tool_max_calls", "rare was called 1 times, which is all it may be; go on without it")
    beside = decide(*batch(*turn(*calls), limits={"maxIterations": 5, "maxParallelToolCalls": 4}))
    assert ids(beside) == [calls[0].id]


def test_calls_of_a_reply_that_was_cut_are_answered() -> None:
    code, message = answered(decide(*batch(*turn(FIRST, finish="Length"))), FIRST)
    assert code == "tool_arguments_truncated"
    assert "cut at the output limit" in message


def test_the_third_of_identical_calls_is_answered_and_says_how_often_it_was_made() -> None:
    same = [asked(n, "lookup", "{}") for n in range(4)]
    facts = [fact for call in same[:2] for fact in (started(call, "ReadOnly"), finished(call))]
    code, message = answered(decide(*batch(*turn(*same), *facts)), same[2])
    assert code == "tool_call_loop_guard" and "made 2 times already" in message
    _, message = answered(decide(*batch(*turn(*same), *facts, finished(same[2], code="tool_call_loop_guard"))), same[3])
    assert "made 3 times already" in message
    beside = decide(*batch(*turn(*same), limits={"maxIterations": 5, "maxParallelToolCalls": 9}))
    assert ids(beside) == [call.id for call in same[:2]]


def test_identical_is_the_tool_and_its_arguments() -> None:
    calls = [asked(0, "lookup", "{}"), asked(1, "note", "{}"), asked(2, "lookup", "{}")]
    facts = [fact for call in calls[:2] for fact in (started(call, "Idempotent"), finished(call))]
    assert ids(decide(*batch(*turn(*calls), *facts))) == [calls[2].id]


def test_an_unknown_tool_is_answered_with_the_names_there_are() -> None:
    call = asked(0, "sudo")
    code, message = answered(decide(*batch(*turn(call))), call)
    assert (code, message) == (
        "tool_unknown",
        "there is no such tool; there are: lookup, note, pay, strict, rare, read_tool_result",
    )


def test_arguments_that_do_not_fit_are_answered() -> None:
    call = asked(0, "strict", '{"n": "x"}')
    code, message = answered(decide(*batch(*turn(call))), call)
    assert code == "tool_invalid_arguments" and "n" in message


# ---------------------------------------------------------------- policy and approvals


APPROVED = (*TOOLS[:2], function_tool("pay", effect="Once", approval="Always"))
PAY = asked(0, "pay")


def policed(verdict: str, call: AskedCall = PAY) -> PolicyJudged:
    return PolicyJudged(NOW, call.id, 1, "ToolCall", verdict, "careful", "be careful", "agent of step work")


def test_a_tool_that_always_needs_approval_waits_for_a_person() -> None:
    request, park = said(decide(*batch(*turn(PAY), tools=APPROVED)))
    assert (request.at, request.call, request.turn, request.tool, request.arguments) == (
        NOW,
        PAY.id,
        1,
        "pay",
        {"n": 0},
    )
    assert (park.reason, park.turn) == ("AwaitingApproval", 1)


def test_a_policy_that_requires_approval_makes_any_tool_wait() -> None:
    rules = {"policy": [require("careful", "tool == 'pay'")]}
    request, park = said(decide(*batch(*turn(PAY), policed("RequireApproval"), **rules)))
    assert (request.call, request.tool, park.reason) == (PAY.id, "pay", "AwaitingApproval")
    assert ids(decide(*batch(*turn(PAY), policed("Allow"), **rules))) == [PAY.id]
    code, message = answered(decide(*batch(*turn(PAY), policed("Deny"), **rules)), PAY)
    assert code == "tool_policy_denied" and "be careful" in message


def test_a_call_is_judged_by_policy_once_and_its_verdict_is_journaled_first() -> None:
    rules = {"policy": [deny("careful", "tool == 'pay'", message="be careful")]}
    (verdict,) = said(decide(*batch(*turn(PAY), **rules)))
    assert (verdict.call, verdict.at_gate, verdict.verdict, verdict.rule) == (PAY.id, "ToolCall", "Deny", "careful")


def test_a_tool_of_which_no_rule_speaks_is_judged_by_none() -> None:
    rules = {"policy": [deny("careful", "tool == 'pay'")]}
    assert ids(decide(*batch(*turn(FIRST), **rules))) == [FIRST.id]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"state": "Landed", "decision": "Approve"}, None),
        ({"state": "Landed", "decision": "Deny", "reason": "too much", "by": "ada"}, "tool_approval_denied"),
        ({"state": "Expired"}, "tool_approval_expired"),
    ],
)
def test_a_decision_lets_a_call_run_or_is_its_answer(answer: dict[str, Any], code: str | None) -> None:
    request = ApprovalRequested(NOW, PAY.id, 1, "pay", {}, NOW + 60)
    action = decide(*batch(*turn(PAY), request, ApprovalAnswered(NOW, 1, PAY.id, **answer), tools=APPROVED))
    if code is None:
        (execution,) = run_by(action)
        assert (execution.started.id, execution.started.is_approved) == (PAY.id, True)
    else:
        assert answered(action, PAY)[0] == code


EDITED = ApprovalAnswered(NOW, 1, PAY.id, "Landed", "Approve", {"n": 9})
REQUESTED = ApprovalRequested(NOW, PAY.id, 1, "pay", {}, NOW + 60)


def test_a_call_whose_arguments_a_person_has_edited_runs_with_those() -> None:
    (execution,) = run_by(decide(*batch(*turn(PAY), REQUESTED, EDITED, tools=APPROVED)))
    assert (execution.started.id, execution.arguments) == (PAY.id, {"n": 9})


def test_edited_arguments_are_judged_by_policy_again_and_need_no_other_approval() -> None:
    rules = {"tools": APPROVED, "policy": [deny("dear", "tool == 'pay' && args.n > 5"), require("all", "args.n >= 0")]}
    facts = (*turn(PAY), policed("RequireApproval"), REQUESTED, EDITED)
    (verdict,) = said(decide(*batch(*facts, **rules)))
    assert (verdict.call, verdict.verdict, verdict.rule) == (PAY.id, "Deny", "dear")
    assert answered(decide(*batch(*facts, policed("Deny"), **rules)), PAY)[0] == "tool_policy_denied"
    assert ids(decide(*batch(*facts, policed("RequireApproval"), **rules))) == [PAY.id]


# ---------------------------------------------------------------- what runs


def test_a_call_runs_with_its_checked_arguments_its_limits_and_the_context() -> None:
    call = asked(0, "pay", '{"n": 3.0, "_secret": 1}')
    limits = {"maxIterations": 5, "toolTimeoutSeconds": 9, "maxToolResultChars": 400}
    (execution,) = run_by(decide(*batch(*turn(call), limits=limits)))
    begun = execution.started
    assert (begun.at, begun.id, begun.tool, begun.effect, begun.attempt) == (NOW, call.id, "pay", "Once", 1)
    assert len(begun.key) == 64 and begun.key != begun.digest
    assert (execution.timeout, execution.timeout_type, execution.cut_at) == (9.0, "ToolTimeout", 400)
    assert (execution.is_tool, execution.arguments, execution.writes_context) == (True, {"n": 3}, False)
    assert isinstance(execution.work, StepCall)
    assert execution.work.context == {"ticket": "t", "n": 3}
    assert (execution.work.may_repeat, execution.work.idempotency_key) == (False, begun.key)


def test_a_call_that_only_reads_has_no_key() -> None:
    (execution,) = run_by(decide(*batch(*turn(FIRST))))
    assert (execution.started.key, execution.started.digest) == ("", FIRST.digest)
    assert isinstance(execution.work, StepCall)
    assert (execution.work.may_repeat, execution.work.idempotency_key) == (True, None)


def test_calls_that_only_read_run_beside_each_other_up_to_the_limit_and_an_effect_splits_them() -> None:
    calls = [asked(0), asked(1), asked(2, "pay"), asked(3)]
    limits = {"maxIterations": 5, "maxParallelToolCalls": 2}
    assert ids(decide(*batch(*turn(*calls), limits=limits))) == [calls[0].id, calls[1].id]
    wide = {"maxIterations": 5, "maxParallelToolCalls": 9}
    assert ids(decide(*batch(*turn(*calls), limits=wide))) == [calls[0].id, calls[1].id]
    done = [fact for call in calls[:2] for fact in (started(call, "ReadOnly"), finished(call))]
    assert ids(decide(*batch(*turn(*calls), *done, limits=wide))) == [calls[2].id]


def test_a_gated_call_splits_those_that_run_beside_each_other() -> None:
    calls = [asked(0), asked(1, "sudo"), asked(2)]
    wide = {"maxIterations": 5, "maxParallelToolCalls": 9}
    assert ids(decide(*batch(*turn(*calls), limits=wide))) == [calls[0].id]


def test_a_call_that_has_its_result_is_passed_by() -> None:
    calls = [asked(0), asked(1), asked(2)]
    facts = (started(calls[1], "ReadOnly"), finished(calls[1]))
    wide = {"maxIterations": 5, "maxParallelToolCalls": 9}
    assert ids(decide(*batch(*turn(*calls), *facts, limits=wide))) == [calls[0].id, calls[2].id]


def test_a_tool_whose_text_is_not_what_was_planned_ends_the_step() -> None:
    tool = function_tool("lookup")
    tool["inlineStep"]["function"]["source"] = {"artifact": "code@1"}
    forged = PlannedText(text="changed", digest="0" * 64, resolved="artifact:code@1")
    action = decide(*batch(*turn(FIRST), tools=(tool,), plan={"texts": {"artifact:code@1": forged}}))
    unrun, end = said(action)
    assert (unrun.code, end.at, end.signal, end.error_type) == (
        "tool_call_unresolved",
        NOW,
        "error",
        "IntegrityViolation",
    )
    assert "code@1" in end.error_message


def test_a_result_is_read_in_slices_without_a_tool() -> None:
    old = asked(0)
    read = asked(0, "read_tool_result", json.dumps({"call_id": old.id, "offset": 2, "limit": 3}), turn=2)
    done = (started(old, "ReadOnly"), CallFinished(NOW, old.id, "0123456789"))
    (execution,) = run_by(decide(*batch(*turn(old), *done, *turn(read, number=2))))
    assert execution.work == ReadSlice(f"[{old.id}: characters 2 to 5 of 10]\n234")
