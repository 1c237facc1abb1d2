"""A runner as a process of the model: the real `Driver` and `KubernetesRunStore`, stepped at their questions.

Only three small things are in place of the real ones: timers (`StepAlarms`), the publisher's background task (here the
world may publish at any moment at which the real one could), and the first lines of `Driver.run`.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from msgspec import structs

from model.stepping import Ask, Cutting, Ended, Raises, StepAlarms, StepClock, resume
from pilothouse_api.structs import Plan, Snapshot
from pilothouse_engine import driver as driver_module
from pilothouse_engine.attempt import Attempt, Finished, Lost, Released, Stop
from pilothouse_engine.driver import Driver
from pilothouse_engine.facts import Fact, ParkBegan, decode
from pilothouse_engine.frames import advance
from pilothouse_engine.ports import Directives, Fenced, FunctionReply, JournalUnavailable, Ports, StoreFailure
from pilothouse_engine.state import RunState
from pilothouse_engine.testing.clock import START
from pilothouse_runner.adapters.kubernetes_run_store import UNKNOWN_LENGTH, KubernetesRunStore, _Answer

Entries = tuple[str, ...]
"""Journaled facts as JSON: what the model's journal holds, and what a runner knows of it."""

_FACTS: dict[str, Fact] = {}


def fact_of(text: str) -> Fact:
    """Return a journaled fact."""
    fact = _FACTS.get(text)
    if fact is None:
        fact = _FACTS[text] = decode(json.loads(text))
    return fact


def entry_text(entry: Mapping[str, Any]) -> str:
    return json.dumps(dict(entry), sort_keys=True)


class Top(NamedTuple):
    """Where the loop of an attempt stood last: all that the next decision depends on."""

    attempt: int
    settle: str | None
    entries: Entries | None
    flushed: int
    directives: str | None
    read_tick: int
    failure: StoreFailure | None
    read_at: float
    opened: int
    published: int | None
    must_flush: bool
    is_urgent: bool
    has_begun: bool
    lost: ParkBegan | None
    length: int | None
    now: float
    is_stopping: bool
    shown: int = 0


_DIRECTIVES: dict[str | None, Directives | None] = {None: None}


def _directives_key(directives: Directives | None, *, is_journal_lost: bool) -> str | None:
    """Return what a decision reads of directives as a text; of the snapshot, only a lost journal's."""
    if directives is None:
        return None
    snapshot = directives.snapshot if is_journal_lost else None
    control = directives.control.to_raw() if directives.control is not None else None
    limits = directives.limits.to_raw() if directives.limits is not None else None
    children = {call: child.to_raw() for call, child in directives.children.items()}
    barrier = directives.barrier.to_raw() if directives.barrier is not None else None
    seen = directives.clock.journal_length if directives.clock is not None else 0
    told = (barrier, directives.is_supervised)
    parts = (
        directives.uid,
        directives.generation,
        control,
        limits,
        directives.deleting,
        snapshot,
        children,
        told,
        seen,
    )
    key = json.dumps(parts, sort_keys=True)
    _DIRECTIVES.setdefault(key, structs.replace(directives, snapshot=snapshot))
    return key


class Given(NamedTuple):
    """One answer since the top: what, when, whether a SIGTERM had come by then, and what was published meanwhile."""

    answer: Any
    now: float
    is_stopping: bool
    length: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Runner:
    """A runner that waits for an answer, or has ended. `snapshot` is what it could publish in the background now.

    Runners that are alike are one object, so that states are compared by identity.
    """

    top: Top
    given: tuple[Given, ...]
    ask: Ask | None
    is_cuttable: bool = False
    is_stopping: bool = False
    snapshot: str | None = None
    length: int | None = UNKNOWN_LENGTH
    published: int | None = None
    exit_code: int | None = None
    end: str = ""

    def key(self) -> tuple[Any, ...]:
        return (
            self.top,
            self.given,
            self.ask,
            self.is_cuttable,
            self.is_stopping,
            self.snapshot,
            self.length,
            self.published,
            self.end,
        )


class _StopFlag(Stop):
    """A stop that nobody waits for: without the event, which belongs to a loop."""

    def __init__(self) -> None:
        self.is_asked = False


class _StepStore(KubernetesRunStore):
    """The real adapter; its requests are questions to the world."""

    async def _request(self, method: str, path: str, deadline: float, patch: object = None) -> Any:
        return await Ask(method, None if patch is None else json.dumps(patch, sort_keys=True))

    async def wait(self, timeout: float) -> None:
        await Ask("wait", timeout)


class _StepJournal:
    """The journal's port; `known` is what this attempt knows to be written."""

    def __init__(self, known: Entries, *, durable: bool) -> None:
        self.durable = durable
        self.known = known

    async def read(self) -> Sequence[Any]:
        self.known = await Ask("read")
        return [json.loads(text) for text in self.known]

    async def append(self, attempt: int, expected_seq: int, entries: Sequence[Any]) -> None:
        texts = tuple(entry_text(entry) for entry in entries)
        await Ask("append", (attempt, expected_seq, texts))
        self.known = (*self.known, *texts)


class _StepModel:
    def __init__(self, replies: Callable[[int], Any]) -> None:
        self._replies = replies

    async def call(self, request: Any) -> Any:
        await Ask("model", request.turn)
        return self._replies(request.turn)

    def price(self, endpoint: Any) -> None:
        return None

    def context_window(self, endpoint: Any) -> None:
        return None


class _StepFunctions:
    async def run(self, request: Any) -> Any:
        return await Ask("call", (request.callable, json.dumps(dict(request.arguments), sort_keys=True)))


class StepPublisher:
    """`Publisher` without its task: the world publishes in the background, so nothing is ever held back."""

    is_held = False

    def __init__(self, store: Any, build: Callable[[], Snapshot | None]) -> None:
        self._store = store
        self._build = build
        self.failure: StoreFailure | None = None
        self.lost: StoreFailure | None = None
        self.published: Snapshot | None = None
        self.sent: Snapshot | None = None

    def mark(self, *, is_lazy: bool = False) -> None:
        return

    def check(self) -> StoreFailure | None:
        return self.lost

    def catch_up(self) -> None:
        return

    async def aclose(self) -> None:
        return

    async def settle(self) -> None:
        """Nothing is under way: what the background has published stands when a step ends."""

    async def publish(self) -> StoreFailure | None:
        snapshot = self._build()
        if snapshot is None:
            return self.failure
        self.sent = snapshot
        self.failure = await self._store.publish(snapshot)
        if self.failure is None:
            self.published = snapshot
        elif self.failure.kind in ("Fenced", "Gone"):
            self.lost = self.failure
        return self.failure


class RunnerProcesses:
    """Steps runners of one plan; equal steps are made once."""

    def __init__(
        self, plan: Plan, replies: Callable[[int], Any], is_durable: bool = True, driver: type[Driver] = Driver
    ) -> None:
        self.plan = plan
        self._replies = replies
        self._is_durable = is_durable
        self._class = driver
        self._bases: dict[tuple[int, str | None], Any] = {}
        self._steps: dict[Any, Runner] = {}
        self._runners: dict[Any, Runner] = {}
        self.steps_made = 0

    def begin(self, attempt: int, settle: str | None, now: float) -> Runner:
        """Return the runner of an attempt as it starts."""
        top = Top(
            attempt,
            settle,
            None,
            0,
            None,
            -1,
            None,
            now,
            0,
            None,
            False,
            False,
            False,
            None,
            UNKNOWN_LENGTH,
            now,
            False,
        )
        return self._make(("begin", top), lambda: self._run(top, (), None))

    def answer(self, runner: Runner, answer: Any, now: float) -> Runner:
        """Return the runner after an answer."""
        given = Given(answer, now, runner.is_stopping, runner.published)
        return self._make((runner, given), lambda: self._run(runner.top, runner.given, given))

    def publish(self, runner: Runner, length: int) -> Runner:
        """Return the runner whose snapshot was stored in the background."""
        return self._one(replace(runner, length=length, published=length))

    def terminate(self, runner: Runner, now: float) -> Runner:
        """Return the runner after a SIGTERM: what is cuttable is cut, everything else ends first."""
        if runner.ask is None or runner.is_stopping:
            return runner
        stopping = self._one(replace(runner, is_stopping=True))
        return self.answer(stopping, CUT, now) if runner.is_cuttable else stopping

    def _make(self, key: Any, make: Callable[[], Runner]) -> Runner:
        known = self._steps.get(key)
        if known is None:
            self.steps_made += 1
            known = self._steps[key] = self._one(make())
        return known

    def _one(self, runner: Runner) -> Runner:
        return self._runners.setdefault(runner.key(), runner)

    # ------------------------------------------------------------ the driver, built anew

    def _build(self, top: Top) -> tuple[Any, StepClock]:
        base = self._bases.get((top.attempt, top.settle))
        clock = StepClock(0.0, START)
        if base is None:
            store = _StepStore.__new__(_StepStore)
            KubernetesRunStore.__init__(store, _NoServer(), "ns", "run-1", "uid-1", top.attempt)  # type: ignore[arg-type]
            ports = Ports(
                model=_StepModel(self._replies),
                http=None,  # type: ignore[arg-type]
                functions=_StepFunctions(),
                mcp=None,  # type: ignore[arg-type]
                resources=None,  # type: ignore[arg-type]
                secrets=None,  # type: ignore[arg-type]
                journal=_StepJournal((), durable=self._is_durable),
                store=store,
                frames=_NoFrames(),
                clock=clock,
            )
            base = self._class(self.plan, ports, Attempt(top.attempt, top.settle), _StopFlag())  # type: ignore[arg-type]
            self._bases[top.attempt, top.settle] = base
        made = copy.copy(base)
        journal = _StepJournal((top.entries or ())[: top.flushed], durable=self._is_durable)
        store = copy.copy(base._ports.store)
        store._publishing, store._waiting, store._published = asyncio.Lock(), None, None
        store._length = top.length
        made._ports = structs.replace(base._ports, clock=clock, journal=journal, store=store)
        made._stop = _StopFlag()
        made._alarms = StepAlarms()
        made._publisher = StepPublisher(made._ports.store, made._build_snapshot)
        made._epoch = START.timestamp()
        self._set(made, top, clock)
        return made, clock

    def _set(self, made: Any, top: Top, clock: StepClock) -> None:
        """Put a driver where `top` says; the clock and the stop flag as they were then."""
        clock.seconds = top.now
        made._stop.is_asked = made._alarms.is_interrupted = top.is_stopping
        entries = top.entries or ()
        made._state = state = RunState(context=dict(self.plan.input))
        for text in entries:
            advance(state, fact_of(text))
        made._flushed = top.flushed
        made._buffer = [json.loads(text) for text in entries[top.flushed :]]
        made._must_flush, made._is_urgent, made._journal_lost = top.must_flush, top.is_urgent, top.lost
        made._frames = []
        made._inputs = structs.replace(
            made._inputs,
            now=START.timestamp() + top.now,
            read_at=START.timestamp() + top.read_at,
            opened_length=top.opened,
            directives=_DIRECTIVES[top.directives],
            read_tick=top.read_tick,
            failure=top.failure,
            published_length=top.published,
            shown_length=top.shown,
            first_seen={},
            has_begun=top.has_begun,
        )

    def _run(self, top: Top, before: tuple[Given, ...], given: Given | None) -> Runner:
        made, clock = self._build(top)
        tops = _Tops(made, clock, top)
        work = tops.work()
        asked = resume(work, None)
        answers = (*before, *((given,) if given is not None else ()))
        since: list[Given] = []
        for one in answers:
            assert isinstance(asked, Ask), "an answer to a runner that asks nothing"
            clock.seconds, made._stop.is_asked, made._alarms.is_interrupted = one.now, one.is_stopping, one.is_stopping
            if one.is_stopping:
                made._stopped_at = min(made._stopped_at, made._now())
            if one.length is not None:
                made._ports.store._length = one.length
            passed = tops.passed
            asked = resume(work, _answer_of(one.answer))
            since = [] if tops.passed != passed else [*since, one]
        last = answers[-1] if answers else None
        is_stopping = last.is_stopping if last is not None else top.is_stopping
        if isinstance(asked, Ended):
            code, end = _exit_of(asked)
            return Runner(tops.top, tuple(since), None, is_stopping=is_stopping, exit_code=code, end=end)
        snapshot = None
        if tops.top.entries is not None and asked.kind not in ("append", "PATCH"):
            built = made._build_snapshot()
            snapshot = json.dumps(built.to_raw(), sort_keys=True) if built is not None else None
        cuttable, length = made._alarms.depth > 0, made._ports.store._length
        work.close()
        return Runner(tops.top, tuple(since), asked, cuttable, is_stopping, snapshot, length)


# ---------------------------------------------------------------- answers: values that can be compared

CUT = ("cut",)
FENCED = ("fenced",)
JOURNAL_AWAY = ("journal away",)
STORE_AWAY = ("store away",)


def _answer_of(token: Any) -> Any:
    """Return an answer as the asker takes it."""
    match token:
        case ("cut",):
            return Raises(Cutting())
        case ("fenced",):
            return Raises(Fenced("the journal went on without this attempt"))
        case ("journal away",):
            return Raises(JournalUnavailable("no answer"))
        case ("store away",):
            return StoreFailure("Unavailable", "no answer")
        case ("http", int(status), str(text)):
            return _Answer(status, json.loads(text))
        case ("function", str(text)):
            return FunctionReply(output=json.loads(text))
        case _:
            return token


class _NoServer:
    url = ""


class _NoFrames:
    def emit(self, frame: Any) -> None:
        return


class _Tops:
    """The loop of `Driver.run`, which notes where it stands."""

    def __init__(self, made: Any, clock: StepClock, top: Top) -> None:
        self._made = made
        self._clock = clock
        self.top = top
        self.passed = 0

    async def work(self) -> Any:
        made = self._made
        try:
            if self.top.entries is None:
                await made._open()
            is_first = self.top.entries is not None
            while True:
                made._check_lost()
                if not is_first:
                    self._note()
                is_first = False
                made._inputs.now = made._now()
                made._inputs.is_stopping = made._stop.is_asked
                try:
                    end = await made._perform()
                except Fenced:
                    if not await made._reopen():
                        raise
                    continue
                if end is not None:
                    return end
        except driver_module._Ends as ends:
            return ends.end
        except Fenced as fenced:
            return Lost("Fenced", str(fenced))

    def _note(self) -> None:
        made, inputs = self._made, self._made._inputs
        self.passed += 1
        self.top = self.top._replace(
            entries=(*made._ports.journal.known, *(entry_text(entry) for entry in made._buffer)),
            flushed=made._flushed,
            directives=_directives_key(inputs.directives, is_journal_lost=inputs.is_journal_lost),
            read_tick=inputs.read_tick,
            failure=inputs.failure,
            read_at=inputs.read_at - START.timestamp(),
            opened=inputs.opened_length,
            published=inputs.published_length,
            must_flush=made._must_flush,
            is_urgent=made._is_urgent,
            has_begun=inputs.has_begun,
            lost=made._journal_lost,
            length=made._ports.store._length,
            now=self._clock.seconds,
            is_stopping=made._stop.is_asked,
            shown=inputs.shown_length,
        )


def _exit_of(ended: Ended) -> tuple[int, str]:
    if ended.fault is not None:
        return 1, f"fault: {type(ended.fault).__name__}: {ended.fault}"
    match ended.value:
        case Finished() | Released():
            return 0, type(ended.value).__name__
        case Lost():
            return 3, ended.value.reason
        case _:
            return 1, repr(ended.value)
