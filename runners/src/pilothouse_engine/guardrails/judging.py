"""Performing of a gate in the loop: what is judged, what a judge is asked and may cost, the facts that come of it.

Where gates stand in a turn, and what follows from a refusal, is `guardrails.judgements`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any, Literal, Protocol, TypeVar

from msgspec.structs import replace

from pilothouse_api.stored_plan import IntegrityError
from pilothouse_api.structs import ModelEndpoint
from pilothouse_engine.account import Charge, DoesNotFit, Hold, Price, charge, reserve
from pilothouse_engine.actions import JudgeText
from pilothouse_engine.alarms import Cut
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.facts import Facts, JudgeAnswered, JudgeStarted, TextJudged
from pilothouse_engine.guardrails.gates import LARGE_CHARS, Gate, PlannedCheck, run_gate, run_pure
from pilothouse_engine.guardrails.judges import (
    MAX_OUTPUT_TOKENS,
    TIMEOUT_SECONDS,
    build_judge_messages,
    read_judge_answer,
)
from pilothouse_engine.guardrails.verdicts import (
    GateResult,
    JudgeFailed,
    JudgeHolds,
    JudgeVerdict,
    JudgeViolated,
    Passed,
    Refused,
)
from pilothouse_engine.ports import Model, ModelFailure, ModelReply, ModelRequest
from pilothouse_engine.results import compact, shown_result
from pilothouse_engine.state import RunState, bytes_of
from pilothouse_engine.strict_json import JsonError, parse_json
from pilothouse_engine.values import Value

T = TypeVar("T")

MASKS = frozenset({"PiiMask", "SecretMask"})
TRANSFORMS = MASKS | {"PromptInjection"}
"""Checks whose text goes on instead."""


class Bound(Protocol):
    """Ends work by a deadline, or at once where the attempt lets go."""

    async def __call__(self, work: Coroutine[Any, Any, T], seconds: float | None) -> T | Cut:
        """Return what the work returns, or why it was cut short."""
        ...


class Desk(Value):
    """What the loop lends to a gate."""

    catalog: Catalog
    state: RunState
    model: Model
    bound: Bound
    now: Callable[[], float]
    remaining: Callable[[float], float]
    commit: Callable[[Facts], None]
    flush: Callable[[], Awaitable[None]]


class _Interrupted(Exception):
    """The attempt lets go while a judge is asked: nothing is decided, and the next attempt asks again."""


def is_quick(action: JudgeText) -> bool:
    """Tell whether a text is judged at once, in less time than it takes to hand it to another thread."""
    longest = len(action.text) if action.writes or not action.cut_at else min(len(action.text), action.cut_at)
    return not action.planned.has_judge and longest <= LARGE_CHARS


def judge_now(action: JudgeText, now: float) -> TextJudged:
    """Return the verdict on a text for which no judge is asked. Pure."""
    if not action.writes and not action.cut_at and action.planned.passes(action.text):
        return TextJudged(now, action.gate, action.id, "Passed")
    judging = _judge(action, lambda: now)
    subject = next(judging)
    while True:
        try:
            subject = judging.send(run_pure(action.planned.checks, subject))
        except StopIteration as done:
            judged: TextJudged = done.value
            return judged


async def judge_text(action: JudgeText, desk: Desk) -> None:
    """Judge a text and commit the verdict; nothing is committed where the attempt lets go meanwhile."""
    await desk.flush()  # what is judged must not be lost while it is waited for
    if not action.planned.has_judge:
        desk.commit((await asyncio.to_thread(judge_now, action, desk.now()),))
        return
    judging, judges = _judge(action, desk.now), _Judges(action, desk)
    subject = next(judging)
    while True:
        try:
            subject = judging.send(await run_gate(action.planned.checks, subject, judges.ask))
        except StopIteration as done:
            desk.commit((done.value,))
            return
        except _Interrupted:
            return


def _judge(action: JudgeText, now: Callable[[], float]) -> Generator[str, GateResult, TextJudged]:
    """Yield what the gate is to judge, one after the other, take what it says, and return the verdict."""
    gate = action.planned
    plain, pointer = shown_result(action.id, action.text, action.cut_at)
    subject = shown_result(action.id, action.text, action.cut_at, gate.part)[0] if pointer else plain
    verdict = (yield subject).verdict
    if isinstance(verdict, Refused):
        return _refused(action, now(), verdict)
    notes, writes = dict.fromkeys(verdict.notes), None
    if subject != plain:
        mask = next(check.check for check in gate.checks if check.check in MASKS)
        notes[f"{mask}: masked what a cut had split"] = None
    if action.writes and (pointer or verdict.text != plain):
        # The model is shown something else than what would be merged, which so is judged whole and in the same form.
        whole = compact({"signal": action.signal, "output": action.writes})
        merged = (yield whole).verdict
        if isinstance(merged, Refused):
            return _refused(action, now(), merged)
        notes |= dict.fromkeys(merged.notes)
        writes = None if merged.text == whole else _read_writes(gate, action.writes, merged.text)
    if not notes:
        return TextJudged(now(), action.gate, action.id, "Passed")
    text = None if verdict.text == plain else verdict.text
    checks = ", ".join(dict.fromkeys(note.partition(":")[0] for note in notes))
    return TextJudged(now(), action.gate, action.id, "Passed", text, tuple(notes), check=checks, writes=writes)


def _refused(action: JudgeText, now: float, refused: Refused) -> TextJudged:
    artifact, check, reason = refused.artifact, refused.check, refused.reason
    return TextJudged(now, action.gate, action.id, "Refused", artifact=artifact, check=check, reason=reason)


# ---------------------------------------------------------------- what a call merges


def _read_writes(gate: Gate, writes: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    """Return what is merged of a result that the gate has rewritten."""
    try:
        parsed = parse_json(text)
    except JsonError:
        parsed = None
    if isinstance(parsed, dict) and isinstance(parsed.get("output"), dict):
        output: dict[str, Any] = parsed["output"]
        return output
    return _transform_each(gate, writes)


def _transform_each(gate: Gate, writes: Mapping[str, Any]) -> dict[str, Any]:
    """Return writes with each value transformed by itself, as a text where it is no JSON any more (wrapped).

    Where that changes nothing, what was found spans several values: then nothing is merged.
    """
    checks = tuple(check for check in gate.checks if check.check in TRANSFORMS)
    changed: dict[str, Any] = {}
    for key, item in writes.items():
        name, given = run_pure(checks, key).verdict, item if isinstance(item, str) else compact(item)
        got = run_pure(checks, given).verdict
        if isinstance(name, Passed) and isinstance(got, Passed):
            changed[name.text] = item if got.text == given else got.text
    return {} if changed == writes else changed


# ---------------------------------------------------------------- judges


class _Judges:
    """The judges of one text, in the order in which they are asked; what an earlier attempt was told is not asked."""

    def __init__(self, action: JudgeText, desk: Desk) -> None:
        visit = desk.state.visit
        assert visit is not None
        self._action, self._desk, self._visit = action, desk, visit
        self._known = deque(visit.judge_answers.get((action.gate, action.id), ()))

    async def ask(self, check: PlannedCheck, text: str) -> JudgeVerdict:
        """Ask the step's own model, within what is left of every budget; any failure is a JudgeFailed."""
        if self._known:
            return _verdict_of(self._known.popleft())
        catalog, state, visit = self._desk.catalog, self._desk.state, self._visit
        endpoint = _judge_endpoint(catalog.agent(visit.step).endpoints[0])
        messages = build_judge_messages(check.criteria, text)
        remaining = catalog.limits(visit.step, state.limits).remaining(state.account, visit.account)
        prompt, answer = sum(map(bytes_of, messages)), endpoint.max_output_tokens or MAX_OUTPUT_TOKENS
        hold = reserve(prompt, answer, catalog.price(visit.step, 0), remaining)
        if isinstance(hold, DoesNotFit):
            return JudgeFailed(f"no budget has room for it: {hold.message}")
        try:
            script = catalog.text(endpoint.script) if endpoint.script is not None else None
        except IntegrityError as error:
            return JudgeFailed(str(error))
        key = catalog.script_key(endpoint)
        marks = tuple(state.marks.get(key, ())) if key is not None else ()
        request = ModelRequest(endpoint, messages, (), visit.step, state.next_turn, script, marks)
        return await self._call(request, hold, key)

    async def _call(self, request: ModelRequest, hold: Hold, script: str | None) -> JudgeVerdict:
        desk, action = self._desk, self._action
        started = JudgeStarted(desk.now(), action.gate, action.id, hold.input, hold.output, hold.cost, script)
        desk.commit((started,))
        await desk.flush()
        outcome = await desk.bound(desk.model.call(request), min(TIMEOUT_SECONDS, desk.remaining(desk.now())))
        if outcome is Cut.INTERRUPTED:
            raise _Interrupted
        if isinstance(outcome, Cut):
            outcome = ModelFailure("Timeout", f"no answer within {TIMEOUT_SECONDS:g} s")
        answered = _answered(desk.now(), outcome, hold, desk.catalog.price(self._visit.step, 0))
        desk.commit((answered,))
        return _verdict_of(answered)


def _judge_endpoint(endpoint: ModelEndpoint) -> ModelEndpoint:
    """Return the endpoint with the bounds of a judge's answer."""
    longest = min(endpoint.max_output_tokens or MAX_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS)
    seconds = min(endpoint.timeout_seconds, int(TIMEOUT_SECONDS))
    return replace(endpoint, max_output_tokens=longest, timeout_seconds=seconds)


def _answered(now: float, outcome: ModelReply | ModelFailure, hold: Hold, price: Price | None) -> JudgeAnswered:
    if isinstance(outcome, ModelFailure):
        is_charged = outcome.sent or outcome.kind in ("Timeout", "Garbage")
        taken = Charge(hold.input, hold.output, hold.cost, False) if is_charged else Charge(0, 0, 0, False)
        verdict: JudgeVerdict = JudgeFailed(f"{outcome.kind}: {outcome.message}")
    else:
        taken = charge(hold, outcome.usage, price)
        verdict = read_judge_answer(outcome.text, taken.input + taken.output)
    said: Literal["Holds", "Violated", "Failed"]
    match verdict:
        case JudgeHolds():
            said, reason = "Holds", ""
        case JudgeViolated(reason):
            said = "Violated"
        case JudgeFailed(reason):
            said = "Failed"
    return JudgeAnswered(now, said, reason, taken.input, taken.output, taken.cost, outcome.mark)


def _verdict_of(answered: JudgeAnswered) -> JudgeVerdict:
    tokens = answered.input + answered.output
    match answered.said:
        case "Holds":
            return JudgeHolds(tokens)
        case "Violated":
            return JudgeViolated(answered.reason, tokens)
        case "Failed":
            return JudgeFailed(answered.reason, tokens)
