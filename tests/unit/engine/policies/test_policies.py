"""Policy lists: first match, strictest of the lists, everything that fails denies."""

import json
from datetime import UTC, datetime
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from pilothouse_api.expressions import POLICY_VARIABLES, compile_policy_expression
from pilothouse_api.structs import (
    AgentSpec,
    AncestorPolicy,
    Origin,
    Plan,
    PlannedAgent,
    PolicyRule,
    RunIdentity,
    WorkflowSpec,
)
from pilothouse_engine.policies.cel import is_matched, only_tool
from pilothouse_engine.policies.evaluation import (
    Ask,
    PlannedPolicy,
    evaluate_cel,
    judge_call,
    plan_policies,
    plan_policy,
)
from pilothouse_engine.policies.questions import Question, Usage, build_input, build_variables
from pilothouse_engine.policies.verdicts import Decision, Verdict, strictest
from pilothouse_engine.ports import HttpFailure, HttpResponse
from pilothouse_engine.testing.http import ScriptedHttp

QUESTION = Question(
    at="ToolCall",
    step="investigate",
    agent="billing-investigator",
    workflow="support-triage",
    namespace="team-a",
    turn=4,
    iteration=3,
    now=datetime(2026, 11, 30, 6, 30, tzinfo=UTC),
    tool="refund",
    args={"amount": 51, "customer": "c-17"},
    effect="Once",
    usage=Usage(tokens=2311, cost_usd=0.0031, tool_calls=2),
    labels={"team": "payments"},
)
MODEL_CALL = replace(QUESTION, at="ModelCall", tool="", args={}, effect="")


def rule(name: str, cel: str, verdict: str = "Deny", at: str = "ToolCall", message: str | None = None) -> PolicyRule:
    return PolicyRule.read({"name": name, "at": at, "cel": cel, "verdict": verdict, "message": message})


def endpoint(name: str = "central", at: str = "ToolCall", message: str | None = None) -> PolicyRule:
    return PolicyRule.read({"name": name, "at": at, "http": {"url": "http://opa/v1"}, "message": message})


def policy(*rules: PolicyRule, owner: str = "agent a") -> PlannedPolicy:
    return plan_policy(owner, rules)


def answer(result: Any) -> HttpResponse:
    return HttpResponse(200, body=json.dumps({"result": result}).encode())


async def judge(*policies: PlannedPolicy, question: Question = QUESTION, http: ScriptedHttp | None = None) -> Decision:
    return await judge_call(policies, question, http or ScriptedHttp())


# ---------------------------------------------------------------- expressions


@pytest.mark.parametrize(
    "cel",
    [
        "tool == 'refund' && args.amount > 50",
        "args.amount > 50.5",
        "args.customer.startsWith('c-')",
        "effect == 'Once'",
        "step == 'investigate' && agent == 'billing-investigator'",
        "workflow == 'support-triage' && __namespace__ == 'team-a'",
        "turn == 4 && iteration == 3",
        "usage.tokens > 2000 && usage.costUSD < 0.01 && usage.toolCalls == 2",
        "now.getHours('UTC') < 7",
        "now < timestamp('2027-01-01T00:00:00Z')",
        "labels.team == 'payments'",
        "!has(args.reason)",
    ],
)
def test_an_expression_may_ask_for_every_variable(cel: str) -> None:
    want = Decision("ToolCall", "Deny", "r", "", "agent a")
    assert evaluate_cel(policy(rule("r", cel)), QUESTION) == want


def test_the_variables_are_the_documented_ones() -> None:
    assert tuple(build_variables(QUESTION)) == POLICY_VARIABLES


@pytest.mark.parametrize(
    ("cel", "args", "want"),
    [
        ("args.amount > 50", {}, "Key not found in map"),
        ("args.amount > 50", {"amount": "51"}, "No matching overloads"),
        ("args.amount > 50", {"amount": None}, "No matching overloads"),
        ("args.amount > 50", {"amount": 2**70}, "out of range"),
        ("args.text == 'x'", {"text": "half \ud800"}, ""),
        ("args", {}, "it must give a scalar"),
        ("tool", {}, "it gives str, not true or false"),
        ("1", {}, "it gives int, not true or false"),
        ("null", {}, "it gives NoneType, not true or false"),
        ("nonsense", {}, "it does not compile"),
        ("tool ==", {}, "it does not compile"),
        ("namespace == 'prod'", {}, "namespace is a reserved word of CEL, write __namespace__"),
        ("now == 'noon'", {}, "it does not compile"),
        ("args.a.exists(x, args.a.exists(y, x + y == -1))", {"a": list(range(2000))}, ""),
    ],
)
def test_an_expression_that_fails_denies_and_says_why(cel: str, args: dict[str, Any], want: str) -> None:
    got = evaluate_cel(policy(rule("r", cel, verdict="Allow")), replace(QUESTION, args=args))
    assert isinstance(got, Decision)
    assert (got.verdict, got.rule, got.is_failure) == ("Deny", "r", True)
    assert got.message.startswith("the rule could not be judged, which denies: ") and want in got.message
    assert len(got.message) < 500


@pytest.mark.parametrize(
    ("cel", "want"),
    [
        ("tool == 'refund'", "refund"),
        ('tool == "refund" && args.amount > 50', "refund"),
        (" tool=='ops__restart'\n&& args.x == 1 && args.y == 2", "ops__restart"),
        ("tool == 'a' || tool == 'b'", None),
        ("tool == 'a' && args.x || args.y", None),
        ("tool == 'a' && (args.x ? true : false)", None),
        ("tool == 'a' ? false : true", None),
        ("tool == 'a' == false", None),
        ("tool == 'a' && args.why == 'really?'", None),
        ("!(tool == 'a')", None),
        ("tool != 'a'", None),
        ("args.x && tool == 'a'", None),
        ("tool == step", None),
        ("", None),
    ],
)
def test_a_rule_of_one_tool_is_known_by_its_first_clause(cel: str, want: str | None) -> None:
    assert only_tool(cel) == want


@pytest.mark.parametrize(
    "cel", ["tool == 'x' && args.missing > 1", "tool == 'x' && args.id", "tool == 'x' && 1 / 0 == 1"]
)
def test_a_rule_of_another_tool_says_what_it_would_when_evaluated(cel: str) -> None:
    assert is_matched(compile_policy_expression(cel), QUESTION) is False
    assert evaluate_cel(policy(rule("r", cel)), QUESTION) is None


def test_arguments_that_are_nested_without_end_deny() -> None:
    deep: dict[str, Any] = {}
    for _ in range(10_000):
        deep = {"a": deep}
    got = evaluate_cel(policy(rule("r", "args.a == 1")), replace(QUESTION, args=deep))
    assert isinstance(got, Decision) and got.is_failure


def test_what_is_not_reached_does_not_fail() -> None:
    rules = policy(rule("other-tool", "tool == 'x' && args.missing > 1"))
    assert evaluate_cel(rules, QUESTION) is None


# ---------------------------------------------------------------- one list


@pytest.mark.parametrize(
    ("rules", "want"),
    [
        ((), None),
        ((rule("a", "false"),), None),
        ((rule("a", "true", "Allow"), rule("b", "true", "Deny")), ("Allow", "a")),
        ((rule("a", "false", "Allow"), rule("b", "true", "Deny")), ("Deny", "b")),
        ((rule("a", "true", "RequireApproval"), rule("b", "true", "Deny")), ("RequireApproval", "a")),
        ((rule("a", "true", "Deny", at="ModelCall"), rule("b", "true", "Allow")), ("Allow", "b")),
        ((rule("a", "true", "Allow"), rule("b", "nonsense")), ("Allow", "a")),
        ((rule("a", "nonsense"), rule("b", "true", "Allow")), ("Deny", "a")),
    ],
)
def test_the_first_match_of_a_list_decides(rules: tuple[PolicyRule, ...], want: tuple[str, str] | None) -> None:
    got = evaluate_cel(policy(*rules), QUESTION)
    assert (got if got is None else (got.verdict, got.rule) if isinstance(got, Decision) else ()) == want


def test_an_endpoint_decides_the_list_where_no_rule_before_it_matches() -> None:
    rules = (rule("a", "false"), endpoint(), rule("b", "true", "Deny"))
    got = evaluate_cel(policy(*rules), QUESTION)
    assert isinstance(got, Ask) and got.rule == "central"
    before = evaluate_cel(policy(rule("a", "true", "Allow"), endpoint()), QUESTION)
    assert isinstance(before, Decision) and before.verdict == "Allow"
    assert evaluate_cel(policy(endpoint(at="ModelCall")), QUESTION) is None


# ---------------------------------------------------------------- all lists


VERDICTS: tuple[Verdict, ...] = ("Allow", "RequireApproval", "Deny")


@pytest.mark.anyio
@pytest.mark.parametrize("order", list(permutations(VERDICTS)))
async def test_the_strictest_list_wins_in_whatever_order_they_stand(order: tuple[Verdict, ...]) -> None:
    lists = [policy(rule(verdict.lower(), "true", verdict), owner=verdict) for verdict in order]
    assert await judge(*lists) == Decision("ToolCall", "Deny", "deny", "", "Deny")
    without = [one for one in lists if one.owner != "Deny"]
    assert (await judge(*without)).verdict == "RequireApproval"


@pytest.mark.anyio
async def test_where_nothing_matches_the_call_is_allowed() -> None:
    assert await judge() == Decision("ToolCall", "Allow")
    assert await judge(policy(rule("a", "false"))) == Decision("ToolCall", "Allow")
    assert await judge(policy(rule("a", "true", at="ModelCall"))) == Decision("ToolCall", "Allow")


@pytest.mark.anyio
async def test_a_list_that_allows_outweighs_no_other_that_denies() -> None:
    allowing = policy(rule("fine", "true", "Allow"), owner="workflow w")
    denying = policy(rule("no", "true", message="Never."), owner="ancestor p")
    assert await judge(allowing, denying) == Decision("ToolCall", "Deny", "no", "Never.", "ancestor p")


@pytest.mark.anyio
async def test_a_model_call_is_judged_by_its_own_rules() -> None:
    hours = policy(rule("office-hours", "now.getHours('UTC') < 7", at="ModelCall"), rule("tools", "true"))
    got = await judge(hours, question=MODEL_CALL)
    assert (got.at, got.verdict, got.rule) == ("ModelCall", "Deny", "office-hours")


@given(st.lists(st.sampled_from(VERDICTS)))
def test_strictest_is_the_worst_and_the_first_of_its_like(verdicts: list[Verdict]) -> None:
    decisions = [Decision("ToolCall", verdict, str(index)) for index, verdict in enumerate(verdicts)]
    got = strictest("ToolCall", decisions)
    if not verdicts:
        assert got == Decision("ToolCall", "Allow")
        return
    worst = max(verdicts, key=VERDICTS.index)
    assert (got.verdict, got.rule) == (worst, str(verdicts.index(worst)))


# ---------------------------------------------------------------- endpoints


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("result", "want"),
    [
        (True, Decision("ToolCall", "Allow", "central", "the rule's", "agent a")),
        (False, Decision("ToolCall", "Deny", "central", "the rule's", "agent a")),
        ({"verdict": "Allow"}, Decision("ToolCall", "Allow", "central", "the rule's", "agent a")),
        ({"verdict": "Deny", "message": "no\nno"}, Decision("ToolCall", "Deny", "central", "no no", "agent a")),
        (
            {"verdict": "RequireApproval", "message": "ask"},
            Decision("ToolCall", "RequireApproval", "central", "ask", "agent a"),
        ),
    ],
)
async def test_the_answer_of_an_endpoint_is_the_verdict(result: Any, want: Decision) -> None:
    assert await judge(policy(endpoint(message="the rule's")), http=ScriptedHttp(answer(result))) == want


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("got", "want"),
    [
        (HttpResponse(200, body=b"{}"), "has no result: the decision is undefined"),
        (HttpResponse(200, body=b'{"result": null}'), "neither true, false nor an object"),
        (HttpResponse(200, body=b'{"result": "true"}'), "neither true, false nor an object"),
        (HttpResponse(200, body=b'{"result": 1}'), "neither true, false nor an object"),
        (HttpResponse(200, body=b'{"result": {}}'), "result.verdict is none of"),
        (HttpResponse(200, body=b'{"result": {"verdict": "allow"}}'), "result.verdict is none of"),
        (HttpResponse(200, body=b'{"result": {"verdict": ["Allow"]}}'), "result.verdict is none of"),
        (HttpResponse(200, body=b'{"result": false, "result": true}'), "is not valid JSON"),
        (HttpResponse(200, body=b"true"), "has no result"),
        (HttpResponse(200, body=b""), "is not valid JSON"),
        (HttpResponse(200, body=b"\xff\xfe"), "is not valid JSON"),
        (HttpResponse(200, body=b"[" * 60_000), "is not valid JSON"),
        (HttpResponse(200, body=b'{"result": true, "x": "' + b"x" * 65_536 + b'"}'), "the limit is 65536"),
        (HttpResponse(201, body=b'{"result": true}'), "status 201"),
        (HttpResponse(302, body=b'{"result": true}'), "status 302"),
        (HttpResponse(500, body=b'{"result": true}'), "status 500"),
        (HttpFailure("Timeout", "no complete answer within 2 s", sent=True), "did not answer: no complete answer"),
        (HttpFailure("TooLarge", "the answer is larger than 65,536 bytes", sent=True), "did not answer"),
    ],
)
async def test_anything_but_a_clear_answer_denies(got: HttpResponse | HttpFailure, want: str) -> None:
    decision = await judge(policy(endpoint()), http=ScriptedHttp(got))
    assert (decision.verdict, decision.rule, decision.is_failure) == ("Deny", "central", True)
    assert want in decision.message


@pytest.mark.anyio
async def test_a_model_call_cannot_wait_for_an_approval() -> None:
    http = ScriptedHttp(answer({"verdict": "RequireApproval"}))
    decision = await judge(policy(endpoint(at="ModelCall")), question=MODEL_CALL, http=http)
    assert decision.verdict == "Deny" and decision.is_failure


@pytest.mark.anyio
async def test_the_endpoint_is_told_what_an_expression_would_know() -> None:
    http = ScriptedHttp(answer(True))
    await judge(policy(endpoint()), http=http)
    (request,) = http.requests
    assert (request.method, request.url, request.timeout, request.max_bytes) == ("POST", "http://opa/v1", 2.0, 65_536)
    assert json.loads(request.body or b"") == {
        "input": {
            "at": "ToolCall",
            "tool": "refund",
            "args": {"amount": 51, "customer": "c-17"},
            "effect": "Once",
            "step": "investigate",
            "agent": "billing-investigator",
            "workflow": "support-triage",
            "namespace": "team-a",
            "turn": 4,
            "iteration": 3,
            "usage": {"tokens": 2311, "costUSD": 0.0031, "toolCalls": 2},
            "now": "2026-11-30T06:30:00.000Z",
            "labels": {"team": "payments"},
        }
    }
    assert set(build_input(QUESTION)) == {*(name.strip("_") for name in POLICY_VARIABLES), "at"}


@pytest.mark.anyio
async def test_a_question_that_is_too_large_or_no_json_denies_unasked() -> None:
    http = ScriptedHttp(answer(True))
    for args in ({"text": "x" * 1_100_000}, {"number": float("nan")}):
        decision = await judge(policy(endpoint()), question=replace(QUESTION, args=args), http=http)
        assert decision.verdict == "Deny" and decision.is_failure
    assert http.requests == []


@pytest.mark.anyio
async def test_no_endpoint_is_asked_where_a_list_denies_without_one() -> None:
    http = ScriptedHttp(answer(True))
    decision = await judge(policy(endpoint()), policy(rule("no", "true"), owner="workflow w"), http=http)
    assert (decision.verdict, decision.rule) == ("Deny", "no") and http.requests == []


@pytest.mark.anyio
async def test_the_endpoints_of_several_lists_are_all_asked_and_the_strictest_wins() -> None:
    http = ScriptedHttp(answer(True), answer({"verdict": "RequireApproval"}), answer(True))
    lists = [policy(endpoint(f"e{index}"), owner=str(index)) for index in range(3)]
    decision = await judge(*lists, http=http)
    assert (decision.verdict, decision.rule) == ("RequireApproval", "e1") and len(http.requests) == 3


# ---------------------------------------------------------------- plan and journal


def test_the_lists_of_a_step_are_those_of_workflow_agent_and_ancestors() -> None:
    deny = {"name": "no", "at": "ToolCall", "cel": "true", "verdict": "Deny"}
    agent = AgentSpec.read({"mode": "Completion", "model": {"name": "m"}, "prompt": {"inline": "p"}, "policy": [deny]})
    steps = [
        {"id": "a", "kind": "Agent", "agentRef": {"name": "judge"}},
        {"id": "b", "kind": "Agent", "agent": agent.to_raw()},
        {"id": "c", "kind": "Response", "response": {"mapping": {"x": "y"}}},
    ]
    spec = WorkflowSpec.read({"steps": steps, "policy": [deny]})
    plan = Plan(
        run=RunIdentity(namespace="n", name="r", uid="u"),
        workflow=Origin(name="w", digest=""),
        spec=spec,
        agents={"judge": PlannedAgent(origin=Origin(name="judge", digest=""), spec=agent)},
        ancestor_policies=[AncestorPolicy(owner="ancestor p", rules=[PolicyRule.read(deny)])],
    )
    owners = [[one.owner for one in plan_policies(plan, step)] for step in plan.spec.steps]
    assert owners == [
        ["workflow w", "agent judge", "ancestor p"],
        ["workflow w", "agent of step b", "ancestor p"],
        ["workflow w", "ancestor p"],
    ]


@pytest.mark.anyio
async def test_a_decision_is_a_json_value_and_comes_back_as_it_was() -> None:
    decision = await judge(policy(rule("r", "args.missing > 1")))
    assert Decision(**json.loads(json.dumps(asdict(decision)))) == decision
