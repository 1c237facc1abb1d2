"""The one loop: ask what is next, do it through a port, journal what came of it, ask again.

Facts are applied to the state as soon as they are known and flushed to the journal before anything is acted on, and
before anything is awaited that a crash could make them lost in; only the result of a call that changes nothing may
wait for the next append. So what is acted on or shown is always journaled, and facts that belong together are one
append.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, assert_never

from msgspec.structs import replace

from pilothouse_api.structs import AgentSpec, Parked, Plan, Snapshot
from pilothouse_engine.account import Hold, charge
from pilothouse_engine.actions import (
    AskPolicy,
    CallModel,
    Commit,
    Execute,
    Execution,
    Finish,
    Inputs,
    JudgeText,
    ListTools,
    LoadSession,
    ReadControl,
    ReadSlice,
    Release,
    Show,
    Sleep,
    WaitParked,
)
from pilothouse_engine.alarms import Alarms, Cut
from pilothouse_engine.attempt import Attempt, AttemptEnd, Finished, Lost, Released, Stop
from pilothouse_engine.catalog import Catalog, catalog_of
from pilothouse_engine.decide import next_action, remaining_seconds
from pilothouse_engine.executions import TimedOut, finish_slice, finish_step, finish_tool
from pilothouse_engine.facts import (
    ApprovalAnswered,
    AttemptStarted,
    BarrierTimedOut,
    CallFinished,
    CallStarted,
    ChildRequested,
    Fact,
    Facts,
    LimitsLanded,
    ModeAnswered,
    ModelFailed,
    ParkBegan,
    ParkEnded,
    ParkReleased,
    ReplyReceived,
    SteerAnswered,
    StepEntered,
    StepFinished,
    TextJudged,
    encode,
)
from pilothouse_engine.frames import advance, fold, park_frame
from pilothouse_engine.observers import Watch
from pilothouse_engine.parks import STORE_LOST, iso, lost_park, parked_report
from pilothouse_engine.ports import (
    Directives,
    Fenced,
    Frame,
    JournalUnavailable,
    ModelFailure,
    ModelReply,
    Ports,
    RawEntry,
    StoreFailure,
)
from pilothouse_engine.publisher import Publisher
from pilothouse_engine.requests import asked_calls, build_request
from pilothouse_engine.snapshot import build_snapshot, lost_snapshot, read_snapshot, run_exit
from pilothouse_engine.state import BARRIER, RunState
from pilothouse_engine.steps.contract import StepEnd
from pilothouse_engine.steps.registry import LOCAL_KINDS, executor_of

if TYPE_CHECKING:
    from pilothouse_engine.guardrails.gates import Gate
    from pilothouse_engine.guardrails.judging import Desk

P = ParamSpec("P")
T = TypeVar("T")

URGENT = frozenset(
    {
        ModeAnswered,
        SteerAnswered,
        ApprovalAnswered,
        LimitsLanded,
        ChildRequested,
        ParkBegan,
        ParkReleased,
        ParkEnded,
        BarrierTimedOut,
    }
)
"""Facts that somebody waits for: published at once."""

SOON = frozenset({AttemptStarted, StepEntered})
"""Facts that show progress, as does a reply that asks for calls: published within an interval, once a turn."""

LAZY = frozenset({ReplyReceived, CallFinished})
"""Facts that the next turn publishes, unless it takes long."""

FIRST_RETRY_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 15.0
STOP_RETRY_SECONDS = 2.0
STOP_PUBLISH_SECONDS = 10.0
"""How long after the host has asked to let go another try is made to publish: each may take 10 s, and a pod has 30."""


class _Ends(Exception):
    """Unwinds the loop with the attempt's end; never leaves this module."""

    def __init__(self, end: AttemptEnd) -> None:
        super().__init__(end)
        self.end = end


class Driver:
    """One attempt of one run."""

    def __init__(
        self, plan: Plan | Catalog, ports: Ports, attempt: Attempt, stop: Stop, watch: Watch | None = None
    ) -> None:
        self._ports = ports
        self._watch = watch
        self._attempt = attempt
        self._stop = stop
        self._catalog = catalog = catalog_of(plan, ports)
        self._plan = catalog.plan
        self._state = RunState()
        self._buffer: list[RawEntry] = []
        self._frames: list[Frame] = []
        self._flushed = 0
        # Wall time that only grows: a clock that is set back must not make a fact older than the one before.
        self._epoch = ports.clock.now().timestamp() - ports.clock.monotonic()
        self._alarms = Alarms(ports.clock)
        self._publisher = Publisher(
            ports.store,
            ports.clock,
            self._alarms,
            attempt.settings.publish_interval_seconds,
            self._build_snapshot,
            self._alarms.interrupt,
        )
        self._inputs = Inputs(
            attempt=attempt.number,
            settle=attempt.settle,
            settings=attempt.settings,
            plan_digest=catalog.digest,
            now=self._now(),
            read_at=self._now(),
        )
        self._must_flush = False
        self._journal_lost: ParkBegan | None = None
        self._is_urgent = False
        self._stopped_at = float("inf")
        self._desk: Desk | None = None
        self._has_sessions = False
        """Whether the visit under way has asked MCP servers, whose sessions end with it."""
        self._is_kept = catalog.plan.session is None
        """Whether what was said in the run is kept for the next one of its session: before that its end is not told."""

    async def run(self) -> AttemptEnd:
        """Advance the run until the attempt ends."""
        watch = asyncio.get_running_loop().create_task(self._watch_stop(), name="pilothouse-stop")
        try:
            await self._open()
            while True:
                if (lost := self._publisher.check()) is not None:
                    return _lost(lost)
                self._inputs.now = self._now()
                self._inputs.is_stopping = self._stop.is_asked
                try:
                    end = await self._perform()
                except Fenced:
                    if not await self._reopen():
                        raise
                    continue
                if end is not None:
                    return end
                if self._has_sessions:
                    await self._end_sessions()
        except _Ends as ends:
            return ends.end
        except Fenced as fenced:
            return Lost("Fenced", str(fenced))
        finally:
            watch.cancel()
            if self._has_sessions:
                await self._ports.mcp.end_visit()
            await asyncio.gather(watch, return_exceptions=True)
            await self._publisher.aclose()
            await self._alarms.aclose()

    async def _watch_stop(self) -> None:
        await self._stop.wait()
        self._stopped_at = self._now()
        self._alarms.interrupt()

    def _now(self) -> float:
        return self._epoch + self._ports.clock.monotonic()

    def _check_lost(self) -> None:
        if (lost := self._publisher.check()) is not None:
            raise _Ends(_lost(lost))

    async def _open(self) -> None:
        entries = await self._until_available(self._ports.journal.read)
        self._state = fold(entries, self._plan.input)
        self._flushed = self._inputs.opened_length = len(entries)
        self._inputs.has_begun = False
        if self._state.plan is not None and self._state.plan != self._inputs.plan_digest:
            raise ValueError(f"the journal is of the plan {self._state.plan}, this is {self._inputs.plan_digest}")

    async def _reopen(self) -> bool:
        """Begin again where an older attempt, or a pod that had this one's number, has written since it was read.

        It was not fenced until then, and must not end the attempt that fences it. False: a newer one has written.
        """
        if self._flushed > self._inputs.opened_length:
            return False
        self._buffer, self._frames, self._must_flush, self._is_urgent = [], [], False, False
        await self._open()
        return self._state.attempt <= self._attempt.number

    async def _perform(self) -> AttemptEnd | None:
        action = next_action(self._catalog, self._state, self._inputs)
        match action:
            case Commit(facts):
                self._commit(facts)
                if self._is_urgent:
                    await self._publish_urgent()
            case CallModel():
                await self._call_model(action)
            case Execute(executions):
                await self._execute(executions)
            case ReadControl(after):
                await self._read_control(after)
            case AskPolicy():
                await self._ask_policy(action)
            case JudgeText():
                await self._judge_text(action)
            case ListTools(agent):
                await self._list_tools(agent)
            case LoadSession():
                await self._load_session(action)
            case Show():
                await self._publish_urgent()
                self._inputs.shown_length = self._state.length
            case Sleep(seconds):
                await self._flush()
                await self._alarms.bound(self._ports.clock.sleep(seconds), None)
            case WaitParked(seconds):
                await self._flush()
                await self._alarms.bound(self._ports.store.wait(seconds), None)
                if not self._stop.is_asked:
                    await self._read_control(0.0)
            case Finish():
                return await self._finish()
            case Release():
                return await self._release()
            case _:
                assert_never(action)
        return None

    # ------------------------------------------------------------ facts

    def _commit(self, facts: Facts) -> None:
        """Apply facts and queue them for the journal; they are flushed before anything is awaited."""
        state = self._state
        for fact in facts:
            self._buffer.append(encode(fact))
            if self._watch is not None:
                self._watch.observe(state, fact)
            self._frames += advance(state, fact)
            kind = type(fact)
            self._inputs.has_begun = self._inputs.has_begun or kind is AttemptStarted
            self._must_flush = self._must_flush or not self._may_be_forgotten(fact)
            if kind in URGENT and not _is_passing(fact):
                self._is_urgent = True
            elif kind in SOON or kind is ParkEnded or (isinstance(fact, ReplyReceived) and fact.calls):
                self._publisher.mark()
            elif kind in LAZY:
                self._publisher.mark(is_lazy=True)

    def _may_be_forgotten(self, fact: Fact) -> bool:
        """Tell whether a crash may forget a fact: what only reads is read again, and nothing was acted on yet.

        A text is judged again with what its judges said, which is journaled. A step that asks nobody is made again.
        """
        kind, visit = type(fact), self._state.visit
        if kind is TextJudged or (visit is not None and visit.kind in LOCAL_KINDS):
            return kind in (TextJudged, StepEntered, CallStarted, CallFinished)
        if kind is StepFinished:
            return self._catalog.steps[self._state.last_step_id or ""].kind in LOCAL_KINDS
        if not isinstance(fact, CallFinished):
            return False
        call = visit.call_ids.get(fact.id) if visit is not None else None
        return call is not None and call.started is not None and call.started.effect == "ReadOnly"

    async def _flush(self) -> None:
        if not self._buffer:
            return
        self._must_flush = False
        entries, self._buffer = self._buffer, []
        await self._until_available(self._ports.journal.append, self._attempt.number, self._flushed, entries)
        self._flushed += len(entries)
        frames, self._frames = self._frames, []
        for frame in frames:  # nobody is shown what a crash could still undo
            self._ports.frames.emit(frame)
        if self._publisher.is_held and not self._is_urgent and self._state.ended is None:  # else that is published next
            self._publisher.catch_up()
        if self._watch is not None:
            self._watch.journaled()
        if self._journal_lost is not None:
            since, self._journal_lost = self._journal_lost.at, None
            if self._state.ended is not None:  # nothing follows the end
                return
            self._commit((ParkEnded(self._now(), "JournalLost", since),))
            await self._flush()

    async def _until_available(
        self, work: Callable[P, Coroutine[Any, Any, T]], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Ask the journal until it answers; the run is parked meanwhile, which is published but cannot be journaled."""
        wait = FIRST_RETRY_SECONDS
        while True:
            try:
                return await work(*arguments, **options)
            except JournalUnavailable as error:
                park = self._journal_lost = self._journal_lost or self._begin_outage("JournalLost", str(error))
            wait = await self._outlast(park, wait)

    def _begin_outage(self, reason: str, said: str) -> ParkBegan:
        """Tell viewers of a park that cannot be journaled: on a laptop nobody else would."""
        park = lost_park(self._state, reason, self._now(), said)
        self._ports.frames.emit(park_frame(self._state, park))
        return park

    async def _outlast(self, park: ParkBegan, wait: float) -> float:
        """Wait for a service to be back; return how long to wait the next time."""
        await self._publish_lost(park, released=False)
        await self._alarms.bound(self._ports.clock.sleep(wait), None)
        self._check_lost()
        if self._stop.is_asked:
            raise _Ends(await self._publish_lost(park, released=True))
        return min(wait * 2, LONGEST_RETRY_SECONDS)

    async def _publish_lost(self, park: ParkBegan, *, released: bool) -> Released:
        parked = parked_report(park, is_released=released)
        await self._publisher.settle()  # a newer snapshot may be under way, and must not be overtaken by an older one
        # As it stood, where facts are not journaled yet: nobody is shown what a crash could still undo.
        if self._flushed == self._state.length:
            stood = build_snapshot(self._catalog, self._state, self._inputs)
        else:
            stood = self._publisher.sent or read_snapshot(self._inputs.directives, self._attempt.number)
        unsaid = {"exit": None, "result": None, "running": None}
        snapshot = replace(stood, parked=parked, journal_length=self._flushed, **unsaid)
        has_looked = self._inputs.published_length is not None or self._state.ended is not None
        if self._state.attempt != self._attempt.number:
            # It has not fenced the others, and has nothing to say but that it lets go: else it would count as crashed.
            has_looked = released and await self._look() is None
            stood = read_snapshot(self._inputs.directives, self._attempt.number)
            snapshot = replace(stood, parked=parked, **unsaid)
        if has_looked:
            failure = await self._ports.store.publish(snapshot)
            if failure is not None and failure.kind in ("Gone", "Fenced"):
                raise _Ends(_lost(failure))
        return Released(parked, snapshot)

    def _build_snapshot(self) -> Snapshot | None:
        state = self._state
        if self._flushed != state.length or state.attempt != self._attempt.number:
            return None
        if state.ended is not None and not self._is_kept:
            return None
        if self._inputs.published_length is None and state.ended is None:
            # Never overwrite what stands before it was read: it may know more than this journal.
            return None
        if self._inputs.is_journal_lost:
            directives = self._inputs.directives
            if directives is not None and directives.snapshot is not None:
                return lost_snapshot(directives.snapshot, self._catalog, self._state, self._inputs)
        return build_snapshot(self._catalog, self._state, self._inputs)

    async def _publish_urgent(self) -> None:
        await self._flush()
        self._is_urgent = False
        if self._state.ended is None and not self._state.is_released:
            await self._publisher.publish()

    # ------------------------------------------------------------ control

    async def _read_control(self, after: float) -> None:
        if after or self._must_flush:
            await self._flush()
        if after:
            await self._alarms.bound(self._ports.clock.sleep(after), None)
        got = await self._ports.store.read()
        inputs = self._inputs
        inputs.read_tick = self._state.tick
        if isinstance(got, StoreFailure):
            self._note_failure(got)
            return
        uid = self._plan.run.uid
        if got.deleting or (uid and got.uid != uid):
            what = "is being deleted" if got.deleting else f"has the uid {got.uid}, the plan is for {uid}"
            raise _Ends(Lost("Gone", f"the run {what}"))
        self._note_directives(got)

    def _note_failure(self, failure: StoreFailure) -> None:
        if failure.kind in ("Gone", "Fenced"):
            raise _Ends(_lost(failure))
        self._inputs.failure = failure

    def _note_directives(self, directives: Directives) -> None:
        inputs, now = self._inputs, self._now()
        inputs.failure, inputs.read_at = None, now
        if self._watch is not None and (
            inputs.directives is None or directives.generation != inputs.directives.generation
        ):
            self._watch.directives_seen(now, directives)
        if inputs.published_length is None:
            inputs.published_length = _journal_length(directives)
        elif inputs.directives is not None and directives.generation != inputs.directives.generation:
            self._publisher.mark()
        inputs.directives = directives
        if directives.control is not None:
            for key in directives.control.steer:
                inputs.first_seen.setdefault(key, now)

    # ------------------------------------------------------------ sessions

    async def _load_session(self, action: LoadSession) -> None:
        from pilothouse_engine.sessions.loading import load_session

        await self._flush()
        if action.after:
            await self._alarms.bound(self._ports.store.wait(action.after), None)
            if self._stop.is_asked:
                return
            await self._read_control(0.0)
        most, bound = self._inputs.settings.max_session_messages, self._alarms.bound
        self._commit(await load_session(self._state, action.key, self._ports.sessions, most, self._now, bound))
        if self._is_urgent:
            await self._publish_urgent()

    async def _keep_session(self) -> None:
        """Keep what was said for the next run of the session; parked until that is done."""
        from pilothouse_engine.sessions.storing import keep_said

        entries = await self._until_available(self._ports.journal.read)
        most = self._inputs.settings.max_session_messages
        park, wait = None, FIRST_RETRY_SECONDS
        while (problem := await keep_said(self._catalog, entries, self._ports.sessions, most)) is not None:
            park = park or self._begin_outage(STORE_LOST, problem)
            wait = await self._outlast(replace(park, message=problem), wait)
        self._is_kept = True

    # ------------------------------------------------------------ MCP servers

    async def _list_tools(self, agent: AgentSpec) -> None:
        from pilothouse_engine.mcp.listing import list_surface

        await self._flush()
        self._has_sessions = True
        seconds = self._remaining(self._inputs.now)
        self._commit(await list_surface(self._state, agent, self._ports.mcp, self._alarms, seconds, self._now))

    async def _end_sessions(self) -> None:
        if self._state.visit is None:
            await self._flush()
            ended = await self._alarms.bound(self._ports.mcp.end_visit(), None)
            self._has_sessions = ended is Cut.INTERRUPTED  # they end with the attempt then

    # ------------------------------------------------------------ models and calls

    async def _call_model(self, action: CallModel) -> None:
        self._commit((action.started,))
        await self._flush()
        request = build_request(self._state, action)
        timeout = min(action.timeout, self._remaining(self._inputs.now))
        outcome = await self._alarms.bound(self._ports.model.call(request), timeout)
        if outcome is Cut.INTERRUPTED:
            return
        if isinstance(outcome, Cut):
            said = f"no reply within {timeout:g} s; see model.timeoutSeconds and retry.deadlineSeconds"
            outcome = ModelFailure("Timeout", said)
        self._commit((self._model_fact(action, outcome),))

    def _model_fact(self, action: CallModel, outcome: ModelReply | ModelFailure) -> ReplyReceived | ModelFailed:
        started, now = action.started, self._now()
        visit = self._state.visit
        assert visit is not None
        hold = Hold(started.hold_input, started.hold_output, started.hold_cost)
        if isinstance(outcome, ModelFailure):
            is_charged = outcome.sent or outcome.kind in ("Timeout", "Garbage")
            return ModelFailed(
                now,
                outcome.kind,
                outcome.message[:500],
                hold.input if is_charged else 0,
                hold.output if is_charged else 0,
                hold.cost if is_charged else 0,
                outcome.status,
                outcome.retry_after,
                outcome.mark,
            )
        taken = charge(hold, outcome.usage, self._catalog.price(visit.step, started.endpoint))
        return ReplyReceived(
            now,
            outcome.text,
            asked_calls(started.turn, outcome.calls, self._catalog.offer(visit).tools),
            outcome.finish,
            taken.input,
            taken.output,
            taken.cost,
            taken.counted,
            outcome.raw,
            outcome.mark,
            started.level,
        )

    async def _judge_text(self, action: JudgeText) -> None:
        from pilothouse_engine.guardrails.judging import Desk, judge_text  # its libraries are heavy

        if self._desk is None:
            bound, model, remaining = self._alarms.bound, self._ports.model, self._remaining
            self._desk = Desk(self._catalog, self._state, model, bound, self._now, remaining, self._commit, self._flush)
        await judge_text(action, self._desk)

    def _remaining(self, now: float) -> float:
        return max(0.0, remaining_seconds(self._catalog, self._state, now))

    async def _execute(self, executions: tuple[Execution, ...]) -> None:
        self._commit(tuple(execution.started for execution in executions))
        visit = self._state.visit
        if visit is None or visit.kind not in LOCAL_KINDS:
            await self._flush()
        if len(executions) == 1:
            results = [await self._run_call(executions[0])]
        else:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._run_call(execution)) for execution in executions]
            results = [task.result() for task in tasks]
        self._commit(self._judged(tuple(result for result in results if result is not None)))

    def _judged(self, finished: tuple[CallFinished, ...]) -> Facts:
        """Return results with what the tools gate says of them at once."""
        visit = self._state.visit
        gate = self._catalog.gates(visit.step).tools if visit is not None and visit.is_gated else None
        return finished if gate is None else _judge_finished()(gate, finished)

    async def _run_call(self, execution: Execution) -> CallFinished | None:
        """Return what came of a call, None where it was interrupted."""
        if self._watch is not None:
            self._watch.call_begins(execution.started.id)
        work, began = execution.work, self._now()
        if isinstance(work, ReadSlice):
            return finish_slice(execution, work, began)
        if work.kind == "MCP":
            self._has_sessions = True
        end: StepEnd | TimedOut | Cut = await self._alarms.bound(
            executor_of(work.kind)(work, self._ports), min(execution.timeout, self._remaining(began))
        )
        if end is Cut.INTERRUPTED:
            return None
        outcome = TimedOut() if isinstance(end, Cut) else end
        finish = finish_tool if execution.is_tool else finish_step
        now = self._now()
        return finish(self._state, self._inputs, execution, outcome, now, now - began)

    async def _ask_policy(self, action: AskPolicy) -> None:
        from pilothouse_engine.policies.gating import ask_policy

        await self._flush()
        work = ask_policy(action, self._ports.http, self._now)
        verdict = await self._alarms.bound(work, self._remaining(self._inputs.now))
        if not isinstance(verdict, Cut):
            self._commit((verdict,))

    # ------------------------------------------------------------ the end

    async def _finish(self) -> Finished | Released:
        await self._flush()
        ended = self._state.ended
        assert ended is not None
        if not self._is_kept:
            await self._keep_session()
        snapshot = await self._publish_surely()
        if snapshot is None:  # the journal knows the end: the next attempt publishes it
            parked = Parked(reason=STORE_LOST, turn=self._state.turn, since=iso(self._now()), released=True)
            return Released(parked, build_snapshot(self._catalog, self._state, self._inputs))
        result = dict(ended.result) if ended.result is not None else None
        return Finished(run_exit(ended), result, snapshot)

    async def _release(self) -> Released:
        await self._flush()
        snapshot = await self._publish_surely()
        park = self._state.park
        assert park is not None
        parked = parked_report(park, is_released=True)
        return Released(parked, snapshot or build_snapshot(self._catalog, self._state, self._inputs))

    async def _look(self) -> StoreFailure | None:
        """Read the object where nobody has yet: what stands there is never overwritten unread."""
        if self._inputs.published_length is not None or self._state.ended is not None:
            return None
        await self._read_control(0.0)
        return self._inputs.failure

    async def _publish_surely(self) -> Snapshot | None:
        """Publish until it is stored; once the host has asked to let go, only for a while."""
        wait, is_told = FIRST_RETRY_SECONDS, False
        while True:
            failure = await self._look() or await self._publisher.publish()
            self._check_lost()
            if failure is None:
                return self._publisher.published
            if failure.kind == "Refused":
                raise RuntimeError(f"the snapshot was refused: {failure.message}")
            if not is_told:
                is_told = True
                self._begin_outage(STORE_LOST, failure.message)
            if not self._stop.is_asked:
                await self._alarms.bound(self._ports.clock.sleep(wait), None)
                wait = min(wait * 2, LONGEST_RETRY_SECONDS)
            elif self._now() >= self._stopped_at + STOP_PUBLISH_SECONDS:
                return None
            else:
                await self._ports.clock.sleep(STOP_RETRY_SECONDS)


def _is_passing(fact: Fact) -> bool:
    """Tell whether a fact says that a barrier was passed, at each turn: the next one shows it soon enough."""
    return isinstance(fact, ParkEnded) and fact.reason == BARRIER


@cache
def _judge_finished() -> "Callable[[Gate, Sequence[CallFinished]], Facts]":
    """Return what judges results: most runs have no guardrail, and those that have one look it up once.

    Once for the process: a `cached_property` would make every attribute of the driver slower to read.
    """
    from pilothouse_engine.guardrails.judgements import judge_finished

    return judge_finished


def _lost(failure: StoreFailure) -> Lost:
    return Lost("Gone" if failure.kind == "Gone" else "Fenced", failure.message)


def _journal_length(directives: Directives) -> int:
    length = (directives.snapshot or {}).get("journalLength", 0)
    return length if isinstance(length, int) else 0
