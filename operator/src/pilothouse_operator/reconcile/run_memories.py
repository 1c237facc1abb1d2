"""What this process remembers of runs, because no object says it: lost with the process, and then learnt anew."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pilothouse_api.v1alpha1 import AgentRun
from pilothouse_operator.runs.attempts import DISRUPTION_BACKOFF
from pilothouse_operator.runs.directives import pending_directives
from pilothouse_operator.runs.view import Obstacle, RunView, Seen
from pilothouse_operator.watching.cache import Key

FIRST_REFUSAL = timedelta(seconds=2)
LONGEST_REFUSAL = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server refused the pod: why, and when to try again."""

    obstacle: Obstacle
    retry: datetime
    pause: timedelta


@dataclass(frozen=True, slots=True)
class Made:
    """How often the pod of an attempt was made, none of which began, and when it may be made again."""

    attempt: int
    times: int
    again: datetime


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of one run."""

    uid: str = ""
    seen: Seen = field(default_factory=Seen)
    generation: int = 0
    refusal: Refusal | None = None
    made: Made | None = None

    def obstacle(self) -> Obstacle | None:
        """Return why the pod was refused last, None where it was not."""
        return self.refusal.obstacle if self.refusal else None

    def next_try(self, attempt: int, now: datetime) -> datetime | None:
        """Return when the pod of an attempt may be made; None where it may be now."""
        if self.refusal is not None and now < self.refusal.retry:
            return self.refusal.retry
        if self.made is not None and self.made.attempt == attempt and now < self.made.again:
            return self.made.again
        return None


class RunMemories:
    """Memories by the key of their run."""

    def __init__(self) -> None:
        self._memories: dict[Key, Memory] = {}

    def recall(self, run: AgentRun) -> Memory:
        """Return what is remembered of this very run: another one may have had its name."""
        uid = run.metadata.uid or ""
        memory = self._memories.get(_key_of(run))
        return memory if memory is not None and memory.uid == uid else Memory(uid)

    def forget(self, key: Key) -> Memory | None:
        """Drop what is remembered under a key, and return it."""
        return self._memories.pop(key, None)

    def note_seen(self, view: RunView) -> Seen:
        """Return when things were first seen, and remember it."""
        generation = view.run.metadata.generation or 0
        memory = self.recall(view.run)
        before = memory.seen if memory.generation == generation else replace(memory.seen, directive=None)
        seen = Seen(
            abort=(before.abort or view.now) if view.wants_abort else None,
            directive=(before.directive or view.now) if pending_directives(view) else None,
            exit=(before.exit or view.now) if is_leaving(view) else None,
        )
        self._memories[_key_of(view.run)] = replace(memory, seen=seen, generation=generation)
        return seen

    def note_made(self, view: RunView, attempt: int) -> None:
        """Remember that the pod of an attempt was made."""
        memory = self.recall(view.run)
        made = _made_again(memory.made, attempt, view.now)
        self._memories[_key_of(view.run)] = replace(memory, refusal=None, made=made)

    def note_refused(self, view: RunView, obstacle: Obstacle) -> None:
        """Remember that the pod was refused, since when, and for how long to wait now."""
        memory = self.recall(view.run)
        pause = min(memory.refusal.pause * 2, LONGEST_REFUSAL) if memory.refusal else FIRST_REFUSAL
        since = memory.refusal.obstacle.since if memory.refusal else view.now
        refusal = Refusal(replace(obstacle, since=since), view.now + pause, pause)
        self._memories[_key_of(view.run)] = replace(memory, refusal=refusal)


def is_leaving(view: RunView) -> bool:
    """Tell whether the runner has said that it ends: with the run's exit, or letting go of the run."""
    snapshot = view.snapshot
    if snapshot is None:
        return False
    is_released = snapshot.parked is not None and snapshot.parked.released and snapshot.attempt == view.attempt
    return snapshot.exit is not None or is_released


def _made_again(made: Made | None, attempt: int, now: datetime) -> Made:
    """Return the memory of one more pod: somebody who deletes each before it begins is not raced."""
    times = made.times + 1 if made is not None and made.attempt == attempt else 1
    pause = timedelta(0) if times == 1 else min(DISRUPTION_BACKOFF * 2.0 ** min(times - 2, 8), LONGEST_REFUSAL)
    return Made(attempt, times, now + pause)


def _key_of(run: AgentRun) -> Key:
    return Key("AgentRun", run.metadata.namespace or "", run.metadata.name)
