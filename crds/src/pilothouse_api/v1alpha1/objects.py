"""The objects of the four kinds, and the table by kind."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from pilothouse_api.names import API_VERSION, MAX_RUN_NAME, MAX_WORKFLOW_NAME
from pilothouse_api.v1alpha1.agent import AgentSpec, AgentStatus
from pilothouse_api.v1alpha1.agentrun import AgentRunSpec, AgentRunStatus
from pilothouse_api.v1alpha1.base import Model, StatusModel
from pilothouse_api.v1alpha1.common import dns_label_name
from pilothouse_api.v1alpha1.supervisor import SupervisorSpec, SupervisorStatus
from pilothouse_api.v1alpha1.workflow import WorkflowSpec, WorkflowStatus


class OwnerReference(StatusModel):
    """An object that another one goes with."""

    api_version: str = ""
    """Its group and version."""
    kind: str = ""
    """Its kind."""
    name: str = ""
    """Its name."""
    uid: str = ""
    """Its identity."""
    controller: bool = False
    """Whether it is the one that made the other and looks after it."""


class ObjectMeta(StatusModel):
    """The parts of Kubernetes' metadata that are read here."""

    name: str = ""
    """Name."""
    generate_name: str | None = None
    """Prefix of a name that the API server makes."""
    namespace: str | None = None
    """Namespace."""
    uid: str | None = None
    """Identity of this very object."""
    generation: int | None = None
    """Counts changes of the spec."""
    resource_version: str | None = None
    """Version of the stored object."""
    creation_timestamp: str | None = None
    """When it was created."""
    deletion_timestamp: str | None = None
    """When its deletion was asked for."""
    labels: dict[str, str] = {}
    """Labels."""
    annotations: dict[str, str] = {}
    """Annotations."""
    owner_references: list[OwnerReference] = []
    """What it goes with."""


class Object(Model):
    """Base of the four kinds."""

    PLURAL: ClassVar[str]
    SHORT: ClassVar[str]

    api_version: Annotated[str, Field(pattern=rf"^{re.escape(API_VERSION)}$")] = API_VERSION
    """Group and version."""
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    """Kubernetes' metadata."""


class Agent(Object):
    """One bounded LLM step: model, tools, exits, limits, gates. Lives in Git."""

    PLURAL, SHORT = "agents", "pagent"
    RULES: ClassVar = (dns_label_name("an Agent", 63),)

    kind: Literal["Agent"] = "Agent"
    """Agent."""
    spec: AgentSpec
    """What an agent may do."""
    status: AgentStatus = Field(default_factory=AgentStatus)
    """What the operator says about it."""


class Workflow(Object):
    """A graph of steps and routes: what should be done. Lives in Git."""

    PLURAL, SHORT = "workflows", "pwf"
    RULES: ClassVar = (dns_label_name("a Workflow", MAX_WORKFLOW_NAME),)

    kind: Literal["Workflow"] = "Workflow"
    """Workflow."""
    spec: WorkflowSpec
    """What should be done."""
    status: WorkflowStatus = Field(default_factory=WorkflowStatus)
    """What the operator says about it."""


class Supervisor(Object):
    """A circuit breaker: deterministic rules and an optional LLM judge. Lives in Git."""

    PLURAL, SHORT = "supervisors", "psup"
    RULES: ClassVar = (dns_label_name("a Supervisor", 63),)

    kind: Literal["Supervisor"] = "Supervisor"
    """Supervisor."""
    spec: SupervisorSpec
    """What is watched, and what is done."""
    status: SupervisorStatus = Field(default_factory=SupervisorStatus)
    """What the operator says about it."""


class AgentRun(Object):
    """One execution of a Workflow (or of one Agent)."""

    PLURAL, SHORT = "agentruns", "prun"
    RULES: ClassVar = (dns_label_name("an AgentRun", MAX_RUN_NAME),)

    kind: Literal["AgentRun"] = "AgentRun"
    """AgentRun."""
    spec: AgentRunSpec
    """What is executed, and the steering wheel."""
    status: AgentRunStatus = Field(default_factory=AgentRunStatus)
    """What operator and runner report."""


KINDS: Mapping[str, type[Agent] | type[Workflow] | type[Supervisor] | type[AgentRun]] = {
    "Agent": Agent,
    "Workflow": Workflow,
    "Supervisor": Supervisor,
    "AgentRun": AgentRun,
}


def parse_object(raw_object: Mapping[str, Any]) -> Agent | Workflow | Supervisor | AgentRun:
    """Return the object of one of the four kinds; raises KeyError for another kind, ValidationError for a bad one."""
    return KINDS[raw_object["kind"]].model_validate(raw_object)
