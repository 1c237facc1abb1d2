"""What happens next: one pure, total function of plan, state and inputs.

The rules stand in the order in which they win; the first that has something to do decides.
"""

from collections.abc import Callable

from pilothouse_api.signals import ABORTED, ERROR
from pilothouse_api.stored_plan import IntegrityError
from pilothouse_engine.actions import Action, Commit, Execute, Execution, Finish, Inputs, ReadControl
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.control import check_control, plan_checkpoint, plan_interruption, plan_last_answers
from pilothouse_engine.endings import (
    abort_message,
    plan_aborted,
    plan_end,
    plan_exit,
    plan_failure,
    plan_settled,
    unknown_effect,
)
from pilothouse_engine.executions import build_step_call, call_id, idempotency_key
from pilothouse_engine.facts import (
    AttemptStarted,
    CallStarted,
    Fact,
    ModeAnswered,
    RunStarted,
    StepEntered,
    StepFinished,
)
from pilothouse_engine.parks import plan_parked, plan_release
from pilothouse_engine.routes import EndRun, Next, is_mapped, route
from pilothouse_engine.state import RunState, Visit
from pilothouse_engine.turns import plan_agent

PASSABLE_KINDS = frozenset({"Router", "Response", "Function", "APICall"})
"""Steps that a route may still go through after a Finish or an Abort; entering another kind ends the run."""

Rule = Callable[[Catalog, RunState, Inputs], Action | None]


def next_action(catalog: Catalog, state: RunState, inputs: Inputs) -> Action:
    """Return what the loop does next."""
    action = _next_action(catalog, state, inputs)
    visit = state.visit
    if type(action) is Commit and visit is not None and visit.is_agent and catalog.gates(visit.step).output is not None:
        from pilothouse_engine.guardrails.judgements import gate_partial  # most runs have no guardrail

        return gate_partial(catalog, state, action)
    return action


def _next_action(catalog: Catalog, state: RunState, inputs: Inputs) -> Action:
    if not is_undisturbed(catalog, state, inputs):
        for rule in RULES:
            if (action := rule(catalog, state, inputs)) is not None:
                return action
    visit = state.visit
    if visit is None:
        return _plan_between_steps(catalog, state, inputs)
    if visit.is_agent:
        return plan_agent(catalog, state, inputs)
    return _plan_graph_step(catalog, state, inputs, visit)


# ---------------------------------------------------------------- rules that stand above every step


def is_undisturbed(catalog: Catalog, state: RunState, inputs: Inputs) -> bool:
    """Tell in one look that no rule has anything to do, which is so at nearly every decision."""
    return (
        state.park is None
        and state.ended is None
        and not inputs.is_stopping
        and inputs.settle is None
        and inputs.published_length is not None
        and inputs.published_length <= inputs.opened_length
        and inputs.has_begun
        and remaining_seconds(catalog, state, inputs.now) > 0
    )


def finish_ended_run(catalog: Catalog, state: RunState, inputs: Inputs) -> Action | None:
    """Publish the end of a run that has ended, in this attempt or before it."""
    return Finish() if state.ended is not None and inputs.has_begun else None


def begin_attempt(catalog: Catalog, state: RunState, inputs: Inputs) -> Action | None:
    """Fence whoever wrote before, before anything else: older attempts, and a pod that had this one's number."""
    if inputs.has_begun:
        return None
    facts: list[Fact] = []
    if state.plan is None:
        facts.append(RunStarted(inputs.now, inputs.plan_digest))
    facts.append(AttemptStarted(inputs.now, inputs.attempt))
    return Commit(tuple(facts))


def release_when_asked(catalog: Catalog, state: RunState, inputs: Inputs) -> Action | None:
    """Let go when the host asks: a release, never an abort."""
    return plan_release(state, inputs.now) if inputs.is_stopping else None


def look_first(catalog: Catalog, state: RunState, inputs: Inputs) -> Action | None:
    """Do nothing before the run's object was read once: it may be gone, or say more than the journal holds."""
    if inputs.published_length is not None or state.park is not None:
        return None
    return ReadControl() if inputs.failure is None else check_control(state, inputs, is_repeatable=False)


def end_lost_journal(catalog: Catalog, state: RunState, inputs: Inputs) -> Action | None:
    """End a run whose journal holds less than its snapshot says."""
    if not inputs.is_journal_lost:
        return None
    message = (
        f"the journal holds {inputs.opened_length} facts, but the run has published that there were"
        f" {inputs.published_length}: keep the journal where it survives its pod"
    )
    return Commit(plan_failure(state, inputs, "JournalLost", message))


def settle_run(catalog: Catalog, state: RunState, inputs: Inputs) -> Action | None:
    """Only close the run: calls that are open are unknown, the exit is the one that was ordered."""
    if inputs.settle is None:
        return None
    if inputs.read_tick != state.tick:
        return ReadControl()
    signal = ABORTED if inputs.settle == "Aborted" else ERROR
    facts: list[Fact] = []
    abort = state.abort
    control = inputs.directives.control if inputs.directives is not None else None
    if signal == ABORTED and abort is None and control is not None and control.mode == "Abort":
        abort = ModeAnswered(inputs.now, state.turn, "Abort", "Landed", control.reason, control.by)
        facts.append(abort)
    facts += [a for a in plan_last_answers(state, inputs) if not (isinstance(a, ModeAnswered) and a.mode == "Abort")]
    message = f"closed by a settling attempt: {inputs.settle}"
    if abort is not None:
        message = f"{abort_message(abort)}; {message}"
    if inputs.is_journal_lost:
        message += "; the journal was lost, so nobody knows what open calls did"
    return Commit((*facts, *plan_settled(state, inputs.now, inputs.settle, signal, message)))


def enforce_deadline(catalog: Catalog, state: RunState, inputs: Inputs) -> Action | None:
    """Fail a run that has been active for too long; parked time is not counted."""
    if state.park is not None or state.ended is not None:
        return None
    limit = catalog.plan.active_deadline_seconds
    if remaining_seconds(catalog, state, inputs.now) > 0:
        return None
    message = f"the run was active for {limit} s, which is all it may be: raise activeDeadlineSeconds"
    return Commit(plan_failure(state, inputs, "DeadlineExceeded", message))


def remaining_seconds(catalog: Catalog, state: RunState, now: float) -> float:
    """Return how long the run may still be active."""
    return catalog.active_deadline - state.active_seconds - max(0.0, now - state.last_at)


def wait_while_parked(catalog: Catalog, state: RunState, inputs: Inputs) -> Action | None:
    """Stay parked until the park is over."""
    return plan_parked(catalog, state, inputs) if state.park is not None else None


RULES: tuple[Rule, ...] = (
    begin_attempt,
    finish_ended_run,
    release_when_asked,
    look_first,
    settle_run,
    end_lost_journal,
    enforce_deadline,
    wait_while_parked,
)


# ---------------------------------------------------------------- between steps


def _plan_between_steps(catalog: Catalog, state: RunState, inputs: Inputs) -> Action:
    """Follow the route of the last step, or begin."""
    last = state.last_step
    if state.abort is not None and state.abort_visit is None:
        return plan_end(state, inputs, EndRun("Aborted"))
    if last is None or state.last_step_id is None:
        target = Next(catalog.first_step())
    else:
        routed = route(catalog, state.last_step_id, last.signal)
        if isinstance(routed, EndRun):
            return plan_end(state, inputs, routed)
        target = routed
    if state.visits >= catalog.plan.spec.max_step_visits:
        message = f"{state.visits} visits were made: raise maxStepVisits, or break the cycle of routes"
        return plan_end(state, inputs, EndRun("StepVisitLimit", message), ERROR)
    return _plan_entering(catalog, state, inputs, target.step)


def _plan_entering(catalog: Catalog, state: RunState, inputs: Inputs, step_id: str) -> Action:
    kind = catalog.steps[step_id].kind
    if state.abort is not None:
        if kind not in PASSABLE_KINDS or abort_grace_left(state, inputs) <= 0 or not _is_abort_routed(catalog, state):
            return plan_end(state, inputs, EndRun("Aborted"))
    else:
        action = plan_checkpoint(catalog, state, inputs, step_id)
        if action is not None:
            return action
        if state.mode == "Finish" and kind not in PASSABLE_KINDS:
            return plan_end(state, inputs, EndRun("Complete"))
    turn = 0 if kind == "Agent" else state.next_turn
    return Commit((StepEntered(inputs.now, step_id, state.visits + 1, kind, turn),))


def _is_abort_routed(catalog: Catalog, state: RunState) -> bool:
    """Tell whether the run still follows a route that its author mapped for the abort."""
    last, step_id = state.last_step, state.last_step_id
    assert last is not None and step_id is not None, "an abort that met no visit ends the run before"
    return last.signal != ABORTED or is_mapped(catalog, step_id, ABORTED)


def abort_grace_left(state: RunState, inputs: Inputs) -> float:
    """Return how long the route of an abort may still be followed."""
    if state.abort is None:
        return float("inf")
    return state.abort.at + inputs.settings.abort_grace_seconds - inputs.now


# ---------------------------------------------------------------- a step of the graph


def _plan_graph_step(catalog: Catalog, state: RunState, inputs: Inputs, visit: Visit) -> Action:
    call = visit.calls[0] if visit.calls else None
    if call is not None and call.finished is not None:
        done = call.finished
        signal = done.signal or ERROR
        finished = StepFinished(inputs.now, signal, done.writes, done.error_type, done.message, result=done.result)
        return Commit((finished,))
    if state.abort is not None and state.abort_visit == visit.number:
        return plan_end_of_visit(state, inputs)
    if visit.kind == "Approval":
        from pilothouse_engine.step_gates import plan_approval_step  # masks and detectors, for runs that need them

        return plan_approval_step(catalog, state, inputs, visit)
    has_started = call is not None and call.started is not None
    if visit.kind == "Delegate" and has_started:
        from pilothouse_engine.children import plan_waiting_step

        return plan_waiting_step(state, inputs)
    effect = catalog.work(visit.step).effect
    if call is not None and has_started and effect == "Once":
        return Commit((unknown_effect(call, inputs.now),))
    if state.abort is None:
        action = check_control(state, inputs, is_repeatable=effect != "Once")
        if action is not None:
            return action
        landed = plan_interruption(state, inputs)
        if landed is not None and landed.mode == "Abort":
            return Commit((landed,))
    return _run_graph_step(catalog, state, inputs, visit, is_gated=effect != "ReadOnly" and not has_started)


def plan_end_of_visit(state: RunState, inputs: Inputs) -> Action:
    """End a step of the graph that was entered and is not run any more, because the run was aborted."""
    assert state.abort is not None
    return Commit(plan_aborted(state, inputs.now))


def _run_graph_step(catalog: Catalog, state: RunState, inputs: Inputs, visit: Visit, *, is_gated: bool) -> Action:
    work = catalog.work(visit.step)
    arguments = catalog.params_digest(visit.step)
    key = idempotency_key(catalog, visit, state.turn, 0, visit.step, arguments)
    identity = call_id(state.turn, 0, arguments)
    context = state.seen_context()
    if is_gated and catalog.policies(visit.step):
        from pilothouse_engine.step_gates import plan_step_gate

        gated = plan_step_gate(catalog, state, inputs, work, identity, context)
        if gated is not None:
            return gated
    call = visit.call_ids.get(identity)
    is_approved = call is not None and call.is_approved
    started = CallStarted(inputs.now, identity, visit.step, work.effect, key, arguments, inputs.attempt, is_approved)
    if visit.kind == "Delegate":
        from pilothouse_engine.children import plan_delegating_step

        return plan_delegating_step(catalog, state, inputs, work, started, context)
    try:
        step_call = build_step_call(catalog, inputs, work, work.effect, key, context)
    except IntegrityError as error:
        return Commit(plan_exit(state, inputs.now, ERROR, "IntegrityViolation", str(error)))
    grace = abort_grace_left(state, inputs)
    return Execute((Execution(started, step_call, grace, "AbortGrace", is_tool=False),))
