"""HTTP without a network: a test says what comes back."""

from collections.abc import Awaitable, Callable

from pilothouse_engine.ports import HttpFailure, HttpRequest, HttpResponse

Answer = HttpResponse | HttpFailure
Responder = Callable[[HttpRequest], Answer | Awaitable[Answer]]


class ScriptedHttp:
    """Answers each request by the next scripted answer, or by a function; keeps the requests."""

    def __init__(self, *answers: Answer | Responder) -> None:
        self._answers = list(answers)
        self.requests: list[HttpRequest] = []

    async def send(self, request: HttpRequest) -> Answer:
        """Return the next answer; the last one is given again when the script is spent."""
        self.requests.append(request)
        if not self._answers:
            return HttpFailure("Connection", "no answer was scripted", sent=False)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, HttpResponse | HttpFailure):
            return answer
        given = answer(request)
        return given if isinstance(given, HttpResponse | HttpFailure) else await given
