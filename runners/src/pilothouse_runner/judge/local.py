"""The judge itself: one question, one model of the table, one answer; in-process for whoever asks."""

import asyncio
import json
import math
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from pilothouse_api.judging import (
    MAX_FAILURE_CHARS,
    MAX_REASON_CHARS,
    JudgeAnswer,
    JudgeFailure,
    JudgeFailureType,
    JudgeRequest,
    Verdict,
)
from pilothouse_engine.claims import NO_REASON, read_claim
from pilothouse_engine.ports import Clock, FailureKind, Model, ModelFailure, ModelReply, ModelRequest, Secrets, Usage
from pilothouse_engine.state import bytes_of
from pilothouse_runner.adapters.clock import SystemClock
from pilothouse_runner.adapters.models import ModelRouter
from pilothouse_runner.adapters.models.redaction import plain
from pilothouse_runner.judge.prompt import RESPONSE_FORMATS, build_messages
from pilothouse_runner.judge.table import JudgeModel, JudgeModels

RETRY_PAUSES = (0.5, 2.0)
"""Seconds before the second and the third attempt, where the request's time has room for them."""

RETRIED: frozenset[FailureKind] = frozenset({"Connection", "RateLimited", "ServerError"})
"""What may pass by itself. An answer that is none is not asked for again: it was paid for, and the next slot asks."""

FAILURE_TYPES: Mapping[FailureKind, JudgeFailureType] = {
    "Timeout": "Timeout",
    "Garbage": "BadAnswer",
    "Refused": "Refused",
    "Connection": "Unavailable",
    "RateLimited": "Unavailable",
    "ServerError": "Unavailable",
    "Authentication": "Unavailable",
    "InvalidRequest": "Unavailable",
    "ContextWindowExceeded": "Unavailable",
    "ScriptSpent": "Unavailable",
}
"""What a failure of a model means for who asked the judge."""


class _Question(Struct):
    """One question under way: its time (monotonic seconds), what it took, and what the open attempt may yet take."""

    model: JudgeModel
    asked: ModelRequest
    deadline: float
    tokens: int = 0
    held: int = 0

    def hold(self) -> None:
        """Take what an attempt costs at most: no tokenizer makes more tokens than bytes."""
        prompt = sum(map(bytes_of, self.asked.messages)) + len(json.dumps(self.asked.response_format))
        self.held = prompt + self.model.max_output_tokens

    def settle(self, outcome: ModelReply | ModelFailure) -> None:
        """Replace it by what the attempt took; what nobody counted, and may be charged, is all of it."""
        if isinstance(outcome, ModelReply):
            self.tokens += _counted(outcome.usage, self.held)
        elif outcome.sent or outcome.kind in ("Timeout", "Garbage"):
            self.tokens += self.held
        self.held = 0


class LocalJudge:
    """Port `Judge` over the platform's table.

    The scripted model plays its script in the order in which this object is asked; all else has no memory.
    """

    def __init__(
        self, models: JudgeModels, secrets: Secrets, clock: Clock | None = None, model: Model | None = None
    ) -> None:
        self._models = models
        self._clock: Clock = clock or SystemClock()
        self._router = ModelRouter(secrets, self._clock)
        self._model: Model = model or self._router
        self._marks: dict[str, tuple[int, ...]] = {}

    async def ask(self, request: JudgeRequest) -> JudgeAnswer:
        """Return a verdict or why there is none, within the request's time."""
        model = self._models.get(request.model)
        if model is None:
            return JudgeFailure(type="UnknownModel", message=f"judge.models has no {request.model}")
        seconds = min(request.timeout_seconds, model.timeout_seconds)
        question = _Question(model, _first_attempt(request, model), self._clock.monotonic() + seconds)
        try:
            async with asyncio.timeout(seconds):
                outcome = await self._call(question)
        except TimeoutError:
            outcome = ModelFailure("Timeout", f"no verdict within {seconds} s")
            question.settle(outcome)
        return _read(question, outcome)

    async def models(self) -> frozenset[str]:
        """Return the names of the table."""
        return frozenset(self._models)

    def use(self, models: JudgeModels) -> None:
        """Use another table from the next question on; a script that has changed is played from its beginning."""
        kept = {name for name, model in models.items() if self._models.get(name) == model}
        self._marks = {name: marks for name, marks in self._marks.items() if name in kept}
        self._models = models

    async def aclose(self) -> None:
        """Close the connections to the endpoints."""
        await self._router.aclose()

    async def _call(self, question: _Question) -> ModelReply | ModelFailure:
        """Return the reply, or the failure after which no further attempt has time."""
        for pause in (*RETRY_PAUSES, math.inf):
            outcome = await self._attempt(question)
            if isinstance(outcome, ModelReply) or outcome.kind not in RETRIED:
                return outcome
            pause = max(pause, outcome.retry_after or 0.0)
            if self._clock.monotonic() + pause >= question.deadline:
                return outcome
            await self._clock.sleep(pause)
        raise AssertionError("no time is left after the last pause")

    async def _attempt(self, question: _Question) -> ModelReply | ModelFailure:
        name, left = question.model.name, question.deadline - self._clock.monotonic()
        endpoint = question.model.endpoint(max(1, math.ceil(left)))
        question.hold()
        outcome = await self._model.call(replace(question.asked, endpoint=endpoint, marks=self._marks.get(name, ())))
        question.settle(outcome)
        if outcome.mark is not None:
            self._marks[name] = (*self._marks.get(name, ()), outcome.mark)
        return outcome


def _first_attempt(request: JudgeRequest, model: JudgeModel) -> ModelRequest:
    return ModelRequest(
        model.endpoint(model.timeout_seconds),
        build_messages(request),
        step=request.observation.step,
        turn=request.observation.turn,
        script=model.script,
        response_format=RESPONSE_FORMATS[model.answer_format],
    )


def _read(question: _Question, outcome: ModelReply | ModelFailure) -> JudgeAnswer:
    """Return what an outcome says; an answer in any other form than the one asked for is no verdict."""
    if isinstance(outcome, ModelFailure):
        return _failure(question, FAILURE_TYPES[outcome.kind], outcome.message)
    if outcome.finish == "Length":
        longest = question.model.max_output_tokens
        return _failure(question, "BadAnswer", f"the judge's answer was cut at maxOutputTokens ({longest})")
    said = read_claim(outcome.text, "passed")
    if isinstance(said, str):
        return _failure(question, "BadAnswer", said)
    reason = plain(said.reason)[:MAX_REASON_CHARS]  # of what cannot be shown nothing is left
    return Verdict(passed=said.is_true, reason=reason or ("" if said.is_true else NO_REASON), tokens=question.tokens)


def _failure(question: _Question, kind: JudgeFailureType, message: str) -> JudgeFailure:
    said = plain(f"{question.model.name}: {message}")[:MAX_FAILURE_CHARS]
    return JudgeFailure(type=kind, message=said, tokens=question.tokens)


def _counted(usage: Usage, held: int) -> int:
    """Return the tokens of a reply: what the provider counted, and where it counted only half or nothing, the bound."""
    return held if usage.input is None or usage.output is None else usage.input + usage.output
