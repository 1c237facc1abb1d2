"""A golden run whose processes can be killed, frozen or answered wrongly at every point at which they touch the world.

The points are found by instrumentation: every method of every protocol in `Ports` is wrapped by reflection, and each
call of one is a point before it and a point after it (for a call that changes the world the two differ: its work is
not done, or it is done and its answer is lost). Each fact that is committed to the buffer is a point too, so a process
can die between two facts that one append would have written. Reading a clock, a price or a window changes nothing and
is no point.

What lies outside of the processes (journal, object, servers, people, time) is the golden stage's, and lives on.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, get_args, get_type_hints

from golden.script import Event, Script
from golden.stage import Stage
from pilothouse_api.structs import Plan, Snapshot
from pilothouse_api.wake import wake_due
from pilothouse_engine.attempt import SettleCause
from pilothouse_engine.facts import CallFinished, Fact
from pilothouse_engine.observers import Observer
from pilothouse_engine.ports import (
    FunctionFailure,
    HttpFailure,
    JournalUnavailable,
    McpFailure,
    ModelFailure,
    Ports,
    RawEntry,
    ResourceFailure,
    SessionsUnavailable,
    StoreFailure,
)
from pilothouse_engine.run import Attempt, AttemptEnd, Finished, Lost, Released, Stop, run_attempt
from pilothouse_engine.state import RunState

PASSIVE = frozenset({("clock", "now"), ("clock", "monotonic"), ("model", "price"), ("model", "context_window")})
"""Methods that are asked often and change nothing: dying beside one is dying at the points around it."""

MORE_ATTEMPTS = 16
LONGEST_RELEASE_SECONDS = 200_000.0
LONGEST_OUTAGE_SECONDS = 30.0
MOST_POINTS = 20_000
"""A play that passes so many points goes round in circles."""

FaultKind = Literal["kill", "settle", "freeze", "race", "late", "lose"]
"""What happens at a point.

`kill`: the process dies. `settle`: it dies, and the next attempt only closes the run. `freeze`: it stands still until
a newer attempt has fenced the journal, `late`: until that one has ended, and then goes on. `race`: it stands still
until a newer attempt has read the journal, and goes on before that one has written. `lose`: it lives, and is told that
the port does not answer.
"""
FREEZES: tuple[FaultKind, ...] = ("freeze", "race", "late")
UNAWAITED = frozenset({"buffer", "frames", "secrets"})
"""What is not waited for: here a process can die, and not stand still."""
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
Phase = Literal["before", "after"]


class Dead(BaseException):
    """Unwinds what is left of a process that died; nothing in the engine may catch it."""


@dataclass(frozen=True, slots=True)
class Point:
    """One moment at which a process can die."""

    number: int
    process: int
    port: str
    method: str
    phase: Phase
    about: str = ""

    @property
    def kind(self) -> str:
        """What it has in common with others."""
        return f"{self.phase} {self.port}.{self.method}{f' {self.about}' if self.about else ''}"


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, and at which point."""

    at: int
    kind: FaultKind

    def __str__(self) -> str:
        return f"{self.at}:{self.kind}"


def read_faults(text: str) -> tuple[Fault, ...]:
    """Return the faults of `12:kill,40:freeze`."""
    pairs = [one.split(":") for one in text.split(",") if one]
    kinds = {str(kind): kind for kind in FAULT_KINDS}
    return tuple(Fault(int(at), kinds[kind]) for at, kind in pairs)


@dataclass(frozen=True, slots=True)
class Died:
    """The process died: by a fault, or because the script says so."""

    is_scripted: bool


@dataclass(frozen=True, slots=True)
class Froze:
    """The process stands still; its run goes on without it."""


ProcessEnd = AttemptEnd | Died | Froze | BaseException


@dataclass(slots=True)
class Performed:
    """One thing that a process did outside, when the journal held so many entries."""

    process: int
    port: str
    method: str
    call: str
    arguments: tuple[Any, ...]
    length: int
    is_thawed: bool
    by: str
    outcome: Any = None
    is_lost: bool = False


_PROCESS: ContextVar["Process | None"] = ContextVar("process", default=None)
_CALL: ContextVar[str] = ContextVar("call", default="")


@dataclass(eq=False)
class Process:
    """One attempt, alive, frozen or dead."""

    number: int
    settle: SettleCause | None
    stop: Stop = field(default_factory=Stop)
    is_dead: bool = False
    is_thawed: bool = False
    thaw: asyncio.Event | None = None
    thaws_at: str = ""
    left: "asyncio.Future[ProcessEnd] | None" = None
    tasks: set["asyncio.Task[Any]"] = field(default_factory=set)
    state: RunState | None = None
    appends: int = 0
    ordinals: Counter[tuple[str, str]] = field(default_factory=Counter)
    unsure: tuple[int, list[RawEntry]] | None = None
    end: ProcessEnd | None = None

    def leave(self, end: ProcessEnd) -> None:
        """Say how it ended, or that it will not be heard of for a while."""
        if isinstance(end, Froze):
            assert self.left is not None
            left, self.left = self.left, asyncio.get_running_loop().create_future()
            left.set_result(end)
            return
        self.end = end
        if self.left is not None and not self.left.done():
            self.left.set_result(end)

    def die(self, *, is_scripted: bool = False) -> None:
        """End here: nothing that it would still do happens."""
        if not self.is_dead:
            self.is_dead = True
            self.leave(Died(is_scripted))


class World(Stage):
    """One run of a script under faults, however many processes it takes."""

    def __init__(self, script: Script, plan: Plan, faults: Sequence[Fault] = ()) -> None:
        super().__init__(script, plan)
        self.faults = {fault.at: fault.kind for fault in faults}
        self.met: list[Fault] = []
        self.points: list[Point] = []
        self.performed: list[Performed] = []
        self.appended: list[tuple[int, bool, int]] = []
        self.published: list[tuple[int, int, Snapshot]] = []
        self.processes: list[Process] = []
        self.frozen: list[Process] = []
        self.unequal: list[int] = []
        self._indexes: dict[tuple[str, str, int], int] = {}
        self._given: Counter[str] = Counter()
        self._is_over = False

    # ------------------------------------------------------------ the life of processes

    async def play(self) -> ProcessEnd:  # type: ignore[override]
        """Start processes until the run has ended; then let those that are frozen go on, and end."""
        asyncio.get_running_loop().set_task_factory(_track)
        try:
            return await self.clock.run(self._live())
        finally:
            self._is_over = True
            for process in self.processes:
                await _bury(process)
            for task in self._later:
                task.cancel()
            await asyncio.gather(*self._later, return_exceptions=True)
            asyncio.get_running_loop().set_task_factory(None)

    async def _live(self) -> ProcessEnd:
        await self.happen("start")
        while True:
            end = await self._run_next()
            if not isinstance(end, Released | Died | Froze) and not _is_outrun(end):
                break
            if len(self.processes) > MORE_ATTEMPTS:
                raise AssertionError("the run does not come to an end")
        for process in self.frozen:
            self._thaw(process)
            assert process.left is not None
            await process.left
        return end

    async def _run_next(self) -> ProcessEnd:
        self.attempt += 1
        process = Process(self.attempt, self.settle)
        self.processes.append(process)
        process.left = left = asyncio.get_running_loop().create_future()
        context = Context()
        context.run(_PROCESS.set, process)
        asyncio.get_running_loop().create_task(self._run(process), context=context)
        end = await left
        if not isinstance(end, Froze):
            await _bury(process)
        if isinstance(end, Released) or (isinstance(end, Died) and end.is_scripted):
            self.settle = None
            await self.happen("ended Released" if isinstance(end, Released) else "ended Killed")
        if isinstance(end, Released):
            await self._until_due(end.snapshot)
        if isinstance(end, Died | Froze) and self.store.outage is not None:
            # The script may end the outage at a fact that the dead process has not journaled and no other will.
            self.clock.advance(LONGEST_OUTAGE_SECONDS)
            self.store.outage = None
        return end

    async def _until_due(self, snapshot: Snapshot) -> None:
        """Wait until the operator would start a released run again; one that nothing wakes is started all the same."""
        seconds = 1.0
        while seconds < LONGEST_RELEASE_SECONDS:
            directives = self.store.directives
            ended = [call for call, report in directives.children.items() if report.exit is not None]
            if self.settle is not None or wake_due(snapshot, directives.control, self.clock.now(), ended):
                return
            await self.clock.sleep(seconds)
            seconds *= 2

    async def _run(self, process: Process) -> None:
        attempt = Attempt(process.number, process.settle, self.settings)
        try:
            process.leave(
                await run_attempt(self.plan, self._wrapped(process), attempt, process.stop, (_Buffer(self, process),))
            )
        except (Exception, Dead) as error:
            if not process.is_dead:
                process.leave(error)

    def _wrapped(self, process: Process) -> Ports:
        inner = self._ports()
        given = {form: getattr(inner, form.name) for form in port_forms()}
        return Ports(**{form.name: port and _Port(self, process, form, port) for form, port in given.items()})

    # ------------------------------------------------------------ points

    def note(self, process: Process, port: str, method: str, phase: Phase, about: str = "") -> FaultKind | None:
        """Count a point and return the fault that is ordered for it; raises Dead in a process that is."""
        if process.is_dead:
            raise Dead
        number = len(self.points)
        self.points.append(Point(number, process.number, port, method, phase, about))
        if number > MOST_POINTS:
            raise AssertionError(f"{number} points were passed and the run has not ended")
        kind = self.faults.get(number)
        if kind is not None:
            self.met.append(Fault(number, kind))
        return kind

    async def reach(self, process: Process, port: str, method: str, phase: Phase, about: str = "") -> bool:
        """Pass a point of work that is waited for; True where its answer is to be lost."""
        kind = self.note(process, port, method, phase, about)
        if kind in ("kill", "settle"):
            self._kill(process, kind)
            await asyncio.Event().wait()
        if kind is not None and kind in FREEZES and process is self.processes[-1] and process.thaw is None:
            process.thaw, process.thaws_at = asyncio.Event(), kind
            self.frozen.append(process)
            process.leave(Froze())
        if process.thaw is not None and not process.is_thawed:
            await process.thaw.wait()
        await self._signal(process, port, method, phase)
        return kind == "lose"

    def reach_now(self, process: Process, port: str, method: str, phase: Phase, about: str = "") -> None:
        """Pass a point of work that is not waited for."""
        kind = self.note(process, port, method, phase, about)
        if kind in ("kill", "settle"):
            self._kill(process, kind)
            raise Dead

    def _kill(self, process: Process, kind: FaultKind) -> None:
        if kind == "settle":
            control = self.store.directives.control
            is_aborted = control is not None and control.mode == "Abort"
            self.settle = "Aborted" if is_aborted else "MaxAttempts"
        process.die()

    async def _signal(self, process: Process, port: str, method: str, phase: Phase) -> None:
        """Let frozen processes go on where their moment has come."""
        if port != "journal" or phase != "after" or process is not self.processes[-1]:
            return
        process.appends += method == "append"
        for old in self.frozen:
            if old.is_thawed or old is process:
                continue
            if old.thaws_at == "freeze" and process.appends == 1:
                self._thaw(old)
            if old.thaws_at == "race" and method == "read":
                appended = len(self.journal._lines)
                self._thaw(old)
                for _ in range(200):
                    if len(self.journal._lines) > appended or old.end is not None:
                        break
                    await asyncio.sleep(0)

    def _thaw(self, process: Process) -> None:
        if process.thaw is not None and not process.is_thawed:
            process.is_thawed = True
            process.thaw.set()

    # ------------------------------------------------------------ what the stage asks of its process

    def kill(self) -> None:
        process = _PROCESS.get() or self.processes[-1]
        process.die(is_scripted=True)

    async def stop_if_killed(self) -> None:
        process = _PROCESS.get()
        if process is not None and process.is_dead:
            await asyncio.Event().wait()

    def _do(self, number: int, event: Event) -> None:
        if self.processes:
            self.stop = self.processes[-1].stop
        super()._do(number, event)

    def _schedule(self, number: int, seconds: float) -> None:
        async def wait() -> None:
            await self.clock.sleep(seconds)
            if not self._is_over:
                self._do(number, self.script.events[number])

        task = asyncio.get_running_loop().create_task(wait(), context=Context())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def ordinal(self, moment: str) -> int:
        """Return which answer a fake gives: a call that is made again gets the one that it got, or would have got."""
        process, call = _PROCESS.get(), _CALL.get()
        assert process is not None
        if not call:
            call = moment
            process.ordinals[call, moment] = self._given[moment]
        key = (call, moment, process.ordinals[call, moment])
        process.ordinals[call, moment] += 1
        if key not in self._indexes:
            self._indexes[key] = self._given[moment]
            self._given[moment] += 1
        return self._indexes[key]

    def checkpoint(self) -> None:
        """Nothing: this run is not resumed from checkpoints."""


def _is_outrun(end: ProcessEnd) -> bool:
    """Tell whether the newest attempt ended because an older one wrote before it: the run needs another."""
    return isinstance(end, Lost) and end.reason == "Fenced"


def _track(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Context | None = None
) -> "asyncio.Task[Any]":
    process = (copy_context() if context is None else context).get(_PROCESS)
    task = asyncio.Task(work, loop=loop, context=context)
    if process is not None:
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
    return task


async def _bury(process: Process) -> None:
    """Cancel what is left of a process that ended."""
    process.is_dead = True
    while process.tasks:
        tasks = list(process.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ---------------------------------------------------------------- ports


class _Buffer(Observer):
    """Makes each fact that is committed a point, and knows which call each task carries out."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def observe(self, state: RunState, fact: Fact) -> None:
        self._process.state = state
        if isinstance(fact, CallFinished):
            _CALL.set("")
        self._world.reach_now(self._process, "buffer", "commit", "before", type(fact).__name__)

    def call_begins(self, call: str) -> None:
        _CALL.set(call)


class _Port:
    """A port of one process: each of its protocol's methods is a point before and a point after."""

    def __init__(self, world: World, process: Process, form: "PortForm", inner: Any) -> None:
        self._world = world
        self._process = process
        self._name = form.name
        for attribute in form.attributes:
            setattr(self, attribute, getattr(inner, attribute))
        for method in form.awaited:
            setattr(self, method, self._awaited(method, getattr(inner, method)))
        for method in form.called:
            setattr(self, method, self._called(method, getattr(inner, method)))

    def _awaited(self, method: str, work: Callable[..., Any]) -> Callable[..., Any]:
        name, world, process = self._name, self._world, self._process

        async def call(*arguments: Any) -> Any:
            about = _about(name, method, arguments)
            if await world.reach(process, name, method, "before", about):
                return _unanswered(name, method, is_done=False)
            outcome = await _WORK.get((name, method), _perform)(world, process, (name, method), work, arguments)
            if await world.reach(process, name, method, "after", about):
                _forget_answer(world, process, (name, method), arguments)
                return _unanswered(name, method, is_done=True)
            return outcome

        return call

    def _called(self, method: str, work: Callable[..., Any]) -> Callable[..., Any]:
        name, world, process = self._name, self._world, self._process
        if (name, method) in PASSIVE:
            return lambda *arguments: _alive(process, work)(*arguments)

        def call(*arguments: Any) -> Any:
            world.reach_now(process, name, method, "before")
            outcome = work(*arguments)
            world.reach_now(process, name, method, "after")
            return outcome

        return call


@dataclass(frozen=True, slots=True)
class PortForm:
    """What the engine may ask of a port."""

    name: str
    is_optional: bool
    attributes: tuple[str, ...]
    awaited: tuple[str, ...]
    called: tuple[str, ...]

    @property
    def methods(self) -> set[tuple[str, str]]:
        """All that may be asked, each with the name of the port."""
        return {(self.name, method) for method in (*self.awaited, *self.called)}


@cache
def port_forms() -> tuple[PortForm, ...]:
    """Return the forms of all ports, as their protocols say them."""
    forms: list[PortForm] = []
    for name, hint in get_type_hints(Ports).items():
        given = [kind for kind in get_args(hint) if kind is not type(None)]
        protocol = given[0] if given else hint
        methods = {
            method: inspect.iscoroutinefunction(work)
            for method, work in inspect.getmembers(protocol, inspect.isfunction)
            if not method.startswith("_")
        }
        awaited = tuple(method for method, is_awaited in methods.items() if is_awaited)
        called = tuple(method for method, is_awaited in methods.items() if not is_awaited)
        forms.append(PortForm(name, bool(given), tuple(get_type_hints(protocol)), awaited, called))
    return tuple(forms)


def _alive(process: Process, work: Callable[..., Any]) -> Callable[..., Any]:
    if process.is_dead:
        raise Dead
    return work


def _about(port: str, method: str, arguments: tuple[Any, ...]) -> str:
    if (port, method) == ("journal", "append"):
        return "+".join(dict.fromkeys(entry["fact"] for entry in arguments[2]))
    return ""


Work = Callable[..., Coroutine[Any, Any, Any]]


async def _perform(
    world: World, process: Process, what: tuple[str, str], work: Work, arguments: tuple[Any, ...]
) -> Any:
    """Do what a port is asked, and write down that it was done."""
    port, method = what
    task = asyncio.current_task()
    done = Performed(
        process.number,
        port,
        method,
        _CALL.get(),
        arguments,
        len(world.journal._lines),
        process.is_thawed,
        task.get_name() if task is not None else "",
    )
    world.performed.append(done)
    done.outcome = await work(*arguments)
    return done.outcome


async def _quietly(
    world: World, process: Process, what: tuple[str, str], work: Work, arguments: tuple[Any, ...]
) -> Any:
    return await work(*arguments)


async def _append(
    world: World, process: Process, what: tuple[str, str], work: Work, arguments: tuple[Any, ...]
) -> None:
    """Append; where it is asked again for what it has written, it finds that, as adapters do."""
    _, seq, entries = arguments
    if process.unsure == (seq, list(entries)) and len(world.journal._lines) == seq + len(entries):
        process.unsure = None
        return
    await work(*arguments)
    world.appended.append((process.number, process.is_thawed, len(world.journal._lines)))


async def _publish(
    world: World, process: Process, what: tuple[str, str], work: Work, arguments: tuple[Any, ...]
) -> StoreFailure | None:
    """Publish, where the run is still this attempt's: the API server tests `status.attempt`."""
    if process.number != world.attempt:
        return StoreFailure("Fenced", f"the run is at attempt {world.attempt}, this is attempt {process.number}")
    failure: StoreFailure | None = await work(*arguments)
    if failure is None:
        world.published.append((process.number, len(world.journal._lines), arguments[0]))
    return failure


_WORK: Mapping[tuple[str, str], Work] = {
    ("journal", "append"): _append,
    ("journal", "read"): _quietly,
    ("store", "publish"): _publish,
    ("store", "read"): _quietly,
    ("store", "wait"): _quietly,
    ("clock", "sleep"): _quietly,
    ("mcp", "end_visit"): _quietly,
    ("sessions", "load"): _quietly,
    ("sessions", "replace"): _quietly,
}

LOST = "the answer was lost"
_FAILURES: Mapping[tuple[str, str], Callable[[bool], Any]] = {
    ("model", "call"): lambda is_done: ModelFailure("Connection", LOST, sent=is_done),
    ("http", "send"): lambda is_done: HttpFailure("Connection", LOST, sent=is_done),
    ("functions", "run"): lambda is_done: FunctionFailure("Died", LOST),
    ("mcp", "list_tools"): lambda is_done: McpFailure("Connection", LOST),
    ("mcp", "call_tool"): lambda is_done: McpFailure("Connection", LOST, sent=is_done),
    ("resources", "call"): lambda is_done: ResourceFailure("Connection", LOST, sent=is_done),
    ("store", "read"): lambda is_done: StoreFailure("Unavailable", LOST),
    ("store", "publish"): lambda is_done: StoreFailure("Unavailable", LOST),
}
_RAISED: Mapping[str, type[Exception]] = {"journal": JournalUnavailable, "sessions": SessionsUnavailable}
LOSABLE = frozenset(_FAILURES) | {method for form in port_forms() if form.name in _RAISED for method in form.methods}
"""Ports that may not answer although both sides live."""


def _unanswered(port: str, method: str, *, is_done: bool) -> Any:
    if port in _RAISED:
        raise _RAISED[port](LOST)
    return _FAILURES[port, method](is_done)


def _forget_answer(world: World, process: Process, what: tuple[str, str], arguments: tuple[Any, ...]) -> None:
    """Note that a process does not learn what came of something that was done."""
    if what == ("journal", "append"):
        process.unsure = (arguments[1], list(arguments[2]))
    for done in reversed(world.performed):
        if (done.port, done.method) == what and done.arguments is arguments:
            done.is_lost = True
            return


def ended(world: World) -> Finished | None:
    """Return the end of the run, where it has one."""
    ends = [process.end for process in world.processes if isinstance(process.end, Finished)]
    return ends[-1] if ends else None
