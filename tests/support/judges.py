"""A judge of tests: it says what it was told to say, and remembers what it was asked."""

import asyncio
from collections import deque
from collections.abc import Iterable

from pilothouse_api.judging import JudgeAnswer, JudgeFailure, JudgeRequest, Verdict

PASSED = Verdict(passed=True, reason="", tokens=100)
VIOLATED = Verdict(passed=False, reason="It calls the same tool again and again.", tokens=100)
UNAVAILABLE = JudgeFailure(type="Unavailable", message="the judge does not answer")


class FakeJudge:
    """Port `Judge` that gives its answers in turn, the last one for ever; none at all while it hangs."""

    def __init__(self, *answers: JudgeAnswer, models: Iterable[str] | JudgeFailure = ("judge",)) -> None:
        self.asked: list[JudgeRequest] = []
        self.known = models if isinstance(models, JudgeFailure) else frozenset(models)
        self._answers = deque(answers or (PASSED,))
        self._may_answer = asyncio.Event()
        self._may_answer.set()

    async def ask(self, request: JudgeRequest) -> JudgeAnswer:
        """Return the next answer once it may: Timeout after the request's time."""
        self.asked.append(request)
        try:
            async with asyncio.timeout(request.timeout_seconds):
                await self._may_answer.wait()
        except TimeoutError:
            return JudgeFailure(type="Timeout", message=f"no verdict within {request.timeout_seconds} s")
        if isinstance(self.known, frozenset) and request.model not in self.known:
            return JudgeFailure(type="UnknownModel", message=f"judge.models has no {request.model}")
        return self._answers.popleft() if len(self._answers) > 1 else self._answers[0]

    async def models(self) -> frozenset[str] | JudgeFailure:
        """Return the names that it knows."""
        return self.known

    def hang(self) -> None:
        """Answer nobody until `answer` is called."""
        self._may_answer.clear()

    def answer(self) -> None:
        """Answer whoever waits, and whoever asks."""
        self._may_answer.set()
