"""AgentRun: one execution of a Workflow, or of one Agent."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pilothouse_api.v1alpha1.base import JsonObject, Model, Rule, StatusModel
from pilothouse_api.v1alpha1.common import (
    ActionCounts,
    Conditions,
    Line,
    LocalRef,
    Money,
    ResourceRequirements,
    one_of,
)

Mode = Literal["Run", "Pause", "Finish", "Abort"]

PHASES = ("Pending", "Running", "Paused", "AwaitingApproval", "Succeeded", "Failed", "Aborted")
FINISHED_PHASES = frozenset({"Succeeded", "Failed", "Aborted"})


class Overrides(Model):
    """What a run may set besides its workflow; nothing here can lend rights."""

    resources: ResourceRequirements | None = None
    """Compute resources of the runner container."""
    active_deadline_seconds: Annotated[int, Field(ge=1, le=2_592_000)] | None = None
    """Longest unparked time."""
    max_attempts: Annotated[int, Field(ge=1, le=10)] | None = None
    """Attempts that may crash."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """When the run is deleted after its end."""


class RunLimits(Model):
    """Limits, changed on a live run: totals of the run, and the per-visit ones of its agents."""

    token_budget: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    """Most tokens of the run."""
    cost_budget_usd: Annotated[Money | None, Field(alias="costBudgetUSD")] = None
    """Most US dollars of the run."""
    max_tool_calls: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Most tool calls of the run."""
    max_iterations: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Most model calls of a visit."""
    max_parallel_tool_calls: Annotated[int, Field(ge=1, le=32)] | None = None
    """Most ReadOnly calls in a row that run at once."""
    tool_timeout_seconds: Annotated[int, Field(ge=1, le=86400)] | None = None
    """Deadline of one tool call."""
    max_tool_result_chars: Annotated[int, Field(ge=200, le=200_000)] | None = None
    """Longest tool result that the model sees."""
    pause_seconds: Annotated[int, Field(ge=0, le=604_800)] | None = None
    """How long a paused run keeps its pod."""
    on_pause_timeout: Literal["Release", "Abort"] | None = None
    """What happens then."""


class SteerMessage(Model):
    """Guidance that the model gets at the next turn boundary."""

    RULES: ClassVar = (Rule("self.message.trim() != ''", "a steer message cannot be blank", field_path=".message"),)

    message: Annotated[str, Field(min_length=1, max_length=4096)]
    """The text."""
    by: Annotated[str, Field(max_length=253)] | None = None
    """Who says it; where set, the caller's own user name."""


class ApprovalDecision(Model):
    """A person's decision on a pending call."""

    decision: Literal["Approve", "Deny"]
    """The decision."""
    arguments: JsonObject | None = None
    """Changes to the arguments, as a JSON merge-patch. A merge-patch of the run drops a null: see `remove`."""
    remove: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=16)] = []
    """Arguments that are taken away before the changes are made; one that is changed too is given anew, whole."""
    reason: Line | None = None
    """Why; the model is told on Deny."""
    by: Annotated[str, Field(max_length=253)] | None = None
    """Who decides; where set, the caller's own user name."""


class Control(Model):
    """The steering wheel: what people, the CLI and supervision change while a run lives."""

    RULES: ClassVar = (
        Rule(
            "!has(oldSelf.steer) || !has(self.steer) || self.steer.all(id, !(id in oldSelf.steer)"
            " || self.steer[id] == oldSelf.steer[id])",
            "a steer message cannot be changed once it is set: use another id",
            field_path=".steer",
        ),
        Rule(
            "!has(oldSelf.approvals) || !has(self.approvals) || self.approvals.all(id, !(id in oldSelf.approvals)"
            " || self.approvals[id] == oldSelf.approvals[id])",
            "a decision cannot be changed once it is set",
            field_path=".approvals",
        ),
        Rule(
            "!has(self.steer) || self.steer.all(id, id.size() <= 63 && id.matches('^[A-Za-z0-9][A-Za-z0-9._-]*$'))",
            "the id of a steer message has at most 63 letters, digits, dots, dashes and underscores",
            field_path=".steer",
        ),
        Rule(
            "!has(self.approvals) || self.approvals.all(id, id.size() <= 63)",
            "an approval is named by the id of a pending call: 63 characters at most",
            field_path=".approvals",
        ),
    )

    mode: Mode | None = None
    """Run, Pause, Finish or Abort; Finish may only become Abort, and Abort stays."""
    reason: Line | None = None
    """Why."""
    by: Annotated[str, Field(max_length=253)] | None = None
    """Who; where set, the caller's own user name."""
    steer: Annotated[dict[str, SteerMessage], Field(max_length=64)] = {}
    """Messages by id; an entry cannot be changed once it is set."""
    approvals: Annotated[dict[str, ApprovalDecision], Field(max_length=64)] = {}
    """Decisions by call id; accepted only for a call that is pending."""


class AgentRunSpec(Model):
    """What is executed, and the steering wheel."""

    RULES: ClassVar = (
        one_of("workflowRef", "agentRef"),
        *(
            Rule(
                f"has(self.{f}) == has(oldSelf.{f}) && (!has(self.{f}) || self.{f} == oldSelf.{f})",
                f"{f} is immutable: make another run",
                field_path=f".{f}",
            )
            for f in ("workflowRef", "agentRef", "input", "session", "overrides")
        ),
        Rule(
            "!(oldSelf.?control.?mode.orValue('Run') in ['Finish', 'Abort']) || self.?control.?mode.orValue('Run') in"
            " ['Abort', oldSelf.?control.?mode.orValue('Run')]",
            "Finish may only become Abort, and Abort cannot be taken back",
            field_path=".control",
        ),
    )

    workflow_ref: LocalRef | None = None
    """The Workflow that is executed."""
    agent_ref: LocalRef | None = None
    """The Agent that is executed, as a workflow of one step."""
    input: JsonObject = {}
    """Input, 256 KiB at most."""
    session: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """The conversation that this run continues."""
    overrides: Overrides | None = None
    """What differs from the workflow's runTemplate."""
    limits: RunLimits | None = None
    """Limits, tightened or relaxed while it runs."""
    control: Control | None = None
    """The steering wheel."""


class Landing(StatusModel):
    """The answer to one directive."""

    state: str = "Landed"
    """Landed, NotLanded, NotPending, Expired, Superseded."""
    turn: int | None = None
    """Turn at which it landed."""
    time: str | None = None
    """When, RFC 3339."""
    message: str | None = None
    """Why it did not land, where there is more to say."""
    digest: str | None = None
    """Which decision was answered: another one under the same call id is a new one."""


class ModeLanding(StatusModel):
    """The mode that is in force."""

    value: str = "Run"
    """Run, Pause, Finish, Abort."""
    turn: int = 0
    """Turn at which it landed."""
    time: str | None = None
    """When."""
    state: str | None = None
    """NotLanded or Superseded, where a newer mode did not land."""


class LimitsLanding(StatusModel):
    """The limits that are in force."""

    generation: int
    """Generation of the run's spec."""
    turn: int
    """Turn from which they hold."""


class ControlAnswer(StatusModel):
    """What became of `spec.control` and `spec.limits`."""

    observed_generation: int = 0
    """Newest generation of the run that the runner has read."""
    mode: ModeLanding = Field(default_factory=ModeLanding)
    """The mode."""
    steer: dict[str, Landing] = {}
    """Steer messages by id."""
    approvals: dict[str, Landing] = {}
    """Decisions by call id."""
    limits: LimitsLanding | None = None
    """Limits."""


class Parked(StatusModel):
    """Waiting without advancing."""

    reason: str
    """Paused, AwaitingApproval, AwaitingChild, Barrier, ControlLost, JournalLost, StoreLost, Stopped (by its host)."""
    turn: int
    """Turn at which it parked."""
    since: str
    """When, RFC 3339."""
    wake: str | None = None
    """When it wakes by itself, RFC 3339: release, expiry or deadline; absent of a Barrier that has paused the run."""
    released: bool = False
    """Whether it holds no pod."""
    on_timeout: str | None = None
    """What happens at `wake`: of Paused Release or Abort, of Barrier Continue, Pause or Abort."""
    message: str | None = None
    """Of a service that is away: what it, or the way to it, last said; of a Barrier that has paused the run: why."""

    @property
    def is_barrier_pause(self) -> bool:
        """Whether the barrier's time is up and the run is held: until a late verdict, or a person's word."""
        return self.reason == "Barrier" and self.wake is None


class StepReport(StatusModel):
    """One visit."""

    id: str
    """Step."""
    visit: int
    """Which visit of the run, from 1."""
    kind: str
    """Kind of the step."""
    signal: str | None = None
    """What it ended with."""
    iterations: int = 0
    """Model calls."""
    tokens: int = 0
    """Tokens."""
    started_at: str | None = None
    """When."""
    finished_at: str | None = None
    """When."""


class TokenReport(StatusModel):
    """Tokens of the run (or of the visit)."""

    used: int = 0
    """Settled."""
    input: int = 0
    """Of these, input."""
    output: int = 0
    """Of these, output."""
    held: int = 0
    """Reserved for calls under way."""
    budget: int | None = None
    """The effective budget."""
    visit: "TokenReport | None" = None
    """The same of the visit."""


class CostReport(StatusModel):
    """Money of the run."""

    used_usd: Annotated[str, Field(alias="usedUSD")] = "0"
    """Settled."""
    budget_usd: Annotated[str | None, Field(alias="budgetUSD")] = None
    """The effective budget."""
    unknown: bool = False
    """True where a call was made whose price is not known."""
    visit: "CostReport | None" = None
    """The same of the visit."""


class VisitCounts(StatusModel):
    """What the calls of the open visit of an Agent step came to: what supervision counts by."""

    tool_calls: dict[str, int] = {}
    """Calls by declared tool."""
    undeclared_tool_calls: int = 0
    """Calls of tools that do not exist."""
    tool_errors: int = 0
    """Results that are errors."""
    identical_calls: int = 0
    """Longest run of identical calls."""


class PendingApproval(StatusModel):
    """A call that waits for a person."""

    call_id: str
    """The engine's id of the call."""
    tool: str
    """Tool, or title of an Approval step."""
    arguments: JsonObject = {}
    """Arguments, masked."""
    requested_at: str
    """When."""
    expires_at: str | None = None
    """Until when."""


class ChildRef(StatusModel):
    """What a child runs."""

    kind: str
    """Agent or Workflow."""
    name: str
    """Its name."""


class ChildHold(StatusModel):
    """What of the parent's budgets a child may use; absent where the parent has no such budget."""

    tokens: int | None = None
    """Tokens."""
    cost_usd: Annotated[str | None, Field(alias="costUSD")] = None
    """Money, US dollars."""


class ChildRequest(StatusModel):
    """A child that was asked for: a delegate that the run waits for, or a task in the background."""

    call_id: str
    """The engine's id of the call; the child is named after it."""
    ref: ChildRef
    """What it runs."""
    input: JsonObject = {}
    """Its input, 8 KiB at most; left out once the child has ended."""
    hold: ChildHold = Field(default_factory=ChildHold)
    """Its budgets."""
    state: str
    """Awaited and Background: it is wanted. Delivered: its end was read. Abandoned: it must be aborted. HandedOn: a
    task that goes on; its end is told in the next run of the session.
    """
    owner: str | None = None
    """The earlier run of the session that it is a child of, and `callId` its name; absent: this run's own."""


class RunningCall(StatusModel):
    """A call that is under way: what a directive waits for."""

    call_id: str
    """The engine's id of the call."""
    tool: str
    """Tool or step."""
    since: str
    """When it started."""


class UnknownEffect(StatusModel):
    """A call that started and of which nobody knows whether it was done."""

    call_id: str
    """The engine's id of the call."""
    tool: str
    """Tool or step."""
    at: str
    """When it started."""


class Effects(StatusModel):
    """What calls did outside."""

    settled: int = 0
    """Calls with a known end."""
    unknown: list[UnknownEffect] = []
    """Calls without."""


class ErrorReport(StatusModel):
    """An error, without tool text."""

    type: str
    """The cause, PascalCase."""
    message: str = ""
    """Tool, code and digest; what, actual value, limit, the field to change."""


class RunExit(StatusModel):
    """How the run ended."""

    signal: str
    """Signal of the last step."""
    turn_ending: str | None = None
    """StepLimit, Length, Interrupted."""
    reason: str
    """Complete, FinishedEarly, or why it failed."""
    message: str = ""
    """One sentence."""
    error: ErrorReport | None = None
    """The error."""
    partial: str | None = None
    """Newest text of an exit without an answer, up to 2 KiB."""


class Snapshot(StatusModel):
    """`status.run`: what the runner says about itself after each turn; at most 32 KiB, replaced whole."""

    attempt: int
    """Attempt that wrote it."""
    journal_length: int = 0
    """Facts in the journal."""
    step: str | None = None
    """Current step."""
    visit: int = 0
    """Current visit, from 1."""
    turn: int = 0
    """Turns of the run; never goes back."""
    iteration: int = 0
    """Model calls of the visit."""
    max_iterations: int | None = None
    """The effective limit."""
    steps: list[StepReport] = []
    """Visits, newest last; the oldest are left out first."""
    tokens: TokenReport = Field(default_factory=TokenReport)
    """Tokens."""
    cost: CostReport = Field(default_factory=CostReport)
    """Money."""
    tool_calls: dict[str, int] = {}
    """Calls by declared tool."""
    undeclared_tool_calls: int = 0
    """Calls of tools that do not exist."""
    tool_errors: int = 0
    """Results that are errors."""
    identical_calls: int = 0
    """Longest run of identical calls."""
    visit_counts: VisitCounts | None = None
    """The same of the open visit of an Agent step."""
    last_progress_time: str | None = None
    """When something was last settled."""
    control: ControlAnswer = Field(default_factory=ControlAnswer)
    """Answers to directives."""
    parked: Parked | None = None
    """What it waits for."""
    running: RunningCall | None = None
    """The oldest call that is under way."""
    pending_approvals: list[PendingApproval] = []
    """Calls that wait for a person."""
    children: list[ChildRequest] = []
    """Children that were asked for."""
    effects: Effects = Field(default_factory=Effects)
    """Effects."""
    trace: list[JsonObject] = []
    """The newest 20 frames."""
    exit: RunExit | None = None
    """How it ended."""
    result: JsonObject | None = None
    """The result, or where it is large a reference `{ref, bytes, digest}`."""
    truncated: bool = False
    """Whether something was left out to stay under the cap."""


class Attempts(StatusModel):
    """How attempts went."""

    crashes: int = 0
    """Crashes, counted against maxAttempts."""
    last_failure: Line | None = None
    """The newest one."""
    next_retry_time: Annotated[str, Field(max_length=64)] | None = None
    """When the next attempt starts."""


class PodReport(StatusModel):
    """The pod of the attempt."""

    name: Annotated[str, Field(max_length=253)]
    """Name, known before it is created."""
    node: Annotated[str, Field(max_length=253)] | None = None
    """Node."""


class PlanReport(StatusModel):
    """The plan."""

    name: Annotated[str, Field(max_length=253)]
    """Name of the ConfigMap."""
    digest: Annotated[str, Field(max_length=128)]
    """Digest; the runner checks it."""


class ExitReport(StatusModel):
    """How the run ended."""

    signal: Annotated[str, Field(max_length=253)]
    """Signal."""
    reason: Annotated[str, Field(max_length=253)]
    """Reason."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """One sentence."""


class SupervisionClock(StatusModel):
    """How far every Sync supervisor has seen the run; never goes back."""

    visit: int = 0
    """Visit of the snapshot that was judged."""
    turn: int = 0
    """Turn of it."""
    journal_length: int = 0
    """Facts in its journal: tells the snapshots of one turn apart, and is what the runner waits for."""


class Barrier(StatusModel):
    """What a runner does at the end of each turn: it waits for the clock."""

    timeout_seconds: int
    """How long, at most: the longest of its Sync supervisors."""
    on_timeout: Annotated[str, Field(max_length=64)]
    """Continue, Pause or Abort: the most severe of its Sync supervisors."""


class JudgeRecord(StatusModel):
    """What one supervisor's judge did in this run."""

    iteration: int = 0
    """Iteration of the newest slot that was taken, in `visit`."""
    asked_at: Annotated[str, Field(max_length=64)] | None = None
    """Since when a verdict is awaited, RFC 3339; absent while none is."""
    asked_length: int = 0
    """`journalLength` of the snapshot that it was asked about."""
    calls: int = 0
    """Verdicts asked for."""
    failures: int = 0
    """Verdicts not given."""
    tokens_used: int = 0
    """Tokens of the run's verdicts, against `judge.tokenBudget`."""
    last_error: Line | None = None
    """The newest failure."""
    is_failing: bool = False
    """Whether the newest verdict was not given."""


class SupervisorRecord(StatusModel):
    """One supervisor that watches the run: its copy in force, and what it did."""

    namespace: Annotated[str, Field(max_length=63)] = ""
    """Namespace of the supervisor: the run's, or an ancestor's."""
    name: Annotated[str, Field(max_length=253)]
    """Name."""
    generation: int = 0
    """Generation of the copy."""
    spec: JsonObject = {}
    """The copy in force: of the live object, or of the deleted one as it was last."""
    is_deleted: bool = False
    """Whether the object is gone; the copy stays in force."""
    visit: int = 0
    """Visit that `fired` and `judge.iteration` count for."""
    fired: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=64)] = []
    """Hashes of the rules that have fired in the visit; `failed-` and one: of an expression that gave an error."""
    seen: SupervisionClock = Field(default_factory=SupervisionClock)
    """Newest snapshot that it has judged. Sync: its judge's verdict included where one was due; Async: as of the newest
    change of this record, since a look that finds nothing writes nothing."""
    actions: ActionCounts = Field(default_factory=ActionCounts)
    """What it did to the run in all: `actions` of the record holds the newest alone."""
    judge: JudgeRecord | None = None
    """What its judge did."""


class SupervisionAction(StatusModel):
    """One intervention."""

    id: Annotated[str, Field(max_length=63)]
    """Id of the directive: of a steer message its key, else one of the same form."""
    time: Annotated[str, Field(max_length=64)]
    """When it was decided, RFC 3339."""
    supervisor: Annotated[str, Field(max_length=253)]
    """Name of the supervisor."""
    supervisor_uid: Annotated[str, Field(max_length=64)] = ""
    """Uid of the supervisor."""
    generation: int = 0
    """Generation of the supervisor that decided."""
    action: Annotated[str, Field(max_length=64)]
    """Pause, Steer or Abort."""
    source: Annotated[str, Field(max_length=128)]
    """`Rule/<name>`, Judge, JudgeError or Barrier."""
    reason: Line
    """Why, one sentence."""
    turn: int
    """Turn of the snapshot that it was decided on."""
    visit: int = 0
    """Visit of it."""
    state: Annotated[str, Field(max_length=64)] = "Intended"
    """Intended, Done (the directive stands in spec.control), Superseded (a stronger hand was first), or Dropped."""
    run_generation: int = 0
    """Generation of the run at the intent: a later one, without our directive, is a person's hand that came after."""
    landed_turn: int | None = None
    """Turn at which the runner says that it landed."""


class Supervision(StatusModel):
    """What supervision did; written by the operator (or the host of a local run)."""

    clock: SupervisionClock | None = None
    """Newest snapshot that every Sync supervisor has seen; absent without one."""
    barrier: Barrier | None = None
    """What the runner waits for at each turn's end; absent without a Sync supervisor."""
    supervisors: Annotated[dict[str, SupervisorRecord], Field(max_length=32)] = {}
    """Who watches the run, by the supervisor's uid."""
    actions: Annotated[list[SupervisionAction], Field(max_length=20)] = []
    """Newest interventions, newest last."""


class ChildApproval(StatusModel):
    """A call of a child, or of a child of it, that waits for a person; it is decided on in that run."""

    run: Annotated[str, Field(max_length=63)]
    """The run of the call."""
    call_id: Annotated[str, Field(max_length=63)]
    """The engine's id of the call."""
    tool: Annotated[str, Field(max_length=253)]
    """Tool, or title of an Approval step."""
    expires_at: Annotated[str, Field(max_length=64)] | None = None
    """Until when."""


class ChildReport(StatusModel):
    """A child as the operator sees it; the runner reads it once `exit` is set."""

    call_id: Annotated[str, Field(max_length=63)]
    """The call that it does."""
    name: Annotated[str, Field(max_length=63)] | None = None
    """Its AgentRun, once there is one."""
    exit: ExitReport | None = None
    """How it ended, or why it was not made."""
    result: JsonObject | None = None
    """Its result, or a reference to it."""
    input_tokens: int | None = None
    """Tokens of input that it took; absent: nobody knows, and its whole hold is charged."""
    output_tokens: int | None = None
    """Tokens of output."""
    cost_usd: Annotated[str | None, Field(max_length=32, alias="costUSD")] = None
    """Money."""
    pending_approvals: Annotated[list[ChildApproval], Field(max_length=16)] = []
    """What waits for a person in it and in its own children."""


class AgentRunStatus(StatusModel):
    """What operator and runner report; each field has one writer."""

    observed_generation: int | None = None
    """Generation that was judged (operator)."""
    phase: Annotated[str, Field(max_length=64)] | None = None
    """Pending, Running, Paused, AwaitingApproval, Succeeded, Failed, Aborted (operator; for people)."""
    conditions: Conditions = []
    """Conditions (operator)."""
    attempt: int | None = None
    """Newest attempt, and the fence: a runner of an older one cannot write (operator)."""
    attempts: Attempts | None = None
    """How attempts went (operator)."""
    pod: PodReport | None = None
    """Pod of the newest attempt (operator)."""
    plan: PlanReport | None = None
    """The plan (operator)."""
    start_time: Annotated[str, Field(max_length=64)] | None = None
    """When the first pod was made (operator)."""
    completion_time: Annotated[str, Field(max_length=64)] | None = None
    """When the run ended (operator)."""
    exit: ExitReport | None = None
    """How it ended (operator)."""
    result: JsonObject | None = None
    """The result, or a reference to it (operator)."""
    supervision: Supervision | None = None
    """What supervision did (operator)."""
    children: Annotated[list[ChildReport], Field(max_length=64)] = []
    """Children of the run (operator)."""
    run: JsonObject | None = None
    """The snapshot (runner only); see `Snapshot`."""
