"""Policy among the gates of calls and turns: what is asked, and what of the answer is journaled.

Expressions are judged where the call is decided, without a wait; a list that an endpoint decides is an action. Both
come back as one fact, and no policy is asked twice for one call.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pilothouse_api.structs import Plan, Step
from pilothouse_engine.account import NANO
from pilothouse_engine.actions import AskPolicy, Commit
from pilothouse_engine.catalog import PlannedStep
from pilothouse_engine.facts import PolicyJudged
from pilothouse_engine.policies.evaluation import PlannedPolicy, decide_by_expressions, judge_call
from pilothouse_engine.policies.questions import Question, Usage
from pilothouse_engine.policies.verdicts import Decision
from pilothouse_engine.ports import Http
from pilothouse_engine.state import RunState


def plan_verdict(
    policies: Sequence[PlannedPolicy], question: Question, call: str, now: float
) -> Commit | AskPolicy | None:
    """Return how a call gets its verdict, or None where nothing matches it, which allows it and is not journaled."""
    decision = decide_by_expressions(policies, question)
    if decision is None:
        return AskPolicy(tuple(policies), question, call)
    if not decision.rule:
        return None
    return Commit((_judged(question, call, decision, now, is_asked=False),))


def judge_turn(plan: Plan, state: RunState, planned: PlannedStep, now: float) -> Commit | AskPolicy | None:
    """Return how the model call of the turn that begins gets its verdict, as `plan_verdict` does."""
    return plan_verdict(planned.model_policies, question_of_turn(plan, state, planned.step, now), "", now)


async def ask_policy(action: AskPolicy, http: Http, now: Callable[[], float]) -> PolicyJudged:
    """Return the verdict of lists that an endpoint decides."""
    decision = await judge_call(action.policies, action.question, http)
    return _judged(action.question, action.call, decision, now(), is_asked=True)


def _judged(question: Question, call: str, decision: Decision, now: float, *, is_asked: bool) -> PolicyJudged:
    message = decision.message
    if decision.is_failure:  # what an expression failed on may be a value
        from pilothouse_engine.guardrails.masks import mask_value

        message = str(mask_value(message))
    return PolicyJudged(
        now,
        call,
        question.turn,
        decision.at,
        decision.verdict,
        decision.rule,
        message,
        decision.owner,
        decision.is_failure,
        is_asked,
    )


def say_denial(verdict: PolicyJudged) -> str:
    """Return why policy denies, for the model and for people."""
    if not verdict.rule:
        return verdict.message
    return f"policy {verdict.rule} of {verdict.owner} denies it: {verdict.message or 'it gives no reason'}"


# ---------------------------------------------------------------- the question


def question_of_turn(plan: Plan, state: RunState, step: Step, now: float) -> Question:
    """Return the question that a model call asks."""
    visit = state.visit
    assert visit is not None
    return Question(
        "ModelCall",
        step.id,
        _agent_of(step),
        plan.workflow.name,
        plan.run.namespace,
        state.next_turn,
        visit.replies + 1,
        datetime.fromtimestamp(now, UTC),
        usage=_usage(state),
        labels=plan.run.labels,
    )


def question_of_call(
    plan: Plan,
    state: RunState,
    step: Step,
    now: float,
    *,
    tool: str,
    arguments: Mapping[str, Any],
    effect: str,
    ahead: int = 0,
) -> Question:
    """Return the question that a call asks; `ahead` are calls of the same parallel run that have not started."""
    visit = state.visit
    assert visit is not None
    return Question(
        "ToolCall",
        step.id,
        _agent_of(step),
        plan.workflow.name,
        plan.run.namespace,
        state.turn,
        visit.replies,
        datetime.fromtimestamp(now, UTC),
        tool,
        arguments,
        effect,
        _usage(state, ahead),
        plan.run.labels,
    )


def _agent_of(step: Step) -> str:
    return step.agent_ref.name if step.agent_ref is not None else ""


def _usage(state: RunState, ahead: int = 0) -> Usage:
    account = state.account
    return Usage(account.used, account.cost / NANO, state.total_tool_calls + ahead)
