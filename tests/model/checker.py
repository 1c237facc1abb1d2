"""An explicit-state checker: breadth first over hashable states, with shortest counterexamples and leads.

A model gives its first state, the moves out of a state, and a fair way on. It finds a violation by raising `Violation`
from a move or from `check`.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Violation(Exception):
    """A property does not hold: which one, and what was seen."""

    def __init__(self, name: str, seen: str) -> None:
        super().__init__(f"{name}: {seen}")
        self.name = name


class Move(NamedTuple):
    """One step: what it is called, how to make it, and whether nobody may count on it (a fault, a person's wish)."""

    label: str
    make: Callable[[], object]
    is_extra: bool = False


class Model(Protocol[S]):
    """What is checked."""

    def first(self) -> S: ...

    def moves(self, state: S) -> Iterable[Move]: ...

    def check(self, state: S) -> None: ...

    def is_end(self, state: S) -> bool: ...

    def go_on(self, state: S) -> S | None: ...


@dataclass
class Report(Generic[S]):
    """What was looked at, and the counterexample if there is one."""

    states: int = 0
    moves: int = 0
    depth: int = 0
    ends: int = 0
    seconds: float = 0.0
    is_whole: bool = True
    violation: Violation | None = None
    trace: list[str] = field(default_factory=list)
    led_on: int = 0

    def say(self) -> str:
        """Return the report as people read it."""
        bound = "all states within the bounds" if self.is_whole else "cut off"
        size = f"{self.states:,} states, {self.moves:,} moves, depth {self.depth}, {self.ends:,} ends, {bound}"
        text = f"{size}, {self.seconds:.1f} s"
        if self.violation is None:
            return text
        steps = "\n".join(f"  {number:>3}. {label}" for number, label in enumerate(self.trace, 1))
        return f"{text}\nVIOLATED {self.violation}\n{steps}"


def explore(model: Model[S], *, most_states: int = 10_000_000, seconds: float = 1e9, leads: bool = True) -> Report[S]:
    """Look at every state that can be reached, the nearest first, and then at where each leads."""
    began = time.monotonic()
    first = model.first()
    parents: dict[S, tuple[S, str] | None] = {first: None}
    back: dict[S, list[S]] = {}
    ends: list[S] = []
    report: Report[S] = Report()
    queue: deque[tuple[S, int]] = deque([(first, 0)])
    state, label = first, ""
    try:
        model.check(first)
        while queue:
            if len(parents) > most_states or time.monotonic() - began > seconds:
                report.is_whole = False
                break
            state, depth = queue.popleft()
            label = ""
            report.depth = max(report.depth, depth)
            if model.is_end(state):
                ends.append(state)
            for move in model.moves(state):
                label = move.label
                after: S = move.make()  # type: ignore[assignment]
                report.moves += 1
                if leads and not move.is_extra and after != state:
                    back.setdefault(after, []).append(state)
                if after not in parents:
                    parents[after] = (state, label)
                    model.check(after)
                    queue.append((after, depth + 1))
        label = ""
        if leads:
            state = first
            for state in _left_over(parents, back, ends)[: None if report.is_whole else MOST_LEADS]:
                report.led_on += 1
                _lead_on(model, state)
    except Violation as violation:
        report.violation = violation
        report.trace = [*_trace(parents, state), *([label] if label else [])]
    report.states, report.ends, report.seconds = len(parents), len(ends), time.monotonic() - began
    return report


def walk(model: Model[S], *, walks: int, seed: int, longest: int = 200) -> Report[S]:
    """Take random ways from the first state, far beyond what breadth reaches; each is led to its end."""
    began = time.monotonic()
    chance = random.Random(seed)
    report: Report[S] = Report(is_whole=False)
    trace: list[str] = []
    label = ""
    try:
        for _ in range(walks):
            state, trace = model.first(), []
            while len(trace) < longest and not (model.is_end(state) and chance.random() < 0.5):
                moves = list(model.moves(state))
                if not moves:
                    break
                move = chance.choice(moves)
                label = move.label
                state = move.make()  # type: ignore[assignment]
                model.check(state)
                trace.append(label)
                label = ""
                report.moves += 1
            report.states += 1
            report.depth = max(report.depth, len(trace))
            report.ends += model.is_end(state)
            _lead_on(model, state)
    except Violation as violation:
        report.violation = violation
        report.trace = [*trace, *([label] if label else [])]
    report.seconds = time.monotonic() - began
    return report


def _left_over(parents: dict[S, tuple[S, str] | None], back: dict[S, list[S]], ends: list[S]) -> list[S]:
    """Return the states from which no end was reached by moves that one may count on."""
    good = set(ends)
    queue = deque(ends)
    while queue:
        for before in back.get(queue.popleft(), ()):
            if before not in good:
                good.add(before)
                queue.append(before)
    return [state for state in parents if state not in good]


_LED: set[object] = set()
MOST_ROUNDS = 80
MOST_LEADS = 200
"""How many states are led on where not all states were looked at: the nearest ones."""


def _lead_on(model: Model[S], state: S) -> None:
    """Follow the fair way until an end; raises Violation where there is none."""
    seen: list[S] = []
    at: S | None = state
    for _ in range(MOST_ROUNDS):
        if at is None or at in _LED or model.is_end(at):
            break
        seen.append(at)
        at = model.go_on(at)
    else:
        raise Violation("every run ends or waits for somebody", f"no end within {MOST_ROUNDS} rounds of everybody")
    if at is None:
        raise Violation("every run ends or waits for somebody", "nobody can do anything any more")
    _LED.update(seen)


def _trace(parents: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    steps = []
    while (parent := parents[state]) is not None:
        state, label = parent
        steps.append(label)
    return steps[::-1]
