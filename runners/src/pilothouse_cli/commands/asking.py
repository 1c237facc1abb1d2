"""What verbs for many runs share: the question whether all of it is meant, the count as it goes, and the exit code."""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import RenderableType
from rich.status import Status

from pilothouse_cli.exits import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_PARKED, EXIT_SUCCEEDED, CliError
from pilothouse_cli.runs.fleets import Outcome
from pilothouse_cli.runs.port import snapshot_of
from pilothouse_cli.terminal import say, stderr

YES = frozenset({"y", "yes"})
COUNT_SECONDS = 5.0
"""Between two counts where no terminal shows one that changes."""

SAID: Mapping[str, str] = {
    "Landed": "landed",
    "Asked": "asked for",
    "Kept": "kept until they go on",
    "Unattended": "kept until the operator is back",
    "Unhosted": "without a process",
    "Waiting": "not landed yet",
    "Ended": "ended first",
    "Superseded": "superseded",
    "NotLanded": "not landed",
    "NotPending": "not pending any more",
    "Expired": "expired",
    "Decided": "decided by somebody else",
    "Gone": "gone",
    "Forbidden": "forbidden",
    "Failed": "failed",
}
"""States of an outcome, as the count says them."""
OPEN = frozenset({"Waiting", "Unattended", "Unhosted"})
"""What may still come: exit code 4."""


def agree(shown: RenderableType, question: str, command: str, *, is_agreed: bool) -> None:
    """Go on only when the person agrees; raises CliError. `shown` is what it is about."""
    if is_agreed:
        return
    stderr().print(shown)
    if not sys.stdin.isatty():
        raise CliError("nobody can be asked here whether all of this is meant", f"{command} … --yes")
    say(f"{question} [y/N]")
    if sys.stdin.readline().strip().lower() not in YES:
        raise CliError("nothing was asked of any run", "", EXIT_FAILED)


def plural(count: int, noun: str) -> str:
    """Return a number of things in words."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class Count:
    """Says how far it is: on a terminal in one line that changes, elsewhere every few seconds; at the end once more.

    `good` are the states that count as done, `done` is what those are called. Use as a context.
    """

    def __init__(self, total: int, good: frozenset[str], done: str) -> None:
        self._total, self._good, self._done = total, good, done
        self._states: Counter[str] = Counter()
        self._unknown = 0
        self._said_at = time.monotonic()
        console = stderr()
        self._line = Status(self.text(), console=console) if console.is_terminal and total > 1 else None

    def __enter__(self) -> Self:
        if self._line is not None:
            self._line.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._line is not None:
            self._line.stop()

    def take(self, outcome: Outcome) -> None:
        """Count one outcome."""
        self._states[outcome.state] += 1
        self._unknown += len(snapshot_of(outcome.run).effects.unknown)
        if self._line is not None:
            self._line.update(self.text())
        elif time.monotonic() - self._said_at >= COUNT_SECONDS:
            self._said_at = time.monotonic()
            say(self.text())

    def text(self) -> str:
        """Return the count: "11/12 parked, 1 ended first, 1 effect unknown"."""
        good = sum(self._states[state] for state in self._good)
        others = [f"{count:,} {SAID[state]}" for state, count in self._states.items() if state not in self._good]
        effects = [f"{plural(self._unknown, 'effect')} unknown"] if self._unknown else []
        return ", ".join([f"{good:,}/{self._total:,} {self._done}", *others, *effects])


def worst_exit(outcomes: Sequence[Outcome], harmless: frozenset[str]) -> int:
    """Return 5 where a right was missing, else 1 where something came to nothing, else 4 where more may come, else 0.

    `harmless` are the states that are none of these.
    """
    states = {outcome.state for outcome in outcomes} - harmless
    if "Forbidden" in states:
        return EXIT_NOT_FOUND
    if states - OPEN:
        return EXIT_FAILED
    return EXIT_PARKED if states else EXIT_SUCCEEDED
