"""The state of a run: the fold of its facts, and nothing else.

`apply` adds one fact in constant time; decisions read the state and never change it. Everything that a crash must not
forget is here, and everything that is here follows from the journal.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from pilothouse_api.names import child_run_name
from pilothouse_api.signals import ABORTED
from pilothouse_api.structs import RunLimits
from pilothouse_engine.account import Account, Charge, Hold
from pilothouse_engine.facts import (
    TOOLS_OFF,
    ApprovalAnswered,
    ApprovalRequested,
    AskedCall,
    AttemptStarted,
    BarrierTimedOut,
    CallCode,
    CallFinished,
    CallStarted,
    ChildDelivered,
    ChildRequested,
    Fact,
    JudgeAnswered,
    JudgeStarted,
    Level,
    LimitsLanded,
    ModeAnswered,
    ModelFailed,
    ModelStarted,
    NoteAdded,
    ParkBegan,
    ParkEnded,
    ParkReleased,
    PastTask,
    PolicyJudged,
    PromptOpened,
    ReplyReceived,
    ReplyRejected,
    RunEnded,
    RunStarted,
    SessionLoaded,
    SteerAnswered,
    StepEntered,
    StepFinished,
    TextJudged,
    ToolSurface,
)
from pilothouse_engine.ports import Frame, Message, RequestedCall
from pilothouse_engine.results import compact, shown_result
from pilothouse_engine.values import Value

MESSAGE_OVERHEAD = 16
"""Tokens that a provider's form of a message may add to its text."""

TRACE_LENGTH = 20

BARRIER = "Barrier"
"""Reason of the park in which supervision looks at a turn before the next one begins."""

Stage = Literal["Opening", "Ready", "Calling", "Replied", "Batch"]
"""Where a visit of an agent stands: its prompt is not assembled; at a turn boundary; a model call is under way or has
failed; a text waits to be judged; calls wait for their results."""


CallError = tuple[str, CallCode, str]
"""What makes two errors the same: tool, code, message. In the order in which they came, so that every fold is alike."""


class Call(Struct):
    """One call of the batch under way, or the one call of a step of the graph.

    `verdict` is what policy said of its arguments, `edit_verdict` of those that a decision changed. `answer` is the
    decision that landed on its `approval`, or that there was none in time.
    """

    asked: AskedCall
    verdict: PolicyJudged | None = None
    approval: ApprovalRequested | None = None
    answer: ApprovalAnswered | None = None
    edit_verdict: PolicyJudged | None = None
    started: CallStarted | None = None
    finished: CallFinished | None = None
    judged: TextJudged | None = None
    is_counted: bool = False

    @property
    def is_judged(self) -> bool:
        """Whether the tools gate has said what becomes of its result."""
        return self.judged is not None or (self.finished is not None and self.finished.is_passed)

    @property
    def edited(self) -> Mapping[str, Any] | None:
        """The arguments of the decision that landed, where it changed them."""
        return self.answer.arguments if self.answer is not None else None

    @property
    def is_approved(self) -> bool:
        """Whether a person has approved it."""
        return self.answer is not None and self.answer.decision == "Approve"


class CountedPrompt(Value):
    """What the provider said the prompt and its reply took: a bound for the next one needs only what came since.

    `prompt_bytes` and `messages` are the whole transcript's then, the reply included, whatever `level` was sent.
    """

    endpoint: int
    tokens: int
    prompt_bytes: int
    had_tools: bool
    level: Level = "full"
    messages: int = 0


class Counts(Struct):
    """What the calls of one visit came to: what supervision counts by."""

    tool_calls: dict[str, int] = field(default_factory=dict)
    undeclared_tool_calls: int = 0
    tool_errors: int = 0
    identical_calls: int = 0


class Visit(Struct):
    """One pass through a step."""

    step: str
    number: int
    kind: str
    started_at: float
    stage: Stage = "Opening"
    account: Account = field(default_factory=Account)

    surface: ToolSurface | None = None

    user_text: range = range(0)
    is_gated: bool = False
    is_input_judged: bool = False
    judged_answer: TextJudged | None = None
    violation: TextJudged | None = None
    judge: JudgeStarted | None = None
    judged_tasks: dict[str, TextJudged] = field(default_factory=dict)
    judge_answers: dict[tuple[str, str], list[JudgeAnswered]] = field(default_factory=dict)

    messages: list[Message] = field(default_factory=list)
    opening: int = 0
    past: range = range(0)
    """Which messages are of earlier runs of the session; the first is the engine's note about them."""
    result_ids: dict[int, str] = field(default_factory=dict)
    raw_from: dict[int, int] = field(default_factory=dict)
    prompt_bytes: int = 0
    counted: CountedPrompt | None = None
    counted_full: CountedPrompt | None = None
    refused: dict[int, Level] = field(default_factory=dict)

    verdict: PolicyJudged | None = None
    judged_turn: int = 0
    model: ModelStarted | None = None
    failure: ModelFailed | None = None
    trying_since: float = 0.0
    replies: int = 0
    reply: ReplyReceived | None = None
    next_attempt: tuple[int, int] = (0, 1)
    parts: list[str] = field(default_factory=list)
    newest_text: str = ""
    continuations: int = 0
    repairs: int = 0

    calls: list[Call] = field(default_factory=list)
    call_ids: dict[str, Call] = field(default_factory=dict)
    waiting: Call | None = None
    next_call: int = 0
    once_length: int = 0
    """The journal's length at the newest end of a call with effect Once in the batch; 0 before there is one."""
    tool_calls: int = 0
    counts: Counts = field(default_factory=Counts)
    runs_by_tool: dict[str, int] = field(default_factory=dict)
    identities: dict[str, int] = field(default_factory=dict)
    last_identity: str = ""
    streak: int = 0
    results: dict[str, str] = field(default_factory=dict)
    batch_errors: dict[CallError, None] = field(default_factory=dict)
    failing_batches: int = 0
    same_errors: dict[CallError, int] = field(default_factory=dict)
    error_types: dict[CallError, str] = field(default_factory=dict)
    fatal: CallFinished | None = None

    @property
    def is_agent(self) -> bool:
        """Whether the step calls a model."""
        return self.kind == "Agent"

    @property
    def answer(self) -> str:
        """The text of the answer that is under way: the parts of a continued reply, joined."""
        return "".join(self.parts)

    @property
    def passed_answer(self) -> str:
        """The answer as the output gate lets it go on."""
        judged = self.judged_answer
        return self.answer if judged is None or judged.text is None else judged.text

    def add(self, message: Message) -> None:
        """Append a message to the prompt."""
        self.messages.append(message)
        self.prompt_bytes += bytes_of(message)


class Answer(Value):
    """What became of a directive."""

    state: str
    turn: int
    at: float
    digest: str = ""
    message: str = ""


class Report(Struct):
    """One visit, for people."""

    step: str
    visit: int
    kind: str
    started_at: float
    signal: str | None = None
    iterations: int = 0
    tokens: int = 0
    finished_at: float | None = None


ChildState = Literal["Awaited", "Background", "Delivered", "Abandoned", "HandedOn"]


class Child(Struct):
    """A run that was asked for. `visit` is the number of the visit that asked; its end gives nobody the result.

    `past` is set where an earlier run of the session has asked for it.
    """

    request: ChildRequested
    visit: int
    state: ChildState
    past: PastTask | None = None

    @property
    def is_open(self) -> bool:
        """Whether its end is still waited for."""
        return self.state in ("Awaited", "Background")

    @property
    def is_to_be_made(self) -> bool:
        """Whether somebody may still have to make it, and needs its input for that."""
        return self.past is None and (self.is_open or self.state == "HandedOn")


class OpenEffect(Value):
    """A call of which nobody knows what it did."""

    call_id: str
    tool: str
    at: float


class RunState(Struct):
    """Everything that is known of a run."""

    context: dict[str, Any] = field(default_factory=dict)
    engine_context: dict[str, Any] = field(default_factory=dict)
    context_text: str | None = None

    length: int = 0
    plan: str | None = None
    attempt: int = 0
    started_at: float = 0.0
    last_at: float = 0.0
    active_seconds: float = 0.0
    last_progress_at: float = 0.0

    tick: int = 0
    turn: int = 0
    is_turn_open: bool = False
    iteration: int = 0
    """The model call of the newest visit that was begun last; a crash or a failure in it does not take it back."""
    visits: int = 0
    visit: Visit | None = None
    last_step: StepFinished | None = None
    last_step_id: str | None = None
    last_step_was_agent: bool = False
    reports: list[Report] = field(default_factory=list)

    account: Account = field(default_factory=Account)
    marks: dict[str, list[int]] = field(default_factory=dict)
    tool_calls: dict[str, int] = field(default_factory=dict)
    total_tool_calls: int = 0
    undeclared_tool_calls: int = 0
    tool_errors: int = 0
    identical_calls: int = 0
    effects_settled: int = 0
    effects_unknown: list[OpenEffect] = field(default_factory=list)
    children: dict[str, Child] = field(default_factory=dict)
    tasks: dict[str, Child] = field(default_factory=dict)
    """Children in the background whose end was not read yet."""
    histories: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    """What was said in earlier runs of the session, by agent step, once it is loaded."""

    mode: str = "Run"
    mode_answer: Answer = Answer("Landed", 0, 0.0)
    mode_reason: str | None = None
    refused_mode: str | None = None
    refused_state: str | None = None
    abort: ModeAnswered | None = None
    abort_visit: int | None = None
    steers: dict[str, Answer] = field(default_factory=dict)
    approvals: dict[str, Answer] = field(default_factory=dict)
    requested: set[str] = field(default_factory=set)
    limits: RunLimits | None = None
    limits_landed: LimitsLanded | None = None

    park: ParkBegan | None = None
    park_length: int = 0
    """The journal's length when the park began: a snapshot that holds the park is at least as long."""
    is_released: bool = False
    barrier_timeout: BarrierTimedOut | None = None
    turn_length: int = 0
    """The journal's length when the newest turn of an agent ended."""
    seen_length: int = 0
    """The journal's length that supervision had seen when a barrier was passed last."""
    result: Mapping[str, Any] | None = None
    agent_result: Mapping[str, Any] | None = None
    turn_ending: str | None = None
    partial: str | None = None
    ended: RunEnded | None = None
    trace: deque[Frame] = field(default_factory=lambda: deque(maxlen=TRACE_LENGTH))

    @property
    def next_turn(self) -> int:
        """The turn that is under way, or the one that begins next."""
        return self.turn if self.is_turn_open else self.turn + 1

    def context_json(self) -> str:
        """Return the public context as JSON, encoded once for each change of it."""
        if self.context_text is None:
            self.context_text = compact(self.context)
        return self.context_text

    def seen_context(self) -> dict[str, Any]:
        """Return what templates see: the public keys and the engine's own. Nobody changes a value of it."""
        return {**self.context, **self.engine_context}

    def apply(self, fact: Fact) -> None:
        """Add a fact."""
        if fact.at > self.last_at:
            # Parked time is not counted in any deadline, nor is the time between two attempts.
            if self.park is None and not isinstance(fact, AttemptStarted):
                self.active_seconds += fact.at - self.last_at
            self.last_at = fact.at
        self.length += 1
        _APPLY[type(fact)](self, fact)


def bytes_of(message: Message) -> int:
    """Return an upper bound of a message's tokens, from its bytes: no tokenizer makes more tokens than bytes."""
    size = text_bytes(message.text) + MESSAGE_OVERHEAD
    for call in message.calls:
        size += text_bytes(call.name) + text_bytes(call.arguments) + MESSAGE_OVERHEAD
    if message.raw is not None:  # thinking and signatures go back with the calls that they led to
        size += text_bytes(compact(message.raw))
    return size


def text_bytes(text: str) -> int:
    """Return the length of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


# ---------------------------------------------------------------- the run and its visits


def _run_started(state: RunState, fact: RunStarted) -> None:
    state.plan = fact.plan
    state.started_at = state.last_progress_at = fact.at
    state.active_seconds = 0.0


def _attempt_started(state: RunState, fact: AttemptStarted) -> None:
    state.attempt = fact.attempt
    state.is_released = False
    state.tick += 1
    visit = state.visit
    if visit is None:
        return
    # A model's or a judge's call is made again; what the lost one took is charged whole: no crash spends unseen money.
    _forfeit(state, visit)
    if visit.stage == "Calling":
        visit.stage, visit.model, visit.failure = "Ready", None, None
        visit.trying_since = fact.at


def _forfeit(state: RunState, visit: Visit) -> None:
    state.account.forfeit()
    visit.account.forfeit()


def _step_entered(state: RunState, fact: StepEntered) -> None:
    state.visits, state.iteration = fact.visit, 0
    state.visit = Visit(fact.step, fact.visit, fact.kind, fact.at)
    state.reports.append(Report(fact.step, fact.visit, fact.kind, fact.at))
    if fact.turn:
        _open_turn(state, fact.turn)


def _open_turn(state: RunState, turn: int) -> None:
    if turn > state.turn:
        state.turn = turn
        state.is_turn_open = True


def _close_turn(state: RunState) -> None:
    state.is_turn_open = False


def _step_finished(state: RunState, fact: StepFinished) -> None:
    visit = _visit(state)
    _forfeit(state, visit)
    _leave_tasks(state, fact.signal)
    report = state.reports[-1]
    report.signal, report.finished_at = fact.signal, fact.at
    report.iterations, report.tokens = visit.replies, visit.account.used
    if fact.writes:
        _write(state, fact.writes)
    if fact.error_type is not None:
        state.engine_context["_last_error"] = fact.error_message
        state.engine_context["_last_error_type"] = fact.signal
    if fact.partial:
        state.engine_context["_partial_result"] = fact.partial
    if fact.result is not None:
        state.result = fact.result
    if visit.is_agent:
        state.turn_length = state.length
        state.turn_ending, state.partial = fact.turn_ending, fact.partial
        state.agent_result = fact.writes
    state.last_step, state.last_step_id, state.last_step_was_agent = fact, visit.step, visit.is_agent
    state.visit = None
    state.last_progress_at = fact.at
    _close_turn(state)


def _write(state: RunState, writes: Mapping[str, Any]) -> None:
    state.context.update(writes)
    state.context_text = None


def _run_ended(state: RunState, fact: RunEnded) -> None:
    if state.visit is not None:
        _forfeit(state, state.visit)
        _leave_tasks(state, fact.signal)
    state.ended = fact
    state.park = None
    state.last_progress_at = fact.at


def _visit(state: RunState) -> Visit:
    assert state.visit is not None, "a fact of a visit stands outside of any"
    return state.visit


# ---------------------------------------------------------------- control and parks


def _mode_answered(state: RunState, fact: ModeAnswered) -> None:
    if fact.state != "Landed":
        state.refused_mode, state.refused_state = fact.mode, fact.state
        return
    _open_turn(state, fact.turn)
    state.mode, state.mode_reason = fact.mode, fact.reason
    state.mode_answer = Answer(fact.state, fact.turn, fact.at)
    state.refused_mode = state.refused_state = None
    if fact.mode == "Abort":
        state.abort = fact
        state.abort_visit = state.visit.number if state.visit is not None else None


def _steer_answered(state: RunState, fact: SteerAnswered) -> None:
    state.steers[fact.id] = Answer(fact.state, fact.turn, fact.at)
    if fact.state == "Landed":
        _open_turn(state, fact.turn)
        _visit(state).add(Message("system", fact.text))


def _approval_requested(state: RunState, fact: ApprovalRequested) -> None:
    visit = _visit(state)
    visit.waiting = _call(visit, fact.call)
    visit.waiting.approval = fact
    state.requested.add(fact.call)


def _approval_answered(state: RunState, fact: ApprovalAnswered) -> None:
    if fact.state == "Withdrawn":
        state.approvals.pop(fact.id, None)
        return
    state.approvals[fact.id] = Answer(fact.state, fact.turn, fact.at, fact.digest, fact.message)
    if fact.state in ("Landed", "Expired"):
        visit = _visit(state)
        visit.call_ids[fact.id].answer = fact
        visit.waiting = None


def _limits_landed(state: RunState, fact: LimitsLanded) -> None:
    state.limits_landed = fact
    state.limits = RunLimits.read(fact.limits)


def _park_began(state: RunState, fact: ParkBegan) -> None:
    _open_turn(state, fact.turn)
    state.park, state.park_length = fact, state.length
    state.is_released = False


def _barrier_timed_out(state: RunState, fact: BarrierTimedOut) -> None:
    state.barrier_timeout = fact
    if state.park is not None:
        state.park = replace(state.park, wake=None, message=fact.message)


def _park_released(state: RunState, fact: ParkReleased) -> None:
    state.is_released = True


def _park_ended(state: RunState, fact: ParkEnded) -> None:
    _leave_out(state, fact)
    if fact.since is not None:
        # It could not be journaled when it began: its time was counted by apply and is taken back.
        if state.park is None:
            state.active_seconds = max(0.0, state.active_seconds - max(0.0, fact.at - fact.since))
    else:
        if fact.reason == BARRIER:
            state.seen_length, state.barrier_timeout = state.park_length, None
        state.park = None
        state.is_released = False
    state.tick += 1
    if state.visit is not None:
        state.visit.trying_since = fact.at


def _leave_out(state: RunState, fact: ParkEnded) -> None:
    """Move the last progress on by the parked time: rules about time count unparked time (engine.md §8)."""
    park = state.park
    began = park.at if fact.since is None and park is not None else fact.since
    if began is not None and (fact.since is None or park is None):
        state.last_progress_at += max(0.0, fact.at - max(began, state.last_progress_at))


# ---------------------------------------------------------------- the prompt and the model


def _session_loaded(state: RunState, fact: SessionLoaded) -> None:
    from pilothouse_engine.sessions.records import decode_messages  # most runs have no session

    state.histories[fact.step] = decode_messages(fact.history)
    for task in fact.tasks:
        # Ids of calls repeat from run to run; the name of a run does not.
        call = child_run_name(task.run, task.call)
        request = ChildRequested(task.at, call, state.turn, "Agent", task.ref_name, {}, is_background=True)
        state.children[call] = state.tasks[call] = Child(request, _visit(state).number, "Background", task)


def _prompt_opened(state: RunState, fact: PromptOpened) -> None:
    visit = _visit(state)
    past = state.histories.get(visit.step, ())
    for message in fact.messages:
        if message.role != "system" and past:
            visit.past = range(len(visit.messages), len(visit.messages) + len(past))
            for said in past:
                visit.add(said)
            past = ()
        visit.add(Message(message.role, message.text))
    visit.opening = len(visit.messages)
    head = len(visit.messages) - sum(message.role == "user" for message in fact.messages)
    visit.user_text = range(head, len(visit.messages))
    visit.is_gated = fact.is_gated
    visit.stage = "Ready"


def _tool_surface(state: RunState, fact: ToolSurface) -> None:
    state.tick += 1  # servers may take seconds: what people ask is read again before the model is
    _visit(state).surface = fact


def _model_started(state: RunState, fact: ModelStarted) -> None:
    visit = _visit(state)
    _open_turn(state, fact.turn)
    state.iteration = fact.iteration
    hold = Hold(fact.hold_input, fact.hold_output, fact.hold_cost)
    state.account.take(hold)
    visit.account.take(hold)
    if visit.stage != "Calling":
        visit.trying_since = fact.at
    visit.judged_turn = fact.turn
    visit.stage, visit.model, visit.failure = "Calling", fact, None


def _model_failed(state: RunState, fact: ModelFailed) -> None:
    visit = _visit(state)
    state.tick += 1
    state.account.settle(fact.input, fact.output, fact.cost)
    visit.account.settle(fact.input, fact.output, fact.cost)
    visit.failure = fact
    if fact.kind == "ContextWindowExceeded" and visit.model is not None:
        visit.refused[visit.model.endpoint] = visit.model.level
    _mark(state, visit, fact.mark)


def _mark(state: RunState, visit: Visit, mark: int | None) -> None:
    if mark is not None and visit.model is not None and visit.model.script is not None:
        state.marks.setdefault(visit.model.script, []).append(mark)


def _reply_received(state: RunState, fact: ReplyReceived) -> None:
    visit = _visit(state)
    model = visit.model
    assert model is not None, "a reply stands without its call"
    state.tick += 1
    state.last_progress_at = fact.at
    state.account.settle(fact.input, fact.output, fact.cost)
    visit.account.settle(fact.input, fact.output, fact.cost)
    visit.replies += 1
    visit.reply, visit.failure, visit.judged_answer = fact, None, None
    _mark(state, visit, fact.mark)
    has_tools = model.purpose not in TOOLS_OFF
    calls = fact.calls if has_tools else ()
    _add_reply(visit, fact, calls)
    _note_prompt(visit, fact, model, has_tools=has_tools)
    if calls:
        visit.stage = "Batch"
        visit.calls = [Call(asked) for asked in calls]
        visit.call_ids = {call.asked.id: call for call in visit.calls}
        visit.next_call, visit.once_length, visit.continuations = 0, 0, 0
        visit.parts = []
        visit.batch_errors = {}
    else:
        visit.stage = "Replied"
        visit.parts.append(fact.text)


def _note_prompt(visit: Visit, fact: ReplyReceived, model: ModelStarted, *, has_tools: bool) -> None:
    """Keep what the provider said of the prompt: its size, and that a tighter one was needed."""
    for endpoint in visit.refused:
        # The whole transcript only grows, so it stays too long; what a tighter level sends may be shorter next time.
        visit.refused[endpoint] = "full"
    if not fact.counted:
        return
    tokens, size, messages = fact.input + fact.output, visit.prompt_bytes, len(visit.messages)
    visit.counted = CountedPrompt(model.endpoint, tokens, size, has_tools, fact.level, messages)
    if fact.level == "full":
        visit.counted_full = visit.counted


def _add_reply(visit: Visit, fact: ReplyReceived, calls: tuple[AskedCall, ...]) -> None:
    if fact.text:
        visit.newest_text = fact.text
    if not fact.text and not calls:
        return
    asked = tuple(RequestedCall(call.provider_id, call.name, call.arguments) for call in calls)
    raw = fact.raw if len(calls) == len(fact.calls) else None
    if raw is not None and visit.model is not None:
        visit.raw_from[len(visit.messages)] = visit.model.endpoint
    visit.add(Message("assistant", fact.text, asked, raw=raw))


def _reply_rejected(state: RunState, fact: ReplyRejected) -> None:
    visit = _visit(state)
    dropped = visit.messages.pop()
    visit.prompt_bytes -= bytes_of(dropped)
    visit.raw_from.pop(len(visit.messages), None)
    visit.counted = visit.counted_full = None
    visit.next_attempt = (fact.endpoint, fact.attempt)
    visit.parts = []
    visit.stage = "Ready"


def _note_added(state: RunState, fact: NoteAdded) -> None:
    visit = _visit(state)
    visit.add(Message("user", fact.text))
    if fact.note == "Continue":
        visit.continuations += 1
    else:
        visit.repairs += 1
        visit.continuations = 0
        visit.parts = []
    _end_turn(state, visit)


def _end_turn(state: RunState, visit: Visit) -> None:
    visit.stage = "Ready"
    state.turn_length = state.length
    _close_turn(state)


# ---------------------------------------------------------------- calls


def _call_started(state: RunState, fact: CallStarted) -> None:
    visit = _visit(state)
    call = _call(visit, fact.id)
    if call.started is None and visit.is_agent:
        _count(state, visit, call)
        visit.runs_by_tool[fact.tool] = visit.runs_by_tool.get(fact.tool, 0) + 1
    call.started = fact


def _call(visit: Visit, call_id: str) -> Call:
    """Return a call by its id; the one call of a step of the graph begins with the first fact that names it."""
    call = visit.call_ids.get(call_id)
    if call is None:
        call = Call(AskedCall(call_id, "", visit.step, "", ""))
        visit.calls, visit.call_ids = [call], {call_id: call}
    return call


def _policy_judged(state: RunState, fact: PolicyJudged) -> None:
    visit = _visit(state)
    state.tick += fact.is_asked
    if fact.call:
        call = _call(visit, fact.call)
        if call.edited is None:
            call.verdict = fact
        else:
            call.edit_verdict = fact
    else:
        _open_turn(state, fact.turn)
        visit.verdict, visit.judged_turn = fact, fact.turn


def _call_finished(state: RunState, fact: CallFinished) -> None:
    visit = _visit(state)
    call = visit.call_ids[fact.id]
    call.finished = fact
    if call is visit.waiting:
        visit.waiting = None
    child = state.children.get(fact.id)
    if child is not None and child.state == "Awaited":
        _abandon(state, child)
    if call.started is not None:
        _settle_effect(state, visit, call, fact)
    if fact.engine_writes:
        state.engine_context.update(fact.engine_writes)
    state.last_progress_at = fact.at
    if not visit.is_agent:
        return
    if not call.is_counted and fact.code != "tool_call_unresolved":
        _count(state, visit, call)
    if fact.code is not None and fact.code != "tool_call_unresolved":
        state.tool_errors += 1
        visit.counts.tool_errors += 1
    if fact.writes and (fact.is_passed or not visit.is_gated):
        _write(state, fact.writes)
    if fact.fatal is not None and visit.fatal is None:
        visit.fatal = fact
    _note_error(visit, call, fact)
    visit.results[fact.id] = fact.content
    _show_results(state, visit)


def _count(state: RunState, visit: Visit, call: Call) -> None:
    call.is_counted = True
    visit.tool_calls += 1
    state.total_tool_calls += 1
    counts, name = visit.counts, call.asked.name
    if call.asked.is_declared:
        state.tool_calls[name] = state.tool_calls.get(name, 0) + 1
        counts.tool_calls[name] = counts.tool_calls.get(name, 0) + 1
    else:
        state.undeclared_tool_calls += 1
        counts.undeclared_tool_calls += 1
    identity = identity_of(call.asked)
    visit.identities[identity] = visit.identities.get(identity, 0) + 1
    visit.streak = visit.streak + 1 if identity == visit.last_identity else 1
    visit.last_identity = identity
    counts.identical_calls = max(counts.identical_calls, visit.streak)
    state.identical_calls = max(state.identical_calls, visit.streak)


def identity_of(asked: AskedCall) -> str:
    """Return what makes two calls identical: tool and arguments as the model wrote them."""
    return f"{asked.digest}{asked.name}"


def _settle_effect(state: RunState, visit: Visit, call: Call, fact: CallFinished) -> None:
    state.tick += 1
    if call.started is None or call.started.effect == "ReadOnly":
        return
    if call.started.effect == "Once":
        visit.once_length = state.length
    if fact.is_unknown:
        state.effects_unknown.append(OpenEffect(fact.id, call.started.tool, call.started.at))
    else:
        state.effects_settled += 1


COUNTED_ERRORS: frozenset[str] = frozenset(
    {
        "tool_error",
        "tool_invalid_arguments",
        "tool_arguments_truncated",
        "tool_unknown",
        "tool_max_calls",
        "tool_policy_denied",
    }
)
"""Codes that recovery counts (engine.md §3, the table)."""


def _note_error(visit: Visit, call: Call, fact: CallFinished) -> None:
    if fact.code is not None and fact.code in COUNTED_ERRORS:
        error = (call.asked.name, fact.code, fact.message)
        visit.batch_errors[error] = None
        if fact.error_type is not None:
            visit.error_types[error] = fact.error_type


def _show_results(state: RunState, visit: Visit) -> None:
    """Append finished results in the order of the calls; the last one ends the turn."""
    while visit.next_call < len(visit.calls):
        call = visit.calls[visit.next_call]
        if call.finished is None or (visit.is_gated and not call.is_judged):
            return
        text, note = shown_result(call.asked.id, call.finished.content, call.finished.cut_at)
        if call.judged is not None and call.judged.text is not None:
            text = call.judged.text
        visit.result_ids[len(visit.messages)] = call.asked.id
        visit.add(Message("tool", text + note, provider_id=call.asked.provider_id, name=call.asked.name))
        visit.next_call += 1
    if visit.batch_errors:
        visit.failing_batches += 1
        for error in visit.batch_errors:
            visit.same_errors[error] = visit.same_errors.get(error, 0) + 1
    _end_turn(state, visit)


# ---------------------------------------------------------------- guardrails


def _judge_started(state: RunState, fact: JudgeStarted) -> None:
    hold = Hold(fact.hold_input, fact.hold_output, fact.hold_cost)
    visit = _visit(state)
    state.account.take(hold)
    visit.account.take(hold)
    visit.judge = fact


def _judge_answered(state: RunState, fact: JudgeAnswered) -> None:
    visit = _visit(state)
    assert visit.judge is not None, "a judge answers that was not asked"
    state.tick += 1
    state.account.settle(fact.input, fact.output, fact.cost)
    visit.account.settle(fact.input, fact.output, fact.cost)
    visit.judge_answers.setdefault((visit.judge.gate, visit.judge.id), []).append(fact)
    if fact.mark is not None and visit.judge.script is not None:
        state.marks.setdefault(visit.judge.script, []).append(fact.mark)


def _text_judged(state: RunState, fact: TextJudged) -> None:
    visit = _visit(state)
    if fact.verdict == "Refused":
        visit.violation = fact
    elif fact.gate == "input":
        visit.is_input_judged = True
        if fact.text is not None:
            _replace_user_text(visit, fact.text)
    elif fact.gate == "output":
        visit.judged_answer = fact
    elif fact.id in visit.call_ids:
        _result_judged(state, visit, fact)
    else:
        visit.judged_tasks[fact.id] = fact


def _replace_user_text(visit: Visit, text: str) -> None:
    """Put a text in the place of the messages that were judged together."""
    replaced = visit.messages[visit.user_text.start : visit.user_text.stop]
    message = Message("user", text)
    visit.messages[visit.user_text.start : visit.user_text.stop] = [message]
    visit.prompt_bytes += bytes_of(message) - sum(bytes_of(old) for old in replaced)
    visit.user_text = range(visit.user_text.start, visit.user_text.start + 1)
    visit.opening -= len(replaced) - 1


def _result_judged(state: RunState, visit: Visit, fact: TextJudged) -> None:
    call = visit.call_ids[fact.id]
    assert call.finished is not None, "a result is judged that there is not"
    call.judged = fact
    writes = call.finished.writes if fact.writes is None else fact.writes
    if writes:
        _write(state, writes)
    _show_results(state, visit)


# ---------------------------------------------------------------- children


def _child_requested(state: RunState, fact: ChildRequested) -> None:
    visit = _visit(state)
    child = Child(fact, visit.number, "Background" if fact.is_background else "Awaited")
    state.children[fact.call] = child
    if fact.is_background:
        state.tasks[fact.call] = child
    for account in (state.account, visit.account):
        account.lend(fact.hold_tokens, fact.hold_cost)


def _child_delivered(state: RunState, fact: ChildDelivered) -> None:
    child = state.children[fact.call]
    child.state = "Delivered"
    state.tasks.pop(fact.call, None)
    _settle_child(state, child, Charge(fact.input, fact.output, fact.cost, counted=False))
    state.last_progress_at = fact.at
    if fact.note:
        visit = _visit(state)
        _open_turn(state, fact.turn)
        visit.results[task_result_id(fact.call)] = fact.content
        visit.add(Message("user", fact.note))


def task_result_id(call: str) -> str:
    """Return the id by which the result of a task is read and judged; the call's own is that of its start."""
    return f"{call}-end"


def _settle_child(state: RunState, child: Child, taken: Charge) -> None:
    request, visit = child.request, state.visit
    state.account.take_back(request.hold_tokens, request.hold_cost, taken)
    if visit is not None and visit.number == child.visit:
        visit.account.take_back(request.hold_tokens, request.hold_cost, taken)


def _abandon(state: RunState, child: Child) -> None:
    """Wait for a child no more: it is aborted."""
    _leave(state, child, "Abandoned")


def _leave(state: RunState, child: Child, now: ChildState) -> None:
    """Wait for a child no more. Since this run will not know what it took, its hold is charged whole."""
    child.state = now
    state.tasks.pop(child.request.call, None)
    _settle_child(state, child, Charge(child.request.hold_tokens or 0, 0, child.request.hold_cost, counted=False))


def _leave_tasks(state: RunState, signal: str) -> None:
    """Wait for tasks no more: in a session its next run is told their ends, else they are aborted and listed."""
    is_session = _visit(state).step in state.histories
    for child in list(state.tasks.values()):
        if child.past is not None or (is_session and signal != ABORTED):
            _leave(state, child, "HandedOn")
            continue
        _abandon(state, child)
        state.effects_unknown.append(OpenEffect(child.request.call, child.request.ref_name, child.request.at))


_APPLY: Mapping[type[Any], Callable[[RunState, Any], None]] = {
    RunStarted: _run_started,
    AttemptStarted: _attempt_started,
    StepEntered: _step_entered,
    SessionLoaded: _session_loaded,
    PromptOpened: _prompt_opened,
    ToolSurface: _tool_surface,
    ModeAnswered: _mode_answered,
    SteerAnswered: _steer_answered,
    ApprovalRequested: _approval_requested,
    ApprovalAnswered: _approval_answered,
    LimitsLanded: _limits_landed,
    ModelStarted: _model_started,
    ModelFailed: _model_failed,
    ReplyReceived: _reply_received,
    ReplyRejected: _reply_rejected,
    NoteAdded: _note_added,
    PolicyJudged: _policy_judged,
    CallStarted: _call_started,
    ChildRequested: _child_requested,
    ChildDelivered: _child_delivered,
    CallFinished: _call_finished,
    JudgeStarted: _judge_started,
    JudgeAnswered: _judge_answered,
    TextJudged: _text_judged,
    StepFinished: _step_finished,
    ParkBegan: _park_began,
    ParkReleased: _park_released,
    ParkEnded: _park_ended,
    BarrierTimedOut: _barrier_timed_out,
    RunEnded: _run_ended,
}
