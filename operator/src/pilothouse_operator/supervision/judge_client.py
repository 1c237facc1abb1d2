"""Asks the platform's judge over HTTP (`python -m pilothouse_runner.judge`). Whatever happens there is an answer.

The session is its own: the one that is shared with Kopf authorizes each request with the operator's token, which is the
API server's to see and nobody else's.
"""

import asyncio
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from pilothouse_api.judging import (
    MAX_FAILURE_CHARS,
    MODELS_PATH,
    VERDICTS_PATH,
    JudgeAnswer,
    JudgeFailure,
    JudgeFailureType,
    JudgeRequest,
    parse_answer,
)

MARGIN_SECONDS = 1.5
"""How long after its timeout a verdict may arrive: the judge ends each question by itself."""
RETRY_PAUSES = (0.5, 2.0)
"""Seconds before a question is put again that nobody has answered."""
MODELS_SECONDS = 5.0
CONNECT_SECONDS = 5.0
MAX_ANSWER_BYTES = 256 * 1024
CONNECTION_LIMIT = 256


class _Unanswered(JudgeFailure):
    """Nobody was there, or whoever was has gone before the answer: the same question may be put to another one."""


class HttpJudge:
    """Port `Judge` over HTTP.

    `url` is the base address of the service; `token_path` holds the token that makes the operator known to it, and is
    read anew for each question.
    """

    def __init__(self, url: str, token_path: Path) -> None:
        self._url = url.rstrip("/")
        self._token_path = token_path
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, request: JudgeRequest) -> JudgeAnswer:
        """Return a verdict or why there is none, within the request's time and MARGIN_SECONDS.

        A judge that is replaced by another one while it answers stops no run: where nobody has answered, the question
        is put again as long as it has time.
        """
        loop = asyncio.get_running_loop()
        until, tokens = loop.time() + request.timeout_seconds, 0
        for pause in (*RETRY_PAUSES, math.inf):
            left = max(1, math.ceil(until - loop.time()))
            answer = await self._ask_once(request.model_copy(update={"timeout_seconds": left}))
            tokens += answer.tokens
            if not isinstance(answer, _Unanswered) or loop.time() + pause >= until:
                break
            await asyncio.sleep(pause)
        if isinstance(answer, JudgeFailure):
            return JudgeFailure(type=answer.type, message=answer.message, tokens=tokens)
        return answer.model_copy(update={"tokens": tokens})

    async def _ask_once(self, request: JudgeRequest) -> JudgeAnswer:
        body = request.model_dump_json(by_alias=True, exclude_none=True).encode()
        answered = await self._exchange("POST", VERDICTS_PATH, body, request.timeout_seconds + MARGIN_SECONDS)
        if isinstance(answered, JudgeFailure):
            return answered
        try:
            return parse_answer(answered)
        except ValueError:
            # It was asked, and nobody can say what that took: no tokenizer makes more tokens than bytes.
            return _failure("BadAnswer", f"{self._url} gave an answer that is neither verdict nor failure", len(body))

    async def models(self) -> frozenset[str] | JudgeFailure:
        """Return the names of the platform's table, or why nobody says, within MODELS_SECONDS."""
        answered = await self._exchange("GET", MODELS_PATH, None, MODELS_SECONDS)
        if isinstance(answered, JudgeFailure):
            return answered
        models = answered.get("models")
        if not isinstance(models, list) or not all(isinstance(name, str) for name in models):
            return _failure("BadAnswer", f"{self._url}{MODELS_PATH} gave an answer that lists no models")
        return frozenset(models)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _exchange(
        self, method: str, path: str, body: bytes | None, seconds: float
    ) -> dict[str, Any] | JudgeFailure:
        """Return the JSON object of an answer of status 200, or why there is none."""
        headers = self._headers()
        if isinstance(headers, JudgeFailure):
            return headers
        tokens = len(body or b"")  # what may be charged once the question has left
        try:
            async with (
                asyncio.timeout(seconds),
                self._open().request(
                    method, f"{self._url}{path}", data=body, headers=headers, allow_redirects=False
                ) as reply,
            ):
                raw = await _read(reply)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            return _unanswered(f"{self._url} cannot be reached: {error}")
        except TimeoutError:
            return _failure("Timeout", f"{self._url} gave no answer within {seconds:g} s", tokens)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            named = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return _unanswered(f"{self._url} gave no answer: {named}", tokens)
        return _understand(self._url, reply.status, raw, tokens)

    def _headers(self) -> Mapping[str, str] | JudgeFailure:
        try:
            token = self._token_path.read_text("ascii").strip()
        except (OSError, ValueError) as error:
            return _failure("Unavailable", f"the judge's token {self._token_path} cannot be read: {error}")
        if not token.isprintable():
            return _failure("Unavailable", f"the judge's token {self._token_path} cannot be sent: it has several lines")
        return {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Accept": "application/json"}

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTION_LIMIT),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                headers={"User-Agent": "pilothouse-operator"},
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def open_judge(url: str, token_path: Path) -> HttpJudge | None:
    """Return the judge of the installation, None where it has none. Needs no event loop."""
    return HttpJudge(url, token_path) if url else None


async def _read(reply: aiohttp.ClientResponse) -> bytes | None:
    """Return the body, None where it is larger than MAX_ANSWER_BYTES."""
    chunks, size = [], 0
    async for chunk in reply.content.iter_any():
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def _understand(url: str, status: int, raw: bytes | None, tokens: int) -> dict[str, Any] | JudgeFailure:
    if raw is None:
        return _failure("BadAnswer", f"{url} answered with more than {MAX_ANSWER_BYTES:,} bytes", tokens)
    try:
        answered = json.loads(raw)
    except (ValueError, RecursionError):
        answered = None
    if status == 200 and isinstance(answered, dict):
        return answered
    if status == 200:
        return _failure("BadAnswer", f"{url} answered with {len(raw)} bytes that are no JSON object", tokens)
    try:
        stated = parse_answer(answered)
    except ValueError:
        stated = None
    if status == 503 and isinstance(stated, JudgeFailure):
        return _unanswered(stated.message)
    if isinstance(stated, JudgeFailure):
        return stated
    return _failure("Unavailable", f"{url} answered with status {status}")


def _failure(kind: JudgeFailureType, message: str, tokens: int = 0) -> JudgeFailure:
    return JudgeFailure(type=kind, message=_shown(message), tokens=tokens)


def _unanswered(message: str, tokens: int = 0) -> JudgeFailure:
    return _Unanswered(type="Unavailable", message=_shown(message), tokens=tokens)


def _shown(message: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in message).split())[:MAX_FAILURE_CHARS]
