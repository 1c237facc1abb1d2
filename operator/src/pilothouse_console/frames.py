"""Progress frames as streams of events hand them on: each with an id, in an order, none twice. Pure.

With Redis a frame has the id that Redis gave it, and a viewer who comes back goes on behind the last one seen. Without,
frames come from the newest 20 in the run's status and are named by their content.
"""

import json
import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilothouse_api.names import short_hash

Order = tuple[int, int]
"""Where a frame stands among those of its run."""
START: Order = (0, 0)
MOST_KEPT = 256
"""Frames of a run that are kept for those who follow it."""
MOST_KEPT_LENGTH = 256 * 1024
"""Characters of them, four times what as many usual ones have."""
_STREAM_ID = re.compile(r"^([0-9]{1,18})-([0-9]{1,18})$")


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: its id for viewers, its place, and its JSON."""

    id: str
    order: Order
    text: str


def parse_stream_id(text: str) -> Order | None:
    """Return the place of a stream id of Redis, None for what is none."""
    found = _STREAM_ID.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None


def format_stream_id(order: Order) -> str:
    """Return the id of a place in a stream."""
    return f"{order[0]}-{order[1]}"


class Ring:
    """The newest frames of one run; it knows all that came after `floor`."""

    def __init__(self, floor: Order = START) -> None:
        self.floor = floor
        self._frames: deque[Frame] = deque()
        self._length = 0

    @property
    def newest(self) -> Order:
        """The place of the newest frame."""
        return self._frames[-1].order if self._frames else self.floor

    def extend(self, frames: Sequence[Frame]) -> None:
        """Add frames that are newer than all others."""
        for frame in frames:
            self._frames.append(frame)
            self._length += len(frame.text)
            while len(self._frames) > MOST_KEPT or self._length > MOST_KEPT_LENGTH:
                oldest = self._frames.popleft()
                self._length -= len(oldest.text)
                self.floor = oldest.order

    def after(self, order: Order) -> list[Frame]:
        """Return the frames behind a place that is not below the floor."""
        return [frame for frame in self._frames if frame.order > order]

    def place_of(self, frame_id: str) -> Order | None:
        """Return where a frame stands, None where it is not kept."""
        return next((frame.order for frame in self._frames if frame.id == frame_id), None)


class TraceFrames:
    """Tells which frames of a run's status are new. `gap` is set where more came at once than the status keeps."""

    def __init__(self) -> None:
        self._trace: list[Mapping[str, Any]] = []
        self._count = 0

    def take(self, trace: Sequence[Mapping[str, Any]]) -> list[Frame]:
        """Return the frames of a newer status that were not in the one before."""
        if not trace:  # left out to make room: nothing is known of it
            return []
        new = trace[_overlap(self._trace, trace) :]
        named = list(_name(trace))[len(trace) - len(new) :]
        self._trace = list(trace)
        frames = [Frame(name, (0, self._count + n), dump(frame)) for n, (name, frame) in enumerate(named, 1)]
        self._count += len(frames)
        return frames


def _overlap(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> int:
    """Return how many frames at the beginning of a trace were the last ones of the one before."""
    longest = min(len(old), len(new))
    return next((size for size in range(longest, 0, -1) if list(old[-size:]) == list(new[:size])), 0)


def _name(trace: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    seen: Counter[str] = Counter()
    for frame in trace:
        text = json.dumps(frame, sort_keys=True)
        seen[text] += 1
        yield f"t{frame.get('turn', 0)}-{short_hash(text, 12)}-{seen[text]}", frame


def dump(value: Any) -> str:
    """Return JSON in one line."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def frame_text(raw: bytes) -> str:
    """Return a frame out of the stream in one line; one that is no JSON object, or too deep, is said to be lost."""
    try:
        frame = json.loads(raw)
    except (ValueError, RecursionError):
        return lost_frame("it is no JSON")
    try:
        return dump(frame) if isinstance(frame, dict) else lost_frame("it is no object")
    except RecursionError:
        return lost_frame("it is nested too deep")


def lost_frame(why: str) -> str:
    """Return what stands for frames that are not shown, as text."""
    return dump({"kind": "Lost", "turn": 0, "lost": why})
