"""What happened in a run: the runner's frames and the record of supervision, merged by time. Pure."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pilothouse_console.answers import TraceItem


def merge(frames: Iterable[Mapping[str, Any]], raw_supervision: Mapping[str, Any] | None) -> tuple[TraceItem, ...]:
    """Return both, oldest first; what happened at the same time stays in the order in which it was told."""
    raw_actions = (raw_supervision or {}).get("actions")
    actions = raw_actions if isinstance(raw_actions, list) else []
    items = [_item("Runner", str(frame.get("kind", "")), frame) for frame in frames]
    items += [_item("Supervision", str(one.get("action", "")), one) for one in actions if isinstance(one, dict)]
    return tuple(sorted(items, key=lambda item: _moment(item.time)))


def _item(source: Any, kind: str, raw: Mapping[str, Any]) -> TraceItem:
    turn = raw.get("turn")
    return TraceItem(
        time=str(raw.get("time", "")),
        turn=turn if isinstance(turn, int) else 0,
        source=source,
        kind=kind,
        detail=dict(raw),
    )


def _moment(text: str) -> datetime:
    """Return a time; what is none comes first: the runner writes its frames, and may write anything."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
