"""What must hold of a run, wherever its processes were killed (engine.md §8 to §12, §16).

Each check yields what is wrong. They ask the facts of the journal, what was really done outside, and what was
published; `compare` besides compares with the run that nothing went wrong in.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec

from faults.world import Performed, World, ended
from golden.test_transcripts import check_exits, check_results
from pilothouse_api.structs import Snapshot
from pilothouse_engine.catalog import Catalog
from pilothouse_engine.facts import (
    ApprovalAnswered,
    ApprovalRequested,
    AttemptStarted,
    CallFinished,
    CallStarted,
    ChildDelivered,
    ChildRequested,
    Fact,
    JudgeAnswered,
    JudgeStarted,
    ModeAnswered,
    ModelFailed,
    ModelStarted,
    ParkEnded,
    ReplyReceived,
    RunEnded,
    SteerAnswered,
    StepEntered,
    decode_all,
)
from pilothouse_engine.frames import advance
from pilothouse_engine.ports import (
    Frame,
    HttpFailure,
    HttpRequest,
    McpFailure,
    ModelReply,
    ModelRequest,
    ResourceFailure,
)
from pilothouse_engine.run import Finished, Lost
from pilothouse_engine.state import BARRIER, RunState

TOOLS = frozenset({("functions", "run"), ("http", "send"), ("mcp", "call_tool"), ("resources", "call")})
UNJOURNALED_PARKS = frozenset({"JournalLost", "StoreLost"})
"""Waits for a service that is away: the journal learns of them when they are over, if it does."""

ANSWERS_OF_MODELS = (ReplyReceived, ModelFailed, JudgeAnswered)


class Story:
    """What is known of a run that was played: its facts, who journaled each, and the state after each."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.facts: list[Fact] = list(decode_all([json.loads(line) for line in world.journal._lines]))
        self.end = ended(world)
        self.problems: list[str] = []

    @cached_property
    def frames(self) -> list[Frame]:
        """What the facts show."""
        return self._fold[1]

    @cached_property
    def state(self) -> RunState:
        """The fold of the facts."""
        return self._fold[0]

    @cached_property
    def _fold(self) -> tuple[RunState, list[Frame]]:
        state = RunState(context=dict(self.world.plan.input))
        return state, [frame for fact in self.facts for frame in advance(state, fact)]

    @cached_property
    def writers(self) -> list[int]:
        """The attempt that journaled each fact."""
        writers: list[int] = []
        for process, _, length in self.world.appended:
            del writers[length:]
            writers += [process] * (length - len(writers))
        return writers[: len(self.facts)]

    @cached_property
    def tools(self) -> list[Performed]:
        """Everything that was done for a call."""
        return [done for done in self.world.performed if (done.port, done.method) in TOOLS and done.call]

    @cached_property
    def models(self) -> list[Performed]:
        """Every model call that was made, judges' included."""
        return [done for done in self.world.performed if done.port == "model"]

    def of(self, kind: type[Any]) -> list[Any]:
        """The facts of a kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def last_before(self, done: Performed, kinds: tuple[type[Any], ...]) -> int | None:
        """Return the number of the newest fact of these kinds that the process had journaled when it did something."""
        for number in range(min(done.length, len(self.facts)) - 1, -1, -1):
            if self.writers[number] == done.process and isinstance(self.facts[number], kinds):
                return number
        return None

    @cached_property
    def was_reached(self) -> dict[str, list[Performed]]:
        """What reached the world, by the id of its call."""
        reached: dict[str, list[Performed]] = {}
        for done in self.tools:
            got = done.outcome
            if isinstance(got, HttpFailure | McpFailure | ResourceFailure) and not got.sent:
                continue
            reached.setdefault(done.call, []).append(done)
        return reached


Check = Callable[[Story], Iterator[str]]


# ---------------------------------------------------------------- effects


def nothing_runs_before_its_start_is_journaled(story: Story) -> Iterator[str]:
    """Write-ahead: the attempt that acts has journaled that it does, and no result of it stands yet."""
    for done in story.tools:
        started = [
            n for n, f in enumerate(story.facts[: done.length]) if isinstance(f, CallStarted) and f.id == done.call
        ]
        if not any(story.writers[n] == done.process for n in started):
            yield f"attempt {done.process} ran {done.call} and had not journaled its start"
        finished = any(isinstance(f, CallFinished) and f.id == done.call for f in story.facts[: done.length])
        if finished and not done.is_thawed:
            yield f"attempt {done.process} made {done.call} again, whose result was journaled"


def once_is_at_most_once(story: Story) -> Iterator[str]:
    """A call or step with `effect: Once` reaches the world at most once."""
    effects = {fact.id: fact.effect for fact in story.of(CallStarted)}
    for call, reached in story.was_reached.items():
        if effects.get(call) == "Once" and len(reached) > 1:
            yield f"{call} is Once and was carried out {len(reached)} times"


def repeats_carry_one_key(story: Story) -> Iterator[str]:
    """What is repeated carries the key of its first start; what only reads carries none."""
    keys: dict[str, str] = {}
    for fact in story.of(CallStarted):
        if fact.effect != "ReadOnly" and keys.setdefault(fact.id, fact.key) != fact.key:
            yield f"{fact.id} was started with the keys {keys[fact.id]} and {fact.key}"
        if fact.effect == "ReadOnly":
            keys[fact.id] = ""
        elif not fact.key:
            yield f"{fact.id} is {fact.effect} and has no key"
    for done in story.tools:
        sent = _key_sent(done)
        if sent is not None and sent != keys.get(done.call):
            yield f"{done.call} was sent with the key {sent!r} and started with {keys.get(done.call)!r}"


def _key_sent(done: Performed) -> str | None:
    if done.port == "http":
        request = done.arguments[0]
        assert isinstance(request, HttpRequest)
        return next((value for name, value in request.headers if name.lower() == "idempotency-key"), "")
    return (done.arguments[3] or "") if done.port == "mcp" else None


def unknown_effects_are_listed_and_no_others(story: Story) -> Iterator[str]:
    """An effect that may have happened and whose result nobody has is listed, and nothing else is."""
    if story.end is None:
        return
    effects = {fact.id: fact.effect for fact in story.of(CallStarted)}
    results = {fact.id: fact for fact in story.of(CallFinished)}
    tasks = {fact.call for fact in story.of(ChildRequested) if fact.is_background}
    delivered = {fact.call for fact in story.of(ChildDelivered)}
    listed = {effect.call_id for effect in story.end.snapshot.effects.unknown}
    for call, effect in effects.items():
        result = results.get(call)
        was_lost = any(done.is_lost for done in story.was_reached.get(call, [])) and effect == "Once"
        is_settled = result is not None and not result.is_unknown
        if effect != "ReadOnly" and (was_lost or not is_settled) and call not in listed:
            yield f"nobody knows what {call} did, and status.run.effects does not list it"
        if call in listed and (effect == "ReadOnly" or is_settled) and (call not in tasks or call in delivered):
            yield f"{call} is listed as unknown and has a result"
    for call in listed - effects.keys():
        yield f"{call} is listed as unknown and was never started"


def the_model_is_told_of_unknown_effects(story: Story) -> Iterator[str]:
    """A model that is asked after a call became unknown reads that it did."""
    for number, fact in enumerate(story.facts):
        if not isinstance(fact, CallFinished) or not fact.is_unknown or fact.fatal:
            continue
        visit = _visit_at(story, number)
        for done in _requests_of(story, visit, after=number):
            request: ModelRequest = done.arguments[0]
            if not any(
                "nobody knows whether" in message.text for message in request.messages if message.role == "tool"
            ):
                yield f"the model was asked at turn {request.turn} and was not told that {fact.id} is unknown"


def _visit_at(story: Story, number: int) -> int:
    entered = [fact.visit for fact in story.facts[: number + 1] if isinstance(fact, StepEntered)]
    return entered[-1] if entered else 0


def _requests_of(story: Story, visit: int, after: int) -> Iterator[Performed]:
    """Yield the requests of an agent's own model in a visit that were sent when a fact stood."""
    for done in story.models:
        started = story.last_before(done, (ModelStarted, JudgeStarted))
        if started is None or done.length <= after or not isinstance(story.facts[started], ModelStarted):
            continue
        if _visit_at(story, started) == visit and not done.is_thawed:
            yield done


# ---------------------------------------------------------------- models and budgets


def no_model_call_is_made_unseen_or_again(story: Story) -> Iterator[str]:
    """Each model call has a journaled start of its own, which nothing has answered; no answered one is made again."""
    used: set[int] = set()
    for done in story.models:
        started = story.last_before(done, (ModelStarted, JudgeStarted))
        if started is None or started in used:
            yield f"attempt {done.process} asked a model without a start of its own in the journal"
            continue
        used.add(started)
        between = story.facts[started + 1 : done.length]
        if any(isinstance(fact, ANSWERS_OF_MODELS) for fact in between) and not done.is_thawed:
            yield f"a model was asked for what fact {started} began, which was answered"
    answered: set[tuple[int, int]] = set()
    visit = iteration = 0
    for fact in story.facts:
        if isinstance(fact, StepEntered):
            visit = fact.visit
        elif isinstance(fact, ModelStarted):
            iteration = fact.iteration
            if (visit, iteration) in answered:
                yield f"iteration {iteration} of visit {visit} was answered and is asked for again"
        elif isinstance(fact, ReplyReceived):
            answered.add((visit, iteration))


def every_model_call_is_paid_for(story: Story) -> Iterator[str]:
    """What was used is charged, whoever lived to see the answer; what is unknown is charged as its hold."""
    used = 0
    for done in story.models:
        number = story.last_before(done, (ModelStarted, JudgeStarted))
        if number is None or not isinstance(done.outcome, ModelReply):
            continue
        started = story.facts[number]
        assert isinstance(started, ModelStarted | JudgeStarted)
        hold, usage = started.hold_input + started.hold_output, done.outcome.usage
        taken = (usage.input or 0) + (usage.output or 0)
        used += min(taken, hold)
    state = story.state
    held = state.account.held
    charged = state.account.used + (held.input + held.output if held is not None else 0)
    if used > charged:
        yield f"models took {used} tokens and {charged} were charged"


def no_budget_is_exceeded_by_more_than_a_hold(story: Story) -> Iterator[str]:
    """A call is started only where its hold fits, tool calls and iterations only up to their limits."""
    world = story.world
    catalog = Catalog(world.plan, lambda endpoint: None, lambda endpoint: None, is_durable=world.script.durable)
    state = RunState(context=dict(world.plan.input))
    for fact in story.facts:
        visit = state.visit
        limits = catalog.limits(visit.step if visit is not None else None, state.limits)
        if isinstance(fact, ModelStarted) and visit is not None:
            state.account.forfeit(), visit.account.forfeit()
            left = limits.remaining(state.account, visit.account)
            if left.tokens is not None and fact.hold_input + fact.hold_output > left.tokens:
                yield f"turn {fact.turn} holds more than the {left.tokens} tokens that are left"
            if left.cost is not None and (fact.hold_cost or 0) > left.cost:
                yield f"turn {fact.turn} holds more money than is left"
            if fact.iteration > limits.max_iterations:
                yield f"iteration {fact.iteration} of {limits.max_iterations}"
        if isinstance(fact, CallStarted) and visit is not None and visit.is_agent:
            is_first = visit.call_ids[fact.id].started is None
            if visit.tool_calls + is_first > limits.max_tool_calls:
                yield f"{visit.tool_calls + 1} tool calls of {limits.max_tool_calls}"
        advance(state, fact)


# ---------------------------------------------------------------- what is published


def snapshots_never_go_back(story: Story) -> Iterator[str]:
    """Turn, visit, iteration, tokens and effects that were published once stay."""
    before: tuple[int, ...] = ()
    for process, length, snapshot in story.world.published:
        now = _clock_of(snapshot)
        if any(a < b for a, b in zip(now, before, strict=False)):
            yield f"attempt {process} published {now} after {before} (journal length, turn, visit, tokens, settled)"
        if snapshot.journal_length > length:
            yield f"attempt {process} published {snapshot.journal_length} facts when the journal held {length}"
        before = now


def _clock_of(snapshot: Snapshot) -> tuple[int, ...]:
    return (
        snapshot.journal_length,
        snapshot.turn,
        snapshot.visit,
        snapshot.visit * 1000 + (snapshot.iteration or 0),
        snapshot.tokens.used,
        snapshot.effects.settled,
        snapshot.tool_errors,
    )


def snapshots_are_small_and_hide_what_is_hidden(story: Story) -> Iterator[str]:
    """Every snapshot is under its cap, and nothing that is to be masked is shown."""
    world = story.world
    for _, _, snapshot in world.published:
        size = len(msgspec.json.encode(snapshot))
        if size > world.settings.max_snapshot_bytes:
            yield f"a snapshot has {size} bytes"
    if world.script.hidden:
        shown = [repr(snapshot) for _, _, snapshot in world.published]
        shown += [str(frame) for frame in world.sink.frames]
        yield from (f"{word!r} is shown" for word in world.script.hidden if any(word in text for text in shown))


def frames_tell_what_is_journaled(story: Story) -> Iterator[str]:
    """What was shown as progress stands: a frame may repeat, and none says what the journal does not."""
    keys = {json.dumps(frame, sort_keys=True) for frame in story.frames}
    for frame in story.world.sink.frames:
        if frame["kind"] == "Park" and frame["reason"] in UNJOURNALED_PARKS:
            continue
        if json.dumps(frame, sort_keys=True) not in keys:
            yield f"a frame tells what the journal does not hold: {frame}"


# ---------------------------------------------------------------- people and children


def directives_are_answered_once(story: Story) -> Iterator[str]:
    """Every directive that stands is answered, none twice; a steer is in the transcript once."""
    answers = Counter(fact.id for fact in story.of(SteerAnswered))
    yield from (f"steer {key} was answered {count} times" for key, count in answers.items() if count > 1)
    modes = [fact.mode for fact in story.of(ModeAnswered) if fact.state == "Landed"]
    yield from (f"mode {a} landed twice" for a, b in pairwise(modes) if a == b)
    control = story.world.store.directives.control
    generation = story.world.store.directives.generation
    # What comes after the last look before the end has no answer.
    if story.end is not None and control is not None and story.end.snapshot.control.observed_generation == generation:
        state = story.state
        if (control.mode or "Run") not in (state.mode, state.refused_mode):
            yield f"mode {control.mode} was not answered"
        yield from (f"steer {key} was not answered" for key in control.steer if key not in state.steers)
        yield from (
            f"the decision on {key} was not answered" for key in control.approvals if key not in state.approvals
        )
    for number, fact in enumerate(story.facts):
        if isinstance(fact, SteerAnswered) and fact.state == "Landed":
            for done in _requests_of(story, _visit_at(story, number), after=number):
                count = [message.text for message in done.arguments[0].messages].count(fact.text)
                same = [f.text for f in story.facts[: done.length] if isinstance(f, SteerAnswered)].count(fact.text)
                if count != same:
                    yield f"steer {fact.id} stands {count} times in the prompt of turn {done.arguments[0].turn}"


def approvals_are_used_once(story: Story) -> Iterator[str]:
    """A call that asked for a person starts only with an approval that landed once, and is asked for once."""
    landed = Counter(f.id for f in story.of(ApprovalAnswered) if f.state in ("Landed", "Expired"))
    asked = Counter(fact.call for fact in story.of(ApprovalRequested))
    yield from (f"{call} was decided {count} times" for call, count in landed.items() if count > 1)
    yield from (f"{call} was asked for {count} times" for call, count in asked.items() if count > 1)
    approved: set[str] = set()
    for fact in story.facts:
        if isinstance(fact, ApprovalAnswered) and fact.state == "Landed" and fact.decision == "Approve":
            approved.add(fact.id)
        if isinstance(fact, CallStarted) and fact.is_approved != (fact.id in approved):
            yield f"{fact.id} was started with is_approved={fact.is_approved}"
        if isinstance(fact, CallStarted) and fact.id in asked and fact.id not in approved:
            yield f"{fact.id} was started without the approval that it asked for"


def nothing_begins_before_supervision_has_seen_what_was_done(story: Story) -> Iterator[str]:
    """Under Sync no model call of the next turn and no call behind a Once begins unseen; each barrier ends for a cause.

    Seen is what the clock has come to before; a verdict on the time that is up, an Abort and a Finish are causes too.
    """
    written = [event.supervision for event in story.world.script.events if event.when.start and event.supervision]
    if not written:
        return
    state = RunState(context=dict(story.world.plan.input))
    before: Fact | None = None
    for fact in story.facts:
        visit = state.visit
        is_ending = state.mode in ("Finish", "Abort")
        if isinstance(fact, ModelStarted) and state.turn_length > state.seen_length and not is_ending:
            yield f"turn {fact.turn} begins and supervision has not seen the one before"
        if isinstance(fact, CallStarted) and visit is not None and visit.once_length > state.seen_length:
            yield f"{fact.id} begins and supervision has not seen the Once call before it"
        if isinstance(fact, ParkEnded) and fact.reason == BARRIER and state.barrier_timeout is None:
            raised = [length for at, length in story.world.store.clocks if at <= fact.at + 0.001]
            is_cut_short = isinstance(before, ModeAnswered) and before.mode in ("Finish", "Abort")
            if not is_cut_short and max(raised, default=0) < state.park_length:
                yield f"the barrier was passed at {state.park_length} facts, and the clock says {raised}"
        advance(state, fact)
        before = fact


def children_are_asked_for_and_delivered_once(story: Story) -> Iterator[str]:
    """One request and one delivery for each child, one note for each task."""
    asked = Counter(fact.call for fact in story.of(ChildRequested))
    delivered = Counter(fact.call for fact in story.of(ChildDelivered))
    yield from (f"{call} was requested {count} times" for call, count in asked.items() if count > 1)
    yield from (f"{call} was delivered {count} times" for call, count in delivered.items() if count > 1)
    for number, fact in enumerate(story.facts):
        if isinstance(fact, ChildDelivered) and fact.note:
            for done in _requests_of(story, _visit_at(story, number), after=number):
                if [message.text for message in done.arguments[0].messages].count(fact.note) != 1:
                    yield f"the note about {fact.call} does not stand once in a prompt"


# ---------------------------------------------------------------- the end


def every_call_has_one_result_and_every_exit_is_known(story: Story) -> Iterator[str]:
    """Engine.md §3 and §1, whatever was killed."""
    try:
        check_exits(story.world, story.facts)
        check_results(story.facts, is_ended=story.end is not None)
    except AssertionError as error:
        yield f"results or exits: {str(error).splitlines()[0] if str(error) else 'a call has not one result'}"


def the_run_ends_once(story: Story) -> Iterator[str]:
    """A run that has an end has one, and nothing follows it but attempts that publish it."""
    numbers = [number for number, fact in enumerate(story.facts) if isinstance(fact, RunEnded)]
    if story.end is not None and len(numbers) != 1:
        yield f"the run ended {len(numbers)} times"
    if numbers and any(not isinstance(fact, AttemptStarted) for fact in story.facts[numbers[0] + 1 :]):
        yield "facts follow the end of the run"
    for process in story.world.processes:
        if isinstance(process.end, BaseException):
            yield f"attempt {process.number} raised {type(process.end).__name__}: {process.end}"
    last = story.world.processes[-1].end
    if not isinstance(last, Finished | Lost):
        yield f"the run has no end: its last attempt is {last}"


def the_journal_folds_to_the_live_state(story: Story) -> Iterator[str]:
    """What the last attempt knew is what the journal says."""
    live = story.world.processes[-1].state
    if story.end is None or live is None:
        return
    folded = story.state
    folded.context_json(), live.context_json()  # a text that either may have made by now
    if folded != live:
        yield "the journal folds to another state than the live one"


def a_process_that_lost_the_fence_ends(story: Story) -> Iterator[str]:
    """An attempt that goes on after a newer one has begun writes nothing and says that it is lost."""
    for process in story.world.frozen:
        if process.end is None:
            yield f"attempt {process.number} goes on although the run is another's"
    newest = 0
    for number, fact in enumerate(story.facts):
        if isinstance(fact, AttemptStarted):
            newest = max(newest, fact.attempt)
        if story.writers[number] < newest:
            yield f"attempt {story.writers[number]} journaled fact {number} after attempt {newest} had begun"


CHECKS: tuple[Check, ...] = (
    nothing_runs_before_its_start_is_journaled,
    once_is_at_most_once,
    repeats_carry_one_key,
    unknown_effects_are_listed_and_no_others,
    the_model_is_told_of_unknown_effects,
    no_model_call_is_made_unseen_or_again,
    every_model_call_is_paid_for,
    no_budget_is_exceeded_by_more_than_a_hold,
    snapshots_never_go_back,
    snapshots_are_small_and_hide_what_is_hidden,
    frames_tell_what_is_journaled,
    directives_are_answered_once,
    approvals_are_used_once,
    nothing_begins_before_supervision_has_seen_what_was_done,
    children_are_asked_for_and_delivered_once,
    every_call_has_one_result_and_every_exit_is_known,
    the_run_ends_once,
    the_journal_folds_to_the_live_state,
    a_process_that_lost_the_fence_ends,
)


CHECKS_OF_A_CUT_JOURNAL: tuple[Check, ...] = (
    once_is_at_most_once,
    snapshots_are_small_and_hide_what_is_hidden,
    every_call_has_one_result_and_every_exit_is_known,
    the_run_ends_once,
)


def check(story: Story) -> list[str]:
    """Return what is wrong with a run that was played."""
    if story.world.script.journal_was_cut:  # its facts are gone: what was done cannot be held against them
        return [f"{check.__name__}: {problem}" for check in CHECKS_OF_A_CUT_JOURNAL for problem in check(story)]
    return [f"{check.__name__}: {problem}" for check in CHECKS for problem in check(story)]


# ---------------------------------------------------------------- beside the run that nothing went wrong in


def compare(story: Story, whole: Story) -> list[str]:
    """Return where a run ended otherwise than the one that nothing went wrong in, where it must not.

    A lost answer of a `Once` call, and a hold that a crash has forfeited, may change how the run goes on.
    """
    got, want = story.end, whole.end
    if got is None or want is None or is_sensitive(story, whole):
        return []
    told = []
    ends = [(end.exit.signal, end.exit.reason) for end in (got, want)]
    if ends[0] != ends[1]:
        told.append(f"compare: it ended {ends[0]}, not {ends[1]}")
    if got.result != want.result:
        told.append(f"compare: its result is {got.result}, not {want.result}")
    if story.state.context != whole.state.context:
        told.append(f"compare: its context is {story.state.context}, not {whole.state.context}")
    return told


def is_sensitive(story: Story, whole: Story) -> bool:
    """Tell whether a run may end otherwise."""
    if story.world.script.may_end_otherwise or any(fault.kind in ("settle", "lose") for fault in story.world.met):
        return True
    unknown = [{fact.id for fact in one.of(CallFinished) if fact.is_unknown} for one in (story, whole)]
    return unknown[0] != unknown[1]
