"""The judge over HTTP: `POST /v1/verdicts`, `GET /v1/models`, probes and metrics. Only the operator may ask.

Nothing that is asked or answered is logged but the model's name and what came of it.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from pilothouse_api.judging import (
    MAX_FAILURE_CHARS,
    MODELS_PATH,
    VERDICTS_PATH,
    JudgeAnswer,
    JudgeFailure,
    JudgeFailureType,
    JudgeRequest,
)
from pilothouse_engine.values import Value
from pilothouse_runner.judge.files import Callers, TableFile
from pilothouse_runner.judge.local import LocalJudge
from pilothouse_runner.judge.metrics import Metrics
from pilothouse_runner.log_lines import LogLines, place_of

MAX_REQUEST_BYTES = 1024 * 1024
BODY_SECONDS = 10.0
"""How long a question may take to arrive."""
MAX_UNDER_WAY = 256
"""Questions that are answered at once; who comes on top is told so and asks again."""


class Desk(Value):
    """What the service works with."""

    judge: LocalJudge
    table: TableFile
    callers: Callers
    metrics: Metrics
    lines: LogLines
    max_under_way: int = MAX_UNDER_WAY


class _Refused(Exception):
    """A request that is not asked as a question: its status, and why."""

    def __init__(self, status: int, message: str, kind: JudgeFailureType = "Unavailable") -> None:
        super().__init__(message)
        self.status = status
        self.failure = JudgeFailure(type=kind, message=message[:MAX_FAILURE_CHARS])


def build_app(desk: Desk) -> Starlette:
    """Return the service as an ASGI application."""
    service = _Service(desk)
    routes = [
        Route(VERDICTS_PATH, service.give_verdict, methods=["POST"]),
        Route(MODELS_PATH, service.list_models, methods=["GET"]),
        Route("/healthz", service.say_ok, methods=["GET"]),
        Route("/readyz", service.say_ok, methods=["GET"]),
        Route("/metrics", service.show_metrics, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={_Refused: service.refuse})


class _Service:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._under_way = 0

    async def give_verdict(self, request: Request) -> Response:
        """Answer a question. Who leaves before the answer is there is not worth its tokens."""
        self._check_caller(request)
        if self._under_way >= self._desk.max_under_way:
            raise _Refused(503, f"{self._under_way} questions are being answered, which is all that the judge takes")
        self._under_way += 1
        self._desk.metrics.under_way.set(self._under_way)
        try:
            asked = _read_question(await _read_body(request))
            self._desk.table.refresh()
            answer = await _unless_gone(request, self._answer(asked))
        finally:
            self._under_way -= 1
            self._desk.metrics.under_way.set(self._under_way)
        return Response(status_code=499) if answer is None else _json(200, answer)

    async def list_models(self, request: Request) -> Response:
        """Say which models can be asked."""
        self._check_caller(request)
        self._desk.table.refresh()
        return JSONResponse({"models": sorted(await self._desk.judge.models())})

    async def say_ok(self, request: Request) -> Response:
        """Say that the service can be asked: it has a table, and its loop turns."""
        return PlainTextResponse("ok\n")

    async def show_metrics(self, request: Request) -> Response:
        """Show what was counted."""
        return Response(generate_latest(self._desk.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def refuse(self, request: Request, error: Exception) -> Response:
        """Say why a request is not asked as a question."""
        assert isinstance(error, _Refused)
        self._desk.metrics.refused.labels(str(error.status)).inc()
        return _json(error.status, error.failure)

    def _check_caller(self, request: Request) -> None:
        if not self._desk.callers.is_known(request.headers.get("authorization", "")):
            raise _Refused(401, "the judge does not know who asks: the token is not the one that it has", "Refused")

    async def _answer(self, asked: JudgeRequest) -> JudgeAnswer:
        started = time.monotonic()
        try:
            answer = await self._desk.judge.ask(asked)
        except Exception as error:  # a fault of ours is one question's, not the service's; it is shown, unquoted
            self._desk.lines.say("judge.fault", "error", type=type(error).__name__, place=place_of(error))
            answer = JudgeFailure(type="Unavailable", message=f"internal fault: {type(error).__name__}")
        seconds = time.monotonic() - started
        model = asked.model if asked.model in await self._desk.judge.models() else "(unknown)"
        called = self._desk.metrics.count(model, answer, seconds)
        level = "warning" if isinstance(answer, JudgeFailure) else "info"
        problem = answer.message if isinstance(answer, JudgeFailure) else None
        self._desk.lines.say(
            "judge.answered",
            level,
            model=model,
            answer=called,
            tokens=answer.tokens,
            seconds=round(seconds, 3),
            problem=problem,
        )
        return answer


async def _read_body(request: Request) -> bytes:
    """Return the body of a request; raises _Refused where it is too large, too slow, or does not come."""
    chunks, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_REQUEST_BYTES:
                    raise _Refused(413, f"a question has at most {MAX_REQUEST_BYTES:,} bytes")
                chunks.append(chunk)
    except TimeoutError:
        raise _Refused(408, f"the question did not arrive within {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise _Refused(400, "the question did not arrive whole") from None
    return b"".join(chunks)


def _read_question(body: bytes) -> JudgeRequest:
    try:
        return JudgeRequest.model_validate_json(body)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise _Refused(400, f"the question cannot be read: {where or 'body'}: {fault['msg']}") from None


async def _unless_gone(request: Request, answering: Coroutine[Any, Any, JudgeAnswer]) -> JudgeAnswer | None:
    """Return the answer, None where the client has left meanwhile."""
    asked = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(_wait_gone(request))
    try:
        await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        return asked.result() if asked.done() else None
    finally:
        asked.cancel()
        gone.cancel()
        await asyncio.gather(asked, gone, return_exceptions=True)


async def _wait_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(status: int, answer: JudgeAnswer) -> Response:
    return Response(answer.model_dump_json(by_alias=True), status, media_type="application/json")
