"""What executors share: errors in one form, signals that come from data, texts that are shown."""

from collections.abc import Mapping
from typing import Any

from pilothouse_api.signals import END, ERROR, RESERVED_EXITS
from pilothouse_engine.steps.contract import StepCall, StepDone
from pilothouse_engine.strict_json import printable

MAX_SIGNAL_CHARS = 63
MAX_MESSAGE_CHARS = 500


def failed(
    error_type: str, message: str, *, output: Any = None, engine_writes: Mapping[str, Any] | None = None
) -> StepDone:
    """Return the end of a step that failed; it writes nothing to the public context."""
    return StepDone(
        signal=ERROR,
        writes={},
        output=output,
        error_type=error_type,
        error_message=printable(message, MAX_MESSAGE_CHARS),
        engine_writes=engine_writes or {},
    )


def public_context(call: StepCall) -> dict[str, Any]:
    """Return the context without the engine's own keys."""
    return {key: value for key, value in call.context.items() if not key.startswith("_")}


def signal_problem(signal: Any) -> str | None:
    """Return why a value that came out of data or author code is no signal, or None where it is one.

    Reserved exits are refused but for `error`: data must not end a step with an exit that only the engine gives.
    """
    if not isinstance(signal, str):
        return f"a signal is a string, but this is {_kind_of(signal)}"
    if not signal or len(signal) > MAX_SIGNAL_CHARS or not signal.isprintable() or not _encodes(signal):
        return f"a signal has 1 to {MAX_SIGNAL_CHARS} printable characters, but this has {len(signal)}"
    if signal.startswith("_") or signal == END or signal in RESERVED_EXITS - {ERROR}:
        return f"{signal} is reserved and cannot be a signal of a step"
    return None


def _encodes(text: str) -> bool:
    return printable(text, len(text)) == text


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    return "an array" if isinstance(value, list) else "an object"
