"""APICall: one HTTP call, retried only where it may be repeated."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pilothouse_api.signals import DEFAULT
from pilothouse_api.structs import APICall, Retry
from pilothouse_api.templates import MissingPath, lookup
from pilothouse_engine.ports import HttpFailure, HttpRequest, HttpResponse, Ports, SecretUnavailable
from pilothouse_engine.steps.api_request import RequestProblem, build_request, is_json_type, origin_of
from pilothouse_engine.steps.contract import StepCall, StepDone, StepEnd, StepUnknown
from pilothouse_engine.steps.outcomes import failed
from pilothouse_engine.strict_json import JsonError, parse_json, printable
from pilothouse_engine.values import Value

RETRIED_STATUSES = frozenset({408, 425, 429, *range(500, 600)})
STATUS_KEY = "_api_status_code"

_FAILURE_TYPES = {
    "Timeout": "Timeout",
    "Connection": "Connection",
    "TooLarge": "ResponseTooLarge",
    "Blocked": "AddressBlocked",
    "Invalid": "InvalidRequest",
}
_LEGACY_CHARSET = re.compile(r"charset=[\"']?(iso-8859-1|latin-?1|windows-1252|us-ascii)", re.IGNORECASE)


class Answer(Value):
    """What one attempt gave."""

    request: HttpRequest
    got: HttpResponse | HttpFailure

    @property
    def target(self) -> str:
        """Method and origin, what may be shown of the request."""
        return f"{self.request.method} {origin_of(self.request.url)}"


async def execute_api_call(call: StepCall, ports: Ports) -> StepEnd:
    """Return what the call gave; its own timeout is an error, or unknown where it may have had an effect."""
    params = call.params
    assert isinstance(params, APICall)
    retry = params.retry if call.may_repeat else None
    started = ports.clock.monotonic()
    attempt = 1
    while True:
        left = retry.deadline_seconds - (ports.clock.monotonic() - started) if retry else float("inf")
        try:
            request = build_request(call, params, ports.secrets, min(float(params.timeout_seconds), left))
        except RequestProblem as problem:
            return failed(problem.error_type, problem.message)
        except SecretUnavailable as unavailable:
            return failed("SecretUnavailable", str(unavailable))
        answer = Answer(request, await ports.http.send(request))
        left = retry.deadline_seconds - (ports.clock.monotonic() - started) if retry else 0.0
        wait = plan_retry(retry, attempt, answer.got, left, ports.clock.now()) if retry else None
        if wait is None:
            return _end_of(call, params, answer)
        await ports.clock.sleep(wait)
        attempt += 1


def plan_retry(retry: Retry, attempt: int, got: HttpResponse | HttpFailure, left: float, now: datetime) -> float | None:
    """Return how long to wait before the next attempt, or None when there is none.

    `attempt` counts the ones that were made, `left` is what remains of the total deadline, in seconds: an attempt
    that could only begin after it is not waited for.
    """
    if attempt >= retry.attempts or not _is_retried(retry, got):
        return None
    backoff = min(retry.backoff_seconds * 2 ** (attempt - 1), retry.max_backoff_seconds)
    asked = _retry_after(got, now) if isinstance(got, HttpResponse) else None
    wait = float(backoff) if asked is None else max(asked, 0.0)
    return wait if wait < left else None


def _is_retried(retry: Retry, got: HttpResponse | HttpFailure) -> bool:
    if isinstance(got, HttpResponse):
        return "Error" in retry.causes and got.status in RETRIED_STATUSES
    if got.kind == "Timeout":
        return "Timeout" in retry.causes
    return got.kind == "Connection" and "Error" in retry.causes


def _retry_after(response: HttpResponse, now: datetime) -> float | None:
    text = _header(response, "retry-after").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    from email.utils import parsedate_to_datetime  # 15 modules for what few servers say

    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now).total_seconds()


# ---------------------------------------------------------------- the end


def _end_of(call: StepCall, params: APICall, answer: Answer) -> StepEnd:
    got = answer.got
    if isinstance(got, HttpFailure):
        message = f"{answer.target}: {got.message}"
        if got.sent and not call.may_repeat:
            return StepUnknown(printable(message, 500))
        return failed(_FAILURE_TYPES[got.kind], message)
    body = decode_body(got)
    status: Mapping[str, Any] = {STATUS_KEY: got.status}
    if not 200 <= got.status < 300:
        return failed("HttpStatus", _say_status(answer.target, got.status), output=body, engine_writes=status)
    writes: dict[str, Any] = {params.output or f"{call.step_id}_result": body}
    try:
        writes |= {part.as_: _extract(body, part.path) for part in params.extract}
    except MissingPath as missing:
        message = f"{answer.target} answered {got.status}, but apiCall.extract finds no {missing.path} in the body"
        return failed("MissingContext", message, output=body, engine_writes=status)
    return StepDone(signal=DEFAULT, writes=writes, output=body, engine_writes=status)


def _say_status(target: str, status: int) -> str:
    hint = "; redirects to another host are not followed" if 300 <= status < 400 else ""
    return f"{target} answered {status}{hint}"


def _extract(body: Any, path: str) -> Any:
    try:
        return lookup(
            {"": body}, f".{path}"
        )  # below an empty key, so that a body may be a list and a path begin with 0
    except MissingPath:
        raise MissingPath(path) from None


def decode_body(response: HttpResponse) -> Any:
    """Return a body as JSON where it is JSON, else as text, null where there is none; never fails."""
    if not response.body:
        return None
    media_type = _header(response, "content-type")
    encoding = "cp1252" if _LEGACY_CHARSET.search(media_type) else "utf-8"
    text = response.body.decode(encoding, "replace").removeprefix("\ufeff")
    if is_json_type(media_type) or text.lstrip()[:1] in ("{", "["):
        try:
            return parse_json(text)
        except JsonError:
            return text
    return text


def _header(response: HttpResponse, name: str) -> str:
    for key, value in response.headers:
        if key.lower() == name:
            return value
    return ""
