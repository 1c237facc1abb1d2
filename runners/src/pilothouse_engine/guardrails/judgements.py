"""Where guardrails stand in a turn, and what follows from what they say (engine.md §1, §3 and §4). Pure.

A text that is judged by pure checks is judged here, as a part of the decision; what takes long or asks a model is
performed by `guardrails.judging`. Nothing of this package is imported before a gate is planned.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from pilothouse_api.signals import GUARDRAIL_VIOLATION
from pilothouse_engine.actions import Action, Commit, Inputs, JudgeText
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.control import check_control, plan_interruption
from pilothouse_engine.endings import plan_aborted, plan_exit
from pilothouse_engine.facts import CallFinished, Fact, Facts, PromptOpened, RunEnded, StepFinished, TextJudged
from pilothouse_engine.guardrails.gates import Gate, run_pure
from pilothouse_engine.guardrails.judging import is_quick, judge_now
from pilothouse_engine.guardrails.verdicts import Passed
from pilothouse_engine.recovery import FALLBACK_CAUSES
from pilothouse_engine.state import RunState, Visit


def plan_refusal(state: RunState, inputs: Inputs, refused: TextJudged) -> Action:
    """End the step of which a gate has refused a text."""
    check = f"{refused.check} of artifact {refused.artifact}" if refused.artifact else refused.check
    message = f"guardrails.{refused.gate}, {check}: {refused.reason}"
    return Commit(plan_exit(state, inputs.now, GUARDRAIL_VIOLATION, "GuardrailViolation", message))


def judge_opening(gate: Gate, opened: PromptOpened, now: float) -> Facts:
    """Return what the gate says of the user text of a visit, where it says at once that it goes on as it is.

    Anything else is left to `judge_user_text`.
    """
    text = "\n\n".join(message.text for message in opened.messages if message.role == "user")
    judging = JudgeText("input", "", gate, text)
    if not is_quick(judging):
        return ()
    verdict = judge_now(judging, now)
    return (verdict,) if verdict.is_plain else ()


def judge_user_text(catalog: Catalog, state: RunState, inputs: Inputs) -> Action:
    """Have the user text of a visit judged before it is first sent."""
    visit = _visit(state)
    gate = catalog.gates(visit.step).input
    assert gate is not None
    text = "\n\n".join(visit.messages[index].text for index in visit.user_text)
    return _judge(state, inputs, JudgeText("input", "", gate, text))


def judge_result(catalog: Catalog, state: RunState, inputs: Inputs) -> Action | None:
    """Have the next result of a batch judged before the model sees it, and before a later call runs."""
    visit = _visit(state)
    gate = catalog.gates(visit.step).tools
    assert gate is not None
    call = next((call for call in visit.calls[visit.next_call :] if call.finished and not call.is_judged), None)
    if call is None or call.finished is None:
        return None
    return _judge(state, inputs, _judging(gate, call.finished))


def judge_finished(gate: Gate, finished: Sequence[CallFinished]) -> Facts:
    """Return the results of calls with what is said of them at once, so that both are one entry of the journal.

    What takes long, asks a judge, or stands behind a refusal is left to `judge_result`.
    """
    facts: list[CallFinished] = []
    verdicts: list[TextJudged] = []
    for done in finished:
        if not verdicts and _passes_plainly(gate, done):
            facts.append(replace(done, is_passed=True))
            continue
        judging = _judging(gate, done)
        is_refused = bool(verdicts) and verdicts[-1].verdict == "Refused"
        verdict = judge_now(judging, done.at) if is_quick(judging) and not is_refused else None
        is_plain = verdict is not None and verdict.is_plain
        facts.append(replace(done, is_passed=True) if is_plain else done)
        if verdict is not None and not is_plain:
            verdicts.append(verdict)
    return (*facts, *verdicts)


def _passes_plainly(gate: Gate, done: CallFinished) -> bool:
    """Tell whether a result goes on as it is, where that is seen at once: most results are so."""
    return done.writes is None and done.cut_from is None and gate.passes(done.content)


def _judging(gate: Gate, done: CallFinished) -> JudgeText:
    return JudgeText("tools", done.id, gate, done.content, done.cut_at, done.signal, done.writes)


def judge_task(
    catalog: Catalog, state: RunState, inputs: Inputs, result_id: str, text: str, cut_at: int
) -> Action | None:
    """Have what a task in the background gave judged before the note that brings it."""
    visit = _visit(state)
    gate = catalog.gates(visit.step).tools
    if gate is None or result_id in visit.judged_tasks:
        return None
    return _judge(state, inputs, JudgeText("tools", result_id, gate, text, cut_at))


def judge_answer_text(catalog: Catalog, state: RunState, inputs: Inputs) -> Action:
    """Have an answer judged before its outcome is, and before anything of it is merged."""
    visit = _visit(state)
    gate = catalog.gates(visit.step).output
    assert gate is not None
    if state.abort is not None:
        return Commit(plan_aborted(state, inputs.now))
    return _judge(state, inputs, JudgeText("output", f"r{state.turn}", gate, visit.answer))


def _judge(state: RunState, inputs: Inputs, judging: JudgeText) -> Action:
    """Judge now; before a model is asked to, control is looked at, so that an abort does not wait for it."""
    if judging.planned.has_judge:
        action = check_control(state, inputs)
        if action is not None:
            return action
        landed = plan_interruption(state, inputs)
        if landed is not None:
            return Commit((landed,))
    return Commit((judge_now(judging, inputs.now),)) if is_quick(judging) else judging


def gate_partial(catalog: Catalog, state: RunState, commit: Commit) -> Commit:
    """Put what the output gate lets pass in the place of the partial text of an exit (engine.md §1).

    No judge is asked any more: one that would have been counts as one that gave no verdict. What the engine itself says
    of failing tools is no text of the model's and passes.
    """
    visit = state.visit
    gate = catalog.gates(visit.step).output if visit is not None else None
    if gate is None or visit is None or not any(_has_partial(fact) for fact in commit.facts):
        return commit

    def gated(text: str) -> str | None:
        if visit.violation is not None and visit.violation.gate == "output":
            return None
        if visit.judged_answer is not None and visit.parts:
            return visit.passed_answer
        verdict = run_pure(gate.checks, text).verdict
        return verdict.text if isinstance(verdict, Passed) else None

    facts = tuple(_with_partial(fact, gated) for fact in commit.facts)
    return Commit(facts)


def _with_partial(fact: Fact, gated: Callable[[str], str | None]) -> Fact:
    if isinstance(fact, StepFinished | RunEnded) and fact.partial and _has_partial(fact):
        return replace(fact, partial=gated(fact.partial))
    return fact


def _has_partial(fact: Fact) -> bool:
    return isinstance(fact, StepFinished | RunEnded) and bool(fact.partial) and fact.error_type not in FALLBACK_CAUSES


def _visit(state: RunState) -> Visit:
    assert state.visit is not None
    return state.visit
