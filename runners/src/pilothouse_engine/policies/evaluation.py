"""One question against all lists: the first match of a list decides it, the strictest list wins."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import get_args

from pilothouse_api.expressions import Expression
from pilothouse_api.structs import Plan, PolicyHttp, PolicyRule, Step
from pilothouse_engine.policies.cel import CelFailed, compile_rule, is_matched, only_tool
from pilothouse_engine.policies.http import EndpointFailed, ask_endpoint
from pilothouse_engine.policies.questions import Question
from pilothouse_engine.policies.verdicts import At, Decision, Verdict, strictest
from pilothouse_engine.ports import Http
from pilothouse_engine.values import Value


class PlannedRule(Value):
    """A rule, its expression compiled; a string in its place says why it cannot be, None that an endpoint is asked.

    `tool` is the only one that the expression can be true for, None where it may be any.
    """

    name: str
    at: At
    verdict: Verdict
    message: str
    compiled: Expression | str | None
    http: PolicyHttp | None
    tool: str | None = None


class PlannedPolicy(Value):
    """One list: of a workflow, an agent or an ancestor; `owner` says whose."""

    owner: str
    rules: tuple[PlannedRule, ...]

    def applies(self, at: At) -> bool:
        """Tell whether any rule of the list judges such calls."""
        return any(rule.at == at for rule in self.rules)


class Ask(Value):
    """The list is decided by an endpoint's answer."""

    owner: str
    rule: str
    message: str
    endpoint: PolicyHttp


def plan_policy(owner: str, rules: Sequence[PolicyRule]) -> PlannedPolicy:
    """Return a list with its expressions compiled."""
    return PlannedPolicy(owner, tuple(_plan_rule(rule) for rule in rules))


def _plan_rule(rule: PolicyRule) -> PlannedRule:
    compiled = compile_rule(rule) if rule.http is None else None
    tool = only_tool(rule.cel or "") if isinstance(compiled, Expression) else None
    return PlannedRule(rule.name, rule.at, rule.verdict or "Deny", rule.message or "", compiled, rule.http, tool)


def plan_policies(plan: Plan, step: Step) -> tuple[PlannedPolicy, ...]:
    """Return the lists that hold for the calls of a step: the workflow's, the agent's, the ancestors'."""
    lists = [plan_policy(f"workflow {plan.workflow.name}", plan.spec.policy)]
    if step.kind == "Agent":
        name = step.agent_ref.name if step.agent_ref is not None else f"of step {step.id}"
        lists.append(plan_policy(f"agent {name}", plan.agent_of(step).policy))
    lists += [plan_policy(ancestor.owner, ancestor.rules) for ancestor in plan.ancestor_policies]
    return tuple(policy for policy in lists if policy.rules)


def evaluate_cel(policy: PlannedPolicy, question: Question) -> Decision | Ask | None:
    """Return what a list decides, which endpoint decides it, or None where nothing of it matches.

    A rule that cannot be evaluated denies: what it would have said is not known.
    """
    at = question.at
    for rule in policy.rules:
        if rule.at != at or (rule.tool is not None and rule.tool != question.tool):
            continue
        if rule.http is not None:
            return Ask(policy.owner, rule.name, rule.message, rule.http)
        try:
            matched = rule.compiled is not None and is_matched(rule.compiled, question)
        except CelFailed as failed:
            return _failure(at, policy.owner, rule.name, str(failed))
        if matched:
            return Decision(at, rule.verdict, rule.name, rule.message, policy.owner)
    return None


def _failure(at: At, owner: str, rule: str, reason: str) -> Decision:
    return Decision(at, "Deny", rule, f"the rule could not be judged, which denies: {reason}", owner, is_failure=True)


_UNMATCHED: Mapping[At, Decision] = {at: Decision(at, "Allow") for at in get_args(At)}


def decide_by_expressions(policies: Sequence[PlannedPolicy], question: Question) -> Decision | None:
    """Return the strictest verdict of all lists, or None where an endpoint has to be asked for it."""
    found = _evaluate(policies, question)
    if isinstance(found, Decision):
        return found
    if not found:
        return _UNMATCHED[question.at]
    decisions = [one for one in found if isinstance(one, Decision)]
    return strictest(question.at, decisions) if len(decisions) == len(found) else None


async def judge_call(policies: Sequence[PlannedPolicy], question: Question, http: Http) -> Decision:
    """Return the strictest verdict of all lists; the endpoints are asked at once."""
    found = _evaluate(policies, question)
    if isinstance(found, Decision):
        return found
    asked = [one for one in found if isinstance(one, Ask)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_ask(one, question, http)) for one in asked]
    answers = {id(one): task.result() for one, task in zip(asked, tasks, strict=True)}
    return strictest(question.at, (answers[id(one)] if isinstance(one, Ask) else one for one in found))


def _evaluate(policies: Sequence[PlannedPolicy], question: Question) -> Decision | list[Decision | Ask]:
    """Return what the lists say that have anything to say.

    One that denies without an endpoint decides alone: no answer could be stricter, so none is asked for.
    """
    found = [one for policy in policies if (one := evaluate_cel(policy, question)) is not None]
    if not found:
        return found
    denied = next((one for one in found if isinstance(one, Decision) and one.verdict == "Deny"), None)
    return found if denied is None else denied


async def _ask(ask: Ask, question: Question, http: Http) -> Decision:
    try:
        verdict, message = await ask_endpoint(ask.endpoint, question, http)
    except EndpointFailed as failed:
        return _failure(question.at, ask.owner, ask.rule, str(failed))
    return Decision(question.at, verdict, ask.rule, message or ask.message, ask.owner)
