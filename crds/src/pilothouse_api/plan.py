"""The plan: the frozen, resolved copy of everything that a run executes (supervisors stay live).

Made by `pilothouse_control.resolve_plan`, stored by the operator in an immutable ConfigMap under
`names.PLAN_KEY` as the canonical JSON of `Plan`, read by runner and CLI. Its digest is the SHA-256 of those bytes.
"""

from typing import Annotated, Literal, Self

from pydantic import Field

from pilothouse_api.digests import canonical_json, text_digest
from pilothouse_api.stored_plan import IntegrityError, plan_body, text_key
from pilothouse_api.v1alpha1.agent import AgentSpec
from pilothouse_api.v1alpha1.base import JsonObject, Model
from pilothouse_api.v1alpha1.common import Policy, TextSource
from pilothouse_api.v1alpha1.workflow import Step, WorkflowSpec


class Origin(Model):
    """Which object a part of the plan was copied from."""

    name: str
    """Name."""
    uid: str = ""
    """Uid; empty for local files."""
    generation: int = 0
    """Generation; 0 for local files."""
    digest: str
    """Digest of the spec."""


class PlannedAgent(Model):
    """An agent as it was when the run began."""

    origin: Origin
    """Where it comes from."""
    spec: AgentSpec
    """Its spec."""


class PlannedText(Model):
    """A text as it was when the run began."""

    text: str
    """The text."""
    digest: str
    """SHA-256 of the text; the engine verifies it before each use."""
    resolved: str
    """What it was resolved to, `artifact:name@3` or `configmap:name/key`, for people."""


class RunIdentity(Model):
    """Which run the plan is for."""

    namespace: str
    """Namespace."""
    name: str
    """Name."""
    uid: str
    """Uid; part of every idempotency key."""
    labels: dict[str, str] = {}
    """Labels of the run."""


class LiveCeilings(Model):
    """The platform's upper bounds of what `spec.limits` may relax on a live run; totals are bound by the workflow's."""

    tool_timeout_seconds: int | None = None
    """Longest deadline of one tool call."""
    pause_seconds: int | None = None
    """Longest time that a paused run keeps its pod."""
    approval_expires_seconds: int | None = None
    """Longest time that a call waits for a person."""


class AncestorPolicy(Model):
    """A policy list that a run inherits from one that it is a child of."""

    owner: str
    """Whose list it is, such as `workflow support-triage`; stands in verdicts."""
    rules: Policy
    """The rules, in their order."""


class Plan(Model):
    """Everything that a run executes."""

    format: Literal[1] = 1
    """Version of this form; a runner refuses another."""
    run: RunIdentity
    """Which run."""
    workflow: Origin
    """Where the workflow comes from; for a run of an Agent alone, the Agent."""
    spec: WorkflowSpec
    """The workflow; for a run of an Agent alone, one step that refers to it."""
    agents: dict[str, PlannedAgent] = {}
    """Agents by name: of steps, and of agentRef tools."""
    texts: dict[str, PlannedText] = {}
    """Texts by `text_key` of their source."""
    input: JsonObject = {}
    """Input, defaults applied, checked against the schema."""
    active_deadline_seconds: int = 3600
    """Longest unparked time."""
    max_attempts: int = 3
    """Attempts that may crash."""
    secrets: list[str] = []
    """`name/key` of the Secrets that the runner may read, sorted."""
    audiences: list[str] = []
    """Audiences of the tokens that the runner shows to MCP servers, sorted."""
    ceilings: Annotated[LiveCeilings, Field(default_factory=LiveCeilings)]
    """Bounds of limits that are changed on the live run."""
    ancestor_policies: list[AncestorPolicy] = []
    """Policy lists of the runs that this one is a child of; the strictest verdict of all lists wins."""
    ancestors: list[str] = []
    """Runs that this one is a child of, outermost first: so deep it is."""
    session: str | None = None
    """The conversation."""
    pod: JsonObject = {}
    """Pod template settings, image included (operator)."""

    def encode(self) -> str:
        """Return the canonical JSON, the bytes that are stored and digested."""
        return canonical_json(self.model_dump(mode="json", by_alias=True, exclude_unset=True) | {"format": self.format})

    @classmethod
    def decode(cls, text: str, want_digest: str | None = None) -> Self:
        """Return the plan of a text; raises ValueError for another digest than the wanted one, or an unknown form."""
        return cls.read(plan_body(text, want_digest))

    def agent_of(self, step: Step) -> AgentSpec:
        """Return the agent of an Agent step."""
        if step.agent is not None:
            return step.agent
        if step.agent_ref is None:
            raise ValueError(f"step {step.id} is of kind {step.kind} and has no agent")
        return self.agents[step.agent_ref.name].spec

    def step(self, step_id: str) -> Step:
        """Return a step by id; raises KeyError."""
        for step in self.spec.steps:
            if step.id == step_id:
                return step
        raise KeyError(step_id)

    def text(self, source: TextSource) -> str:
        """Return a text; raises `IntegrityError` when it is not what was planned."""
        if source.inline is not None:
            return source.inline
        planned = self.texts.get(text_key(source))
        if planned is None:
            raise IntegrityError(f"{text_key(source)} is not in the plan")
        if text_digest(planned.text) != planned.digest:
            raise IntegrityError(f"{planned.resolved} in the plan does not have the digest {planned.digest}")
        return planned.text
