"""Runs of the engine in memory: a plan from a few words, a model that plays a list, and time that a test moves."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from pilothouse_api import plan as models
from pilothouse_api.structs import ModelEndpoint, Plan, PlannedText, Snapshot
from pilothouse_api.v1alpha1.workflow import WorkflowSpec
from pilothouse_engine.facts import Fact, decode_all
from pilothouse_engine.frames import fold
from pilothouse_engine.observers import Observer
from pilothouse_engine.ports import (
    Mcp,
    Model,
    ModelFailure,
    ModelReply,
    ModelRequest,
    Ports,
    RawEntry,
    RequestedCall,
    Usage,
)
from pilothouse_engine.run import Attempt, AttemptEnd, Finished, Lost, Released, Stop, run_attempt
from pilothouse_engine.settings import Settings
from pilothouse_engine.state import RunState
from pilothouse_engine.testing.clock import ManualClock
from pilothouse_engine.testing.frames import ListFrameSink
from pilothouse_engine.testing.functions import Function, InProcessFunctions
from pilothouse_engine.testing.http import ScriptedHttp
from pilothouse_engine.testing.journal import MemoryJournal
from pilothouse_engine.testing.mcp import InProcessMcp
from pilothouse_engine.testing.resources import MemoryResources
from pilothouse_engine.testing.secrets import DictSecrets
from pilothouse_engine.testing.sessions import MemorySessions
from pilothouse_engine.testing.store import MemoryRunStore

USAGE = Usage(input=50, output=10)
Outcome = ModelReply | ModelFailure
Turn = Outcome | Callable[[ModelRequest], Outcome | Awaitable[Outcome]]


def text(value: str, *, finish: Any = "Stop", usage: Usage = USAGE) -> ModelReply:
    return ModelReply(text=value, finish=finish, usage=usage)


def answer(outcome: str, result: Any = "done", **fields: Any) -> ModelReply:
    return text(json.dumps({"outcome": outcome, "result": result}), **fields)


def call(name: str, arguments: dict[str, Any] | str | None = None, provider_id: str = "") -> RequestedCall:
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return RequestedCall(provider_id or f"p-{name}", name, raw)


def calls(*asked: RequestedCall, text: str = "", finish: Any = "Stop", usage: Usage = USAGE) -> ModelReply:
    unique = tuple(replace(one, provider_id=f"{one.provider_id}-{index}") for index, one in enumerate(asked))
    return ModelReply(text=text, calls=unique, finish=finish, usage=usage)


def failure(kind: Any, **fields: Any) -> ModelFailure:
    return ModelFailure(kind, f"the provider said {kind}", **fields)


class ListModel:
    """Plays a list; keeps the requests. `prices` and `windows` by the name of the endpoint."""

    def __init__(self, turns: Sequence[Turn], prices: dict[str, tuple[float, float]] | None = None) -> None:
        self.turns = list(turns)
        self.requests: list[ModelRequest] = []
        self.prices = prices or {}

    async def call(self, request: ModelRequest) -> Outcome:
        self.requests.append(request)
        if not self.turns:
            raise AssertionError(f"the model is asked once more than the test expects, at turn {request.turn}")
        turn = self.turns.pop(0)
        if isinstance(turn, ModelReply | ModelFailure):
            return turn
        given = turn(request)
        return given if isinstance(given, ModelReply | ModelFailure) else await given

    def price(self, endpoint: ModelEndpoint) -> tuple[float, float] | None:
        return self.prices.get(endpoint.name)

    def context_window(self, endpoint: ModelEndpoint) -> int | None:
        return None


def function_tool(name: str, **fields: Any) -> dict[str, Any]:
    """A tool whose work is the registered function `tools:<name>`; its result stands under `<name>`."""
    step = {"kind": "Function", "function": {"callable": f"tools:{name}", "output": name}}
    return {"name": name, "description": f"Does {name}.", "effect": "ReadOnly", "inlineStep": step} | fields


def agent(tools: Sequence[dict[str, Any]] = (), **fields: Any) -> dict[str, Any]:
    model = {"name": "test-model", "maxOutputTokens": 100}
    return {
        "mode": "Autonomous",
        "model": model,
        "tools": list(tools) or [function_tool("lookup")],
        "outcome": {"enum": ["resolved", "needs_human"]},
    } | fields


def agent_step(id: str = "work", routes: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": id, "kind": "Agent", "agent": agent(**fields), "routes": routes or {"resolved": "end"}}


def response_step(id: str, routes: dict[str, str] | None = None, **mapping: str) -> dict[str, Any]:
    step: dict[str, Any] = {"id": id, "kind": "Response", "response": {"mapping": mapping}}
    return step | ({"routes": routes} if routes else {})


def function_step(id: str, routes: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    step: dict[str, Any] = {
        "id": id,
        "kind": "Function",
        "function": {"callable": f"steps:{id.replace('-', '_')}"},
    } | fields
    return step | ({"routes": routes} if routes else {})


def build_plan(*steps: dict[str, Any], texts: dict[str, PlannedText] | None = None, **more: Any) -> Plan:
    return replace(Plan.read(written_plan(*steps, **more).to_raw()), texts=texts or {})


def written_plan(
    *steps: dict[str, Any],
    input: dict[str, Any] | None = None,
    active_deadline_seconds: int = 3600,
    session: str | None = None,
    uid: str = "uid-1",
    **spec: Any,
) -> models.Plan:
    return models.Plan(
        run=models.RunIdentity(namespace="ns", name="run-1", uid=uid),
        session=session,
        workflow=models.Origin(name="flow", digest="d"),
        spec=WorkflowSpec.model_validate({"steps": list(steps), **spec}),
        input={"ticket": "I was charged twice"} if input is None else input,
        active_deadline_seconds=active_deadline_seconds,
    )


@dataclass
class Scenario:
    """One run, however many attempts it takes."""

    plan: Plan
    model: Model
    functions: dict[str, Function] = field(default_factory=dict)
    http: ScriptedHttp = field(default_factory=ScriptedHttp)
    mcp: Mcp = field(default_factory=InProcessMcp)
    resources: MemoryResources = field(default_factory=MemoryResources)
    sessions: MemorySessions | None = None
    is_durable: bool = True
    settings: Settings = field(default_factory=Settings)
    observers: Sequence[Observer] = ()

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryRunStore(self.clock, self.plan.run.uid)
        self.sink = ListFrameSink()
        self.journal = MemoryJournal(durable=self.is_durable)
        self.stop = Stop()
        self.attempts = 0
        functions = {"tools:lookup": lambda arguments: {"found": True}, **self.functions}
        self.ran = InProcessFunctions(functions)

    def ports(self) -> Ports:
        return Ports(
            model=self.model,
            http=self.http,
            functions=self.ran,
            resources=self.resources,
            mcp=self.mcp,
            secrets=DictSecrets(),
            journal=self.journal,
            store=self.store,
            frames=self.sink,
            clock=self.clock,
            sessions=self.sessions,
        )

    async def attempt(self, *, settle: str | None = None, number: int | None = None) -> AttemptEnd:
        """Run the next attempt; time moves on whenever everything waits for it."""
        self.attempts = number or self.attempts + 1
        self.stop = Stop()
        attempt = Attempt(self.attempts, settle, self.settings)
        return await self.clock.run(run_attempt(self.plan, self.ports(), attempt, self.stop, self.observers))

    async def finish(self, **kwargs: Any) -> Finished:
        """Run an attempt that must end the run."""
        end = await self.attempt(**kwargs)
        assert isinstance(end, Finished), end
        return end

    async def release(self) -> Released:
        end = await self.attempt()
        assert isinstance(end, Released), end
        return end

    async def lose(self) -> Lost:
        end = await self.attempt()
        assert isinstance(end, Lost), end
        return end

    async def entries(self) -> Sequence[RawEntry]:
        return await self.journal.read()

    async def facts(self) -> list[Fact]:
        return list(decode_all(await self.entries()))

    async def facts_of(self, kind: type[Any]) -> list[Any]:
        return [fact for fact in await self.facts() if isinstance(fact, kind)]

    async def state(self) -> RunState:
        return fold(await self.entries(), self.plan.input)

    @property
    def snapshot(self) -> Snapshot:
        return self.store.snapshot

    def functions_run(self) -> list[str]:
        return [request.callable.split(":")[1] for request in self.ran.requests]


def scenario(
    turns: Sequence[Turn], *steps: dict[str, Any], plan: dict[str, Any] | None = None, **fields: Any
) -> Scenario:
    """A run of these steps (one agent with a `lookup` tool where there are none) with this list of replies."""
    prices = fields.pop("prices", None)
    return Scenario(build_plan(*(steps or (agent_step(),)), **(plan or {})), ListModel(turns, prices), **fields)


def tool_texts(request: ModelRequest) -> list[str]:
    """The tool results that a prompt shows."""
    return [message.text for message in request.messages if message.role == "tool"]


def codes(request: ModelRequest) -> list[str | None]:
    """The error codes of the tool results that a prompt shows; None for a result that is no error."""
    return [json.loads(shown).get("error", {}).get("code") for shown in tool_texts(request)]


def system_text(request: ModelRequest) -> str:
    return request.messages[0].text
