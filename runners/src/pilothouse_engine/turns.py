"""A visit of an Agent step: opening, model calls with their holds, retries and fallbacks, and answers. Pure."""

import logging
from collections.abc import Callable
from functools import cache
from typing import TypeGuard, assert_never

from msgspec.structs import replace

from pilothouse_api.signals import (
    ABORTED,
    BUDGET_EXCEEDED,
    DEFAULT,
    ERROR,
    MAX_ITERATIONS,
    POLICY_DENIED,
    UNRECOVERABLE,
)
from pilothouse_api.stored_plan import IntegrityError
from pilothouse_api.structs import Plan
from pilothouse_api.templates import MissingPath
from pilothouse_engine.account import (
    ASSUMED_OUTPUT_TOKENS,
    DoesNotFit,
    Hold,
    reserve,
    room_for_answer,
)
from pilothouse_engine.actions import Action, CallModel, Commit, Inputs, ListTools, ReadControl, Sleep
from pilothouse_engine.batch import plan_batch
from pilothouse_engine.catalog import Catalog, NotSupported, PlannedStep, StepGates
from pilothouse_engine.context import fit_writes
from pilothouse_engine.control import plan_checkpoint, plan_interruption
from pilothouse_engine.endings import FINISHED_WITHOUT_ANSWER, plan_aborted, plan_exit
from pilothouse_engine.facts import (
    TOOLS_OFF,
    Cause,
    Facts,
    Level,
    ModelStarted,
    NoteAdded,
    PromptOpened,
    Purpose,
    ReplyRejected,
    TextJudged,
)
from pilothouse_engine.limits import Limits
from pilothouse_engine.outcome import Accepted, Rejected, judge_answer, write_key
from pilothouse_engine.prompts.budget import Around, Prompt, plan_prompt
from pilothouse_engine.prompts.texts import (
    CONTINUE_NOTE,
    FINISH_NOTE,
    STOPPED_TEXT,
    WRAP_UP_NOTE,
    open_autonomous,
    open_completion,
    repair_note,
)
from pilothouse_engine.recovery import judge_recovery
from pilothouse_engine.retries import (
    FAILURE_CAUSES,
    attempt_after_failure,
    attempt_after_rejection,
    attempt_seconds,
    say_failure,
)
from pilothouse_engine.state import RunState, Visit, text_bytes

MAX_CONTINUATIONS = 2
MAX_REPAIRS = 1
ADAPTER_GRACE_SECONDS = 5.0
"""How much later than its own deadline an adapter may answer before the engine stops waiting."""

PINNED: dict[Purpose, str] = {"WrapUp": WRAP_UP_NOTE, "BudgetWrapUp": WRAP_UP_NOTE, "Finish": FINISH_NOTE}
"""Notes that join the system text of one request and are never stored."""

PINNED_BYTES: dict[Purpose, int] = {purpose: text_bytes(note) for purpose, note in PINNED.items()}

_log = logging.getLogger("pilothouse.engine")


def plan_agent(catalog: Catalog, state: RunState, inputs: Inputs) -> Action:
    """Return what happens next in a visit of an Agent step."""
    visit = state.visit
    assert visit is not None
    if visit.violation is not None:
        from pilothouse_engine.guardrails.judgements import plan_refusal  # most runs have no guardrail

        return plan_refusal(state, inputs, visit.violation)
    match visit.stage:
        case "Opening":
            return _plan_opening(catalog, state, inputs)
        case "Ready":
            return _plan_turn(catalog, state, inputs)
        case "Calling":
            return _plan_after_failure(catalog, state, inputs)
        case "Replied":
            return _plan_answer(catalog, state, inputs)
        case "Batch":
            return plan_batch(catalog, state, inputs)
        case _:
            assert_never(visit.stage)


def _exit(state: RunState, inputs: Inputs, signal: str, error_type: Cause, message: str) -> Commit:
    return Commit(plan_exit(state, inputs.now, signal, error_type, message))


# ---------------------------------------------------------------- before the call


def _plan_opening(catalog: Catalog, state: RunState, inputs: Inputs) -> Action:
    visit = state.visit
    assert visit is not None
    gates = catalog.gates(visit.step)
    if gates.problem:
        return _exit(state, inputs, ERROR, "GuardrailUnresolvable", gates.problem)
    if catalog.plan.session is not None and visit.step not in state.histories:
        from pilothouse_engine.sessions.loading import plan_loading

        return plan_loading(catalog, state, inputs)
    try:
        agent = catalog.agent(visit.step).agent
        if agent.mode == "Completion":
            messages = open_completion(catalog.plan, agent, state.seen_context())
            return _open(inputs, gates, PromptOpened(inputs.now, messages))
        messages, missing = open_autonomous(catalog.plan, agent, state.context)
    except NotSupported as error:
        return _exit(state, inputs, ERROR, "NotSupported", str(error))
    except IntegrityError as error:
        return _exit(state, inputs, ERROR, "IntegrityViolation", str(error))
    except MissingPath as error:
        return _exit(state, inputs, ERROR, "MissingContext", f"a template of step {visit.step}: {error}")
    for path in missing:
        _log.warning("agent.context_missing step=%s path=%s", visit.step, path)
    return _open(inputs, gates, PromptOpened(inputs.now, messages, gates.tools is not None))


def _open(inputs: Inputs, gates: StepGates, opened: PromptOpened) -> Action:
    """Open the prompt; a user text that its gate lets go on as it is says so at once, as most do."""
    if gates.input is None:
        return Commit((opened,))
    from pilothouse_engine.guardrails.judgements import judge_opening

    return Commit((opened, *judge_opening(gates.input, opened, inputs.now)))


def _plan_turn(catalog: Catalog, state: RunState, inputs: Inputs) -> Action:
    """Plan the turn that begins, from the top of engine.md §1."""
    visit = state.visit
    assert visit is not None
    planned = catalog.offer(visit)
    if state.abort is not None:
        return Commit(plan_aborted(state, inputs.now))
    ended = _plan_recovery(planned, state, inputs)
    if ended is not None:
        return ended
    action = plan_checkpoint(catalog, state, inputs, visit.step)
    if action is not None:
        return action
    limits = catalog.limits(visit.step, state.limits)
    if state.tasks:
        from pilothouse_engine.children import plan_deliveries

        if (delivering := plan_deliveries(catalog, state, inputs, limits)) is not None:
            return delivering
    spent = limits.remaining(state.account, visit.account).spent()
    if spent is not None:
        return _exit(state, inputs, BUDGET_EXCEEDED, "BudgetExceeded", spent)
    if planned.agent.mode == "Completion":
        gated = _plan_gates(catalog, state, inputs, planned)
        return gated or _plan_call(catalog, state, inputs, planned, "Completion", *visit.next_attempt)
    iteration = visit.replies + 1
    if iteration > limits.max_iterations:
        if state.mode == "Finish":
            return _finish_without_answer(planned, state, inputs)
        message = f"{visit.replies} iterations were made: raise limits.maxIterations ({limits.max_iterations})"
        return _exit(state, inputs, MAX_ITERATIONS, "MaxIterations", message)
    purpose = _purpose(planned, state, limits, iteration)
    if planned.asks_servers and visit.surface is None and purpose not in TOOLS_OFF:
        return ListTools(planned.agent)
    gated = _plan_gates(catalog, state, inputs, planned)
    return gated or _plan_call(catalog, state, inputs, planned, purpose, 0, 1)


def _plan_gates(catalog: Catalog, state: RunState, inputs: Inputs, planned: PlannedStep) -> Action | None:
    """Ask policy for the turn, then the guardrails for the text that is sent first."""
    action, visit = _plan_policy(catalog, state, inputs, planned), state.visit
    if action is not None or visit is None or visit.is_input_judged or catalog.gates(visit.step).input is None:
        return action
    from pilothouse_engine.guardrails.judgements import judge_user_text

    return judge_user_text(catalog, state, inputs)


def _plan_policy(catalog: Catalog, state: RunState, inputs: Inputs, planned: PlannedStep) -> Action | None:
    """Ask policy for the turn that begins, once; Deny ends the step."""
    visit = state.visit
    assert visit is not None
    if not planned.model_policies:
        return None
    if visit.judged_turn != state.next_turn:
        return _judge_turn()(catalog.plan, state, planned, inputs.now)
    verdict = visit.verdict
    if verdict is None or verdict.turn != state.next_turn or verdict.verdict != "Deny":
        return None
    from pilothouse_engine.policies.gating import say_denial

    return _exit(state, inputs, POLICY_DENIED, "PolicyDenied", say_denial(verdict))


@cache
def _judge_turn() -> Callable[[Plan, RunState, PlannedStep, float], Action | None]:
    """Return what judges a turn: most runs have no policy, and those that have one look it up once."""
    from pilothouse_engine.policies.gating import judge_turn

    return judge_turn


def _purpose(planned: PlannedStep, state: RunState, limits: Limits, iteration: int) -> Purpose:
    if state.mode == "Finish":
        return "Finish"
    wraps_up = planned.agent.last_iteration == "WrapUp" and limits.max_iterations > 1
    return "WrapUp" if wraps_up and iteration == limits.max_iterations else "Regular"


def _plan_recovery(planned: PlannedStep, state: RunState, inputs: Inputs) -> Action | None:
    """End a visit whose tools keep failing (engine.md §5)."""
    visit = state.visit
    assert visit is not None
    if visit.fatal is not None:
        return _exit(state, inputs, ERROR, visit.fatal.fatal or "ToolTimeout", visit.fatal.message)
    end = judge_recovery(planned, visit)
    if end is None:
        return None
    ending = "Interrupted" if state.mode == "Finish" else None
    facts = plan_exit(
        state, inputs.now, UNRECOVERABLE, end.cause, end.message, turn_ending=ending, fallback=end.fallback
    )
    return Commit(facts)


def _plan_call(
    catalog: Catalog,
    state: RunState,
    inputs: Inputs,
    planned: PlannedStep,
    purpose: Purpose,
    endpoint: int,
    attempt: int,
) -> Action:
    """Reserve and start one attempt; with no room for it, a shorter wrap-up turn, else the step ends."""
    visit = state.visit
    assert visit is not None
    prompt = _plan_prompt(catalog, planned, visit, purpose, endpoint)
    if prompt is None:
        return _exit(state, inputs, ERROR, "ContextWindowExceeded", _say_too_long(catalog, visit, endpoint))
    limits = catalog.limits(visit.step, state.limits)
    remaining = limits.remaining(state.account, visit.account)
    price = catalog.price(visit.step, endpoint)
    longest = planned.endpoints[endpoint].max_output_tokens or ASSUMED_OUTPUT_TOKENS
    hold = reserve(prompt.bound, longest, price, remaining)
    if isinstance(hold, Hold):
        return _call(catalog, state, inputs, planned, purpose, endpoint, attempt, hold, prompt.level, None)
    refused = hold
    if purpose == "Completion":
        return _exit(state, inputs, BUDGET_EXCEEDED, "BudgetExceeded", refused.message)
    shorter: Purpose = "BudgetWrapUp" if purpose == "Regular" else purpose
    prompt = _plan_prompt(catalog, planned, visit, shorter, endpoint) or prompt
    room = room_for_answer(prompt.bound, longest, price, remaining)
    hold = reserve(prompt.bound, room, price, remaining) if room else refused
    if isinstance(hold, DoesNotFit):
        if purpose == "Finish":
            return _finish_without_answer(planned, state, inputs)
        return _exit(state, inputs, BUDGET_EXCEEDED, "BudgetExceeded", refused.message)
    return _call(catalog, state, inputs, planned, shorter, endpoint, attempt, hold, prompt.level, room)


def _plan_prompt(
    catalog: Catalog, planned: PlannedStep, visit: Visit, purpose: Purpose, endpoint: int
) -> Prompt | None:
    tools = 0 if purpose in TOOLS_OFF else planned.specs_bytes
    around = Around(tools, PINNED_BYTES.get(purpose, 0))
    return plan_prompt(visit, endpoint, catalog.context_window(visit.step, endpoint), around)


def _say_too_long(catalog: Catalog, visit: Visit, endpoint: int) -> str:
    failure, model = visit.failure, catalog.agent(visit.step).endpoints[endpoint]
    said = f" ({failure.message})" if failure is not None and failure.kind == "ContextWindowExceeded" else ""
    return (
        f"{model.name} refuses the prompt as too long at every level at which it becomes shorter{said}: start a new"
        " session, with less input, or name a model with a larger context window"
    )


def _call(
    catalog: Catalog,
    state: RunState,
    inputs: Inputs,
    planned: PlannedStep,
    purpose: Purpose,
    endpoint: int,
    attempt: int,
    hold: Hold,
    level: Level,
    output_cap: int | None,
) -> Action:
    visit = state.visit
    assert visit is not None
    model = planned.endpoints[endpoint]
    try:
        script = catalog.text(model.script) if model.script is not None else None
    except IntegrityError as error:
        return _exit(state, inputs, ERROR, "IntegrityViolation", str(error))
    own = model.timeout_seconds + ADAPTER_GRACE_SECONDS
    if output_cap is not None:
        model = replace(model, max_output_tokens=output_cap)
    return CallModel(
        started=ModelStarted(
            inputs.now,
            state.next_turn,
            visit.replies + 1,
            purpose,
            endpoint,
            attempt,
            hold.input,
            hold.output,
            hold.cost,
            catalog.script_key(model),
            level,
        ),
        endpoint=model,
        tools=() if purpose in TOOLS_OFF else planned.specs,
        pinned=PINNED.get(purpose),
        script=script,
        timeout=attempt_seconds(planned.agent.retry, visit, attempt, inputs.now, own),
    )


# ---------------------------------------------------------------- after a failure


def _plan_after_failure(catalog: Catalog, state: RunState, inputs: Inputs) -> Action:
    """Retry, go to the next fallback, or end the step (engine.md §5)."""
    visit = state.visit
    assert visit is not None and visit.model is not None
    failure, model = visit.failure, visit.model
    if state.abort is not None:
        return Commit(plan_aborted(state, inputs.now))
    if failure is not None and inputs.read_tick != state.tick:
        return ReadControl()
    landed = plan_interruption(state, inputs)
    if landed is not None and landed.mode == "Abort":  # retries may take minutes: an abort does not wait for them
        return Commit((landed,))
    planned = catalog.offer(visit)
    if failure is None:  # the call was interrupted and the run goes on: make it again
        return _plan_call(catalog, state, inputs, planned, model.purpose, model.endpoint, model.attempt)
    after = attempt_after_failure(planned, visit)
    if after is None:
        return _exit(state, inputs, ERROR, FAILURE_CAUSES[failure.kind], say_failure(planned, visit))
    if inputs.now < after.due:
        return Sleep(after.due - inputs.now)
    return _plan_call(catalog, state, inputs, planned, model.purpose, after.endpoint, after.number)


# ---------------------------------------------------------------- after a reply without calls


def _plan_answer(catalog: Catalog, state: RunState, inputs: Inputs) -> Action:
    """Judge the text of a reply: continue it, accept it, have it repaired, or end the step."""
    visit = state.visit
    assert visit is not None and visit.model is not None and visit.reply is not None
    planned = catalog.offer(visit)
    limits = catalog.limits(visit.step, state.limits)
    has_iteration_left = visit.replies < limits.max_iterations and visit.model.purpose in ("Regular", "BudgetWrapUp")
    if not visit.answer.strip():
        return _plan_no_text(planned, state, inputs)
    if visit.reply.finish == "Length" and has_iteration_left and visit.continuations < MAX_CONTINUATIONS:
        return Commit((NoteAdded(inputs.now, "Continue", CONTINUE_NOTE),))
    if visit.judged_answer is None and catalog.gates(visit.step).output is not None:
        from pilothouse_engine.guardrails.judgements import judge_answer_text

        judging = judge_answer_text(catalog, state, inputs)
        verdict = judge_answer(planned.agent, visit.step, visit.answer)
        if isinstance(verdict, Accepted) and _passes_plainly(judging):  # one entry of the journal, as most answers are
            return Commit((*judging.facts, *_accept(state, inputs, verdict)))
        return judging
    verdict = judge_answer(planned.agent, visit.step, visit.passed_answer)
    if isinstance(verdict, Accepted):
        return Commit(_accept(state, inputs, verdict))
    return _plan_rejected(planned, state, inputs, verdict, has_iteration_left)


def _passes_plainly(judging: Action) -> TypeGuard[Commit]:
    """Tell whether an answer was judged at once and goes on as it is."""
    return isinstance(judging, Commit) and all(isinstance(fact, TextJudged) and fact.is_plain for fact in judging.facts)


def _accept(state: RunState, inputs: Inputs, verdict: Accepted) -> Facts:
    visit = state.visit
    assert visit is not None
    used = len(state.context_json().encode("utf-8", "surrogatepass"))
    where = f"journal/visit-{visit.number}"
    writes = fit_writes(state.context, used, verdict.writes, inputs.settings.max_context_bytes, where)
    return plan_exit(state, inputs.now, verdict.signal, writes=writes, turn_ending=turn_ending(visit))


def turn_ending(visit: Visit) -> str | None:
    """Return how the last turn ended, the first that applies (engine.md §7)."""
    if visit.model is not None and visit.model.purpose == "Finish":
        return "Interrupted"
    if visit.reply is not None and visit.reply.finish == "Length":
        return "Length"
    if visit.model is not None and visit.model.purpose in ("WrapUp", "BudgetWrapUp"):
        return "StepLimit"
    return None


def _plan_no_text(planned: PlannedStep, state: RunState, inputs: Inputs) -> Action:
    visit = state.visit
    assert visit is not None and visit.model is not None and visit.reply is not None
    purpose, calls = visit.model.purpose, len(visit.reply.calls)
    if purpose == "Finish":
        return _finish_without_answer(planned, state, inputs)
    if calls and purpose == "WrapUp":
        message = f"the last iteration asked for {calls} tool calls instead of answering"
        return _exit(state, inputs, MAX_ITERATIONS, "MaxIterations", message)
    if calls and purpose == "BudgetWrapUp":
        message = f"the last turn that the budget allowed asked for {calls} tool calls instead of answering"
        return _exit(state, inputs, BUDGET_EXCEEDED, "BudgetExceeded", message)
    return _exit(state, inputs, ERROR, "EmptyReply", "the model answered with neither text nor a tool call")


def _plan_rejected(
    planned: PlannedStep, state: RunState, inputs: Inputs, verdict: Rejected, has_iteration_left: bool
) -> Action:
    visit = state.visit
    assert visit is not None and visit.model is not None
    agent = planned.agent
    if visit.model.purpose == "Finish":
        return _finish_without_answer(planned, state, inputs)
    if agent.mode == "Completion":
        after = attempt_after_rejection(planned, visit, inputs.now)
        if after is not None:
            return Commit((ReplyRejected(inputs.now, verdict.problem, after.endpoint, after.number),))
    elif has_iteration_left and visit.repairs < MAX_REPAIRS:
        return Commit((NoteAdded(inputs.now, "Repair", repair_note(verdict.problem, agent.outcome.enum)),))
    return _exit(state, inputs, ERROR, "InvalidOutcome", f"the final answer cannot be used: {verdict.problem}")


def _finish_without_answer(planned: PlannedStep, state: RunState, inputs: Inputs) -> Action:
    """End a visit that was asked to finish and has no valid answer (engine.md §7)."""
    outcome = planned.agent.outcome
    if outcome.enum is None:
        writes = {write_key(outcome, planned.step.id): STOPPED_TEXT}
        return Commit(plan_exit(state, inputs.now, DEFAULT, writes=writes, turn_ending="Interrupted"))
    message = "the run was asked to finish and the last turn gave no valid answer"
    facts = plan_exit(state, inputs.now, ABORTED, FINISHED_WITHOUT_ANSWER, message, turn_ending="Interrupted")
    return Commit(facts)
