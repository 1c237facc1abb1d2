"""The facts of a run: what the journal holds, one entry each, in the order in which they happened (engine.md §10).

A fact is journaled before it is acted on, and the whole state of a run is the fold of its facts
(`pilothouse_engine.state`): what is not a fact is forgotten at the next crash. Texts that the model was shown are
facts too, so a transcript follows from the journal and not from the version of the code that reads it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from msgspec import ValidationError, convert, to_builtins

from pilothouse_engine.ports import JournalCorrupt, RawEntry, ToolSpec
from pilothouse_engine.values import Value

VERSION = 1
"""Version of the entries; a reader refuses a newer one."""

Purpose = Literal["Regular", "WrapUp", "BudgetWrapUp", "Finish", "Completion"]
"""Why a model is called; WrapUp, BudgetWrapUp and Finish have tools off."""

TOOLS_OFF: frozenset[str] = frozenset({"WrapUp", "BudgetWrapUp", "Finish", "Completion"})

Level = Literal["full", "default", "aggressive", "minimal"]
"""How much of the transcript a request holds (engine.md §6)."""

GateName = Literal["input", "tools", "output"]
"""Where guardrails stand (engine.md §4)."""

UNDECLARED = "(undeclared)"
"""What stands for the name of a tool that does not exist, wherever people or judges read."""

CallCode = Literal[
    "tool_error",
    "tool_invalid_arguments",
    "tool_arguments_truncated",
    "tool_unknown",
    "tool_max_calls",
    "tool_policy_denied",
    "tool_approval_denied",
    "tool_approval_expired",
    "tool_call_loop_guard",
    "tool_call_unresolved",
    "tool_effect_unknown",
]
"""Codes of results that are errors (engine.md §3)."""

Cause = Literal[
    "Aborted",
    "AbortGrace",
    "BarrierTimeout",
    "BudgetExceeded",
    "ContextWindowExceeded",
    "DeadlineExceeded",
    "EmptyReply",
    "FinishedWithoutAnswer",
    "GuardrailUnresolvable",
    "GuardrailViolation",
    "IntegrityViolation",
    "InvalidOutcome",
    "JournalLost",
    "MaxAttempts",
    "MaxIterations",
    "McpUnavailable",
    "MissingContext",
    "ModelAuthentication",
    "ModelConnection",
    "ModelGarbage",
    "ModelInvalidRequest",
    "ModelRateLimited",
    "ModelRefused",
    "ModelServerError",
    "ModelTimeout",
    "NotSupported",
    "PauseDeadline",
    "PolicyDenied",
    "SameErrorRepeated",
    "ScriptSpent",
    "SessionCorrupt",
    "ToolCallLimit",
    "ToolTimeout",
    "ToolsKeepFailing",
]
"""Why the engine ends an agent step, or cuts any step short: a closed set. A step's own causes are its executor's."""


class Journaled(Value, tag_field="fact", tag=True, omit_defaults=True):
    """What every fact is: an entry of the journal, which names its kind under `fact`.

    `at`, the first field of each, is when it happened (epoch seconds).
    """


class PromptMessage(Value):
    """One message that opens the prompt of a visit."""

    role: Literal["system", "user"]
    text: str


class AskedCall(Value):
    """One call of a reply. `id` is the engine's, `digest` that of the arguments as the model wrote them.

    `name` is the model's word: only where `is_declared` it is a tool's name, fit to be shown.
    """

    id: str
    provider_id: str
    name: str
    arguments: str
    digest: str
    is_declared: bool = True


class OfferedTool(Value):
    """One tool of an MCP server as it is offered: the row by which a call is resolved.

    `name` is what the model calls, `entry` the name of the agent's tool entry, whose effect, approval and limits hold.
    """

    name: str
    entry: str
    server: str
    tool: str
    description: str
    parameters: Mapping[str, Any]

    def spec(self) -> ToolSpec:
        """Return it as a model is shown it."""
        return ToolSpec(self.name, self.description, self.parameters)


class RunStarted(Journaled):
    """The run began with this plan."""

    at: float
    plan: str


class AttemptStarted(Journaled):
    """An attempt took the run over; whatever was under way before it is not any more."""

    at: float
    attempt: int


class StepEntered(Journaled):
    """A visit began. `turn` is 0 for an agent, whose turns are its model calls."""

    at: float
    step: str
    visit: int
    kind: str
    turn: int = 0


class PastTask(Value):
    """A task in the background that has outlived the run that asked for it; nobody was told its end yet.

    It is the child of that `run` for its call `call`; `ref_name` is the Agent that it runs.
    """

    run: str
    call: str
    ref_name: str
    at: float


class SessionLoaded(Journaled):
    """What an agent step begins its visits with of earlier runs of the session: all of them, whatever is stored later.

    `history` are messages in the form of `sessions.records`, oldest first; empty where nothing was ever said. `tasks`
    are those whose ends this run tells.
    """

    at: float
    step: str
    history: tuple[Mapping[str, Any], ...] = ()
    tasks: tuple[PastTask, ...] = ()


class PromptOpened(Journaled):
    """The prompt of a visit was assembled.

    Where it `is_gated`, a result of its calls is shown and merged when the gate has passed it.
    """

    at: float
    messages: tuple[PromptMessage, ...]
    is_gated: bool = False


class ToolSurface(Journaled):
    """The tools of MCP servers that the visit offers, whatever the servers list later.

    `left_out` names the optional servers that could not tell theirs; `warnings` say what else is not offered.
    """

    at: float
    tools: tuple[OfferedTool, ...]
    left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class ModeAnswered(Journaled):
    """A mode landed, or was answered as one that cannot (`state` is then NotLanded or Superseded).

    `cause` is set where the engine itself chose the mode (PauseDeadline).
    """

    at: float
    turn: int
    mode: str
    state: str = "Landed"
    reason: str | None = None
    by: str | None = None
    cause: Cause | None = None


class SteerAnswered(Journaled):
    """A steer message landed as the system message `text`, or was answered as one that cannot."""

    at: float
    turn: int
    id: str
    state: str = "Landed"
    text: str = ""


class ApprovalAnswered(Journaled):
    """A decision on a call was answered, or nobody decided in time (state Expired).

    Landed: `decision` (Approve, Deny) is what becomes of the call, with these `arguments` where they were edited.
    NotLanded and NotPending change nothing; Withdrawn forgets such an answer, because the decision was taken back.
    `digest` tells the decision from another one under the same id.
    """

    at: float
    turn: int
    id: str
    state: str
    decision: str = ""
    arguments: Mapping[str, Any] | None = None
    reason: str | None = None
    by: str | None = None
    digest: str = ""
    message: str = ""


class ApprovalRequested(Journaled):
    """A call waits for a person's decision until `expires_at` (epoch seconds).

    `tool` and `arguments` are what the person is shown: masked, and cut where they are long.
    """

    at: float
    call: str
    turn: int
    tool: str
    arguments: Mapping[str, Any]
    expires_at: float


class LimitsLanded(Journaled):
    """Changed limits hold from this turn."""

    at: float
    turn: int
    generation: int
    limits: Mapping[str, Any]


class ModelStarted(Journaled):
    """One attempt of a model call began, with its hold (tokens, nano-dollars).

    `endpoint` is 0 for the agent's model and counts its fallbacks; `attempt` counts the attempts of that endpoint.
    """

    at: float
    turn: int
    iteration: int
    purpose: Purpose
    endpoint: int
    attempt: int
    hold_input: int
    hold_output: int
    hold_cost: int | None = None
    script: str | None = None
    level: Level = "full"


class ModelFailed(Journaled):
    """The attempt gave no reply. What was charged: nothing, or the whole hold where it may have been billed.

    `cost` is None where that has no known price.
    """

    at: float
    kind: str
    message: str
    input: int = 0
    output: int = 0
    cost: int | None = 0
    status: int | None = None
    retry_after: float | None = None
    mark: int | None = None


class ReplyReceived(Journaled):
    """What the model answered and what it cost; `cost` is None where no price is known."""

    at: float
    text: str
    calls: tuple[AskedCall, ...] = ()
    finish: Literal["Stop", "Length"] = "Stop"
    input: int = 0
    output: int = 0
    cost: int | None = None
    counted: bool = False
    raw: Mapping[str, Any] | None = None
    mark: int | None = None
    level: Level = "full"


class ReplyRejected(Journaled):
    """A completion's answer was not what was asked for and is asked for again (cause ParseError), by this attempt."""

    at: float
    message: str
    endpoint: int
    attempt: int


class NoteAdded(Journaled):
    """The engine answered a reply with a note of its own, as a user message."""

    at: float
    note: Literal["Continue", "Repair"]
    text: str


class PolicyJudged(Journaled):
    """Policy has judged a model call (`call` is empty) or the call of a tool or a step; it is not asked again.

    `at_gate` is ModelCall or ToolCall, `verdict` Allow, RequireApproval or Deny. `rule` and `owner` say which rule of
    whose list decided, `is_failure` that it denies because it could not be judged, `is_asked` that an endpoint was.
    """

    at: float
    call: str
    turn: int
    at_gate: str
    verdict: str
    rule: str = ""
    message: str = ""
    owner: str = ""
    is_failure: bool = False
    is_asked: bool = False


class CallStarted(Journaled):
    """A call passed its gates and runs in this attempt.

    `key` is its idempotency key, empty for a tool that is ReadOnly (none is sent then); `digest` is that of the
    arguments as executed.
    `is_approved` says that it spends the approval that it was given.
    """

    at: float
    id: str
    tool: str
    effect: str
    key: str
    digest: str
    attempt: int
    is_approved: bool = False


class ChildRequested(Journaled):
    """Another run is asked for, to do a call: a delegate that is waited for, or a task in the background.

    `ref_kind` is Agent or Workflow. What is held of the run's budgets for it (tokens, nano-dollars) is None where the
    run has no such budget.
    """

    at: float
    call: str
    turn: int
    ref_kind: str
    ref_name: str
    input: Mapping[str, Any]
    is_background: bool = False
    hold_tokens: int | None = None
    hold_cost: int | None = None


class ChildDelivered(Journaled):
    """A child has ended and its end was read; what it took settles its hold (`cost` None: nobody knows).

    `content` is the result in full. Of a task in the background `note` is the user message that says so: there is no
    other fact between the end and the note, so that a crash cannot tell it twice or never.
    """

    at: float
    call: str
    turn: int
    signal: str
    input: int
    output: int
    cost: int | None
    content: str = ""
    note: str = ""


class CallFinished(Journaled):
    """A call has its one result.

    `content` is the result in full, `cut_at` the longest text of it that the model is shown (0: all of it).
    `is_unknown` says that nobody knows what it did. `fatal` names why the step cannot go on. For a step of the graph
    it holds all that its StepFinished needs: `writes`, `error_type`, `result`. `is_passed`: the tools gate
    has judged it and it goes on as it is; anything else that the gate says is a TextJudged.
    """

    at: float
    id: str
    content: str
    code: CallCode | None = None
    signal: str = ""
    message: str = ""
    cut_at: int = 0
    writes: Mapping[str, Any] | None = None
    engine_writes: Mapping[str, Any] | None = None
    is_unknown: bool = False
    fatal: Cause | None = None
    error_type: str | None = None
    result: Mapping[str, Any] | None = None
    seconds: float = 0.0
    is_passed: bool = False

    @property
    def cut_from(self) -> int | None:
        """How many characters a result has of which the model is shown a part, None where it is shown all."""
        return len(self.content) if 0 < self.cut_at < len(self.content) else None


class JudgeStarted(Journaled):
    """A judge of a gate is asked, with its hold (tokens, nano-dollars)."""

    at: float
    gate: GateName
    id: str
    hold_input: int
    hold_output: int
    hold_cost: int | None = None
    script: str | None = None


class JudgeAnswered(Journaled):
    """What a judge said and what it took; `cost` is None where that has no known price.

    `reason` are words that a model wrote about a text: they stay in the journal.
    """

    at: float
    said: Literal["Holds", "Violated", "Failed"]
    reason: str = ""
    input: int = 0
    output: int = 0
    cost: int | None = 0
    mark: int | None = None


class TextJudged(Journaled):
    """A gate has decided on a text: the user text (`id` is empty), a result (its id), an answer (`r` and its turn).

    `text`, where it is set, goes on instead, and `writes` instead of the call's. `check` names the check that refused,
    or those that did something; `notes` and `reason` hold nothing of the text.
    """

    at: float
    gate: GateName
    id: str
    verdict: Literal["Passed", "Refused"]
    text: str | None = None
    notes: tuple[str, ...] = ()
    artifact: str = ""
    check: str = ""
    reason: str = ""
    writes: Mapping[str, Any] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the text goes on as it is, and there is nothing to tell of it."""
        return self.verdict == "Passed" and self.text is None and self.writes is None and not self.check

    @property
    def said(self) -> Literal["Refused", "Rewritten", "Noted"]:
        """What the gate did, where a check did anything."""
        if self.verdict == "Refused":
            return "Refused"
        return "Noted" if self.text is None and self.writes is None else "Rewritten"


class StepFinished(Journaled):
    """A visit ended with a signal; `error_type` is the cause of an abnormal end."""

    at: float
    signal: str
    writes: Mapping[str, Any] | None = None
    error_type: str | None = None
    error_message: str = ""
    partial: str | None = None
    turn_ending: str | None = None
    result: Mapping[str, Any] | None = None


class ParkBegan(Journaled):
    """The run waits without advancing, until `wake` (epoch seconds) at the latest.

    `message`, of a service that is away: what was last said of it.
    """

    at: float
    reason: str
    turn: int
    wake: float | None = None
    on_timeout: str | None = None
    message: str = ""


class ParkReleased(Journaled):
    """The park holds no pod any more."""

    at: float


class ParkEnded(Journaled):
    """The run goes on. `since`, where it is set, is when a park began that could not be journaled."""

    at: float
    reason: str
    since: float | None = None


class BarrierTimedOut(Journaled):
    """Supervision has not seen the run in time: `verdict` (Continue, Pause, Abort) is what becomes of it.

    `generation`, and digests of `control` without its steer messages and of their `steers` ids, are what stood in the
    spec then: by them a person's later word is known from what stood there, and from a steer message of supervision.
    """

    at: float
    turn: int
    verdict: str
    generation: int
    control: str
    steers: str
    message: str = ""


class RunEnded(Journaled):
    """The run has ended; nothing follows."""

    at: float
    signal: str
    reason: str
    message: str = ""
    error_type: str | None = None
    error_message: str = ""
    partial: str | None = None
    turn_ending: str | None = None
    result: Mapping[str, Any] | None = None


Fact = (
    RunStarted
    | AttemptStarted
    | StepEntered
    | SessionLoaded
    | PromptOpened
    | ToolSurface
    | ModeAnswered
    | SteerAnswered
    | ApprovalRequested
    | ApprovalAnswered
    | LimitsLanded
    | ModelStarted
    | ModelFailed
    | ReplyReceived
    | ReplyRejected
    | NoteAdded
    | PolicyJudged
    | CallStarted
    | ChildRequested
    | ChildDelivered
    | CallFinished
    | JudgeStarted
    | JudgeAnswered
    | TextJudged
    | StepFinished
    | ParkBegan
    | ParkReleased
    | ParkEnded
    | BarrierTimedOut
    | RunEnded
)
Facts = tuple[Fact, ...]

FACTS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(Fact)}


# ---------------------------------------------------------------- the form in the journal

_COMPARED: Mapping[type[Any], Sequence[tuple[str, Any]]] = {
    kind: [
        (name, default)
        for name, default in zip(reversed(kind.__struct_fields__), reversed(kind.__struct_defaults__), strict=False)
        if isinstance(default, float) or (isinstance(default, str) and default)
    ]
    for kind in FACTS.values()
}
"""Fields whose default may be equalled by another object: msgspec leaves out only the very default."""


def encode(fact: Fact) -> RawEntry:
    """Return a fact as a journal entry; fields that have their default are left out."""
    entry = {"v": VERSION, **to_builtins(fact)}
    for name, default in _COMPARED[type(fact)]:
        if name in entry and entry[name] == default:
            del entry[name]
    return entry


def decode(entry: RawEntry) -> Fact:
    """Return the fact of a journal entry; raises JournalCorrupt for what is none, or is of a newer version."""
    version, name = entry.get("v"), entry.get("fact")
    if not isinstance(version, int) or version > VERSION:
        raise JournalCorrupt(f"an entry has version {version!r}; this engine reads up to {VERSION}: use a newer runner")
    if not isinstance(name, str) or name not in FACTS:
        raise JournalCorrupt(f"an entry is a fact {name!r:.80}, which this engine does not know")
    try:
        fact: Fact = convert(entry, FACTS[name])
    except ValidationError as error:
        raise JournalCorrupt(f"an entry is no {name}: {error!s:.200}") from None
    return fact


def decode_all(entries: Sequence[RawEntry]) -> Iterable[Fact]:
    """Yield the facts of a journal; raises JournalCorrupt that says which entry is wrong."""
    for number, entry in enumerate(entries):
        try:
            yield decode(entry)
        except JournalCorrupt as corrupt:
            raise JournalCorrupt(f"entry {number}: {corrupt}") from None
