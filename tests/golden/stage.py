"""Plays a golden script: the engine over the shipped fakes, with every crash, release and directive that it orders."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from golden.script import UID, Event, Script, When
from pilothouse_api.structs import Control, McpServer, ModelEndpoint, Plan, Snapshot
from pilothouse_engine.attempt import SettleCause
from pilothouse_engine.driver import Driver
from pilothouse_engine.facts import Fact, decode_all
from pilothouse_engine.ports import (
    Directives,
    FunctionFailure,
    FunctionReply,
    FunctionRequest,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    JournalUnavailable,
    McpFailure,
    McpListing,
    McpResult,
    McpTool,
    ModelFailure,
    ModelReply,
    ModelRequest,
    Ports,
    RawEntry,
    ResourceFailure,
    ResourceReply,
    ResourceRequest,
    SessionKey,
    SessionsUnavailable,
    StoredSession,
    StoreFailure,
)
from pilothouse_engine.run import Attempt, AttemptEnd, Finished, Lost, Stop
from pilothouse_engine.scripted import ScriptedModel
from pilothouse_engine.sessions.records import (
    Conversation,
    PastRun,
    decode_conversation,
    decode_messages,
    encode_conversation,
)
from pilothouse_engine.settings import Settings
from pilothouse_engine.state import BARRIER, RunState
from pilothouse_engine.testing.clock import START, ManualClock
from pilothouse_engine.testing.frames import ListFrameSink
from pilothouse_engine.testing.journal import MemoryJournal
from pilothouse_engine.testing.resources import MemoryResources
from pilothouse_engine.testing.secrets import DictSecrets
from pilothouse_engine.testing.sessions import MemorySessions
from pilothouse_engine.testing.store import MemoryRunStore

MOST_ATTEMPTS = 8


@dataclass(frozen=True)
class Killed:
    """The process of the attempt died."""


End = AttemptEnd | Killed


@dataclass(frozen=True)
class Told:
    """One thing that happened, for the transcript: the model was asked, a function ran, a person patched."""

    at: float
    what: str
    value: Any
    outcome: Any = None


@dataclass(frozen=True)
class Checkpoint:
    """The world when an append had just ended: what a resume from there meets."""

    length: int
    elapsed: float
    attempt: int
    settle: SettleCause | None
    directives: Directives
    happened: Counter[str]
    done: frozenset[int]
    due: Mapping[int, float]
    judges: bool
    sessions: Mapping[SessionKey, StoredSession]


@dataclass(eq=False, repr=False)
class Stage:
    """One run of a script, however many attempts it takes."""

    script: Script
    plan: Plan
    told: list[Told] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    live: RunState | None = None

    def __post_init__(self) -> None:
        self.settings = Settings(**self.script.settings)  # type: ignore[arg-type]
        self.attempt = 0
        self.settle: SettleCause | None = None
        self.happened: Counter[str] = Counter()
        self.done: set[int] = set()
        self.due: dict[int, float] = {}
        self.stop = Stop()
        self.task: asyncio.Task[Any] | None = None
        self.is_killed = False
        self.judges = False
        self._later: set[asyncio.Task[None]] = set()
        self._set_clock(0.0)
        self.sink = ListFrameSink()
        self.journal = _Journal(self, durable=self.script.durable)
        self.store = _Store(self)
        self.sessions = _Sessions(self)

    def _set_clock(self, elapsed: float) -> None:
        self._began = elapsed
        self.clock = ManualClock(START + timedelta(seconds=elapsed))

    @classmethod
    def of(cls, script: Script) -> "Stage":
        """Return the run of a script before it began."""
        return cls(script, script.plan())

    def resumed(self, at: Checkpoint) -> "Stage":
        """Return the run as it stands after a crash right behind an append of this one."""
        stage = Stage(self.script, self.plan)
        stage._set_clock(at.elapsed)
        stage.store = _Store(stage)
        stage.store.directives = at.directives
        stage.journal._lines = self.journal._lines[: at.length]
        stage.sessions._stored = dict(at.sessions)
        stage.attempt, stage.settle, stage.judges = at.attempt, at.settle, at.judges
        stage.happened, stage.done, stage.due = at.happened.copy(), set(at.done), dict(at.due)
        return stage

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self._began + self.clock.monotonic()

    @property
    def snapshots(self) -> list[Snapshot]:
        """Everything that was published, in order."""
        return self.store.snapshots

    async def play(self) -> End:
        """Run attempts until the run has ended, or nobody would start another."""
        await self.happen("start")
        for number, left in list(self.due.items()):
            self._schedule(number, left - self.elapsed)
        while True:
            end = await self._attempt()
            self.ends.append(end)
            self.tell("end", end)
            if isinstance(end, Finished | Lost):
                return end
            self.settle = None
            await self.happen(f"ended {type(end).__name__}")
            assert len(self.ends) < MOST_ATTEMPTS, "the run does not come to an end"

    async def _attempt(self) -> End:
        self.attempt += 1
        self.stop, self.is_killed = Stop(), False
        self.tell("attempt", self.attempt, self.settle)
        driver = Driver(self.plan, self._ports(), Attempt(self.attempt, self.settle, self.settings), self.stop)

        async def work() -> End:
            self.task = asyncio.current_task()
            try:
                return await driver.run()
            except asyncio.CancelledError:
                if not self.is_killed:
                    raise
                return Killed()

        try:
            return await self.clock.run(work())
        finally:
            self.live = None if self.is_killed else driver._state
            self.is_killed = False
            for task in self._later:
                task.cancel()
            await asyncio.gather(*self._later, return_exceptions=True)

    def _ports(self) -> Ports:
        return Ports(
            model=_Model(self),
            http=_Http(self),
            functions=_Functions(self),
            secrets=DictSecrets(self.script.secrets),
            mcp=_Mcp(self),
            resources=_Cluster(self),
            journal=self.journal,
            store=self.store,
            frames=self.sink,
            clock=self.clock,
            sessions=self.sessions,
        )

    async def facts(self) -> list[Fact]:
        """Return the journal's facts."""
        return list(decode_all(await self.journal.read()))

    def tell(self, what: str, value: Any, outcome: Any = None) -> None:
        """Note what happened."""
        self.told.append(Told(self.elapsed, what, value, outcome))

    # ------------------------------------------------------------ events

    async def happen(self, moment: str) -> None:
        """Do what is ordered for a moment; returns never where that kills the attempt."""
        self.happened[moment] += 1
        for number, event in enumerate(self.script.events):
            if number in self.done or number in self.due or _moment(event.when) != moment:
                continue
            if self.happened[moment] < event.when.nth:
                continue
            if event.after:
                self.due[number] = self.elapsed + event.after
                self._schedule(number, event.after)
            else:
                self._do(number, event)
        await self.stop_if_killed()

    async def stop_if_killed(self) -> None:
        """Never return to a process that is dead."""
        if self.is_killed:
            await asyncio.Event().wait()

    def kill(self) -> None:
        """End the process of the attempt, as it stands."""
        if self.task is not None:
            self.is_killed = True
            self.task.cancel()

    def ordinal(self, moment: str) -> int:
        """Return which of its answers a fake gives now: as many as moments of this name were before."""
        return self.happened[moment]

    def _schedule(self, number: int, seconds: float) -> None:
        async def wait() -> None:
            await self.clock.sleep(seconds)
            self._do(number, self.script.events[number])

        task = asyncio.ensure_future(wait())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def _do(self, number: int, event: Event) -> None:
        self.done.add(number)
        self.due.pop(number, None)
        self.tell("event", event)
        if event.control is not None:
            self.store.set_control(**self._with_full_ids(event.control))
        if event.takes_back:
            self.store.take_back_decisions()
        if event.limits is not None:
            self.store.set_limits(**event.limits)
        if event.child is not None:
            self._report_on_children(event.child)
        if event.supervision is not None:
            self.store.set_supervision(**event.supervision)
        if event.judges is not None:
            self.judges = event.judges
            self.store.judge()
        if event.delete:
            self.store.set_deleting()
        if event.store is not None:
            kind = event.store
            self.store.outage = None if kind == "Back" else StoreFailure(kind, f"the API server said {kind}")
        if event.journal_fails:
            self.journal.fail_next(*[JournalUnavailable("the journal is away")] * event.journal_fails)
        if event.journal_keeps is not None:
            del self.journal._lines[event.journal_keeps :]
        if event.sessions_fail:
            self.sessions.fail_next(*[SessionsUnavailable("the store of sessions is away")] * event.sessions_fail)
        if event.settle is not None:
            self.settle = event.settle
        if event.passes:
            self.clock.advance(event.passes)
        if event.stop:
            self.stop.release()
        if event.kill:
            self.kill()

    def _report_on_children(self, report: dict[str, Any]) -> None:
        """Report on each child that was asked for and not reported on, as the operator would."""
        for entry in map(json.loads, self.journal._lines):
            if entry["fact"] == "ChildRequested" and entry["call"] not in self.store.directives.children:
                self.store.set_child(entry["call"], **report)

    def _with_full_ids(self, control: dict[str, Any]) -> dict[str, Any]:
        """Return a control whose decisions name a pending call, where the script left the digest of its id out."""
        pending = self.snapshots[-1].pending_approvals if self.snapshots else []
        full = {approval.call_id.rpartition("-")[0]: approval.call_id for approval in pending}
        decisions = {full.get(key, key): decision for key, decision in control.get("approvals", {}).items()}
        return {**control, "approvals": decisions} if decisions else control

    def checkpoint(self) -> None:
        """Remember the world as it is."""
        self.checkpoints.append(
            Checkpoint(
                len(self.journal._lines),
                self.elapsed,
                self.attempt,
                self.settle,
                self.store.directives,
                self.happened.copy(),
                frozenset(self.done),
                dict(self.due),
                self.judges,
                dict(self.sessions._stored),
            )
        )


def _moment(when: When) -> str:
    [(name, value)] = when.model_dump(exclude={"nth"}, exclude_defaults=True).items()
    return name if value is True else f"{name} {value}"


# ---------------------------------------------------------------- ports


class _Journal(MemoryJournal):
    """Tells the stage what was journaled."""

    def __init__(self, stage: Stage, *, durable: bool) -> None:
        super().__init__(durable=durable)
        self._stage = stage

    async def append(self, attempt: int, expected_seq: int, entries: Sequence[RawEntry]) -> None:
        await super().append(attempt, expected_seq, entries)
        try:
            for entry in entries:
                await self._stage.happen(f"fact {entry['fact']}")
        finally:
            self._stage.checkpoint()


class _Store(MemoryRunStore):
    """Tells the stage which parks and effects were published."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.clock, UID)
        self._stage = stage
        self.clocks: list[tuple[float, int]] = []
        """When the clock of supervision was raised, in seconds since the epoch, and to which length."""

    def take_back_decisions(self) -> None:
        """Empty `spec.control.approvals`, as a person may."""
        control = self.directives.control.to_raw() if self.directives.control else {}
        self._set(control=Control.read({**control, "approvals": {}}))

    async def publish(self, snapshot: Snapshot) -> StoreFailure | None:
        failure = await super().publish(snapshot)
        if failure is not None:
            return failure
        if snapshot.effects.settled:
            await self._stage.happen(f"settled {snapshot.effects.settled}")
        if snapshot.parked is not None and not snapshot.parked.released:
            await self._stage.happen(f"parked {snapshot.parked.reason}")
        self.judge()
        return None

    def judge(self) -> None:
        """Raise the clock for a snapshot of a barrier, where supervision judges: its directives stand by now."""
        parked = self.snapshots[-1].parked if self.snapshots else None
        if self._stage.judges and parked is not None and parked.reason == BARRIER:
            self.clocks.append((self._stage.clock.now().timestamp(), self.snapshots[-1].journal_length))
            self.raise_clock()


class _Sessions(MemorySessions):
    """The conversation that the script brings, with what is asked and kept of it written down."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage
        script = stage.script
        past = [PastRun(f"past-{number}", decode_messages(said)) for number, said in enumerate(script.past)]
        if script.session is not None and (past or script.damaged):
            content = b"{" if script.damaged else encode_conversation(Conversation(tuple(past)))
            self._stored[SessionKey("ns", script.session, "work")] = StoredSession(1, content)

    async def load(self, key: SessionKey) -> StoredSession:
        self._stage.tell("load", key)
        return await super().load(key)

    async def replace(self, key: SessionKey, version: int, content: bytes) -> bool:
        self._stage.tell("keep", key, decode_conversation(content))
        return await super().replace(key, version, content)


class _Model:
    """The scripted model, with what it is shown written down."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._scripted = ScriptedModel(stage.clock)

    async def call(self, request: ModelRequest) -> ModelReply | ModelFailure:
        told = len(self._stage.told)
        self._stage.tell("model", request)
        await self._stage.happen(f"turn {request.turn}")
        outcome = await self._scripted.call(request)
        self._stage.told[told] = Told(self._stage.told[told].at, "model", request, outcome)
        return outcome

    def price(self, endpoint: ModelEndpoint) -> tuple[float, float] | None:
        return self._scripted.price(endpoint)

    def context_window(self, endpoint: ModelEndpoint) -> int | None:
        return self._scripted.context_window(endpoint)


class _Functions:
    """Author code: each function gives what the script lists, call by call."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def run(self, request: FunctionRequest) -> FunctionReply | FunctionFailure:
        stage, name = self._stage, request.callable.split(":")[1]
        stage.tell("function", request)
        given = _nth(stage.script.functions.get(name, [{"output": {"done": True}}]), stage.ordinal(f"call {name}"))
        await stage.happen(f"call {name}")
        if given.get("hangs"):
            await asyncio.Event().wait()
        await stage.clock.sleep(given.get("seconds", 0))
        if "raises" in given:
            return FunctionFailure("Raised", f"RuntimeError: {given['raises']}")
        if "fails" in given:
            return FunctionFailure(given["fails"], f"the child process ended: {given['fails']}")
        return FunctionReply(output=given.get("output"), signal=given.get("signal"))


class _Http:
    """Servers: each request gets what the script lists, in order."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def send(self, request: HttpRequest) -> HttpResponse | HttpFailure:
        stage = self._stage
        stage.tell("http", request)
        given = _nth(stage.script.http, stage.ordinal("http"))
        await stage.happen("http")
        await stage.clock.sleep(given.get("seconds", 0))
        if "failure" in given:
            return HttpFailure(given["failure"], f"the server: {given['failure']}", sent=given.get("sent", False))
        body = json.dumps(given["json"]) if "json" in given else given.get("body", "")
        headers = {"content-type": "application/json" if "json" in given else "text/plain"} | given.get("headers", {})
        return HttpResponse(given.get("status", 200), tuple(headers.items()), body.encode())


class _Mcp:
    """MCP servers: each lists what the script says, and its tools give what the script lists, call by call."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def list_tools(self, server: McpServer, deadline: float) -> McpListing | McpFailure:
        self._stage.tell("mcp", (server.name, None, None))
        await self._stage.happen(f"mcp {server.name}")
        given = self._stage.script.mcp[server.name]
        if given.unlisted is not None:
            return McpFailure(given.unlisted, f"MCP server {server.name}: {given.unlisted}")
        return McpListing(
            tuple(
                McpTool(tool["name"], tool.get("description", ""), tool.get("parameters", {})) for tool in given.tools
            )
        )

    async def call_tool(
        self,
        server: McpServer,
        tool: str,
        arguments: Mapping[str, Any],
        idempotency_key: str | None,
        timeout: float,
        max_bytes: int,
    ) -> McpResult | McpFailure:
        stage = self._stage
        stage.tell("mcp", (server.name, tool, dict(arguments)), idempotency_key)
        given = _nth(stage.script.mcp[server.name].calls[tool], stage.ordinal(f"call {tool}"))
        await stage.happen(f"call {tool}")
        if "failure" in given:
            said = f"MCP server {server.name}: {given['failure']}"
            return McpFailure(given["failure"], said, sent=given.get("sent", False), detail=given.get("detail", ""))
        return McpResult(given.get("text", ""), given.get("structured"), given.get("isError", False))

    async def end_visit(self) -> None:
        """Nothing to close."""


class _Cluster(MemoryResources):
    """A cluster that holds the objects of the script."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage
        for stored in stage.script.objects:
            self.put(stored)

    async def call(self, request: ResourceRequest) -> ResourceReply | ResourceFailure:
        self._stage.tell("cluster", request)
        await self._stage.happen("cluster")
        if request.name in self._stage.script.forbidden:
            return ResourceFailure("Forbidden", "the run's ServiceAccount may not do this")
        return await super().call(request)


def _nth(given: Sequence[dict[str, Any]], index: int) -> dict[str, Any]:
    assert given, "the script says nothing of what comes back"
    return given[min(index, len(given) - 1)]
