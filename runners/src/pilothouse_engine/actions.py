"""What the loop may do next: a closed union. A decision returns one, the driver performs it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from pilothouse_api.structs import AgentSpec, ModelEndpoint
from pilothouse_engine.facts import CallStarted, Cause, Facts, GateName, ModelStarted
from pilothouse_engine.ports import Directives, SessionKey, StoreFailure, ToolSpec
from pilothouse_engine.settings import Settings
from pilothouse_engine.steps.contract import StepCall
from pilothouse_engine.values import Value

if TYPE_CHECKING:
    from pilothouse_engine.guardrails.gates import Gate
    from pilothouse_engine.policies.evaluation import PlannedPolicy
    from pilothouse_engine.policies.questions import Question


class Commit(Value):
    """Journal these facts; they follow from what is known."""

    facts: Facts


class ReadControl(Value):
    """Read the directives, after so many seconds."""

    after: float = 0.0


class ListTools(Value):
    """Ask the MCP servers that the agent's tools name what they offer, all at once, and journal what came of it."""

    agent: AgentSpec


class LoadSession(Value):
    """Load what was said in earlier runs of the session, after so many seconds, and journal what came of it."""

    key: SessionKey
    after: float = 0.0


class CallModel(Value):
    """Journal the start, make one attempt of a model call, journal what came of it.

    `pinned` joins the system text of this one request.
    """

    started: ModelStarted
    endpoint: ModelEndpoint
    tools: tuple[ToolSpec, ...]
    pinned: str | None
    script: str | None
    timeout: float


class ReadSlice(Value):
    """The work of read_tool_result: known at once."""

    content: str
    is_error: bool = False


class Execution(Value):
    """One call to run: its start, its work, and what to do with what comes of it."""

    started: CallStarted
    work: StepCall | ReadSlice
    timeout: float
    timeout_type: Cause
    is_tool: bool = True
    cut_at: int = 0
    writes_context: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Execute(Value):
    """Journal the starts, run the calls at once, journal their results in this order."""

    executions: tuple[Execution, ...]


class AskPolicy(Value):
    """Ask the endpoints of these lists, and journal the verdict. `call` is empty for a model call."""

    policies: "tuple[PlannedPolicy, ...]"
    question: "Question"
    call: str


class JudgeText(Value):
    """Ask a gate about a text and journal what it says; `text` is the whole of it, `cut_at` as in CallFinished.

    `writes` are what the call would merge, `signal` its signal: they pass the gate too.
    """

    gate: GateName
    id: str
    planned: "Gate"
    text: str
    cut_at: int = 0
    signal: str = ""
    writes: Mapping[str, Any] | None = None


class Show(Value):
    """Publish what was done, at once: supervision may want to stop what follows."""


class Sleep(Value):
    """Wait before the next attempt of a model call."""

    seconds: float


class WaitParked(Value):
    """Wait until something may have changed, at most so many seconds; then read the directives."""

    seconds: float


class Finish(Value):
    """The run has ended: publish it and stop."""


class Release(Value):
    """The run goes on in another attempt: publish the park and stop."""


Action = (
    Commit
    | ReadControl
    | ListTools
    | LoadSession
    | CallModel
    | Execute
    | AskPolicy
    | JudgeText
    | Show
    | Sleep
    | WaitParked
    | Finish
    | Release
)


class Inputs(Struct):
    """What a decision knows besides the plan and the state; kept by the driver, read by decisions.

    `read_tick` is the state's tick at the newest attempt to read the directives, `failure` why that failed, `read_at`
    when one last succeeded (at first: when the attempt began). `published_length` is the journal's length by the
    snapshot that stood when the attempt began, `opened_length` by the journal itself. `has_begun`: this very process
    has said in the journal that it begins; another pod may have had the attempt's number before. `shown_length` is the
    state's length when it was last shown because of a call with effect Once.
    """

    attempt: int
    settle: Cause | None
    settings: Settings
    plan_digest: str
    now: float
    read_at: float
    opened_length: int = 0
    has_begun: bool = False
    is_stopping: bool = False
    directives: Directives | None = None
    read_tick: int = -1
    failure: StoreFailure | None = None
    published_length: int | None = None
    shown_length: int = 0
    first_seen: dict[str, float] = field(default_factory=dict)

    @property
    def is_supervised(self) -> bool:
        """Whether anything watches the run."""
        return self.directives is not None and self.directives.is_supervised

    @property
    def is_held(self) -> bool:
        """Whether the run waits at each turn's end until supervision has seen it."""
        return self.directives is not None and self.directives.barrier is not None

    @property
    def is_journal_lost(self) -> bool:
        """Whether the journal held less, when it was opened, than its snapshot says."""
        return self.published_length is not None and self.published_length > self.opened_length

    @property
    def may_go_on_unread(self) -> bool:
        """Whether work that may be repeated goes on although the directives could not be read."""
        return (
            self.failure is not None
            and self.failure.kind == "Unavailable"
            and self.now - self.read_at < self.settings.control_grace_seconds
        )
