"""The form of chat completions on the wire: requests as providers take them, replies as they really come."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pilothouse_engine.ports import (
    FailureKind,
    Message,
    ModelFailure,
    ModelReply,
    ModelRequest,
    RequestedCall,
    ToolSpec,
    Usage,
)
from pilothouse_engine.replies import ends_early, with_unique_ids
from pilothouse_runner.adapters.models.failures import Problem, failure_kind, may_be_charged, stated_problem
from pilothouse_runner.adapters.models.redaction import Redaction, shortened

MAX_TOKENS_OF_A_CALL = 100_000_000
"""More than this in one call is no count."""

_LENGTH = re.compile(
    r"length|max[-_ ]?(output[-_ ]?|completion[-_ ]?)?tokens|token[-_ ]?limit|error[-_ ]?limit|context[-_ ]window", re.I
)
_REFUSED = re.compile(r"content[-_ ]?filter|safety|refusal|recitation|prohibited|blocklist|guardrail", re.I)

# What a provider wants back unchanged; the rest of a message is rebuilt, because many refuse fields they do not know.
_KEPT_OF_MESSAGE = ("reasoning_content", "reasoning_details", "thinking_blocks", "provider_specific_fields")
_KEPT_OF_CALL = ("extra_content", "provider_specific_fields")


# ---------------------------------------------------------------- requests


def encode_messages(request: ModelRequest) -> list[dict[str, Any]]:
    """Return the prompt as chat messages."""
    origin = origin_of(request)
    return [_encode_message(message, origin) for message in request.messages]


def _encode_message(message: Message, origin: str) -> dict[str, Any]:
    text = well_formed(message.text)
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.provider_id, "content": text}
    if message.role != "assistant":
        return {"role": message.role, "content": text}
    kept = _kept_part(message, origin)
    encoded: dict[str, Any] = {"role": "assistant", "content": text or (None if message.calls else "")}
    encoded |= kept.get("message", {})
    if message.calls:
        of_calls = kept.get("calls", {})
        encoded["tool_calls"] = [_encode_call(call) | of_calls.get(call.provider_id, {}) for call in message.calls]
    return encoded


def _kept_part(message: Message, origin: str) -> Mapping[str, Any]:
    """Return what `raw` keeps, if it is of this endpoint: another provider's signatures mean nothing here."""
    raw = message.raw
    return raw if raw is not None and raw.get("origin") == origin else {}


def _encode_call(call: RequestedCall) -> dict[str, Any]:
    # A name or arguments that the model made up must not make the provider refuse every later turn: what was wrong
    # with them is said in the call's result.
    name = re.sub(r"[^A-Za-z0-9_-]", "_", call.name)[:64] or "unnamed"
    arguments = well_formed(call.arguments) if _is_object(call.arguments) else "{}"
    return {"id": call.provider_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def encode_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return the tools as they are offered."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": well_formed(tool.description),
                "parameters": dict(tool.parameters),
            },
        }
        for tool in tools
    ]


def origin_of(request: ModelRequest) -> str:
    """Return what names the endpoint in `raw`."""
    endpoint = request.endpoint
    return f"{endpoint.name} {endpoint.api_base}" if endpoint.api_base else endpoint.name


def well_formed(text: str) -> str:
    """Return the text with lone surrogates replaced: no UTF-8 can carry them."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") if _has_surrogate(text) else text


def _has_surrogate(text: str) -> bool:
    return re.search("[\ud800-\udfff]", text) is not None


# ---------------------------------------------------------------- replies


def parse_reply(body: Any, request: ModelRequest, redaction: Redaction) -> ModelReply | ModelFailure:
    """Read a reply that came with status 200: what the model said, or the failure that it really is."""
    choice = _first_choice(body)
    problem = stated_problem(choice, None) or stated_problem(body, None)
    if problem is not None:
        return stated_failure(problem, redaction, "status 200 with an error")
    message = choice.get("message") if choice is not None else None
    if choice is None or not isinstance(message, Mapping):
        return ModelFailure("Garbage", "the reply has no choices[0].message", 200, sent=True)
    finish = choice.get("finish_reason")
    reason = finish if isinstance(finish, str) else ""
    text, refusal = _content(message)
    calls = with_unique_ids(_calls(message), request)
    if _REFUSED.search(reason) or (refusal and not text and not calls):
        message = f"the model refused to answer (finish_reason {redaction.excerpt(reason)[:80]})"
        return ModelFailure("Refused", message, 200, sent=True)
    is_cut = bool(_LENGTH.search(reason)) or any(ends_early(call.arguments) for call in calls)
    return ModelReply(
        text=text,
        calls=calls,
        finish="Length" if is_cut else "Stop",
        usage=_usage(body.get("usage"), has_output=bool(text or calls)),
        raw=_raw(message, calls, origin_of(request)),
    )


def stated_failure(problem: Problem, redaction: Redaction, what: str) -> ModelFailure:
    """Return the failure of a problem that the endpoint states; `what` names the endpoint and what it did."""
    code = redaction.excerpt(problem.code)[:80]
    said = redaction.excerpt(problem.message)
    kind = failure_kind(problem)
    parts = [what, f" ({code})" if code else "", f": {said}" if said else "", _ADVICE.get((kind, problem.status), "")]
    sent = may_be_charged(kind, problem.status)
    return ModelFailure(kind, shortened("".join(parts)), problem.status or 200, sent=sent)


_ADVICE: Mapping[tuple[FailureKind, int | None], str] = {
    ("Authentication", 401): "; see model.apiKeySecretRef",
    ("Authentication", 403): "; see model.apiKeySecretRef",
    ("InvalidRequest", 404): "; see model.name and model.apiBase",
}


def _first_choice(body: Any) -> Mapping[str, Any] | None:
    choices = body.get("choices") if isinstance(body, Mapping) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, Mapping) else None


def _content(message: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the joined text, and whether the model refused."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [_part_text(part) for part in parts]
    has_refusal_part = any(isinstance(part, Mapping) and part.get("type") == "refusal" for part in parts)
    return well_formed("".join(texts)), has_refusal_part or bool(message.get("refusal"))


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or part.get("type", "text") not in ("text", "output_text"):
        return ""  # thinking, images, refusals: no part of the answer
    text = part.get("text")
    return text if isinstance(text, str) else ""


def _calls(message: Mapping[str, Any]) -> list[RequestedCall]:
    listed = message.get("tool_calls")
    raw_calls = listed if isinstance(listed, list) else [listed]
    calls = [_call(raw) for raw in raw_calls if isinstance(raw, Mapping)]
    deprecated = message.get("function_call")
    if not calls and isinstance(deprecated, Mapping):
        calls = [_call({"function": deprecated})]
    return calls


def _call(raw: Mapping[str, Any]) -> RequestedCall:
    function = raw.get("function")
    function = function if isinstance(function, Mapping) else raw
    name, given_id = function.get("name"), raw.get("id")
    return RequestedCall(
        provider_id=well_formed(given_id)[:256] if isinstance(given_id, str) else "",
        name=well_formed(name) if isinstance(name, str) else "",
        arguments=_arguments(function.get("arguments")),
    )


def _arguments(value: Any) -> str:
    if isinstance(value, str):
        return well_formed(value) if value.strip() else "{}"
    return "{}" if value is None else well_formed(json.dumps(value, ensure_ascii=False))


def _usage(raw: Any, *, has_output: bool) -> Usage:
    if not isinstance(raw, Mapping):
        return Usage()
    used = _tokens(raw.get("prompt_tokens", raw.get("input_tokens"))) or None  # no prompt is empty
    given = _tokens(raw.get("completion_tokens", raw.get("output_tokens")))
    if given == 0 and (has_output or used is None):
        given = None
    total = _tokens(raw.get("total_tokens"))
    if used is not None and given is not None and total is not None:
        given = max(given, total - used)  # some leave reasoning out of the one and count it in the other
    return Usage(input=used, output=given)


def _tokens(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_TOKENS_OF_A_CALL:
        return None
    return value


def _raw(message: Mapping[str, Any], calls: Sequence[RequestedCall], origin: str) -> dict[str, Any] | None:
    """Keep what belongs to a reply that calls tools and cannot be rebuilt: thinking, signatures."""
    if not calls:
        return None
    kept = {key: message[key] for key in _KEPT_OF_MESSAGE if message.get(key)}
    listed = message.get("tool_calls")
    raw_calls = [raw for raw in listed if isinstance(raw, Mapping)] if isinstance(listed, list) else []
    of_calls = {
        call.provider_id: {key: raw[key] for key in _KEPT_OF_CALL if raw.get(key)}
        for call, raw in zip(calls, raw_calls, strict=False)
    }
    of_calls = {provider_id: extra for provider_id, extra in of_calls.items() if extra}
    if not kept and not of_calls:
        return None
    return {"origin": origin, "message": kept, "calls": of_calls}
