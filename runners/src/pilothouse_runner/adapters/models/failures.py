"""What an endpoint's refusal means: one ordered table from status, code and words to the port's kinds."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pilothouse_engine.ports import FailureKind
from pilothouse_engine.values import Value

MAX_RETRY_AFTER_SECONDS = 3600.0
MAX_PROBLEM_CHARS = 2000
"""Words beyond this are not judged: the patterns below are not linear in hostile text."""

_TOO_LONG_CODE = re.compile(r"context[-_ ]?(length|window|size)[-_ ]?exceed|exceed_context_size|prompt_too_long", re.I)
_TOO_LONG_WORDS = re.compile(
    r"max(imum)? (context|prompt) length|(prompt|input) too long|tokens in the prompt cannot exceed"
    r"|(context|token) (length|window|size|limit)s? (is |was |has been )?(only |exceeded|of )"
    r"|exceeds? the (\w+ )*(context|maximum number of (input )?tokens)"
    r"|exceeds? (\w+ )*context (length|window|size|limit)"
    r"|(prompt|input|request)( \w+)? (is|was) too long|too long for (the|this) (requested )?model"
    r"|reduce the length of (the|your) (messages|prompt|input)|tokens? \+ `?max_new_tokens`? must be"
    r"|larger than (the|its) (maximum )?context",
    re.I,
)
_REFUSED = re.compile(
    r"content[-_ ]?(filter|policy|management policy)|responsible ?ai|moderation|flagged|safety system|usage polic", re.I
)
_RATE = re.compile(r"rate[-_ ]?limit|too[-_ ]many[-_ ]requests|quota|throttl", re.I)
_SERVER = re.compile(r"overloaded|server[-_ ]?error|internal|unavailable|timeout|timed[-_ ]out|bad[-_ ]gateway", re.I)
_AUTHENTICATION = re.compile(r"authenticat|unauthori[sz]ed|permission|forbidden|api[-_ ]?key", re.I)
_INVALID = re.compile(r"invalid|not[-_ ]?found|bad[-_ ]?request|unsupported|unprocessable|billing|payment", re.I)

_MAY_BE_TOO_LONG = frozenset({None, 400, 404, 422, 500})
_MAY_BE_REFUSED = frozenset({None, 400, 403, 422})


class Problem(Value):
    """An error as an endpoint states it. `status` is None where HTTP said 200."""

    status: int | None
    code: str = ""
    message: str = ""


def failure_kind(problem: Problem) -> FailureKind:
    """Return the kind of a failure. `Garbage` where status and code name none."""
    status, named = problem.status, f"{problem.code} {problem.message}"
    is_too_long = _TOO_LONG_CODE.search(problem.code) or _TOO_LONG_WORDS.search(problem.message)
    # 413 says that the body is too large: for us that is the prompt, and a tighter one may pass.
    if status == 413 or (status in _MAY_BE_TOO_LONG and is_too_long):
        return "ContextWindowExceeded"
    if status == 451 or (status in _MAY_BE_REFUSED and _REFUSED.search(named)):
        return "Refused"
    return _kind_of_code(problem.code) if status is None else _kind_of_status(status)


def may_be_charged(kind: FailureKind, status: int | None) -> bool:
    """Return whether the provider may have worked, and may charge, for an attempt that failed with this answer.

    A gateway that gave up waiting says nothing about what the model behind it did; `status` is None or 200 for a
    reply that came as one.
    """
    if kind in ("Timeout", "Garbage"):
        return True
    if status in (None, 200):
        return kind in ("Refused", "ServerError")
    return status in (502, 504, 520, 522, 524)


def _kind_of_status(status: int) -> FailureKind:
    if status in (401, 403):
        return "Authentication"
    if status in (408, 409, 425, 429):
        return "RateLimited"
    return "ServerError" if status >= 500 else "InvalidRequest"


def _kind_of_code(code: str) -> FailureKind:
    table: tuple[tuple[re.Pattern[str], FailureKind], ...] = (
        (_RATE, "RateLimited"),
        (_SERVER, "ServerError"),
        (_AUTHENTICATION, "Authentication"),
        (_INVALID, "InvalidRequest"),
    )
    return next((kind for pattern, kind in table if pattern.search(code)), "Garbage")


def stated_problem(body: Any, status: int | None) -> Problem | None:
    """Read the error out of a JSON body in any of the usual forms; None where it states none."""
    if not isinstance(body, Mapping):
        return None
    error = body.get("error")
    if isinstance(error, str) and error:
        return Problem(status, _word(body.get("code")), error[:MAX_PROBLEM_CHARS])
    if isinstance(error, Mapping) and any(error.values()):  # some send an empty one beside a good reply
        return _problem_of(error, status)
    if body.get("object") == "error" or status is not None:
        return _problem_of(body, status)
    return None


def _problem_of(error: Mapping[str, Any], status: int | None) -> Problem:
    code = error.get("code")
    number = _as_status(code) or _as_status(error.get("status"))
    words = [_word(part) for part in (code, error.get("type"), error.get("status")) if not _as_status(part)]
    message = error.get("message") or error.get("detail") or error.get("msg") or ""
    metadata = error.get("metadata")
    if isinstance(metadata, Mapping) and isinstance(metadata.get("raw"), str):
        message = f"{message}: {metadata['raw']}"
    return Problem(
        status=status if status is not None else number,
        code=" ".join(dict.fromkeys(word for word in words if word)),
        message=(message if isinstance(message, str) else str(message))[:MAX_PROBLEM_CHARS],
    )


def _as_status(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599 else None


def _word(value: object) -> str:
    return value[:64] if isinstance(value, str) else ""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that an endpoint asks to wait, at most MAX_RETRY_AFTER_SECONDS; None where it does not say.

    `headers` has lower-case names. Dates are measured against the response's own Date, so no clock has to agree.
    """
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return _bounded(milliseconds / 1000)
    stated = headers.get("retry-after")
    if stated is None:
        return None
    if (seconds := _number(stated)) is not None:
        return _bounded(seconds)
    at, now = _date(stated), _date(headers.get("date")) or datetime.now(UTC)
    return None if at is None else _bounded((at - now).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


def _date(text: str | None) -> datetime | None:
    from email.utils import parsedate_to_datetime  # 15 modules for what few servers say

    try:
        value = parsedate_to_datetime(text or "")
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return value if value.tzinfo else value.replace(tzinfo=UTC)
