"""What every model adapter does to a reply, whatever the provider: ids that are unique, arguments that were cut."""

import json
import re
from collections.abc import Iterable, Sequence

from pilothouse_engine.ports import ModelRequest, RequestedCall

_LITERALS = ("true", "false", "null", "-Infinity")
_NUMBER_CUT = re.compile(r"\.|[eE][+-]?")
_LENIENT = json.JSONDecoder(strict=False)


def ends_early(arguments: str) -> bool:
    """Return whether the text is JSON that was cut: invalid, but only because it stops too soon."""
    text = arguments.strip()
    if not text:
        return False
    try:
        _LENIENT.decode(text)
    except json.JSONDecodeError as error:
        return _stops_too_soon(error, text)
    except (RecursionError, ValueError):
        return False
    return False


def _stops_too_soon(error: json.JSONDecodeError, text: str) -> bool:
    if error.pos >= len(text) or error.msg.startswith("Unterminated string"):
        return True
    rest = text[error.pos :]
    if error.msg.startswith("Invalid \\u") or error.msg.startswith("Invalid \\escape"):
        return len(rest) < len("\\uXXXX") and '"' not in rest
    if error.msg.startswith("Expecting ','"):
        return _NUMBER_CUT.fullmatch(rest) is not None
    return error.msg.startswith("Expecting value") and any(literal.startswith(rest) for literal in _LITERALS)


def with_unique_ids(calls: Sequence[RequestedCall], request: ModelRequest) -> tuple[RequestedCall, ...]:
    """Return the calls with ids that are neither empty nor used before, in this reply, in the prompt or left out of it.

    Some providers number every reply from zero: a repeated id would tie a result to the wrong call.
    """
    if not calls:
        return ()
    is_given = any(call.provider_id for call in calls)
    # Ids that are made here hold the turn: only given ones can have stood in the prompt before.
    taken = {call.provider_id for message in request.messages for call in message.calls} if is_given else set()
    taken.update(request.left_out)
    unique: list[RequestedCall] = []
    for index, call in enumerate(calls):
        provider_id = call.provider_id
        if not provider_id or provider_id in taken:
            provider_id = _free_id(f"call_t{request.turn}_{index}", taken)
        taken.add(provider_id)
        unique.append(RequestedCall(provider_id=provider_id, name=call.name, arguments=call.arguments))
    return tuple(unique)


def _free_id(wish: str, taken: Iterable[str]) -> str:
    suffix, candidate = 1, wish
    while candidate in taken:
        suffix += 1
        candidate = f"{wish}_{suffix}"
    return candidate
