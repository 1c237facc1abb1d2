"""Steps of the graph that something stands before: policy where they have an effect, a person for an Approval. Pure."""

from collections.abc import Mapping
from typing import Any

from pilothouse_api.digests import digest
from pilothouse_api.signals import ABORTED, ERROR
from pilothouse_api.structs import Approval
from pilothouse_api.templates import MissingPath, lookup, render
from pilothouse_engine.actions import Action, Commit, Inputs
from pilothouse_engine.approvals import denial_of, plan_request
from pilothouse_engine.catalog import Catalog, Work
from pilothouse_engine.endings import FINISHED_WITHOUT_ANSWER, plan_aborted, plan_exit
from pilothouse_engine.executions import call_id
from pilothouse_engine.facts import CallCode, CallFinished, PolicyJudged, StepFinished
from pilothouse_engine.policies.gating import plan_verdict, question_of_call, say_denial
from pilothouse_engine.policies.step_inputs import InputsUnknown, render_inputs
from pilothouse_engine.state import Call, RunState, Visit

APPROVAL_SIGNALS: Mapping[str, str] = {"Approve": "approved", "Deny": "denied"}
EXPIRED_SIGNAL = "expired"


def plan_step_gate(
    catalog: Catalog, state: RunState, inputs: Inputs, work: Work, identity: str, context: Mapping[str, Any]
) -> Action | None:
    """Return what must happen before a step with an effect runs, or None where it may.

    Deny, a person's or nobody's decision end it with `error`; nothing of it has run then.
    """
    visit = state.visit
    assert visit is not None
    policies = [policy for policy in catalog.policies(visit.step) if policy.applies("ToolCall")]
    if not policies:
        return None
    call = visit.call_ids.get(identity)
    try:
        arguments = render_inputs(work.params, context)
    except InputsUnknown as unknown:
        message = f"its inputs cannot be filled in, which denies: {unknown}"
        verdict = PolicyJudged(inputs.now, identity, state.turn, "ToolCall", "Deny", message=message, is_failure=True)
        return Commit((verdict, _denied(inputs, identity, "tool_policy_denied", "PolicyDenied", message)))
    if call is None or call.verdict is None:
        question = question_of_call(
            catalog.plan,
            state,
            catalog.steps[visit.step],
            inputs.now,
            tool=visit.step,
            arguments=arguments,
            effect=work.effect,
        )
        return plan_verdict(policies, question, identity, inputs.now)
    if call.verdict.verdict == "Deny":
        message = say_denial(call.verdict)
        return Commit((_denied(inputs, identity, "tool_policy_denied", "PolicyDenied", message),))
    if call.verdict.verdict == "Allow":
        return None
    return _plan_step_approval(catalog, state, inputs, call, arguments)


def _plan_step_approval(
    catalog: Catalog, state: RunState, inputs: Inputs, call: Call, arguments: Mapping[str, Any]
) -> Action | None:
    if call.answer is None:
        if state.mode in ("Finish", "Abort"):
            return plan_unanswered(state, inputs)
        assert state.visit is not None
        return Commit(plan_request(catalog, state, inputs, call.asked.id, state.visit.step, arguments))
    denial = denial_of(call.answer)
    if denial is None:
        return None
    error_type = "ApprovalExpired" if call.answer.state == "Expired" else "ApprovalDenied"
    return Commit((_denied(inputs, call.asked.id, denial[0], error_type, denial[1]),))


def _denied(inputs: Inputs, identity: str, code: CallCode, error_type: str, message: str) -> CallFinished:
    return CallFinished(inputs.now, identity, "", code, ERROR, message=message, error_type=error_type)


def plan_unanswered(state: RunState, inputs: Inputs) -> Commit:
    """End a step that would wait for a person although the run was asked to finish or to abort."""
    if state.abort is not None:
        return Commit(plan_aborted(state, inputs.now))
    message = "the run was asked to finish, and this step waits for a person"
    return Commit(plan_exit(state, inputs.now, ABORTED, FINISHED_WITHOUT_ANSWER, message))


def plan_approval_step(catalog: Catalog, state: RunState, inputs: Inputs, visit: Visit) -> Action:
    """Return what happens next in an Approval step: the question, then the signal of its answer."""
    call = visit.calls[0] if visit.calls else None
    if call is not None and call.answer is not None:
        signal = APPROVAL_SIGNALS.get(call.answer.decision, EXPIRED_SIGNAL)
        return Commit((StepFinished(inputs.now, signal),))
    if state.mode in ("Finish", "Abort"):
        return plan_unanswered(state, inputs)
    params = catalog.work(visit.step).params
    assert isinstance(params, Approval)
    context = state.seen_context()
    try:
        title = render(params.title, context)
        shown = {path: lookup(context, path) for path in params.show}
    except MissingPath as missing:
        return Commit(plan_exit(state, inputs.now, ERROR, "MissingContext", f"approval: {missing}"))
    identity = call_id(state.turn, 0, digest([title, shown]))
    return Commit(plan_request(catalog, state, inputs, identity, title, shown, params.expires_seconds))
