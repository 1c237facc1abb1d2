"""What follows from the plan alone: steps by id, tools by name, effects, prices. Looked up often, worked out once."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pilothouse_api.crossing import Written
from pilothouse_api.digests import canonical_json, digest, text_digest
from pilothouse_api.effects import Effect
from pilothouse_api.stored_plan import text_key
from pilothouse_api.structs import AgentSpec, InlineStep, ModelEndpoint, Plan, RunLimits, Step, TextSource, Tool
from pilothouse_engine.account import Price, price_of
from pilothouse_engine.facts import ToolSurface
from pilothouse_engine.limits import Limits, effective_limits
from pilothouse_engine.ports import Ports, ToolSpec
from pilothouse_engine.results import READ_TOOL_RESULT, compact
from pilothouse_engine.state import MESSAGE_OVERHEAD, Visit, text_bytes
from pilothouse_engine.steps.registry import EXECUTORS
from pilothouse_engine.tool_schemas import build_tool_specs, task_name
from pilothouse_engine.values import Value

if TYPE_CHECKING:
    from pilothouse_engine.guardrails.gates import Gate
    from pilothouse_engine.policies.evaluation import PlannedPolicy

_READ_SPEC = ToolSpec(
    name=READ_TOOL_RESULT,
    description="Returns a part of the result of an earlier tool call that was cut, by the id that stands at its end.",
    parameters={
        "type": "object",
        "properties": {
            "call_id": {"type": "string"},
            "offset": {"type": "integer", "minimum": 0, "description": "First character."},
            "limit": {"type": "integer", "minimum": 1, "description": "Most characters."},
        },
        "required": ["call_id"],
        "additionalProperties": False,
    },
)
READ_TOOL = Tool(name=READ_TOOL_RESULT, parameters=dict(_READ_SPEC.parameters))
"""The engine's own tool in the form of a declared one, so that its arguments are checked like theirs."""


class Work(Value):
    """What a step of the graph or a tool executes; `source` is a text of the plan that its executor needs."""

    step_id: str
    kind: str
    params: Written
    effect: Effect
    source: TextSource | None = None


class PlannedTool(Value):
    """A tool of an agent; `work` is None for the engine's own."""

    tool: Tool
    work: Work | None
    effect: Effect
    entry: str | None = None
    """The tool entry of the agent, where this is one of the tools of an MCP server that it allows."""
    agent_ref: str | None = None
    """The Agent that does the work as a child, where this is a delegate."""
    is_task: bool = False
    """Whether a call only starts the child, in the background."""

    @property
    def may_run_beside(self) -> bool:
        """Whether calls of it may share a moment with others that change nothing: the run parks for a child."""
        return self.effect == "ReadOnly" and self.agent_ref is None


class PlannedStep(Value):
    """An Agent step: its agent, its endpoints in the order in which they are tried, its tools, its policy lists."""

    step: Step
    agent: AgentSpec
    endpoints: tuple[ModelEndpoint, ...]
    tools: Mapping[str, PlannedTool]
    specs: tuple[ToolSpec, ...]
    specs_bytes: int
    model_policies: "tuple[PlannedPolicy, ...]" = ()
    tool_policies: "tuple[PlannedPolicy, ...]" = ()
    policed_tools: frozenset[str] | None = None
    """Tools that a policy can say anything of, None where that may be any."""
    asks_servers: bool = False
    """Whether a tool is of an MCP server, so that the servers are asked before the first model call of a visit."""

    def names_beside(self, tool: PlannedTool) -> Collection[str]:
        """Return the names of the tools that share this one's entry, and so its maxCalls."""
        if tool.entry is None:
            return (tool.tool.name,)
        return [name for name, other in self.tools.items() if other.entry == tool.entry]


class StepGates(Value):
    """The guardrails of an Agent step; `problem` says why they cannot be made (exit `error`, GuardrailUnresolvable)."""

    input: "Gate | None" = None
    tools: "Gate | None" = None
    output: "Gate | None" = None
    problem: str = ""


_NO_GATES = StepGates()


class NotSupported(Exception):
    """The plan asks for something that is not built yet; validation refuses it before, and nothing is ever ignored."""


class Catalog:
    """The plan, indexed: what follows from it alone, for any number of attempts.

    `known_price` and `known_window` are asked once for each endpoint. `digest` is the plan's where it is known, else it
    is made when it is asked for.
    """

    def __init__(
        self,
        plan: Plan,
        known_price: Callable[[ModelEndpoint], tuple[float, float] | None],
        known_window: Callable[[ModelEndpoint], int | None],
        *,
        is_durable: bool,
        digest: str | None = None,
    ) -> None:
        self.plan = plan
        self._digest = digest
        self.is_durable = is_durable
        self.active_deadline = plan.active_deadline_seconds
        self.steps: dict[str, Step] = {step.id: step for step in plan.spec.steps}
        self._known_price = known_price
        self._known_window = known_window
        self._agents: dict[str, PlannedStep] = {}
        self._offered: tuple[ToolSurface, PlannedStep] | None = None
        self._gates: dict[str, StepGates] = {}
        self._work: dict[str, Work] = {}
        self._digests: dict[str, str] = {}
        self._prices: dict[tuple[str, int], Price | None] = {}
        self._windows: dict[tuple[str, int], int | None] = {}
        self._limits: dict[str | None, tuple[RunLimits | None, Limits]] = {}
        self._texts: dict[str, str] = {}
        self._policies: dict[str, tuple[PlannedPolicy, ...]] = {}

    @cached_property
    def digest(self) -> str:
        """The plan's digest, which the journal names."""
        return self._digest or text_digest(canonical_json(self.plan.to_raw()))

    @cached_property
    def has_hooks(self) -> bool:
        """Whether anything of the plan has hooks."""
        spec = self.plan.spec
        agents = (step.agent.hooks for step in spec.steps if step.agent is not None)
        planned = (agent.spec.hooks for agent in self.plan.agents.values())
        return any((spec.hooks, *(step.hooks for step in spec.steps), *agents, *planned))

    def first_step(self) -> str:
        """Return the step that begins the run."""
        return next(step.id for step in self.plan.spec.steps if not step.tool_only)

    def step_after(self, step_id: str) -> str | None:
        """Return the next step in list order that is not toolOnly, or None past the last one."""
        return self._following[step_id]

    @cached_property
    def _following(self) -> dict[str, str | None]:
        following: dict[str, str | None] = {}
        after = None
        for step in reversed(self.plan.spec.steps):
            following[step.id] = after
            after = after if step.tool_only else step.id
        return following

    def agent(self, step_id: str) -> PlannedStep:
        """Return an Agent step with its tools; raises NotSupported."""
        planned = self._agents.get(step_id)
        if planned is None:
            planned = self._agents[step_id] = self._plan_agent(self.steps[step_id])
        return planned

    def offer(self, visit: Visit) -> PlannedStep:
        """Return the Agent step with all that a visit of it offers, tools of MCP servers too; raises NotSupported."""
        planned = self._agents.get(visit.step) or self.agent(visit.step)
        surface = visit.surface
        if surface is None:
            return planned
        if self._offered is None or self._offered[0] is not surface:
            self._offered = surface, _add_surface(planned, surface)
        return self._offered[1]

    def gates(self, step_id: str) -> StepGates:
        """Return the guardrails of an Agent step."""
        gates = self._gates.get(step_id)
        if gates is None:
            gates = self._gates[step_id] = self._plan_gates(self.steps[step_id])
        return gates

    def work(self, step_id: str) -> Work:
        """Return what a step of the graph executes."""
        work = self._work.get(step_id)
        if work is None:
            work = self._work[step_id] = _work_of(self.steps[step_id])
        return work

    def params_digest(self, step_id: str) -> str:
        """Return the digest of the parameters of a step of the graph."""
        known = self._digests.get(step_id)
        if known is None:
            known = self._digests[step_id] = digest(self.work(step_id).params.to_raw())
        return known

    def policies(self, step_id: str) -> "tuple[PlannedPolicy, ...]":
        """Return the policy lists that judge a step; where there are none, nothing of policy is loaded."""
        known = self._policies.get(step_id)
        if known is None:
            plan, step = self.plan, self.steps[step_id]
            own = plan.agent_of(step).policy if step.kind == "Agent" else []
            known = ()
            if own or plan.spec.policy or plan.ancestor_policies:
                from pilothouse_engine.policies.evaluation import plan_policies

                known = plan_policies(plan, step)
            self._policies[step_id] = known
        return known

    def price(self, step_id: str, endpoint: int) -> Price | None:
        """Return the price of an endpoint of an Agent step, None where it is not known."""
        key = (step_id, endpoint)
        if key not in self._prices:
            model = self.agent(step_id).endpoints[endpoint]
            self._prices[key] = price_of(model, None if model.price else self._known_price(model))
        return self._prices[key]

    def context_window(self, step_id: str, endpoint: int) -> int | None:
        """Return the context window of an endpoint of an Agent step in tokens, None where it is not known."""
        key = (step_id, endpoint)
        if key not in self._windows:
            model = self.agent(step_id).endpoints[endpoint]
            self._windows[key] = model.context_window or self._known_window(model)
        return self._windows[key]

    def limits(self, step_id: str | None, changed: RunLimits | None) -> Limits:
        """Return the limits in force for a visit of a step."""
        known = self._limits.get(step_id)
        if known is not None and known[0] is changed:
            return known[1]
        step = self.steps.get(step_id) if step_id else None
        own = self.plan.agent_of(step).limits if step is not None and step.kind == "Agent" else None
        limits = effective_limits(own, self.plan.spec.limits, changed, self.plan.ceilings, is_durable=self.is_durable)
        self._limits[step_id] = (changed, limits)
        return limits

    def text(self, source: TextSource) -> str:
        """Return a text of the plan, its digest verified once; raises IntegrityError."""
        if source.inline is not None:
            return source.inline
        key = text_key(source)
        if key not in self._texts:
            self._texts[key] = self.plan.text(source)
        return self._texts[key]

    def script_key(self, endpoint: ModelEndpoint) -> str | None:
        """Return what names the script of a scripted endpoint in the journal."""
        if endpoint.script is None:
            return None
        inline = endpoint.script.inline
        return text_key(endpoint.script) if inline is None else f"inline:{text_digest(inline)[:16]}"

    def texts_of(self, work: Work) -> dict[str, str]:
        """Return the texts that an executor needs, by `text_key`; raises IntegrityError."""
        return {} if work.source is None else {text_key(work.source): self.text(work.source)}

    def _plan_agent(self, step: Step) -> PlannedStep:
        agent = self.plan.agent_of(step)
        tools = {tool.name: self._plan_tool(tool) for tool in agent.tools if tool.mcp is None}
        tools |= {name: task for planned in list(tools.values()) for name, task in _tasks_of(planned)}
        specs: tuple[ToolSpec, ...] = ()
        if tools:
            tools[READ_TOOL_RESULT] = PlannedTool(READ_TOOL, None, "ReadOnly")
            specs = (*build_tool_specs(self.plan, agent), _READ_SPEC)
        asks = any(tool.mcp is not None for tool in agent.tools)
        endpoints = (agent.model, *agent.model.fallbacks)
        policies = self.policies(step.id)
        tool_policies = tuple(policy for policy in policies if policy.applies("ToolCall"))
        return PlannedStep(
            step,
            agent,
            endpoints,
            tools,
            specs,
            _bytes_of(specs),
            asks_servers=asks,
            model_policies=tuple(policy for policy in policies if policy.applies("ModelCall")),
            tool_policies=tool_policies,
            policed_tools=_policed_tools(tool_policies),
        )

    def _plan_gates(self, step: Step) -> StepGates:
        planned = self.plan.agent_of(step).guardrails if step.kind == "Agent" else None
        if planned is None or not (planned.input or planned.tools or planned.output):
            return _NO_GATES
        from pilothouse_engine.guardrails.gates import Unresolvable, build_gate, plan_gate  # its libraries are heavy

        gates: dict[str, Gate | None] = {}
        for name, checks in (("input", planned.input), ("tools", planned.tools), ("output", planned.output)):
            gate = plan_gate(checks, self.text)
            if isinstance(gate, Unresolvable):
                return StepGates(problem=f"guardrails.{name}: {gate.message}")
            gates[name] = build_gate(gate) if gate else None
        return StepGates(gates["input"], gates["tools"], gates["output"])

    def _plan_tool(self, tool: Tool) -> PlannedTool:
        if tool.agent_ref is not None:
            return PlannedTool(tool, None, tool.effect or "Once", agent_ref=tool.agent_ref.name)
        assert tool.inline_step is not None or tool.step is not None, "validation sees to it"
        work = _work_of(tool.inline_step, tool.name) if tool.inline_step is not None else self.work(str(tool.step))
        if tool.background:
            raise NotSupported(f"tool {tool.name}: background is for tools that are delegates (agentRef)")
        if work.kind not in EXECUTORS:
            raise NotSupported(f"tool {tool.name}: a step of kind {work.kind} cannot be a tool")
        return PlannedTool(tool, work, tool.effect or work.effect)


def catalog_of(plan: Plan | Catalog, ports: Ports, digest: str | None = None) -> Catalog:
    """Return the catalog of a plan, where it is not one already, for the models and the journal of these ports."""
    if isinstance(plan, Catalog):
        return plan
    model, is_durable = ports.model, ports.journal.durable
    return Catalog(plan, model.price, model.context_window, is_durable=is_durable, digest=digest)


def _tasks_of(planned: PlannedTool) -> Iterator[tuple[str, PlannedTool]]:
    """Yield the engine's tool that starts a delegate in the background, where its entry offers that."""
    if planned.tool.background and planned.agent_ref is not None:
        name = task_name(planned.tool.name)
        yield name, replace(planned, tool=replace(planned.tool, name=name), is_task=True)


def _policed_tools(policies: "Iterable[PlannedPolicy]") -> frozenset[str] | None:
    tools = {rule.tool for policy in policies for rule in policy.rules if rule.at == "ToolCall"}
    return None if None in tools else frozenset(tool for tool in tools if tool is not None)


def _bytes_of(specs: Iterable[ToolSpec]) -> int:
    return sum(
        text_bytes(spec.name) + text_bytes(spec.description) + text_bytes(compact(spec.parameters)) + MESSAGE_OVERHEAD
        for spec in specs
    )


def _add_surface(planned: PlannedStep, surface: ToolSurface) -> PlannedStep:
    """Return a step with the tools that its servers listed, after its own."""
    from pilothouse_engine.mcp.tools import declared_form
    from pilothouse_engine.steps.mcp import ListedCall

    servers = {server.name: server for server in planned.agent.mcp_servers}
    entries = {tool.name: tool for tool in planned.agent.tools}
    tools = {name: tool for name, tool in planned.tools.items() if name != READ_TOOL_RESULT}
    for offered in surface.tools:
        entry = entries[offered.entry]
        effect = entry.effect or "Once"
        params = ListedCall(server=servers[offered.server], tool=offered.tool)
        work = Work(offered.name, "MCP", params, effect)
        tools[offered.name] = PlannedTool(declared_form(entry, offered), work, effect, entry.name)
    if not tools:
        return planned
    tools[READ_TOOL_RESULT] = PlannedTool(READ_TOOL, None, "ReadOnly")
    own = (spec for spec in planned.specs if spec is not _READ_SPEC)
    specs = (*own, *(offered.spec() for offered in surface.tools), _READ_SPEC)
    return replace(planned, tools=tools, specs=specs, specs_bytes=_bytes_of(specs))


_BRANCHES = ("api_call", "mcp", "resource", "router", "function", "response", "approval", "delegate")


def _work_of(step: Step | InlineStep, name: str = "") -> Work:
    params = next(branch for field in _BRANCHES if (branch := getattr(step, field, None)) is not None)
    declared = step.effect if isinstance(step, Step) else None
    source = step.function.source if step.function is not None else None
    return Work(
        step_id=step.id if isinstance(step, Step) else name,
        kind=step.kind,
        params=params,
        effect=declared or default_effect(step),
        source=source if source is not None and source.inline is None else None,
    )


def default_effect(step: Step | InlineStep) -> Effect:
    """Return the effect of a step that declares none: only what cannot change anything outside is ReadOnly."""
    if step.kind in ("Router", "Response"):
        return "ReadOnly"
    if step.api_call is not None and step.api_call.method in ("GET", "HEAD"):
        return "ReadOnly"
    if step.resource is not None and step.resource.operation in ("Get", "List"):
        return "ReadOnly"
    return "Once"
