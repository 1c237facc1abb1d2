"""What watches an attempt: each fact that it commits, and each hook that fires. Nothing here can change the run.

Facts that an attempt folds from the journal are not observed: they were, by the attempt that committed them. So
nothing is counted twice by one attempt.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from pilothouse_engine.facts import Fact
from pilothouse_engine.ports import Directives, Frame, FrameSink
from pilothouse_engine.state import RunState
from pilothouse_engine.values import Value

_log = logging.getLogger(__name__)


class HookEvent(Value):
    """One hook that fired, and what became of it.

    `tool` is empty where it does not apply, `signal` is a step's that did not run as a tool, `error` the cause of an
    abnormal end. `why` says why the hook failed: no secret, no text of a body. Dropped: too many notifications waited.
    """

    at: float
    hook: str
    event: str
    action: str
    step: str
    tool: str = ""
    signal: str = ""
    error: str = ""
    result: Literal["Done", "Failed", "Dropped"] = "Done"
    why: str = ""


class Observer:
    """Reports what an attempt does: a subclass overrides what it is about, and returns at once."""

    def observe(self, state: RunState, fact: Fact) -> None:
        """Take a fact that was committed; `state` is the run before it. It may not be journaled yet."""

    def call_begins(self, call: str) -> None:
        """Take a call that runs now: this is called in the task that carries it out."""

    def directives_seen(self, at: float, directives: Directives) -> None:
        """Take directives that are not those that were read before."""

    def hook_fired(self, event: HookEvent) -> None:
        """Take a hook that fired."""


class GuardedSink:
    """A frame sink that may break: it is told of once and shown nothing more. The run never knows."""

    def __init__(self, sink: FrameSink) -> None:
        self._sink: FrameSink | None = sink

    def emit(self, frame: Frame) -> None:
        """Hand on a frame."""
        if self._sink is None:
            return
        try:
            self._sink.emit(frame)
        except Exception as error:
            _say_retired(self._sink, error)
            self._sink = None


class HookRunner(Protocol):
    """Fires hooks (`pilothouse_engine.hooks`, loaded only for a plan that has some)."""

    def observe(self, state: RunState, fact: Fact) -> None:
        """Take a fact that was committed; `state` is the run before it."""
        ...

    def journaled(self) -> None:
        """Act on everything that was observed: the journal has it now."""
        ...

    async def aclose(self) -> None:
        """Let what is under way end, for a bounded time."""
        ...


class Watch:
    """Hands facts to observers; one that raises is told of once and asked no more. The run never knows."""

    def __init__(
        self, observers: Sequence[Observer], open_hooks: Callable[[Callable[[HookEvent], None]], HookRunner] | None
    ) -> None:
        self._observers = list(observers)
        self._hooks = open_hooks(self.hook_fired) if open_hooks is not None else None

    def observe(self, state: RunState, fact: Fact) -> None:
        """Hand on a fact before it is applied to the state."""
        self._tell(lambda observer: observer.observe(state, fact))
        if self._hooks is not None:
            self._hooks.observe(state, fact)

    def call_begins(self, call: str) -> None:
        """Hand on a call that runs now, in its own task."""
        self._tell(lambda observer: observer.call_begins(call))

    def directives_seen(self, at: float, directives: Directives) -> None:
        """Hand on directives that are new."""
        self._tell(lambda observer: observer.directives_seen(at, directives))

    def hook_fired(self, event: HookEvent) -> None:
        """Hand on a hook that fired."""
        self._tell(lambda observer: observer.hook_fired(event))

    def journaled(self) -> None:
        """Say that the journal has everything that was observed."""
        if self._hooks is not None:
            self._hooks.journaled()

    async def aclose(self) -> None:
        """Let hooks end."""
        if self._hooks is not None:
            await self._hooks.aclose()

    def _tell(self, tell: Callable[[Observer], None]) -> None:
        for observer in tuple(self._observers):
            try:
                tell(observer)
            except Exception as error:
                self._observers.remove(observer)
                _say_retired(observer, error)


def _say_retired(broken: object, error: Exception) -> None:
    _log.error("%s failed and is asked no more: %s: %s", type(broken).__name__, type(error).__name__, error)
