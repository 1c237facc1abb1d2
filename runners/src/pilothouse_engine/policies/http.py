"""Rules that ask an endpoint in OPA's shape. Whatever is not a clear answer denies."""

import json
from typing import Any

from pilothouse_api.structs import PolicyHttp
from pilothouse_engine.policies.questions import Question, build_input
from pilothouse_engine.policies.verdicts import STRICTNESS, Verdict
from pilothouse_engine.ports import Http, HttpFailure, HttpRequest
from pilothouse_engine.strict_json import JsonError, parse_json, printable

MAX_ANSWER_BYTES = 65_536
MAX_QUESTION_BYTES = 1_048_576
MAX_SECONDS = 5.0
MAX_MESSAGE_CHARS = 500


class EndpointFailed(Exception):
    """An endpoint gave no clear answer; the message says why, and holds nothing of the question."""


async def ask_endpoint(endpoint: PolicyHttp, question: Question, http: Http) -> tuple[Verdict, str]:
    """Return the endpoint's verdict and message; raises EndpointFailed."""
    got = await http.send(_build_request(endpoint, question))
    if isinstance(got, HttpFailure):
        raise EndpointFailed(f"the endpoint did not answer: {printable(got.message, 200)}")
    if got.status != 200:
        raise EndpointFailed(f"the endpoint answered with status {got.status}, not 200")
    if len(got.body) > MAX_ANSWER_BYTES:
        raise EndpointFailed(f"the endpoint answered with {len(got.body)} bytes; the limit is {MAX_ANSWER_BYTES}")
    try:
        answer = parse_json(got.body.decode())
    except (JsonError, UnicodeDecodeError):
        raise EndpointFailed("the endpoint's answer is not valid JSON") from None
    return read_answer(answer, question)


def _build_request(endpoint: PolicyHttp, question: Question) -> HttpRequest:
    try:
        body = json.dumps({"input": build_input(question)}, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise EndpointFailed(f"the question cannot be written as JSON ({type(error).__name__})") from None
    if len(body) > MAX_QUESTION_BYTES:
        raise EndpointFailed(f"the question has {len(body)} bytes; the limit is {MAX_QUESTION_BYTES}")
    return HttpRequest(
        "POST",
        endpoint.url,
        headers=(("Content-Type", "application/json"), ("Accept", "application/json")),
        body=body,
        timeout=min(float(endpoint.timeout_seconds), MAX_SECONDS),
        max_bytes=MAX_ANSWER_BYTES,
    )


def read_answer(answer: Any, question: Question) -> tuple[Verdict, str]:
    """Return what `{"result": true | false | {"verdict", "message"}}` says; raises EndpointFailed for anything else."""
    if not isinstance(answer, dict) or "result" not in answer:
        raise EndpointFailed("the endpoint's answer has no result: the decision is undefined")
    result = answer["result"]
    if isinstance(result, bool):
        return ("Allow" if result else "Deny"), ""
    if not isinstance(result, dict):
        raise EndpointFailed("result is neither true, false nor an object with a verdict")
    verdict = result.get("verdict")
    if not isinstance(verdict, str) or verdict not in STRICTNESS:
        raise EndpointFailed("result.verdict is none of Allow, Deny, RequireApproval")
    if question.at == "ModelCall" and verdict == "RequireApproval":
        raise EndpointFailed("result.verdict is RequireApproval; a ModelCall takes Allow and Deny only")
    message = result.get("message")
    shown = printable(" ".join(message.split()), MAX_MESSAGE_CHARS) if isinstance(message, str) else ""
    return verdict, shown
