"""The real coroutines of the runner and of the operator, stepped at what they ask of the world.

A coroutine cannot be copied, so a process of the model is what leads to it: where its loop stood last, and the answers
since then. It is built anew for each step and run up to its next question. No event loop and no task is needed: what
asks is an `Ask`, and whoever steps it answers.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any

from pilothouse_engine.alarms import Cut


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the world."""

    kind: str
    payload: Any = None

    def __await__(self) -> Generator[Ask, Any, Any]:
        return (yield self)


class Cutting(BaseException):
    """Thrown into work that is cut short, as a cancellation is."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The coroutine has returned, or raised a fault."""

    value: Any = None
    fault: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Raises:
    """An answer that is an exception."""

    error: BaseException


def resume(work: Coroutine[Ask, Any, Any], answer: Any) -> Ask | Ended:
    """Give an answer (None to begin, an exception wrapped in `Raises`), and return the next question or the end."""
    try:
        return work.throw(answer.error) if isinstance(answer, Raises) else work.send(answer)
    except StopIteration as stop:
        return Ended(stop.value)
    except Exception as fault:
        return Ended(fault=fault)


class StepClock:
    """Time that stands still between two steps."""

    def __init__(self, seconds: float, start: Any) -> None:
        self.seconds = seconds
        self._start = start

    def now(self) -> Any:
        from datetime import timedelta

        return self._start + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        await Ask("sleep", seconds)


class StepAlarms:
    """Work in bounds, in place of the timers and tasks of `Alarms`."""

    def __init__(self) -> None:
        self.is_interrupted = False
        self.depth = 0

    async def bound(self, work: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
        if self.is_interrupted:
            work.close()
            return Cut.INTERRUPTED
        self.depth += 1
        try:
            return await work
        except Cutting:
            return Cut.INTERRUPTED
        finally:
            self.depth -= 1

    def interrupt(self) -> None:
        self.is_interrupted = True
