"""What checks are given, and the row of the table that each of them is."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from pilothouse_api.v1alpha1 import Agent, AgentRun, Supervisor, Workflow
from pilothouse_api.v1alpha1.agent import AgentModel, AgentSpec, ModelEndpoint, Tool
from pilothouse_api.v1alpha1.base import Model
from pilothouse_api.v1alpha1.workflow import Step, WorkflowSpec
from pilothouse_control.findings import FieldPath, Severity
from pilothouse_control.world import ConfigMap, has_stated_price

KnownPrice = Callable[[ModelEndpoint], bool]


class Problem(NamedTuple):
    """One thing that a check found: where, what, and what to do."""

    path: FieldPath
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that is there besides the object that is judged.

    `refused` are kind and name of objects that were given but are none by their shape: their own findings say so.
    `supervisors` are names; `knows_supervisors` tells whether there are no others.
    """

    workflows: Mapping[str, Workflow] = field(default_factory=dict)
    agents: Mapping[str, Agent] = field(default_factory=dict)
    refused: frozenset[tuple[str, str]] = frozenset()
    config_maps: Mapping[str, ConfigMap] = field(default_factory=dict)
    supervisors: Collection[str] = ()
    knows_supervisors: bool = False
    is_complete: bool = False
    durable_journal: bool = False
    known_price: KnownPrice = has_stated_price


@dataclass(frozen=True, slots=True)
class SpecSubject:
    """The spec of any object."""

    kind: str
    spec: Model
    path: FieldPath = ("spec",)


@dataclass(frozen=True, slots=True)
class AgentSubject:
    """An agent: of an object of its own, or written in a step (then its place is the step's)."""

    name: str
    spec: AgentSpec
    path: FieldPath

    def tools(self) -> Iterator[tuple[FieldPath, Tool]]:
        """Yield the tools with their places."""
        for index, tool in enumerate(self.spec.tools):
            yield (*self.path, "tools", index), tool

    def endpoints(self) -> Iterator[tuple[FieldPath, ModelEndpoint]]:
        """Yield the model and its fallbacks with their places."""
        yield from endpoints_of(self.spec.model, (*self.path, "model"))


@dataclass(frozen=True, slots=True)
class UsedAgent:
    """An agent as a step of a workflow uses it; `path` is where the workflow says so."""

    index: int
    step: Step
    spec: AgentSpec
    path: FieldPath
    name: str

    @property
    def is_inline(self) -> bool:
        """Whether it is written in the step."""
        return self.step.agent is not None

    @property
    def label(self) -> str:
        """What it is called in messages."""
        return "the agent" if self.is_inline else f"Agent {self.name}"


@dataclass(frozen=True, slots=True)
class WorkflowSubject:
    """A workflow with the agents that are known of it."""

    workflow: Workflow
    used: tuple[UsedAgent, ...]

    @property
    def spec(self) -> WorkflowSpec:
        """Its spec."""
        return self.workflow.spec

    def steps(self) -> Iterator[tuple[FieldPath, Step]]:
        """Yield the steps with their places."""
        for index, step in enumerate(self.spec.steps):
            yield ("spec", "steps", index), step


@dataclass(frozen=True, slots=True)
class RunSubject:
    """A run, with its workflow where that is known (of a run of an Agent, the one made for it)."""

    run: AgentRun
    workflow: WorkflowSubject | None


@dataclass(frozen=True, slots=True)
class SupervisorSubject:
    """A supervisor."""

    supervisor: Supervisor


S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Check(Generic[S]):
    """One row: a name for what is wrong, how bad it is, and the function that finds it."""

    name: str
    severity: Severity
    judge: Callable[[Scene, S], Iterable[Problem]]
    is_error_when_strict: bool = False


def endpoints_of(model: AgentModel, path: FieldPath) -> Iterator[tuple[FieldPath, ModelEndpoint]]:
    """Yield a model and its fallbacks with their places."""
    yield path, model
    for index, fallback in enumerate(model.fallbacks):
        yield (*path, "fallbacks", index), fallback


def used_agents(spec: WorkflowSpec, agents: Mapping[str, Agent]) -> tuple[UsedAgent, ...]:
    """Return the agents of the steps, as far as they are known."""
    used = []
    for index, step in enumerate(spec.steps):
        place: FieldPath = ("spec", "steps", index)
        if step.agent is not None:
            used.append(UsedAgent(index, step, step.agent, (*place, "agent"), step.id))
        elif step.agent_ref is not None and step.agent_ref.name in agents:
            name = step.agent_ref.name
            used.append(UsedAgent(index, step, agents[name].spec, (*place, "agentRef"), name))
    return tuple(used)
