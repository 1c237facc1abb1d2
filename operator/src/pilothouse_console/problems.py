"""Refusals: one sentence, and what to do next, as problem details (RFC 9457)."""

import json
from typing import Any

from pydantic import ConfigDict
from starlette.responses import JSONResponse

from pilothouse_console.summaries import Shown

PROBLEM_JSON = "application/problem+json"
TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Not accepted",
    410: "Gone",
    413: "Too large",
    422: "Not valid",
    429: "Too many",
    500: "Fault",
    503: "Not available",
}


class AnyJson(JSONResponse):
    """JSON that may hold what UTF-8 cannot, as halves of surrogate pairs out of a model's reply or a caller's body."""

    def render(self, content: Any) -> bytes:
        """Return the text, all of it ASCII."""
        return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode("ascii")


class WrongField(Shown):
    """One thing that is wrong in what was sent."""

    field: str
    """Where: `body.message`, `query.limit`."""
    problem: str
    """What is wrong."""


class ProblemDetails(Shown):
    """Why something was refused."""

    model_config = ConfigDict(extra="forbid")

    type: str = "about:blank"
    """Always about:blank: `status` and `detail` say all."""
    title: str
    """The kind of refusal."""
    status: int
    """The HTTP status."""
    detail: str
    """One sentence: what, the actual value, the limit."""
    next: str | None = None
    """What to do."""
    accepted: bool | None = None
    """False where a directive was refused: nothing was written."""
    errors: list[WrongField] | None = None
    """Field by field."""


class Problem(Exception):
    """A refusal; the request ends with it."""

    def __init__(
        self,
        status: int,
        detail: str,
        next_step: str | None = None,
        *,
        accepted: bool | None = None,
        errors: list[WrongField] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.details = ProblemDetails(
            title=TITLES[status], status=status, detail=detail, next=next_step, accepted=accepted, errors=errors
        )
        self.headers = headers or {}

    @staticmethod
    def of(details: ProblemDetails) -> "Problem":
        """Return the refusal with these details: another cluster's."""
        status = details.status if details.status in TITLES else 503
        return Problem(status, details.detail, details.next, accepted=details.accepted, errors=details.errors)

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.details.status

    def response(self) -> AnyJson:
        """Return the answer."""
        body = self.details.model_dump(by_alias=True, exclude_none=True)
        return AnyJson(body, self.status, self.headers, PROBLEM_JSON)


def not_found(namespace: str, name: str) -> Problem:
    """Return the answer for a run that is not there, and for one that the caller may not see: they look the same."""
    return Problem(
        404,
        f"there is no run {name[:253]!r} in namespace {namespace[:63]!r}, or you may not see it",
        f"kubectl auth can-i get agentruns.pilothouse.dev -n {namespace[:63]}",
    )


def away(what: str, seconds: float | None = None) -> Problem:
    """Return the answer where something that is needed does not answer at the moment."""
    return Problem(503, what, "try again", headers={"Retry-After": str(max(1, round(seconds or 2)))})
