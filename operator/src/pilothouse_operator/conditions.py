"""Conditions as data: drafts are decided anew each time, and merged with what was reported before."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pilothouse_api.v1alpha1.common import Condition

Truth = Literal["True", "False", "Unknown"]
MAX_MESSAGE_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Draft:
    """One condition as it should be now."""

    type: str
    status: Truth
    reason: str
    message: str


def merge_conditions(
    old: Sequence[Condition], drafts: Iterable[Draft], observed_generation: int, now: datetime
) -> list[Condition]:
    """Return the conditions to report; `lastTransitionTime` moves only when the status changes."""
    before = {condition.type: condition for condition in old}
    merged = []
    for draft in drafts:
        known = before.get(draft.type)
        since = known.last_transition_time if known and known.status == draft.status else format_time(now)
        merged.append(
            Condition(
                type=draft.type,
                status=draft.status,
                reason=draft.reason,
                message=cut(draft.message),
                observed_generation=observed_generation,
                last_transition_time=since,
            )
        )
    return merged


def find_condition(conditions: Sequence[Condition], kind: str) -> Condition | None:
    """Return the condition of a type, or None."""
    return next((condition for condition in conditions if condition.type == kind), None)


def is_true(conditions: Sequence[Condition], kind: str) -> bool:
    """Tell whether the condition of a type is there and True."""
    found = find_condition(conditions, kind)
    return found is not None and found.status == "True"


def format_time(moment: datetime) -> str:
    """Return RFC 3339 in UTC, to the second, as Kubernetes writes its own times."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_exact_time(moment: datetime) -> str:
    """Return RFC 3339 in UTC, to the microsecond, where two moments of a second must differ."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str | None) -> datetime | None:
    """Return the moment of an RFC 3339 text, or None for no text or one that is no time."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def cut(message: str) -> str:
    """Return a message that fits; a condition's message is never empty."""
    text = message.strip() or "no details"
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[: MAX_MESSAGE_CHARS - 1]}…"
