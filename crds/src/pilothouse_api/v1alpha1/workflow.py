"""Workflow: a graph of steps and routes: what should be done."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pilothouse_api.effects import Effect
from pilothouse_api.v1alpha1.agent import AgentSpec
from pilothouse_api.v1alpha1.base import JsonObject, Model, Rule, StatusModel, list_map
from pilothouse_api.v1alpha1.common import (
    Conditions,
    Hooks,
    Line,
    LocalRef,
    Money,
    Name,
    Policy,
    ResourceRequirements,
    Signal,
    discriminated,
)
from pilothouse_api.v1alpha1.steps import (
    APICall,
    Approval,
    Delegate,
    FunctionCall,
    McpCall,
    ResourceCall,
    Response,
    Router,
)

StepKind = Literal["Agent", "APICall", "MCP", "Resource", "Router", "Function", "Response", "Approval", "Delegate"]

BRANCH_OF_KIND = {
    "APICall": "apiCall",
    "MCP": "mcp",
    "Resource": "resource",
    "Router": "router",
    "Function": "function",
    "Response": "response",
    "Approval": "approval",
    "Delegate": "delegate",
}
"""The field that holds the parameters of a step kind; Agent has two, agentRef and agent."""


class InputSpec(Model):
    """What the workflow is given."""

    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    """JSON Schema of the input."""
    defaults: JsonObject = {}
    """Values of keys that the run leaves out."""


class Step(Model):
    """One node of the graph."""

    RULES: ClassVar = (
        discriminated("kind", BRANCH_OF_KIND),
        Rule(
            "(self.kind == 'Agent') == (has(self.agentRef) != has(self.agent))"
            " && (self.kind == 'Agent' || (!has(self.agentRef) && !has(self.agent)))",
            "kind: Agent needs exactly one of agentRef and agent, and only it takes one",
        ),
        Rule(
            "!(self.id in ['end', 'default'])",
            "end and default cannot be ids of steps",
            field_path=".id",
        ),
        Rule(
            "!has(self.routes) || self.routes.all(s, !(s in ['on', 'off', 'yes', 'no', 'y', 'n', 'true', 'false']))",
            "YAML turns this signal into a boolean: quote it and choose another word",
            field_path=".routes",
        ),
        Rule(
            "!has(self.routes) || self.routes.all(s, s.size() >= 1 && s.size() <= 63)",
            "a signal in routes has 1 to 63 characters",
            field_path=".routes",
        ),
    )

    id: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z]([-a-z0-9_]*[a-z0-9])?$")]
    """Id of the step, unique in the workflow."""
    kind: StepKind
    """What it does."""
    description: Line | None = None
    """What it does, for people and, where it is a tool, for the model."""
    tool_only: bool = False
    """A tool, never entered by falling through."""
    effect: Effect | None = None
    """What it does outside; default: ReadOnly for GET, HEAD, Router and Response, else Once."""
    agent_ref: LocalRef | None = None
    """The Agent (kind Agent)."""
    agent: AgentSpec | None = None
    """An agent that is written here (kind Agent)."""
    api_call: APICall | None = None
    """Parameters of APICall."""
    mcp: McpCall | None = None
    """Parameters of MCP."""
    resource: ResourceCall | None = None
    """Parameters of Resource."""
    router: Router | None = None
    """Parameters of Router."""
    function: FunctionCall | None = None
    """Parameters of Function."""
    response: Response | None = None
    """Parameters of Response."""
    approval: Approval | None = None
    """Parameters of Approval."""
    delegate: Delegate | None = None
    """Parameters of Delegate."""
    routes: Annotated[dict[Signal, Name], Field(max_length=32)] = {}
    """Next step by signal; `end` finishes the run."""
    hooks: Hooks = []
    """What is reported."""


class Schedule(Model):
    """When runs are made."""

    cron: Annotated[str, Field(min_length=9, max_length=128)]
    """Five cron fields."""
    time_zone: Annotated[str, Field(min_length=1, max_length=64)] = "UTC"
    """IANA name of the time zone."""
    starting_deadline_seconds: Annotated[int, Field(ge=10, le=604_800)] | None = None
    """How late a missed slot is still caught up, once; default: not at all past the next slot."""


class Trigger(Model):
    """What makes runs."""

    RULES: ClassVar = (
        Rule(
            "(self.?type.orValue('Manual') == 'Schedule') == has(self.schedule)",
            "set schedule exactly when type is Schedule",
        ),
    )

    type: Literal["OnChange", "Schedule", "Manual"] = "Manual"
    """OnChange: one run for each change of what the workflow does. Schedule: by cron. Manual: only people."""
    schedule: Schedule | None = None
    """Parameters of Schedule."""


class History(Model):
    """How many finished runs of a trigger are kept."""

    succeeded: Annotated[int, Field(ge=0, le=100)] = 3
    """Newest succeeded ones."""
    failed: Annotated[int, Field(ge=0, le=100)] = 3
    """Newest failed and aborted ones."""


class RunTotals(Model):
    """Totals of a run, over steps, visits and children."""

    token_budget: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Most tokens."""
    cost_budget_usd: Annotated[Money | None, Field(alias="costBudgetUSD")] = None
    """Most US dollars."""
    max_tool_calls: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Most tool calls."""


class RunTemplate(Model):
    """How the runs of the workflow and their pods are made."""

    RULES: ClassVar = (
        Rule(
            "!has(self.labels) || self.labels.all(k, !k.startsWith('pilothouse.dev/')"
            " && k != 'app.kubernetes.io/managed-by')",
            "labels cannot hold app.kubernetes.io/managed-by or those that begin with pilothouse.dev/:"
            " they are the operator's",
            field_path=".labels",
        ),
    )

    service_account_name: Annotated[str, Field(max_length=63, pattern=r"^prun[-a-z0-9]*$")] = "prun"
    """ServiceAccount of the pods; must begin with prun, by which the admission policies know a runner."""
    resources: ResourceRequirements | None = None
    """Compute resources of the runner container."""
    env: Annotated[list[JsonObject], Field(max_length=64)] = []
    """Environment of the runner container, as in a pod; secrets only by reference."""
    env_from: Annotated[list[JsonObject], Field(max_length=16)] = []
    """Environment from ConfigMaps and Secrets, as in a pod."""
    node_selector: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=16)] = {}
    """Labels of the nodes that may run it."""
    tolerations: Annotated[list[JsonObject], Field(max_length=32)] = []
    """Tolerations, as in a pod."""
    runtime_class_name: Annotated[str, Field(max_length=253)] | None = None
    """RuntimeClass of the pod."""
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Runner image; default: the installation's."""
    active_deadline_seconds: Annotated[int, Field(ge=1, le=2_592_000)] = 3600
    """Longest unparked time of a run."""
    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    """Attempts that may crash."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """When a finished run that the operator made is deleted; default: by history only."""
    labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=16)] = {}
    """Labels of run and pod; those of this project are refused."""


class WorkflowSpec(Model):
    """What should be done."""

    RULES: ClassVar = (
        Rule(
            "[self.steps.map(t, t.id) + ['end']].all(ids, self.steps.all(s, !has(s.routes)"
            " || s.routes.all(r, s.routes[r] in ids)))",
            "a route leads to a step that does not exist",
            field_path=".steps",
        ),
        Rule(
            "self.steps.exists(s, !has(s.toolOnly) || !s.toolOnly)",
            "every step is toolOnly: there is nothing to begin with",
            field_path=".steps",
        ),
    )

    description: Line | None = None
    """What the workflow is for."""
    input: InputSpec = Field(default_factory=InputSpec)
    """What the workflow is given."""
    steps: Annotated[list[Step], Field(min_length=1, max_length=100), list_map("id")]
    """The steps; the first that is not toolOnly begins."""
    supervisor_refs: Annotated[list[LocalRef], Field(max_length=8), list_map("name")] = []
    """Supervisors that watch every run."""
    hooks: Hooks = []
    """What is reported of every step."""
    policy: Policy = []
    """Deterministic rules on model and tool calls of every step."""
    trigger: Trigger = Field(default_factory=Trigger)
    """What makes runs."""
    suspend: bool = False
    """Make no new runs; live ones go on."""
    concurrency_policy: Literal["Allow", "Forbid", "Replace"] = "Allow"
    """What a trigger does while a run of it is active; parked runs are active."""
    history: History = Field(default_factory=History)
    """How many finished runs are kept."""
    limits: RunTotals = Field(default_factory=RunTotals)
    """Totals of a run."""
    max_step_visits: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Most visits of steps in one run: stops cycles of routes."""
    run_template: RunTemplate = Field(default_factory=RunTemplate)
    """How runs and their pods are made."""


class LastRun(StatusModel):
    """The newest run."""

    name: Annotated[str, Field(max_length=253)]
    """Its name."""
    phase: Annotated[str, Field(max_length=64)] | None = None
    """Its phase."""
    finished_at: Annotated[str, Field(max_length=64)] | None = None
    """When it ended."""


class LastTriggered(StatusModel):
    """What the trigger has already started."""

    generation: int | None = None
    """Generation of the workflow that was started last."""
    digest: Annotated[str, Field(max_length=128)] | None = None
    """Digest of what would run: a change that changes nothing starts nothing."""
    slot: int | None = None
    """Newest slot, minutes since the epoch."""


class RunCounts(StatusModel):
    """Ends of runs, counted."""

    succeeded: int = 0
    """Succeeded."""
    failed: int = 0
    """Failed."""
    aborted: int = 0
    """Aborted."""


class WorkflowStatus(StatusModel):
    """What the operator says about a workflow."""

    observed_generation: int | None = None
    """Generation that was judged."""
    conditions: Conditions = []
    """Ready, Reconciling, Stalled, ReferencesResolved."""
    last_run: LastRun | None = None
    """The newest run."""
    last_triggered: LastTriggered | None = None
    """What the trigger has already started; survives the deletion of runs."""
    active_runs: int | None = None
    """Runs that have not ended."""
    counts: RunCounts | None = None
    """Ends of runs."""
    next_schedule_time: Annotated[str, Field(max_length=64)] | None = None
    """When the next slot is due."""
    warnings: Annotated[list[Line], Field(max_length=32)] = []
    """What is allowed but unwise."""
