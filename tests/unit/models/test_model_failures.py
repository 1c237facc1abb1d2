"""What an endpoint's refusal means, and what of it is shown."""

import pytest

from pilothouse_api.structs import ModelEndpoint
from pilothouse_engine.ports import FailureKind, Message, ModelRequest, RequestedCall
from pilothouse_runner.adapters.models.failures import (
    Problem,
    failure_kind,
    may_be_charged,
    retry_after,
    stated_problem,
)
from pilothouse_runner.adapters.models.redaction import MAX_EXCERPT_CHARS, Redaction, plain, shortened

# Words of real endpoints.
TOO_LONG = [
    (400, "context_length_exceeded", "whatever"),
    (400, "", "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."),
    (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
    (400, "", "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
    (
        400,
        "INVALID_ARGUMENT",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    ),
    (400, "", "Input is too long for requested model."),
    (400, "exceed_context_size_error", "the request exceeds the available context size, try increasing it"),
    (422, "", "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096"),
    (400, "", "This model's maximum prompt length is 131072 but the request contains 140000 tokens."),
    (400, "", "Please reduce the length of the messages or completion."),
    (413, "", ""),
    (500, "", "the prompt is too long for this model: maximum context length is 2048"),
    (None, "context_length_exceeded", ""),
]
NOT_TOO_LONG = [
    (400, "", "max_tokens is too large: 99999. This model supports at most 16384 completion tokens."),
    (400, "string_below_min_length", "messages is too short"),
    (400, "", "Unsupported parameter: 'max_tokens' is not supported with this model."),
    (429, "rate_limit_exceeded", "Request too large on tokens per min (TPM): maximum context length"),
]


@pytest.mark.parametrize(("status", "code", "message"), TOO_LONG)
def test_a_prompt_that_is_too_long_is_known_by_code_or_words(status: int | None, code: str, message: str) -> None:
    assert failure_kind(Problem(status, code, message)) == "ContextWindowExceeded"


@pytest.mark.parametrize(("status", "code", "message"), NOT_TOO_LONG)
def test_other_limits_are_no_context_window(status: int, code: str, message: str) -> None:
    assert failure_kind(Problem(status, code, message)) != "ContextWindowExceeded"


@pytest.mark.parametrize(
    ("problem", "want"),
    [
        (Problem(400), "InvalidRequest"),
        (Problem(401), "Authentication"),
        (Problem(402), "InvalidRequest"),
        (Problem(403), "Authentication"),
        (Problem(403, message="Your input was flagged"), "Refused"),
        (Problem(404), "InvalidRequest"),
        (Problem(408), "RateLimited"),
        (Problem(409), "RateLimited"),
        (Problem(422), "InvalidRequest"),
        (Problem(425), "RateLimited"),
        (Problem(429, "insufficient_quota"), "RateLimited"),
        (Problem(451), "Refused"),
        (Problem(400, "ResponsibleAIPolicyViolation"), "Refused"),
        (Problem(400, "content_filter"), "Refused"),
        (Problem(500), "ServerError"),
        (Problem(502), "ServerError"),
        (Problem(529, "overloaded_error"), "ServerError"),
        (Problem(599), "ServerError"),
        (Problem(307), "InvalidRequest"),
        (Problem(None, "rate_limit_exceeded"), "RateLimited"),
        (Problem(None, "insufficient_quota"), "RateLimited"),
        (Problem(None, "overloaded_error"), "ServerError"),
        (Problem(None, "invalid_api_key"), "Authentication"),
        (Problem(None, "invalid_request_error"), "InvalidRequest"),
        (Problem(None, "", "anything at all"), "Garbage"),
    ],
)
def test_each_status_and_code_has_its_kind(problem: Problem, want: FailureKind) -> None:
    assert failure_kind(problem) == want


@pytest.mark.parametrize(
    ("body", "status", "want"),
    [
        ({"error": {"message": "m", "type": "t", "code": "c"}}, 400, Problem(400, "c t", "m")),
        ({"error": {"message": "m", "code": 429}}, None, Problem(429, "", "m")),
        ({"error": {"message": "m", "code": "502"}}, None, Problem(502, "", "m")),
        ({"error": {"message": "m", "code": 400}}, 500, Problem(500, "", "m")),
        (
            {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "m"}},
            400,
            Problem(400, "INVALID_ARGUMENT", "m"),
        ),
        ({"error": {"message": "m", "metadata": {"raw": "upstream"}}}, 502, Problem(502, "", "m: upstream")),
        ({"error": "words"}, None, Problem(None, "", "words")),
        ({"detail": "words"}, 422, Problem(422, "", "words")),
        ({"detail": [{"loc": ["a"]}]}, 422, Problem(422, "", "[{'loc': ['a']}]")),
        ({"object": "error", "message": "m", "code": 40303}, None, Problem(None, "", "m")),
        ({"error": {}}, None, None),
        ({"error": {"message": "", "code": None}}, None, None),
        ({"error": None}, None, None),
        ({"message": "fine"}, None, None),
        ([], 500, None),
        (None, 500, None),
    ],
)
def test_errors_are_read_in_every_usual_form(body: object, status: int | None, want: Problem | None) -> None:
    assert stated_problem(body, status) == want


def test_hostile_words_are_judged_in_no_time() -> None:
    problem = stated_problem({"error": {"message": "exceeds the " * 700_000, "code": "a" * 10_000_000}}, 400)
    assert problem is not None
    assert len(problem.message) + len(problem.code) < 2200
    assert failure_kind(problem) == "InvalidRequest"


@pytest.mark.parametrize(
    ("headers", "want"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "1e99"}, 3600.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 2026 00:01:00 GMT", "date": "Thu, 01 Jan 2026 00:00:30 GMT"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 2026 00:01:00 GMT", "date": "Thu, 01 Jan 2026 00:02:00 GMT"}, 0.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "Thu, 99 Jan 2026 00:00:00 GMT"}, None),
    ],
)
def test_retry_after_is_read_in_every_form_and_bounded(headers: dict[str, str], want: float | None) -> None:
    assert retry_after(headers) == want


@pytest.mark.parametrize(
    ("kind", "status", "want"),
    [
        ("Timeout", None, True),
        ("Garbage", 200, True),
        ("Refused", 200, True),
        ("Refused", 400, False),
        ("ServerError", 200, True),
        ("ServerError", 500, False),
        ("ServerError", 504, True),
        ("RateLimited", 429, False),
        ("RateLimited", 200, False),
        ("Authentication", 401, False),
    ],
)
def test_what_the_provider_may_have_worked_on_may_be_charged(kind: FailureKind, status: int | None, want: bool) -> None:
    assert may_be_charged(kind, status) is want


# ---------------------------------------------------------------- what is shown

KEY = "sk-very-secret-key-0123456789"
PROMPT = "The customer's secret\naccount number is 4711-0815."
ENDPOINT = ModelEndpoint(name="openai/m")
REDACTION = Redaction(
    KEY,
    ModelRequest(
        ENDPOINT,
        (
            Message("user", PROMPT),
            Message("assistant", "", (RequestedCall("c", "t", '{"pin": "1234"}'),)),
            Message("user", "ok"),
        ),
    ),
)


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ("plain words", "plain words"),
        (f"bad key {KEY}!", "bad key [key]!"),
        ("bad key sk-very-secret…", "bad key [key]…"),
        ("it ends in secret-key-01234", "it ends in [key]"),
        ("Incorrect API key provided: sk-abcd********wxyz.", "Incorrect API key provided: [key]"),
        ("got Bearer abcdef", "got [key]"),
        ("you said: The customer's secret account number is 4711-0815. Really?", "you said: [prompt] Really?"),
        ("…customer's secret\taccount number…", "…[prompt]…"),
        ('bad arguments {"pin": "1234"}', "bad arguments[prompt]"),
        ("ok is too short to be a secret", "ok is too short to be a secret"),
        ("a\x1b[31mred\x00\u202e\nline\ud800", "a [31mred line"),
        ("", ""),
    ],
)
def test_an_excerpt_shows_neither_key_nor_prompt_nor_control_characters(said: str, want: str) -> None:
    assert REDACTION.excerpt(said).replace(" [prompt]", "[prompt]") == want.replace(" [prompt]", "[prompt]")


def test_an_excerpt_of_a_flood_is_short_and_quick() -> None:
    redaction = Redaction(KEY, ModelRequest(ENDPOINT, (Message("user", "ab " * 300_000),)))
    assert len(redaction.excerpt("xyz " * 2_000_000)) <= MAX_EXCERPT_CHARS


def test_without_a_key_nothing_is_masked_as_one() -> None:
    assert Redaction("", ModelRequest(ENDPOINT, ())).excerpt("plain words") == "plain words"


def test_messages_keep_the_limit_of_the_port() -> None:
    assert (shortened("a" * 500), shortened("a" * 501)) == ("a" * 500, "a" * 499 + "…")
    assert plain("a\r\n\tb\u2028c") == "a b c"
