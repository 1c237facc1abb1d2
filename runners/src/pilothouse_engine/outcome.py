"""The outcome contract: which signal a final answer means, and what it writes (engine.md §2)."""

import re
from collections.abc import Mapping
from typing import Any

from pilothouse_api.schemas import SchemaError, compile_schema
from pilothouse_api.signals import DEFAULT
from pilothouse_api.structs import AgentSpec, Outcome
from pilothouse_api.templates import MissingPath, lookup
from pilothouse_engine.strict_json import JsonError, parse_json, printable
from pilothouse_engine.values import Value

_FENCE = re.compile(r"^\s*```[A-Za-z0-9_-]*[ \t]*\n(.*?)\n?[ \t]*```\s*$", re.DOTALL)
_SHOWN_CHARS = 80


class Accepted(Value):
    """The answer is valid."""

    signal: str
    writes: Mapping[str, Any]


class Rejected(Value):
    """The answer cannot be used; `problem` tells the model why, in half a sentence."""

    problem: str


def judge_answer(agent: AgentSpec, step: str, text: str) -> Accepted | Rejected:
    """Judge the joined text of a final answer."""
    outcome = agent.outcome
    if agent.mode == "Completion" and outcome.format == "Text":
        return _judge_text(outcome, step, text)
    answer = _parse(strip_fence(text))
    if isinstance(answer, Rejected):
        needs_json = outcome.enum is not None or agent.mode == "Completion" or outcome.schema_ is not None
        return answer if needs_json else Accepted(DEFAULT, {write_key(outcome, step): text})
    return _judge_json(outcome, step, answer[0])


def write_key(outcome: Outcome, step: str) -> str:
    """Return the context key of the payload."""
    return outcome.write or f"{step}_result"


def strip_fence(text: str) -> str:
    """Return a text without the one markdown fence around it."""
    match = _FENCE.match(text)
    return match.group(1) if match else text.strip()


def _parse(text: str) -> tuple[Any] | Rejected:
    try:
        return (parse_json(text),)
    except JsonError as error:
        return Rejected(f"it is not valid JSON ({error})")


def _judge_json(outcome: Outcome, step: str, answer: Any) -> Accepted | Rejected:
    signal, payload = DEFAULT, answer
    if outcome.enum is not None:
        said = answer.get("outcome") if isinstance(answer, dict) else None
        if not isinstance(said, str) or said not in outcome.enum:
            shown = "missing" if said is None else printable(repr(said), _SHOWN_CHARS)
            return Rejected(f"outcome is {shown}, but it must be exactly one of {', '.join(outcome.enum)}")
        signal, payload = said, answer.get("result", answer)
    if problem := _schema_problem(outcome, payload):
        return Rejected(problem)
    writes = {write_key(outcome, step): payload}
    for key, path in (outcome.map or {}).items():
        try:
            writes[key] = lookup(answer if isinstance(answer, dict) else {}, path)
        except MissingPath:
            return Rejected(f"it has nothing at {path}")
    return Accepted(signal, writes)


def _schema_problem(outcome: Outcome, payload: Any) -> str | None:
    if outcome.schema_ is None:
        return None
    try:
        problems = compile_schema(outcome.schema_).problems(payload)
    except SchemaError as error:
        return f"outcome.schema is no JSON Schema ({error})"
    return "the result does not fit its schema: " + "; ".join(problems) if problems else None


def _judge_text(outcome: Outcome, step: str, text: str) -> Accepted | Rejected:
    stripped = text.strip()
    if outcome.enum is not None:
        if stripped not in outcome.enum:
            return Rejected(f"it must be exactly one of {', '.join(outcome.enum)}")
        return Accepted(stripped, {write_key(outcome, step): stripped})
    return Accepted(DEFAULT, {write_key(outcome, step): text})
